"""Traversal of the device IR that all facts are computed from."""

from __future__ import annotations

from typing import NamedTuple

from ..._shapes import Dims, hint_of
from ..._support.records import dataclass, field, replace
from ..ir.grammar import (
    Bound,
    ForAttrs,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    Region,
    TileAttrs,
    Value,
)
from ..ir.ops import OPS
from ..ir.rewrite import Makers
from .records import LiveTile, RegionFact

#: Maximal number of ops to follow back from a dot to its load, and from an address to the index it scales.
MAX_HOPS = 8
#: Ops through which an index depends on loads.
_FOLLOWED = frozenset(("load", "pointwise", "view", "mask"))


class TileBound(NamedTuple):
    """A bound of a loop that follows the tile of another axis: the tile's begin or end, rounded down to a ``multiple``, plus
    ``shift`` elements."""

    block: int
    shift: int
    multiple: int = 1


#: A bound of a loop: one that follows a tile, or a number.
LoopBound = TileBound | int


@dataclass(slots=True)
class Walk:
    """Result of the traversal. ``bodies[n]`` is region number ``n``; values and ops are identified by their numbers.

    ``makers`` has the op that defines a value, ``homes`` the region of an op. ``order`` numbers the ops. ``inner`` and
    ``captured`` have, for loops and branches, their regions and the values that those read. ``outer`` names the block whose
    tile bounds a loop on both sides. ``diagonal`` has the bounds of loops that a tile bounds on one side, or with a shift.
    """

    program: Program
    regions: list[RegionFact] = field(default_factory=list)
    bodies: list[Region] = field(default_factory=list)
    makers: Makers = field(default_factory=lambda: Makers({}))
    homes: dict[int, int] = field(default_factory=dict)
    order: dict[int, int] = field(default_factory=dict)
    inner: dict[int, tuple[int, ...]] = field(default_factory=dict)
    captured: dict[int, set[int]] = field(default_factory=dict)
    loads: list[Op] = field(default_factory=list)
    stores: list[Op] = field(default_factory=list)
    dots: list[Op] = field(default_factory=list)
    reduces: list[Op] = field(default_factory=list)
    atomics: list[Op] = field(default_factory=list)
    scans: list[Op] = field(default_factory=list)
    pointwise: list[Op] = field(default_factory=list)
    other: list[Op] = field(default_factory=list)
    outer: dict[int, int] = field(default_factory=dict)
    diagonal: dict[int, tuple[LoopBound, LoopBound]] = field(default_factory=dict)
    tiles: dict[Dims, tuple[tuple[int, ...], int, int]] = field(default_factory=dict)

    def tile(self, value: Value) -> LiveTile:
        """Return the axes, and the bytes per element times all constant dimensions."""
        axes, const, _ = self.shape(value.dims)
        return axes, value.dtype.itemsize * const

    def shape(self, dims: Dims) -> tuple[tuple[int, ...], int, int]:
        """Return the axes, the product of the constant dimensions, and the number of dimensions other than 1."""
        known = self.tiles.get(dims)
        if known is None:
            axes: list[int] = []
            const, rank = 1, 0
            for dim in dims:
                axes += dim.blocks
                const *= dim.const
                rank += not dim.is_one
            known = self.tiles[dims] = (tuple(axes), const, rank)
        return known


def walk_program(program: Program) -> Walk:
    """Visit every op once, in program order."""
    walk = Walk(program)
    for number, root in enumerate(program.roots):
        _region(walk, root.body, "root", number, None, root.axes)
    return walk


def _region(
    walk: Walk, region: Region, kind: str, root: int, parent: int | None, axes: tuple[LoopAxis, ...]
) -> set[int]:
    """Visit a region and return the values read in it, nested regions included."""
    number = len(walk.regions)
    blocks = tuple(axis.block for axis in axes)
    walk.regions.append(RegionFact(region=number, kind=kind, root=root, parent=parent, axes=blocks))  # type: ignore[arg-type]
    walk.bodies.append(region)
    written = len(walk.stores) + len(walk.atomics)
    by_kind = {
        "load": walk.loads,
        "store": walk.stores,
        "atomic": walk.atomics,
        "scan": walk.scans,
        "fold": walk.scans,
        "dot": walk.dots,
        "reduce": walk.reduces,
        "pointwise": walk.pointwise,
    }
    read: set[int] = set()
    #: The loads of this region, one after the other, on which a value of it depends.
    loaded: dict[int, int] = {}
    makers, homes = walk.makers.ops, walk.homes
    for op in region.ops:
        homes[op.number] = number
        walk.order[op.number] = len(walk.order)
        for operand in op.operands:
            if isinstance(operand, Value):
                read.add(operand.number)
        for made in op.results:
            makers[made.number] = op
        if op.kind in _FOLLOWED:
            _note_loads(op, loaded)
        by_kind.get(op.kind, walk.other).append(op)
        if op.regions and not OPS[op.kind].combines:
            captured: set[int] = set()
            loop_axes = op.attrs.axes if isinstance(op.attrs, ForAttrs) else ()
            inner = []
            for nested in op.regions:
                inner.append(len(walk.regions))
                loops = bool(loop_axes) or (op.kind == "while" and nested is op.regions[-1])
                captured |= _region(walk, nested, "loop" if loops else "branch", root, number, loop_axes)
            walk.inner[op.number] = tuple(inner)
            walk.captured[op.number] = captured
            read |= captured
            _note_outer(walk, op, loop_axes)
    for result in region.results:
        if isinstance(result, Value):
            read.add(result.number)
    if kind == "loop" and max(loaded.values(), default=0) > 1:
        gathers = max(loaded.values()) - 1
        # a loop that writes memory repeats its loads
        kept = written == len(walk.stores) + len(walk.atomics)
        lookups = _changing_lookups(region, blocks) if kept else gathers
        walk.regions[number] = replace(walk.regions[number], gathers=gathers, lookups=lookups)
    return read


def _changing_lookups(region: Region, blocks: tuple[int, ...]) -> int:
    """Return the lookups in a row of one step of a loop over ``blocks`` that no earlier step has made."""
    changing = {each.number for each in region.params}
    loaded: dict[int, int] = {}
    for op in region.ops:
        own = [op.attrs.block] if isinstance(op.attrs, (TileAttrs, IotaAttrs)) else []
        if isinstance(op.attrs, MemoryAttrs):
            own = [index.block for index in op.attrs.indices if index.block is not None]
        operands = (each.number for each in op.operands if isinstance(each, Value))
        if op.regions or not set(own).isdisjoint(blocks) or not changing.isdisjoint(operands):
            changing.update(made.number for made in op.results)
            if op.kind in _FOLLOWED:
                _note_loads(op, loaded)
    return max(0, max(loaded.values(), default=0) - 1)


def _note_loads(op: Op, loaded: dict[int, int]) -> None:
    """Record the loads in a row that the results of ``op`` depend on, given those of its operands."""
    depth = max((loaded.get(each.number, 0) for each in op.operands if isinstance(each, Value)), default=0)
    depth += op.kind == "load"
    if depth:
        loaded.update((made.number, depth) for made in op.results)


def _note_outer(walk: Walk, op: Op, axes: tuple[LoopAxis, ...]) -> None:
    """Record the tile that bounds each nested loop.

    It bounds both sides, as in ``hl.tile(outer.begin, outer.end)``, or one, as in ``hl.tile(outer.end)``,
    ``hl.tile(0, outer.begin)`` and ``hl.tile(outer.begin, n)``. Numbers may shift a bound, as in
    ``hl.tile(outer.begin - window, outer.end + ahead)``.
    """
    for axis in axes:
        begin, end = (_bound(walk, op, each, ("begin", "end")) for each in (axis.begin, axis.end))
        first, last = _bound(walk, op, axis.begin, ("begin",)), _bound(walk, op, axis.end, ("end",))
        whole = end is None and isinstance(axis.end, OperandRef)
        if isinstance(first, TileBound) and not first.shift and (whole or first == last):
            walk.outer[axis.block] = first.block
        elif begin is not None and end is not None and (isinstance(begin, TileBound) or isinstance(end, TileBound)):
            walk.diagonal[axis.block] = begin, end


def _bound(walk: Walk, op: Op, bound: Bound, fields: tuple[str, ...]) -> LoopBound | None:
    """Return a bound of a loop, None if it depends on data or on another property of a tile than ``fields``."""
    return _value(walk, op.operands[bound.at], fields) if isinstance(bound, OperandRef) else int(hint_of(bound))


def _value(walk: Walk, operand: Operand, fields: tuple[str, ...], hops: int = MAX_HOPS) -> LoopBound | None:
    if not isinstance(operand, Value):
        return operand if isinstance(operand, int) else None
    maker = walk.makers.of(operand)
    attrs = None if maker is None else maker.attrs
    if isinstance(attrs, TileAttrs):
        return TileBound(attrs.block, 0) if attrs.field in fields else None
    if isinstance(attrs, NumberAttrs):
        return int(hint_of(attrs.expr))
    if maker is None or not isinstance(attrs, PointwiseAttrs) or not hops:
        return None
    if (length := chunk_length(walk.makers, maker)) is not None:
        base = _value(walk, _divided(walk.makers, maker), fields, hops - 1)
        rounded = isinstance(base, TileBound) and base == TileBound(base.block, 0)
        return base._replace(multiple=length) if rounded else None  # type: ignore[union-attr]
    values = [_value(walk, each, fields, hops - 1) for each in maker.operands]
    tiles = [each for each in values if isinstance(each, TileBound)]
    if attrs.name in ("minimum", "maximum"):  # the other value is the end of a tensor
        return tiles[0] if len(tiles) == 1 else None
    if attrs.name not in ("add", "sub") or len(values) != 2:
        return None
    first, second = values
    sign = 1 if attrs.name == "add" else -1
    if isinstance(first, TileBound) and isinstance(second, int):
        return first._replace(shift=first.shift + sign * second)
    if isinstance(first, int) and isinstance(second, TileBound) and attrs.name == "add":
        return second._replace(shift=second.shift + first)
    return first + sign * second if isinstance(first, int) and isinstance(second, int) else None


def chunk_length(makers: Makers, op: Op) -> int | None:
    """Return the length of chunks if an op computes the first element of one: ``x // length * length`` or ``x - x % length``.

    A number of a launch is the one seen when binding.
    """
    rounded = _rounded(makers, op)
    if rounded is None:
        return None
    quotient, _ = rounded
    length = _number(makers, quotient.operands[1])
    factor = _number(makers, rounded[1]) if quotient.attrs != PointwiseAttrs("remainder") else length
    return length if length is not None and length == factor and length > 0 else None


def _rounded(makers: Makers, op: Op) -> tuple[Op, Operand] | None:
    """Return the quotient, or the remainder, of an op that may compute the first element of a chunk, and its other operand."""
    name = op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else ""
    wanted, orders = {"mul": ("floordiv", (0, 1)), "sub": ("remainder", (1,))}.get(name, ("", ()))
    for at in orders:
        made, other = makers.of(op.operands[at]), op.operands[1 - at]
        if made is not None and made.attrs == PointwiseAttrs(wanted) and (name == "mul" or made.operands[0] == other):
            return made, other
    return None


def _divided(makers: Makers, op: Op) -> Operand:
    """Return what the op rounds down to a multiple."""
    rounded = _rounded(makers, op)
    assert rounded is not None
    return rounded[0].operands[0]


def _number(makers: Makers, operand: Operand) -> int | None:
    """Return an integer, or one of a launch as seen when binding."""
    maker = makers.of(operand)
    if maker is not None and isinstance(maker.attrs, NumberAttrs):
        return int(hint_of(maker.attrs.expr))
    return operand if isinstance(operand, int) else None
