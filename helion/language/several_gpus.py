"""Functions for kernels over several GPUs. None is implemented; a call in a kernel raises an error."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from .. import exc
from ._registry import declare, reference


@declare("device")
def make_async_remote_copy(
    src: torch.Tensor, src_index: Any, device_id: Any, dst: torch.Tensor | None = None, dst_index: Any = None
) -> Any:
    """Start a copy of a part of a tensor to another GPU. Not implemented.

    Args:
        src: a host tensor.
        src_index: the part of it.
        device_id: the rank of the other GPU.
        dst: the tensor there.
        dst_index: the part of it.

    Raises:
        exc.SeveralGpusUnsupported: always.
    """


@declare("device")
def remote_barrier(ids: Any) -> None:
    """Wait for other GPUs. Not implemented.

    Args:
        ids: their ranks.

    Raises:
        exc.SeveralGpusUnsupported: always.
    """


def refusing(name: str) -> Any:
    """Return a function that accepts any arguments and refuses the function of this name."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise exc.SeveralGpusUnsupported(name=name)

    return refuse


reference(make_async_remote_copy, "raw")(refusing("hl.make_async_remote_copy"))
reference(remote_barrier, "raw")(refusing("hl.remote_barrier"))
