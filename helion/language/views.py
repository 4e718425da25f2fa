"""Joining and splitting the last dimension of device values."""

from __future__ import annotations

from typing import Any

import torch

from .. import exc
from ._registry import declare, reference


@declare("device")
def split(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split a device value of shape ``[..., 2]`` into ``tensor[..., 0]`` and ``tensor[..., 1]``.

    Raises:
        exc.ShapeMismatch: the last dimension is not 2.

    Example::

        @helion.kernel
        def absolute(z: torch.Tensor) -> torch.Tensor:
            out = torch.empty([z.size(0)], device=z.device)
            for tile in hl.tile(z.size(0)):
                real, imaginary = hl.split(z[tile, :])
                out[tile] = torch.sqrt(real * real + imaginary * imaginary)
            return out

        absolute(torch.randn(10, 2))
    """


@declare("device")
def join(tensor0: torch.Tensor | float, tensor1: torch.Tensor | float) -> torch.Tensor:
    """Join two device values, broadcast together, along a new last dimension of 2; dtypes are promoted.

    Raises:
        exc.ShapeMismatch: the shapes do not broadcast.

    Example::

        @helion.kernel
        def interleave(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out = torch.empty([x.size(0), 2], dtype=x.dtype, device=x.device)
            for tile in hl.tile(x.size(0)):
                out[tile, :] = hl.join(x[tile], y[tile])
            return out

        interleave(torch.zeros(10), torch.ones(10))
    """


# --- eager references ---------------------------------------------------------------------------------------------------


@reference(split)
def _split(tensor: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if not tensor.ndim or tensor.shape[-1] != 2:
        raise exc.ShapeMismatch(lhs=list(tensor.shape), rhs="[..., 2]", detail=": hl.split needs a last dimension of 2")
    return tensor[..., 0], tensor[..., 1]


@reference(join)
def _join(tensor0: Any, tensor1: Any) -> torch.Tensor:
    model = tensor0 if isinstance(tensor0, torch.Tensor) else tensor1
    first, second = (torch.as_tensor(t, device=model.device) for t in (tensor0, tensor1))
    dtype = torch.promote_types(first.dtype, second.dtype)
    return torch.stack(torch.broadcast_tensors(first.to(dtype), second.to(dtype)), -1)
