"""Device loops: in parallel over the grid, or in sequence inside a program."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsIndex, overload

import torch

from .. import exc
from .._support.records import dataclass
from ._reference.session import Session, current
from ._registry import declare, reference
from .tiles import BlockSize, RefAxis, RefTile, RefTileTuple, Tile


# One bound gives a tile per iteration, a sequence of them a tuple of tiles.
@overload
def tile(
    begin_or_end: SupportsIndex, end: SupportsIndex | None = None, /, block_size: int | None = None
) -> Iterator[Tile]: ...
@overload
def tile(
    begin_or_end: Sequence[SupportsIndex],
    end: Sequence[SupportsIndex] | None = None,
    /,
    block_size: int | Sequence[int | None] | None = None,
) -> Iterator[tuple[Tile, ...]]: ...
@declare("loop")
def tile(begin_or_end: Any, end: Any = None, /, block_size: Any = None) -> Iterator[Any]:
    """Iterate over ``[0, end)`` or ``[begin, end)`` in tiles.

    Write ``for tile in hl.tile(n)`` or ``for tile_m, tile_n in hl.tile([m, n])``. The tiles of an outermost device
    loop run in parallel, one program each; those of an inner loop run in sequence. In a ``for`` or ``while`` of the
    host the kernel is launched once per iteration.

    Args:
        begin_or_end: the end, or the begin if ``end`` is given: an integer, a size or a scalar; a list of them for a
            multi-dimensional tile. A loop in device code may load its
            bounds; an outermost one reads a bound that a tensor holds in host code, by ``n = t.item()``.
        end: one past the last index.
        block_size: the number of indices in a tile: a constant, the result of ``hl.register_block_size``, or
            ``block_size`` of another tile; a list for several dimensions. None leaves it to ``block_sizes`` of the
            config.

    Returns:
        An ``hl.Tile`` per iteration, or one per dimension.

    Raises:
        exc.LoopFunctionNotInFor: it is not the iterable of a ``for``.
        exc.TileOfTile: a bound is a tile.
        exc.InvalidTileRange: begin exceeds end.

    Example::

        @helion.kernel
        def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile_m, tile_n in hl.tile([x.size(0), x.size(1)]):
                out[tile_m, tile_n] = x[tile_m, tile_n] + y[tile_m, tile_n]
            return out

        add(torch.randn(10, 30), torch.randn(10, 30))
    """


@overload
def grid(
    begin_or_end: SupportsIndex, end: SupportsIndex | None = None, /, step: int | None = None
) -> Iterator[Any]: ...
@overload
def grid(
    begin_or_end: Sequence[SupportsIndex],
    end: Sequence[SupportsIndex] | None = None,
    /,
    step: int | Sequence[int | None] | None = None,
) -> Iterator[tuple[Any, ...]]: ...
@declare("loop")
def grid(begin_or_end: Any, end: Any = None, /, step: Any = None) -> Iterator[Any]:
    """Iterate over single indices, as ``hl.tile`` does over blocks of them.

    Write ``for i in hl.grid(n)`` or ``for i, j in hl.grid([m, n])``. The indices of an outermost device loop run in
    parallel, one program each; those of an inner loop run in sequence.

    Args:
        begin_or_end: the end, or the begin if ``end`` is given: an integer, a size or a scalar, or a list of them.
        end: one past the last index.
        step: distance between indices, 1 by default; a list for several dimensions.

    Returns:
        A scalar per iteration, or one per dimension.

    Raises:
        exc.LoopFunctionNotInFor: it is not the iterable of a ``for``.
        exc.TileOfTile: a bound is a tile.
        exc.InvalidTileRange: begin exceeds end.

    Example::

        @helion.kernel
        def batched_scale(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for b in hl.grid(x.size(0)):
                for tile in hl.tile(x.size(1)):
                    out[b, tile] = x[b, tile] * factors[b]
            return out

        batched_scale(torch.randn(4, 30), torch.randn(4))
    """


@declare("loop")
def static_range(begin_or_end: int, end: int | None = None, /, step: int = 1) -> Iterator[int]:
    """Iterate in device code over constant bounds; the compiler unrolls the loop and the variable is a constant.

    Args:
        begin_or_end: the end, or the begin if ``end`` is given.
        end: one past the last number.
        step: distance between numbers.

    Raises:
        exc.DeviceAPIOnHost: it is called in host code.
        exc.TypeInferenceError: the bounds are not known when the kernel is compiled.

    Example::

        @helion.kernel
        def sum_of_four(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
            for tile in hl.tile(x.size(0)):
                acc = hl.zeros([tile])
                for i in hl.static_range(4):
                    acc += x[tile, i]
                out[tile] = acc
            return out

        sum_of_four(torch.randn(10, 4))
    """


# --- eager references ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bounds:
    """One dimension of a loop: ``[begin, end)``, and the block size or step as given."""

    begin: int
    end: int
    size: Any


def _number(bound: Any, name: str) -> int:
    if isinstance(bound, RefTile):
        raise exc.TileOfTile()
    if isinstance(bound, torch.Tensor) and bound.ndim:
        raise exc.TypeInferenceError(f"A bound of {name} must be a scalar, got a tensor of shape {list(bound.shape)}.")
    if isinstance(bound, (bool, float)) or not hasattr(bound, "__index__"):
        raise exc.TypeInferenceError(f"A bound of {name} must be an integer, got {bound!r}.")
    return int(bound.__index__())


def _dimensions(name: str, begin_or_end: Any, end: Any, sizes: Any) -> tuple[list[_Bounds], bool]:
    """Return the dimensions of a loop, and whether they were given as a sequence."""
    begins, ends = (None, begin_or_end) if end is None else (begin_or_end, end)
    sequence = isinstance(ends, (tuple, list))
    ends = tuple(ends) if sequence else (ends,)
    if begins is None:
        begins = (0,) * len(ends)
    elif isinstance(begins, (tuple, list)) != sequence:
        raise exc.IncorrectTileUsage(how="with a list as one bound and a scalar as the other")
    else:
        begins = tuple(begins) if sequence else (begins,)
    sizes = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,) * len(ends)
    if not len(begins) == len(ends) == len(sizes):
        raise exc.TypeInferenceError(f"{name} got {len(begins)} begins, {len(ends)} ends and {len(sizes)} sizes.")
    found = []
    for first, last, size in zip(begins, ends, sizes, strict=True):
        found.append(_Bounds(_number(first, name), _number(last, name), size))
    return found, sequence


def _axis(bounds: _Bounds, position: int, before: list[RefAxis]) -> RefAxis:
    """Return the axis of one dimension. It is that of a registered block size, unless another loop or one of
    ``before`` uses it. Otherwise the axis is new, and covers the whole dimension by default."""
    size = bounds.size
    if current().single_rows and not current().on_device and not isinstance(size, BlockSize):
        return RefAxis(1, fixed=True)
    if size is None:
        return RefAxis(current().configured_size(position) or max(1, bounds.end - bounds.begin))
    if isinstance(size, BlockSize) and size.axis.tile is None and size.axis not in before:
        return size.axis
    if isinstance(size, bool) or not hasattr(size, "__index__") or size.__index__() < 1:
        raise exc.TypeInferenceError(f"block_size must be a positive integer or a registered block size, got {size!r}.")
    return RefAxis(size.__index__(), fixed=not isinstance(size, BlockSize))


def _device_loop(
    session: Session, dimensions: Sequence[Sequence[Any]], variable: Callable[[tuple[Any, ...]], Any], tiles: bool
) -> Iterator[Any]:
    session.depth += 1
    if session.depth == 1:
        session.seeds.clear()
    try:
        for items in itertools.product(*dimensions):
            with session.inside(items if tiles else ()) as is_short:
                before = dict(sys._getframe(1).f_locals) if is_short else None
                yield variable(items)
                if before is not None:  # resumed: the iteration is done
                    session.keep_lanes(before, sys._getframe(1).f_locals)
    finally:
        session.depth -= 1


@reference(tile, "raw")
def _tile(begin_or_end: Any, end: Any = None, /, block_size: Any = None) -> Iterator[Any]:
    bounds, sequence = _dimensions("hl.tile", begin_or_end, end, block_size)
    axes: list[RefAxis] = []
    dimensions = []
    for position, each in enumerate(bounds):
        axis = _axis(each, position, axes)
        axes.append(axis)
        dimensions.append([RefTile(axis, at, each.begin, each.end) for at in range(each.begin, each.end, axis.size)])
    return _device_loop(current(), dimensions, RefTileTuple if sequence else _only, tiles=True)


@reference(grid, "raw")
def _grid(begin_or_end: Any, end: Any = None, /, step: Any = None) -> Iterator[Any]:
    session = current()
    bounds, sequence = _dimensions("hl.grid", begin_or_end, end, step)
    steps = [1 if each.size is None else _number(each.size, "hl.grid") for each in bounds]
    dimensions = [range(each.begin, each.end, by) for each, by in zip(bounds, steps, strict=True)]

    def scalars(items: tuple[int, ...]) -> Any:
        indices = tuple(map(session.scalar, items))
        return indices if sequence else indices[0]

    return _device_loop(session, dimensions, scalars, tiles=False)


def _only(items: tuple[Any, ...]) -> Any:
    return items[0]


@reference(static_range, "raw")
def _static_range(begin_or_end: Any, end: Any = None, /, step: Any = 1) -> Iterator[int]:
    bounds = (0, begin_or_end, step) if end is None else (begin_or_end, end, step)
    for bound in bounds:
        if isinstance(bound, torch.Tensor) or not hasattr(bound, "__index__"):
            raise exc.TypeInferenceError(f"hl.static_range needs constant bounds, got {bound!r}.")
    return iter(range(*bounds))


@declare("loop")
def jagged_tile(parent: torch.Tensor) -> Iterator[Tile]:
    """Iterate in tiles over rows of different lengths, with the lanes beyond a row's own length masked.

    ``for tile_j in hl.jagged_tile(lengths)`` runs to the largest of ``lengths``. Each load with ``tile_j`` must also
    be indexed by the rows' tile.

    Args:
        parent: the number of elements of each row, an integer tile over the rows.

    Returns:
        An ``hl.Tile`` per iteration.

    Raises:
        exc.InvalidJaggedTileUsage: not a tile of integers, or not inside an ``hl.tile`` loop over the rows.

    Example::

        @helion.kernel
        def row_sums(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            rows = offsets.size(0) - 1
            out = torch.empty([rows], dtype=values.dtype, device=values.device)
            for tile in hl.tile(rows):
                starts = offsets[tile]
                acc = hl.zeros([tile])
                for column in hl.jagged_tile(offsets[tile.index + 1] - starts):
                    acc += values[starts[:, None] + column.index[None, :]].sum(-1)
                out[tile] = acc
            return out

        row_sums(torch.ones(10), torch.tensor([0, 3, 3, 10]))
    """


@reference(jagged_tile, "raw")
def _jagged_tile(parent: Any) -> Iterator[Any]:
    """Run the loop for one row at a time (``Session.single_rows``), so that no lane needs a mask."""
    session = current()
    if not session.on_device:
        raise exc.InvalidJaggedTileUsage("it must be inside an hl.tile loop over the rows.")
    if not isinstance(parent, torch.Tensor) or not parent.ndim:
        raise exc.InvalidJaggedTileUsage(f"it takes one device tile of row lengths, got {parent!r}.")
    if parent.dtype.is_floating_point or parent.dtype == torch.bool:
        raise exc.InvalidJaggedTileUsage(f"row lengths must be integers, got {parent.dtype}.")
    lengths = {max(0, length) for length in parent.flatten().tolist()}
    if len(lengths) > 1:
        raise exc.BackendUnsupported(
            what="hl.jagged_tile over rows of different lengths in one tile of an inner loop, or of a registered block size,",
            backend="eager reference",
            remedy="; make the rows the grid loop's, or run the kernel compiled",
        )
    longest = max(lengths, default=0)
    axis = RefAxis(session.configured_size() or max(1, longest))
    tiles = [RefTile(axis, at, 0, longest) for at in range(0, longest, axis.size)]
    return _device_loop(session, [tiles], _only, tiles=True)
