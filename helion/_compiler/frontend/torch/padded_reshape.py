"""Reshapes of whole dimensions that are padded to a power of two of lanes.

Elements keep their lanes if only the outermost of the dimensions that a reshape merges or splits is padded::

    [384] in 512 lanes -> [3, 128] in 4 * 128        elements keep their lanes
    [384] in 512 lanes -> [128, 3] in 128 * 4        elements move

If elements move, one gather takes each from its lane. Dimensions that a matmul may widen to its least size are gathered in
parts, which do not depend on the number of their lanes.
"""

from __future__ import annotations

from ...._shapes import ONE, Dim, Dims, next_power_of_2
from .. import ops
from ..tracer import Tracer
from ..values import DeviceValue

#: Matmuls widen dimensions below this many lanes.
WIDENED = 16
#: A merged dimension of at most this many lanes is gathered in parts.
FEW_LANES = 128


def is_padded(t: Tracer, dim: Dim) -> bool:
    """Return whether a dimension contains a whole one with padding lanes."""
    return any(t.blocks[b].kind == "full" and not t.blocks.fills_lanes(t.blocks[b].extent) for b in dim.blocks)


def keeps_lanes(t: Tracer, before: list[Dim], after: list[Dim]) -> bool:
    """Return whether a reshape leaves each element in its lane, counted in row-major order."""
    if any(is_padded(t, dim) for dim in (*before[1:], *after[1:])):
        return False
    first = (before[0], after[0])
    return not any(is_padded(t, dim) for dim in first) or all(_is_whole(t, dim) for dim in first)


def moved(t: Tracer, value: DeviceValue, before: list[Dim], after: list[Dim], at: int) -> DeviceValue | None:
    """Reshape by gathers.

    Args:
        t: the tracer.
        value: without dimensions of 1.
        before: its dimensions that change, from ``at`` on.
        after: the dimensions that replace them.
        at: their position.

    Returns:
        The value; None if a dimension is not a whole one.
    """
    if not all(_is_whole(t, dim) for dim in (*before, *after)):
        return None
    for _ in before[1:]:
        value = _merged(t, value, at)
    for place, dim in enumerate(after[:-1], at):
        value = _split(t, value, place, _size(t, dim))
    return value


def _is_whole(t: Tracer, dim: Dim) -> bool:
    return dim.block is not None and t.blocks[dim.block].kind == "full" and isinstance(t.blocks.size_of(dim), int)


def _size(t: Tracer, dim: Dim) -> int:
    size = t.blocks.size_of(dim)
    assert isinstance(size, int)
    return size


def _merged(t: Tracer, value: DeviceValue, at: int) -> DeviceValue:
    """Merge the dimensions at ``at`` and after it."""
    rows, columns = (_size(t, value.dims[place]) for place in (at, at + 1))
    dims = (*value.dims[:at], t.blocks.dim_of(rows * columns), *value.dims[at + 2 :])
    if t.blocks.fills_lanes(columns):
        t.blocks.count_lanes((*value.dims[at : at + 2], dims[at]))
        return ops.reshape(t, value, dims)
    lanes = ops.lanes(t, rows * columns, len(dims), at)
    if min(rows, columns) < WIDENED and rows * columns <= FEW_LANES:
        row, column = lanes // columns, lanes % columns
        by_row = rows <= columns
        before = (slice(None),) * (at if by_row else at + 1)
        parts = [value[(*before, number)] for number in range(rows if by_row else columns)]
        spread = [ops.pick(t, part, at, column if by_row else row) for part in parts]
        return _chosen(t, spread, row if by_row else column)
    t.blocks.count_lanes(value.dims[at : at + 2])
    pitch = next_power_of_2(columns)
    whole = t.blocks.dim_of(next_power_of_2(rows) * pitch)
    whole_value = ops.reshape(t, value, (*value.dims[:at], whole, *value.dims[at + 2 :]))
    return ops.pick(t, whole_value, at, lanes // columns * pitch + lanes % columns)


def _split(t: Tracer, value: DeviceValue, at: int, rows: int) -> DeviceValue:
    """Split the dimension at ``at`` into ``rows`` and the quotient."""
    columns = _size(t, value.dims[at]) // rows
    dims = (*value.dims[:at], t.blocks.dim_of(rows), t.blocks.dim_of(columns), *value.dims[at + 1 :])
    before = (slice(None),) * at
    if t.blocks.fills_lanes(columns):
        t.blocks.count_lanes((value.dims[at], *dims[at : at + 2]))
    elif rows < WIDENED and rows <= columns:
        parts = [value[(*before, slice(n * columns, (n + 1) * columns))] for n in range(rows)]
        return _chosen(t, [_with_one(t, part, at) for part in parts], ops.lanes(t, rows, len(dims), at))
    elif columns < WIDENED:
        parts = [value[(*before, slice(n, None, columns))] for n in range(columns)]
        return _chosen(t, [_with_one(t, part, at + 1) for part in parts], ops.lanes(t, columns, len(dims), at + 1))
    else:
        t.blocks.count_lanes(dims[at : at + 2])
        pitch = next_power_of_2(columns)
        lanes = ops.lanes(t, next_power_of_2(rows) * pitch, value.ndim, at)
        value = ops.pick(t, value, at, lanes // pitch * columns + lanes % pitch)
    return ops.reshape(t, value, dims)


def _with_one(t: Tracer, value: DeviceValue, at: int) -> DeviceValue:
    dims: Dims = (*value.dims[:at], ONE, *value.dims[at:])
    return ops.reshape(t, value, dims)


def _chosen(t: Tracer, parts: list[DeviceValue], number: DeviceValue) -> DeviceValue:
    """Select the part of each lane by its number."""
    result = parts[-1]
    for at in reversed(range(len(parts) - 1)):
        result = ops.pointwise(t, "where", ops.pointwise(t, "eq", number, at), parts[at], result)
    return result
