"""Functions that may still change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .._support.lazy import lazy
from .._support.tracebacks import short_errors
from ..runtime.kernel import aot_kernel

if TYPE_CHECKING:
    from ..runtime.kernel import Kernel
    from ..runtime.torch_interop import gradients
else:
    gradients = lazy("helion.runtime.torch_interop.gradients")


@short_errors
def backward(
    kernel: Kernel,
    grad_out: torch.Tensor | Sequence[torch.Tensor | None],
    *inputs: Any,
    return_code: bool = False,
    autotune: bool = False,
    autotune_effort: str | None = None,
) -> Any:
    """Compute gradients of a kernel with respect to its tensors, by a kernel that is derived from it.

    The device loops are differentiated op by op: pointwise functions, reductions, matmuls, views, gathers, scans,
    branches, and loops that accumulate. Values of the forward are recomputed from its inputs. Each element of a
    gradient is stored by one program if the loops allow it. Contributions of several programs are stored as partial
    sums and added in a separate loop. For gathers they are added by atomics in fp32, whose order is not fixed.
    Gradients are computed in fp32, or in fp64 for fp64 inputs. At kinks, ties and poles the gradient is torch's. Host
    code around the loops is differentiated by torch.

    Args:
        kernel: the forward.
        grad_out: the gradient of the kernel's result, of its shape; a tuple of one for each tensor if it returns
            several, None for zero.
        inputs: the arguments of the forward call, numbers included.
        return_code: also return source: of the backward as a kernel called ``backward_kernel``, which can be saved and run,
            and of what its backend made of it.
        autotune: pick the fastest config of the backward for these arguments.
        autotune_effort: the setting of that name for it; None leaves it as it is.

    Returns:
        One gradient per tensor among the inputs, of its shape and dtype, None for integers and booleans; the gradient
        itself for one tensor. With ``return_code`` a tuple ``(gradients, source, backend_code)``.

    Raises:
        exc.AutodiffNotSupported: something has no derivative, or none that is implemented; with the line and what to do.
        exc.InvalidAPIUsage: ``grad_out`` does not fit the results.
    """
    return gradients.backward(
        kernel, grad_out, *inputs, return_code=return_code, autotune=autotune, autotune_effort=autotune_effort
    )


__all__ = ["aot_kernel", "backward"]
