"""New device values, and views of them. Sizes are tiles, block sizes and compile-time constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch

from .. import exc
from ._reference import current, set_axes, set_axis
from ._registry import declare, reference
from .tiles import Span


@declare("device")
def zeros(shape: Sequence[SupportsIndex], dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    """A device value of zeros, such as an accumulator: ``hl.zeros([tile_m, tile_n])``.

    Args:
        shape: tiles, block sizes and constants; a size is marked constant with ``hl.specialize``.
        dtype: float32 by default.
        device: accepted and not used.

    Raises:
        exc.ShapeSpecializingAllocation: a size is not known when the kernel is compiled.
    """


@declare("device")
def full(
    shape: Sequence[SupportsIndex],
    value: float | torch.Tensor,
    dtype: torch.dtype = torch.float32,
    device: Any = None,
) -> torch.Tensor:
    """A device value filled with one number.

    Args:
        shape: tiles, block sizes and constants; a size is marked constant with ``hl.specialize``.
        value: a number or a scalar device value, cast to ``dtype``.
        dtype: float32 by default.
        device: accepted and not used.

    Raises:
        exc.ShapeSpecializingAllocation: a size is not known when the kernel is compiled.
        exc.ShapeMismatch: ``value`` is no scalar.
    """


@declare("device")
def arange(*bounds: SupportsIndex, dtype: torch.dtype | None = None, device: Any = None, step: int = 1) -> torch.Tensor:
    """Consecutive integers, 1-D, with the arguments of ``torch.arange``: ``(end)``, ``(start, end)``, ``(start, end, step)``.

    Args:
        bounds: integers whose difference is a constant or a size made of one block size.
        dtype: the kernel's index dtype by default: int32, or int64 for large tensors.
        device: accepted and not used.
        step: distance between neighbours, a constant.

    Raises:
        exc.ShapeSpecializingCall: the number of elements is not known when the kernel is compiled.
    """


@declare("device")
def subscript(tensor: torch.Tensor, index: Sequence[Any]) -> torch.Tensor:
    """A device value with dimensions of size 1 inserted: ``tensor[:, None]``.

    Args:
        tensor: a device value; host tensors are loaded with ``hl.load``.
        index: ``:``, ``...`` and None.

    Raises:
        exc.InvalidIndexingType: anything else in ``index``.
    """


# --- eager references ---------------------------------------------------------------------------------------------------


def _sizes(shape: Any) -> list[int]:
    sizes = shape if isinstance(shape, (tuple, list)) else [shape]
    for size in sizes:
        if isinstance(size, (bool, float)) or not hasattr(size, "__index__"):
            raise exc.ShapeSpecializingAllocation(size=repr(size))
    return [size.__index__() for size in sizes]


def lanes_axes(shape: Any) -> tuple[object, ...]:
    """What identifies the lanes of each dimension of a new value: its tile's axis, or its length."""
    sizes = shape if isinstance(shape, (tuple, list)) else [shape]
    return tuple(size.axis if isinstance(size, Span) else ("whole", size) for size in sizes)


@reference(zeros)
def _zeros(shape: Any, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    return set_axes(torch.zeros(_sizes(shape), dtype=dtype, device=current().device), lanes_axes(shape))


@reference(full)
def _full(shape: Any, value: Any, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.ndim:
        raise exc.ShapeMismatch(lhs=list(value.shape), rhs=[], detail=": the fill value must be a scalar")
    values = torch.empty(_sizes(shape), dtype=dtype, device=current().device)
    fill = value.to(dtype).item() if isinstance(value, torch.Tensor) else value
    return set_axes(values.fill_(fill), lanes_axes(shape))


@reference(arange)
def _arange(*bounds: Any, dtype: torch.dtype | None = None, device: Any = None, step: int = 1) -> torch.Tensor:
    session = current()
    if step != 1:
        bounds = (bounds[0], bounds[1], step) if len(bounds) == 2 else (0, bounds[0], step)
    values = torch.arange(*_sizes(bounds), dtype=dtype or session.index_dtype, device=session.device)
    return set_axis(values, lanes_axes(bounds)[0] if len(bounds) == 1 else ("whole", len(values)))


@reference(subscript)
def _subscript(tensor: Any, index: Any) -> Any:
    return tensor[tuple(index) if isinstance(index, (tuple, list)) else index]
