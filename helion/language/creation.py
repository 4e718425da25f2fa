"""Device values made from nothing. Sizes are tiles, block sizes and compile-time constants."""

from __future__ import annotations

from typing import Any

import torch

from .. import exc
from ._reference import current, set_axis
from ._registry import declare, reference
from .tiles import Span


@declare("device")
def zeros(shape: list[Any], dtype: torch.dtype = torch.float32, device: Any = None) -> Any:
    """A value of zeros. Raises ``exc.ShapeSpecializingAllocation`` when a size is not known at compile time."""


@declare("device")
def full(shape: list[Any], value: Any, dtype: torch.dtype = torch.float32, device: Any = None) -> Any:
    """A value filled with a number or a scalar device value."""


@declare("device")
def arange(*bounds: Any, dtype: torch.dtype | None = None, device: Any = None, step: int = 1) -> Any:
    """Integers, with the arguments of ``torch.arange``: constants, or one block size. The dtype defaults to the index dtype."""


@declare("device")
def subscript(tensor: Any, index: list[Any]) -> Any:
    """``tensor[index]`` of a device value, where the index holds only ``:``, ``...`` and None."""


# --- eager references ---------------------------------------------------------------------------------------------------


def _sizes(shape: Any) -> list[int]:
    sizes = shape if isinstance(shape, (tuple, list)) else [shape]
    for size in sizes:
        if isinstance(size, (bool, float)) or not hasattr(size, "__index__"):
            raise exc.ShapeSpecializingAllocation(size=repr(size))
    return [size.__index__() for size in sizes]


def lanes_axis(shape: Any) -> object:
    """What identifies the lanes of a new 1-D value: its tile's axis, or its length."""
    size = shape[0] if isinstance(shape, (tuple, list)) and shape else shape
    return size.axis if isinstance(size, Span) else ("whole", size)


@reference(zeros)
def _zeros(shape: Any, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    return set_axis(torch.zeros(_sizes(shape), dtype=dtype, device=current().device), lanes_axis(shape))


@reference(full)
def _full(shape: Any, value: Any, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.ndim:
        raise exc.ShapeMismatch(lhs=list(value.shape), rhs=[], detail=": the fill value must be a scalar")
    values = torch.empty(_sizes(shape), dtype=dtype, device=current().device)
    fill = value.to(dtype).item() if isinstance(value, torch.Tensor) else value
    return set_axis(values.fill_(fill), lanes_axis(shape))


@reference(arange)
def _arange(*bounds: Any, dtype: torch.dtype | None = None, device: Any = None, step: int = 1) -> torch.Tensor:
    session = current()
    if step != 1:
        bounds = (bounds[0], bounds[1], step) if len(bounds) == 2 else (0, bounds[0], step)
    values = torch.arange(*_sizes(bounds), dtype=dtype or session.index_dtype, device=session.device)
    return set_axis(values, lanes_axis(bounds) if len(bounds) == 1 else ("whole", len(values)))


@reference(subscript)
def _subscript(tensor: Any, index: Any) -> Any:
    return tensor[tuple(index) if isinstance(index, (tuple, list)) else index]
