"""Joining and splitting the last dimension of device values."""

from __future__ import annotations

from typing import Any

import torch

from .. import exc
from ._registry import declare, reference


@declare("device")
def split(tensor: Any) -> tuple[Any, Any]:
    """The two halves ``tensor[..., 0]`` and ``tensor[..., 1]`` of a last dimension of 2."""
    raise NotImplementedError


@declare("device")
def join(tensor0: Any, tensor1: Any) -> Any:
    """Two values, broadcast together, as one with a new last dimension of 2."""


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
