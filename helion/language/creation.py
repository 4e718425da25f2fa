"""New device values, and views of them. Sizes are tiles, block sizes and compile-time constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch

from .. import exc
from ._reference.session import current, set_axes, set_axis
from ._registry import declare, reference
from .tiles import Span


@declare("device")
def zeros(shape: Sequence[SupportsIndex], dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    """Create a device value of zeros, such as an accumulator: ``hl.zeros([tile_m, tile_n])``.

    Args:
        shape: tiles, block sizes and constants; a size is marked constant with ``hl.specialize``.
        dtype: float32 by default.
        device: accepted and not used.

    Raises:
        exc.ShapeSpecializingAllocation: a size is not known when the kernel is compiled.

    Example::

        @helion.kernel
        def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            (m, k), n = a.size(), b.size(1)
            out = torch.empty([m, n], dtype=a.dtype, device=a.device)
            for tile_m, tile_n in hl.tile([m, n]):
                acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
                for tile_k in hl.tile(k):
                    acc = torch.addmm(acc, a[tile_m, tile_k], b[tile_k, tile_n])
                out[tile_m, tile_n] = acc
            return out

        matmul(torch.randn(20, 30), torch.randn(30, 40))
    """


@declare("device")
def full(
    shape: Sequence[SupportsIndex],
    value: float | torch.Tensor,
    dtype: torch.dtype = torch.float32,
    device: Any = None,
) -> torch.Tensor:
    """Create a device value filled with one number.

    Args:
        shape: tiles, block sizes and constants; a size is marked constant with ``hl.specialize``.
        value: a number or a scalar device value, cast to ``dtype``.
        dtype: float32 by default.
        device: accepted and not used.

    Raises:
        exc.ShapeSpecializingAllocation: a size is not known when the kernel is compiled.
        exc.ShapeMismatch: ``value`` is not a scalar.

    Example::

        @helion.kernel
        def row_max(x: torch.Tensor) -> torch.Tensor:
            m, n = x.size()
            out = torch.empty([m], dtype=x.dtype, device=x.device)
            for tile_m in hl.tile(m):
                best = hl.full([tile_m], float("-inf"))
                for tile_n in hl.tile(n):
                    best = torch.maximum(best, torch.amax(x[tile_m, tile_n], -1))
                out[tile_m] = best
            return out

        row_max(torch.randn(10, 30))
    """


@declare("device")
def arange(*bounds: SupportsIndex, dtype: torch.dtype | None = None, device: Any = None, step: int = 1) -> torch.Tensor:
    """Create consecutive integers, 1-D, with the arguments of ``torch.arange``: ``(end)``, ``(start, end)``,
    ``(start, end, step)``.

    Args:
        bounds: integers whose difference is a constant or a size made of one block size.
        dtype: the kernel's index dtype by default: int32, or int64 for large tensors.
        device: accepted and not used.
        step: distance between neighbours, a constant.

    Raises:
        exc.ShapeSpecializingCall: the number of elements is not known when the kernel is compiled.

    Example::

        @helion.kernel
        def first_eight(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty([x.size(0), 8], dtype=x.dtype, device=x.device)
            for tile in hl.tile(x.size(0)):
                columns = hl.arange(8)
                out[tile, columns] = x[tile, columns]
            return out

        first_eight(torch.randn(10, 30))
    """


@declare("device")
def subscript(tensor: torch.Tensor, index: Sequence[Any]) -> torch.Tensor:
    """Insert dimensions of size 1 into a device value: ``tensor[:, None]``.

    Args:
        tensor: a device value; host tensors are loaded with ``hl.load``.
        index: ``:``, ``...`` and None.

    Raises:
        exc.InvalidIndexingType: anything else in ``index``.

    Example::

        @helion.kernel
        def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out = torch.empty([x.size(0), y.size(0)], dtype=x.dtype, device=x.device)
            for i, j in hl.tile([x.size(0), y.size(0)]):
                out[i, j] = hl.subscript(x[i], [slice(None), None]) * y[j][None, :]
            return out

        outer(torch.randn(10), torch.randn(20))
    """


# --- eager references ---------------------------------------------------------------------------------------------------


def _sizes(shape: Any) -> list[int]:
    sizes = shape if isinstance(shape, (tuple, list)) else [shape]
    for size in sizes:
        if isinstance(size, (bool, float)) or not hasattr(size, "__index__"):
            raise exc.ShapeSpecializingAllocation(size=repr(size))
    return [size.__index__() for size in sizes]


def lanes_axes(shape: Any) -> tuple[object, ...]:
    """Return the identity of the lanes of each dimension of a new value: its tile's axis, or its length."""
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
