"""Integers that loops of unknown length look up: those that bound them, and tables of the pages of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..._shapes import hint_of
from ..._support.records import dataclass
from ..ir.grammar import ForAttrs, IotaAttrs, MemoryAttrs, Op, Operand, OperandRef, PointwiseAttrs, TileAttrs, Value
from .walk import MAX_HOPS, Walk


@dataclass(frozen=True, kw_only=True)
class Lookups:
    """``bounds``: by axis of a loop, the axes that select the integers its bounds are computed from.

    ``reaches``: by slot of a load and axis, the indices of the axis that a subscript by quotients of them reaches, as
    ``table.size(1) * 64`` for ``table[b, tile.index // 64]``; or one by positions from a start on, as
    ``values.size(0)`` for ``values[start + tile.index]``. The number of a tile of 64 is such a quotient.
    ``numbers``: by slot of a load, the axes whose tile numbers are subscripts, as in ``table[tile.id]``.
    """

    bounds: Mapping[int, frozenset[int]]
    reaches: Mapping[tuple[int, int], int]
    numbers: Mapping[int, frozenset[int]]


def lookups(walk: Walk) -> Lookups:
    """Return the lookups of all loops and loads."""
    bounds = {}
    for op in walk.program.walk():
        for axis in op.attrs.axes if isinstance(op.attrs, ForAttrs) else ():
            ends = [op.operands[each.at] for each in (axis.begin, axis.end) if isinstance(each, OperandRef)]
            bounds[axis.block] = frozenset[int]().union(*(selecting(walk, each, MAX_HOPS) for each in ends))
    return Lookups(
        bounds=bounds,
        reaches={key: reach for load in walk.loads for key, reach in _reaches(walk, load)},
        numbers={load.attributes(MemoryAttrs).slot: frozenset(_numbers(walk, load)) for load in walk.loads},
    )


def selecting(walk: Walk, operand: Operand, hops: int) -> frozenset[int]:
    """Return the axes whose indices select the loads that an integer is computed from."""
    made = walk.makers.of(operand) if isinstance(operand, Value) and hops else None
    if made is None:
        return frozenset()
    if isinstance(made.attrs, (TileAttrs, IotaAttrs)):
        return frozenset((made.attrs.block,))
    own = [index.block for index in made.attrs.indices if index.block is not None] if made.kind == "load" else []
    return frozenset(own).union(*(selecting(walk, each, hops - 1) for each in made.operands))


def _reaches(walk: Walk, load: Op) -> list[tuple[tuple[int, int], int]]:
    attrs, found = load.attributes(MemoryAttrs), []
    for index, extent in zip(attrs.indices, walk.program.tensors[attrs.tensor].shape, strict=True):
        operand = load.operands[index.operand] if index.operand is not None else 0
        divided = quotient(walk, operand) or _position(walk, operand) or _number(walk, operand)
        if divided is not None:
            axis, divisor = divided
            found.append(((attrs.slot, axis), int(hint_of(extent)) * divisor))
    return found


def quotient(walk: Walk, operand: Operand) -> tuple[int, int] | None:
    """Return the axis and the constant whose quotient an index is, or None."""
    made = _uncast(walk, operand)
    if made is None or made.attrs != PointwiseAttrs("floordiv") or not isinstance(made.operands[1], int):
        return None
    position, divisor = _uncast(walk, made.operands[0]), made.operands[1]
    axis = position.attrs.block if position is not None and isinstance(position.attrs, (TileAttrs, IotaAttrs)) else None
    return (axis, divisor) if axis is not None and divisor > 0 else None


def _position(walk: Walk, operand: Operand) -> tuple[int, int] | None:
    """Return the axis whose indices count from another number on, with 1, or None."""
    made = _uncast(walk, operand)
    if made is None or made.attrs != PointwiseAttrs("add"):
        return None
    for each, other in (made.operands, made.operands[::-1]):
        counted = _uncast(walk, each)
        axis = counted.attrs.block if counted is not None and isinstance(counted.attrs, IotaAttrs) else None
        if axis is not None and axis not in selecting(walk, other, MAX_HOPS):
            return axis, 1
    return None


def _number(walk: Walk, operand: Operand) -> tuple[int, int] | None:
    """Return the axis whose tiles an index counts, and their fixed size, or None."""
    counted = _counted(walk, operand)
    size = None if counted is None else walk.program.blocks[counted].size
    return (counted, size) if counted is not None and isinstance(size, int) else None


def _numbers(walk: Walk, load: Op) -> Iterator[int]:
    """Yield the axes whose tiles a subscript of a load counts."""
    for index in load.attributes(MemoryAttrs).indices:
        counted = None if index.operand is None else _counted(walk, load.operands[index.operand])
        if counted is not None:
            yield counted


def _counted(walk: Walk, operand: Operand) -> int | None:
    made = _uncast(walk, operand)
    return (
        made.attrs.block
        if made is not None and isinstance(made.attrs, TileAttrs) and made.attrs.field == "id"
        else None
    )


def _uncast(walk: Walk, operand: Operand) -> Op | None:
    """Return the op that makes a value, without casts and views."""
    made = walk.makers.of(operand) if isinstance(operand, Value) else None
    while made is not None and (made.kind == "view" or made.attrs == PointwiseAttrs("cast")):
        (source,) = made.values()
        made = walk.makers.of(source)
    return made
