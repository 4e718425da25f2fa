"""Registration of operators in torch's namespace ``helion_ops``, and the checks of their arguments.

An operator has a schema, a function that launches kernels, a fake function that only makes results, and possibly a
backward. ``torch.compile``, export, CUDA graphs and autograd see one node per call. Calls that nothing observes pass by
torch's dispatcher, which takes longer than the kernel's launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import Kernel, exc

NAMESPACE = "helion_ops"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

#: Dtypes of activations and weights. Kernels compute in fp32, so fp64 is refused.
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
INDICES = (torch.int32, torch.int64)
#: Classes of tensors without a behaviour of their own.
_TENSORS = (torch.Tensor, torch.nn.Parameter)


class Operator:
    """One operator of the library, called with the arguments of its schema.

    Args:
        schema: name, arguments and results in torch's notation; ``Tensor(a!)`` marks an argument that is written.
        kernels: the kernels that it launches.
        fake: makes empty tensors like the results, from fake tensors.
        run: computes the results from real tensors; None if the first kernel does.
    """

    def __init__(
        self,
        schema: str,
        *kernels: Kernel,
        fake: Callable[..., Any],
        run: Callable[..., Any] | None = None,
    ) -> None:
        self.name = schema[: schema.index("(")]
        self.kernels = kernels
        for kernel in kernels:
            kernel.default_printed = True  # a library does not print its configs
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(self.name, run or kernels[0], "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{self.name}", fake, lib=_LIBRARY)
        overload: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), self.name).default
        self.overload = overload
        #: Called without torch's dispatcher, which would only count the writes of what has other effects.
        self.direct = (run or kernels[0]) if "!" not in schema else None
        #: The same for calls that autograd records.
        self.recorded: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"<operator {NAMESPACE}::{self.name}>"

    def __call__(self, *arguments: Any) -> Any:
        if self.direct is not None and not is_observed():
            records = is_recorded(arguments)
            if records is False:
                return self.direct(*arguments)
            if records and self.recorded is not None:
                return self.recorded(*arguments)
        return self.overload(*arguments)

    def differentiate(self, save: Callable[..., None], backward: Callable[..., Any]) -> None:
        """Register a backward.

        Args:
            save: called as ``save(ctx, inputs, output)`` after the forward pass.
            backward: called as ``backward(ctx, *gradients)``; returns one gradient, or None, per argument.
        """
        name = f"{NAMESPACE}::{self.name}"
        backward = _laid_out(backward)
        torch.library.register_autograd(name, backward, setup_context=save, lib=_LIBRARY)
        if self.direct is not None:
            self.recorded = _recorded(self.name, self.direct, save, backward)

    def differentiate_once(self) -> None:
        """Register a backward that refuses: this operator computes gradients, which have none of their own."""

        def refuse(ctx: Any, *gradients: torch.Tensor | None) -> Any:
            raise exc.AutodiffNotSupported(
                what=f"the gradients that {NAMESPACE}::{self.name} computes", remedy="an op can be differentiated once"
            )

        self.differentiate(lambda ctx, inputs, output: None, refuse)

    def refuse_gradients(self) -> None:
        """Register a backward that refuses: without one, gradients would miss what goes through this operator."""

        def refuse(ctx: Any, *gradients: torch.Tensor | None) -> Any:
            raise exc.AutodiffNotSupported(
                what=f"{NAMESPACE}::{self.name}",
                remedy="it is for inference: detach its arguments, or call it under torch.no_grad()",
            )

        self.differentiate(lambda ctx, inputs, output: None, refuse)


def _laid_out(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a backward that takes fp32 gradients in the layout in which torch.compile gives them: contiguous.

    The layout of an operand decides the backend of a matmul, and backends round fp32 to TF32 in different directions
    (measurement ``tf32_rounding``). Eager and compiled gradients would differ by the rounding.
    """

    def run(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        given = (g.contiguous() if g is not None and g.dtype == torch.float32 and g.dim() > 1 else g for g in gradients)
        return backward(ctx, *given)

    return run


def _recorded(
    name: str, run: Callable[..., Any], save: Callable[..., None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that runs an operator without torch's dispatcher, and records it for autograd."""

    def forward(ctx: Any, *arguments: Any) -> Any:
        output = run(*arguments)
        save(ctx, arguments, output)
        return output

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(f"{NAMESPACE}_{name}", (torch.autograd.Function,), members)
    apply: Callable[..., Any] = function.apply
    return apply


def is_observed() -> bool:
    """Return whether torch traces, transforms or profiles what is called now."""
    if torch.compiler.is_compiling():
        return True
    c: Any = torch._C
    return bool(
        c._len_torch_dispatch_stack()
        or c._len_torch_function_stack()
        or c._functorch.peek_interpreter_stack() is not None
        or torch.autograd._profiler_enabled()
        or c._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def is_recorded(arguments: Sequence[Any]) -> bool | None:
    """Return whether autograd records a call; None for tensors with a behaviour of their own."""
    enabled, found = torch.is_grad_enabled(), False
    for each in arguments:
        if isinstance(each, torch.Tensor):
            if type(each) not in _TENSORS or each.is_meta:
                return None
            found = found or (enabled and each.requires_grad)
    return found


# --- arguments -----------------------------------------------------------------------------------------------------------


def check(op: str, argument: str, holds: bool, expected: str, got: Any) -> None:
    """Raise ``exc.WrongOpArgument`` unless ``holds``."""
    if not holds:
        raise exc.WrongOpArgument(op=op, argument=argument, expected=expected, got=got)


def check_tensor(
    op: str,
    argument: str,
    tensor: Any,
    *,
    dtypes: Sequence[torch.dtype] = FLOATS,
    shape: Sequence[int] | None = None,
    dims: int | None = None,
    least_dims: int = 0,
    like: torch.Tensor | None = None,
) -> None:
    """Check an argument that must be a tensor.

    Args:
        op: name of the op.
        argument: name of the argument.
        tensor: its value.
        dtypes: the dtypes that it may have.
        shape: the shape that it must have; None allows any.
        dims: the number of dimensions that it must have; None allows any.
        least_dims: the least number of dimensions; if it is not 0, the last dimension must not be empty.
        like: a tensor whose device it must share.

    Raises:
        exc.WrongOpArgument: it is anything else.
    """
    if not isinstance(tensor, torch.Tensor):
        raise exc.WrongOpArgument(op=op, argument=argument, expected="a tensor", got=type(tensor).__name__)
    if tensor.dtype not in dtypes:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise exc.WrongOpArgument(
            op=op, argument=argument, expected=f"of dtype {names}", got=str(tensor.dtype).removeprefix("torch.")
        )
    if shape is not None and tuple(tensor.shape) != tuple(shape):
        raise exc.WrongOpArgument(
            op=op, argument=argument, expected=f"of shape {list(shape)}", got=f"shape {list(tensor.shape)}"
        )
    if dims is not None and tensor.dim() != dims:
        raise exc.WrongOpArgument(
            op=op, argument=argument, expected=f"of {dims} dimensions", got=f"shape {list(tensor.shape)}"
        )
    if tensor.dim() < least_dims:
        plural = "s" if least_dims > 1 else ""
        raise exc.WrongOpArgument(
            op=op,
            argument=argument,
            expected=f"of at least {least_dims} dimension{plural}",
            got=f"shape {list(tensor.shape)}",
        )
    if least_dims and tensor.size(-1) == 0:
        raise exc.WrongOpArgument(
            op=op, argument=argument, expected="of at least one column", got=f"shape {list(tensor.shape)}"
        )
    if like is not None and tensor.device != like.device:
        raise exc.WrongOpArgument(
            op=op, argument=argument, expected=f"on {like.device}", got=f"a tensor on {tensor.device}"
        )


def rows(tensor: torch.Tensor, *, kept: int = 1) -> torch.Tensor:
    """Return a tensor with all dimensions before the last ``kept`` as one; a view where the strides allow it."""
    first = tensor.dim() - kept
    if first == 1:
        return tensor
    return tensor.reshape(math.prod(tensor.shape[:first]), *tensor.shape[first:])


def split(tensor: torch.Tensor, at: int, *sizes: int) -> torch.Tensor:
    """Return a view with dimension ``at`` as several of the given sizes: `unflatten` takes three times as long."""
    return tensor.view(*tensor.shape[:at], *sizes, *tensor.shape[at + 1 :])


def shaped(result: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a result of ``rows`` in the shape of the argument; a view takes as long as half of a launch."""
    return result if result.dim() == len(shape) else result.view(shape)
