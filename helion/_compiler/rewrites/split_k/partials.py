"""Splits a reduction loop of a grid loop over several programs (split-K). A second grid loop reduces the stored
partials in their order, so the result is deterministic, and continues with the rest of the program.

The loop may accumulate sums, matmuls among them, or extrema. Before::

    grid b0, b1: %0 = full 0; %1: [b0, b1] = for b2 in 0..k carrying %0: dot ..; %2 = relu %1; store out[b0, b1] <- %2

After, in 4 parts, with smaller tiles b4, b5 in the second grid loop, which is launched after the first::

    grid b0, b1, b3 in 0..4: %1: [b0, b1] = for b2 in part b3 of 0..k carrying 0: dot ..; store parts[b3, b0, b1] <- %1
    grid b4, b5: %3: [b4, b5] = for b6 in 0..4 carrying 0: load parts[b6, b4, b5]; add ..
                 %2 = relu %3; store out[b4, b5] <- %2

Programs also share other loops after the first one, in their original tiles (``loops``).

Parts are ranges of whole tiles of the loop. So no tile extends past its part, and only the last one past the end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping

import torch

from ...._shapes import Dim, Dims, Expr, fixed_at
from ...._support.records import dataclass, field, replace
from ...ir.build import Builder, Numbers
from ...ir.effects import may_alias
from ...ir.grammar import (
    Block,
    Bound,
    ForAttrs,
    HostTensor,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Region,
    Root,
    Split,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ...ir.operands import is_block
from ...ir.ops import OPS
from ...ir.reductions import REDUCTIONS
from ...ir.rewrite import Declined
from ...passes.always.simplify import drop_dead
from .legality import accumulation_loop, axis_to_split, combinations, is_guard, split_root, summing
from .loops import done_once, renaming, split_loop, split_loop_blocks

#: Elements of a tile of the second grid loop, and its maximal columns. An output of 64 K elements gives at least as
#: many programs as GPUs have SMs, with 16 bytes for each of 128 threads.
_ELEMENTS, _COLUMNS = 512, 128
#: Elements of partials that a program reads at once.
_AT_ONCE = 4096
#: Ops whose results depend on their operands, attributes and lanes only.
_PLAIN = frozenset(
    ("number", "iota", "tile", "full", "load", "pointwise", "reduce", "view", "mask", "join", "split", "dot")
)
#: Reductions of partials, by their combination.
_REDUCTIONS = {row.combine: row.name for row in REDUCTIONS.values()}
#: Name of the memory of partials in host code; users' names do not begin with it.
_NAME = "_helion_parts"


def split_accumulation(program: Program, count: int, sizes: Mapping[int, int]) -> Program:
    """Return the program with its reduction loops in ``count`` parts; itself if tiles of ``sizes`` leave no room for
    that."""
    try:
        return drop_dead(_Splitter(program, accumulation_loop(program), count, sizes).program())
    except Declined:
        return program


# --- the partials -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The memory of the partials of reduction number ``at``, which is the result ``value`` of a loop, and their
    combination ``way``."""

    at: int
    tensor: HostTensor
    value: Value
    way: str


@dataclass
class _Splitter:
    before: Program
    loop: int
    count: int
    sizes: Mapping[int, int]
    blocks: list[Block] = field(init=False)
    #: The partials of each loop.
    kept: dict[int, list[_Part]] = field(init=False)

    def __post_init__(self) -> None:
        self.root = split_root(self.before)
        self.numbers = Numbers.after(self.before)
        self.blocks = list(self.before.blocks)
        ops = self.root.body.ops
        self.sums = summing(ops)
        self.op = self.sums[0]
        assert self.op.number == self.loop
        at, last = ops.index(self.op), ops.index(self.sums[-1])
        self.first, self.until_last, self.rest = ops[:at], ops[: last + 1], ops[last + 1 :]
        self.slot = 1 + max(
            (op.attrs.slot for op in self.before.walk() if isinstance(op.attrs, MemoryAttrs)), default=-1
        )

    def program(self) -> Program:
        sums = [
            (loop, value, way)
            for loop in self.sums
            for value, way in zip(loop.results, combinations(loop), strict=True)
        ]
        made = [
            _Part(at=at, tensor=self.tensor(at, value), value=value, way=way) for at, (_, value, way) in enumerate(sums)
        ]
        self.kept = {loop.number: [p for p in made if any(p.value is v for v in loop.results)] for loop in self.sums}
        roots = [self.summing(at) for at in range(len(self.sums))]
        roots.append(self.spreading() if len(roots) > 1 or split_loop_blocks(self.rest) else self.adding())
        tensors = (*self.before.tensors, *(part.tensor for part in made))
        return replace(self.before, tensors=tensors, blocks=tuple(self.blocks), roots=self.among_others(roots))

    def among_others(self, made: list[Root]) -> tuple[Root, ...]:
        """Return all grid loops: the first of those ``made`` in place of the old one, the others after all.

        Loops of later phases wait for the last one that is made.
        """
        first, *rest = made
        roots = (
            first if root is self.root else _later(root, len(rest)) if root.phase > self.root.phase else root
            for root in self.before.roots
        )
        return (*roots, *rest)

    def block(self, kind: str, extent: int, size: int, name: str) -> Block:
        made = Block(id=len(self.blocks), kind=kind, extent=extent, size=size, name=name)  # type: ignore[arg-type]
        self.blocks.append(made)
        return made

    # --- their memory -------------------------------------------------------------------------------------------------

    def tensor(self, at: int, value: Value) -> HostTensor:
        lanes = [self.extent(dim) for dim in value.dims]
        shape = (self.count, *(self.programs(axis) for axis in self.apart(value)), *lanes)
        strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        if math.prod(shape) >= 2**31:
            raise Declined("the partials are too large for 32-bit offsets")
        return HostTensor(
            id=len(self.before.tensors) + at,
            name=f"parts_{at}" if at else "parts",
            source=f"{_NAME}_{at}",
            dtype=value.dtype,
            shape=shape,
            strides=strides,
            storage=1 + at + max(tensor.storage for tensor in self.before.tensors),
            made=True,
        )

    def extent(self, dim: Dim) -> int:
        """Return the elements along a dimension of a reduction result."""
        extent = None if dim.block is None or dim.const != 1 else self.before.blocks[dim.block].extent
        walked = dim.block in {axis.block for axis in self.root.axes}
        if walked:
            (extent,) = (axis.end for axis in self.root.axes if axis.block == dim.block)  # type: ignore[assignment]
        elif dim.block is not None and self.before.blocks[dim.block].kind != "full":
            extent = None
        if not isinstance(extent, int) or self.sizes.get(dim.block, 0) == 0:  # type: ignore[arg-type]
            raise Declined("a dimension of the sum is neither one of the grid nor a whole one of known size")
        return extent

    def apart(self, value: Value) -> list[LoopAxis]:
        """Return the axes of the grid that a reduction result has no lanes along."""
        return [axis for axis in self.root.axes if not self.has_lanes(value, axis) and not self.is_same(value, axis)]

    def has_lanes(self, value: Value, axis: LoopAxis) -> bool:
        return any(axis.block in dim.blocks for dim in value.dims)

    def repeated(self, value: Value) -> list[LoopAxis]:
        """Return the axes of the grid along which all programs compute the same result, such as sums of rows."""
        return [axis for axis in self.root.axes if not self.has_lanes(value, axis) and self.is_same(value, axis)]

    def is_same(self, value: Value, axis: LoopAxis) -> bool:
        """Return whether the terms of a reduction result do not depend on the tile along an axis of the grid."""
        (loop,) = [loop for loop in self.sums if any(value is each for each in loop.results)]
        (body,) = loop.regions
        makers: dict[int, Op] = {}
        #: Values that a loop carries, with those before and after a step.
        carried: dict[int, tuple[Operand, ...]] = {
            p.number: (r,) for p, r in zip(body.params, body.results, strict=True)
        }
        for op in (*self.until_last, *body.walk()):
            makers.update((result.number, op) for result in op.results)
            if isinstance(op.attrs, ForAttrs) and op is not loop:
                if len(op.operands) > op.attrs.carried or any(
                    _measures(each.end, (axis.block,)) for each in op.attrs.axes
                ):
                    return False
                for begin, end, *both in zip(
                    op.operands, op.regions[0].results, op.regions[0].params, op.results, strict=True
                ):
                    carried.update((each.number, (begin, end)) for each in both)
        left: list[Operand] = [body.results[[r.number for r in loop.results].index(value.number)]]
        seen: set[int] = set()
        while left:
            at = left.pop()
            if not isinstance(at, Value) or at.number in seen:
                continue
            seen.add(at.number)
            if at.number in carried:
                left += carried[at.number]
                continue
            maker = makers.get(at.number)
            if maker is None or maker.kind not in _PLAIN or _mentions(maker, axis.block):
                return False
            left += maker.reads()
        return True

    def programs(self, axis: LoopAxis) -> int:
        """Return the number of programs along an axis, each of which has separate results."""
        assert isinstance(axis.end, int)
        if (axis.scalar and fixed_at(axis.step, 1)) or (self.sizes[axis.block] == 1 and not axis.scalar):
            return axis.end
        raise Declined("tiles of an axis share no dimension with the sum")

    def indices(
        self, out: Builder, value: Value, part: Operand, to: Mapping[int, int]
    ) -> tuple[list[Operand], tuple[Index, ...]]:
        """Return the operands and indices of the partial ``part``; ``to`` maps blocks to those of the grid loop."""
        operands, found = [part], [Index("scalar", operand=0)]
        for axis in self.apart(value):
            place = TileAttrs(axis.block, "index" if axis.scalar else "begin")
            operands.append(out.emit("tile", (), self.before.index_dtype, (), place))
            found.append(Index("scalar", operand=len(operands) - 1))
        for at, dim in enumerate(value.dims):
            assert dim.block is not None
            found.append(Index("block", block=to.get(dim.block, dim.block), positions=(at,)))
        return operands, tuple(found)

    # --- the first grid loop ------------------------------------------------------------------------------------------

    def summing(self, number: int) -> Root:
        """Return the grid loop of reduction loop ``number``, which follows those of the loops before it."""
        loop = self.sums[number]
        split = self.block("grid", self.count, 1, f"part of {self.count}")
        ops = [] if number else list(self.first)
        out = Builder(self.numbers, loop.location, ops)
        renamed = self.known(out, loop) if number else {}
        parts = self.kept[loop.number]
        neutral = [
            out.emit("full", (_neutral(p.value, p.way),), p.value.dtype, p.value.dims, name=p.value.name) for p in parts
        ]
        mine = Split(block=split.id, count=self.count)
        loop = replace(loop, operands=())
        read = _tensors_read(self.sums[number - 1]) if number % 2 else frozenset()
        ops.append(replace(split_loop(loop, axis_to_split(loop).block, mine, read, renamed), operands=tuple(neutral)))
        part = out.emit("tile", (), self.before.index_dtype, (), TileAttrs(split.id, "index"), "part")
        for each in parts:
            operands, indices = self.indices(out, each.value, part, {})
            stored = self.memory(each, indices, len(each.value.dims), shift=1)
            with out.region() as store:
                out.emit("store", (each.value, *operands), each.value.dtype, each.value.dims, stored)
            for axis in self.repeated(each.value):  # the first program along it stores for all
                place = TileAttrs(axis.block, "index" if axis.scalar else "begin")
                at = out.emit("tile", (), self.before.index_dtype, (), place)
                is_first = out.pointwise("eq", at, axis.begin if isinstance(axis.begin, int) else 0)
                with out.region() as guarded:
                    out.append("if", (is_first,), (), None, (Region((), tuple(store), ()), Region((), (), ())))
                store = guarded
            ops += store
        grid = (*self.root.axes, LoopAxis(split.id, 0, self.count, scalar=True))
        return replace(self.root, axes=grid, body=Region((), tuple(ops), ()), phase=self.root.phase + number)

    def memory(self, part: _Part, indices: tuple[Index, ...], rank: int, shift: int = 0) -> MemoryAttrs:
        moved = (i if i.operand is None else replace(i, operand=i.operand + shift) for i in indices)
        return MemoryAttrs(part.tensor.id, tuple(moved), self.slot + 2 * part.at + 1 - shift, rank)

    def known(self, out: Builder, until: Op | None) -> dict[int, Value]:
        """Repeat the ops before loop ``until``, or up to the last reduction loop, with the reduced partials.

        Return the new values by number of the old ones.
        """
        renamed: dict[int, Value] = {}
        for op in itertools.takewhile(lambda op: op is not until, self.until_last):
            if op.number not in self.kept:
                self.copy(op, out, renamed, {})
                continue
            out.location = op.location
            for value, result in zip(self.all_parts(op, out, renamed), op.results, strict=True):
                renamed[result.number] = value
        return renamed

    # --- the second grid loop -----------------------------------------------------------------------------------------

    def adding(self) -> Root:
        to = self.tiles()
        self.check_lanes(to)
        renamed: dict[int, Value] = {}
        ops: list[Op] = []
        out = Builder(self.numbers, self.op.location, ops)
        for op in self.first:
            self.copy(op, out, renamed, to)
        for value, result in zip(self.total(out, renamed, to), self.op.results, strict=True):
            renamed[result.number] = value
        for op in self.rest:
            self.copy(op, out, renamed, to)
        axes = tuple(replace(axis, block=to.get(axis.block, axis.block)) for axis in self.root.axes)
        return replace(self.root, axes=axes, body=Region((), tuple(ops), ()), phase=self.root.phase + 1)

    def spreading(self) -> Root:
        """Return the last grid loop if programs share the loops after the sums, in the tiles of the first one."""
        count = self.count if split_loop_blocks(self.rest) else 1
        mine = self.block("grid", count, 1, f"part of {count}")
        ops: list[Op] = []
        out = Builder(self.numbers, self.op.location, ops)
        renamed = self.known(out, None)
        part = out.emit("tile", (), self.before.index_dtype, (), TileAttrs(mine.id, "index"), "part")
        is_first = out.pointwise("eq", part, 0)
        read = _tensors_read(self.sums[-1]) if len(self.sums) % 2 else frozenset()
        once = done_once(self.before, self.rest)
        alone = tuple(renaming(op, renamed) for op in self.rest if op.number in once)
        for op in self.rest:
            if isinstance(op.attrs, ForAttrs):
                ops.append(split_loop(op, op.attrs.axes[0].block, Split(block=mine.id, count=count), read, renamed))
                read = frozenset()
            elif op.number not in once:
                ops.append(renaming(op, renamed))
            elif op.number == alone[-1].number:
                # No other op conflicts with them, so they may run at the position of the last one.
                out.append("if", (is_first,), (), None, (Region((), alone, ()), Region((), (), ())))
        axes = (*self.root.axes, LoopAxis(mine.id, 0, count, scalar=True))
        phase = self.root.phase + len(self.sums)
        return replace(self.root, axes=axes, body=Region((), tuple(ops), ()), phase=phase)

    def all_parts(self, loop: Op, out: Builder, renamed: Mapping[int, Value]) -> tuple[Value, ...]:
        """Return the reduced partials of ``loop``, combined with the initial values. Every program reads all partials,
        many at once."""
        initial = [renamed.get(v.number, v) if isinstance(v, Value) else v for v in loop.operands]
        made: list[Value] = []
        for first, each in zip(initial, self.kept[loop.number], strict=True):
            value, way = each.value, each.way
            lanes = math.prod(self.sizes[block] for block in _lanes(value.dims))
            room = max(1, _AT_ONCE // lanes)
            size = math.gcd(self.count, 1 << (room.bit_length() - 1))
            parts = self.block("tile", self.count, size, "parts")
            param = out.value(value.dtype, value.dims, value.name)
            with out.region() as body:
                operands, indices = self.indices(out, value, 0, {})
                moved = (replace(i, positions=tuple(p + 1 for p in i.positions)) for i in indices[1:])
                every = (Index("block", block=parts.id, positions=(0,)), *moved)
                loaded = self.memory(each, every, len(value.dims) + 1)
                dims = (Dim(1, (parts.id,)), *value.dims)
                read = out.emit("load", operands, value.dtype, dims, loaded)
                read = self.padded(out, read, way, frozenset((parts.id,)))
                reduced = out.emit("reduce", (read,), value.dtype, value.dims, ReduceAttrs(_REDUCTIONS[way], (0,)))
                total = out.pointwise(way, param, reduced)
            attrs = ForAttrs((LoopAxis(parts.id, 0, self.count),), 1)
            region = Region((param,), tuple(body), (total,))
            after = out.value(value.dtype, value.dims, value.name)
            made += out.append("for", (first,), (after,), attrs, (region,)).results
        return tuple(made)

    def tiles(self) -> dict[int, int]:
        """Return the blocks of the second grid loop by those of the first: the last is the widest."""
        room, found = _ELEMENTS, {}
        widest = min(_COLUMNS, room)
        for axis in reversed(self.root.axes):
            block = self.before.blocks[axis.block]
            if axis.scalar or self.sizes[axis.block] == 1:
                continue
            size = min(widest, room, self.sizes[axis.block])
            name = f"{block.name} of the sums"
            found[axis.block] = self.block("tile", axis.end, size, name).id  # type: ignore[arg-type]
            room = max(1, room // size)
        return found

    def check_lanes(self, to: Mapping[int, int]) -> None:
        """Raise ``Declined`` if the result depends on the set of lanes in a tile of the second grid loop."""
        ops = tuple(each for op in (*self.first, *self.rest) for each in op.walk())
        smaller = frozenset(old for old, new in to.items() if self.blocks[new].size != self.sizes[old])
        ends = {axis.block: axis.end for axis in self.root.axes}
        cut = frozenset(old for old in smaller if ends[old] > self.blocks[to[old]].size)  # type: ignore[operator]
        values = (*self.op.results, *(result for op in ops for result in op.results))
        if any(_walks_twice(value.dims, cut) for value in values):
            raise Declined("a value has one tile along two dimensions")
        if any(_moves_lanes(op, smaller) for op in ops):
            raise Declined("a reshape moves lanes of a tile to another dimension")
        accesses = [op for op in ops if isinstance(op.attrs, MemoryAttrs)]
        if any(op.kind == "atomic" and not cut <= set(_lanes(op.result.dims)) for op in accesses):
            raise Declined("an atomic runs once for a tile")
        if any(OPS[op.kind].writes and not self.owned(op, accesses, cut) for op in accesses):
            raise Declined("a tile reads or writes its stored elements again at other indices")

    def owned(self, store: Op, accesses: list[Op], cut: frozenset[int]) -> bool:
        """Return whether only one program touches what ``store`` writes, however small tiles of ``cut`` are."""
        tensors = self.before.tensors
        written = store.attributes(MemoryAttrs)
        met = [
            a
            for op in accesses
            if may_alias(tensors[(a := op.attributes(MemoryAttrs)).tensor], tensors[written.tensor])
        ]
        if len(met) == 1:
            return True
        places = [{(at, i.block) for at, i in enumerate(a.indices) if is_block(i)} for a in met]
        common = set.intersection(*places) if len({a.tensor for a in met}) == 1 else set()
        return cut <= {block for _, block in common}

    def total(self, out: Builder, renamed: Mapping[int, Value], to: Mapping[int, int]) -> tuple[Value, ...]:
        """Return the reduced partials, combined with the initial values."""
        parts = self.block("grid", self.count, 1, "parts")
        initial = [renamed.get(v.number, v) if isinstance(v, Value) else v for v in self.op.operands]
        dims = [_dims(value.dims, to) for value in self.op.results]
        params = [out.value(v.dtype, d, v.name) for v, d in zip(self.op.results, dims, strict=True)]
        results: list[Value] = []
        with out.region() as body:
            part = out.emit("tile", (), self.before.index_dtype, (), TileAttrs(parts.id, "index"), "part")
            for each, param in zip(self.kept[self.op.number], params, strict=True):
                operands, indices = self.indices(out, each.value, part, to)
                loaded = self.memory(each, indices, len(each.value.dims))
                read = out.emit("load", operands, param.dtype, param.dims, loaded)
                read = self.padded(out, read, each.way, frozenset(to.values()))
                results.append(out.pointwise(each.way, param, read))
        attrs = ForAttrs((LoopAxis(parts.id, 0, self.count, scalar=True),), len(params))
        region = Region(tuple(params), tuple(body), tuple(results))
        made = tuple(out.value(p.dtype, p.dims, p.name) for p in params)
        return out.append("for", initial, made, attrs, (region,)).results

    def padded(self, out: Builder, read: Value, way: str, others: frozenset[int]) -> Value:
        """Return partials with the neutral element in lanes out of range, where loads read zeros."""
        dims = tuple(at for at, dim in enumerate(read.dims) if dim.block is not None and dim.block not in others)
        return read if way == "add" or not dims else out.mask(read, dims, _neutral(read, way))

    def copy(self, op: Op, out: Builder, renamed: dict[int, Value], to: Mapping[int, int]) -> None:
        if _follows(op, to) and not self.tells_the_first(op):
            raise Declined("ops outside of the loop depend on tile sizes, or reduce tiles")
        if is_guard(op):
            regions: list[Region] = []
            for region in op.regions:
                with out.region() as body:
                    for each in region.ops:
                        self.copy(each, out, renamed, to)
                regions.append(Region((), tuple(body), ()))
            out.repeat(renaming(op, renamed), results=(), regions=tuple(regions))
            return
        results = tuple(self.numbers.value(r.dtype, _dims(r.dims, to), r.name) for r in op.results)
        operands = tuple(renamed.get(o.number, o) if isinstance(o, Value) else o for o in op.operands)
        renamed.update((old.number, new) for old, new in zip(op.results, results, strict=True))
        out.repeat(op, operands=operands, results=results, attrs=_attributes(op, to))

    def tells_the_first(self, op: Op) -> bool:
        """Return whether the begin of a tile only guards what one program along it does, for tiles of any size.

        It is compared with 0, and the guarded stores have no lanes along the tile.
        """
        if not isinstance(op.attrs, TileAttrs) or op.attrs.field != "begin" or op not in self.rest:
            return False
        block = op.attrs.block
        for each in self.users(op):
            if not isinstance(each.attrs, PointwiseAttrs) or each.attrs.name != "eq" or 0 not in each.operands:
                return False
            for guard in self.users(each):
                inside = [one for region in guard.regions for one in region.ops]
                if not is_guard(guard) or any(_mentions(one, block) for one in inside):
                    return False
        return True

    def users(self, op: Op) -> list[Op]:
        """Return the ops after the loop, and those in their regions, with a result of ``op`` among their operands."""
        every = [each for one in self.rest for each in one.walk()]
        return [each for each in every if any(v is op.result for v in each.values())]


def _later(root: Root, phases: int) -> Root:
    return replace(root, phase=root.phase + phases)


def _tensors_read(loop: Op) -> frozenset[int]:
    return frozenset(op.attrs.tensor for op in loop.walk() if isinstance(op.attrs, MemoryAttrs))


def _dims(dims: Dims, to: Mapping[int, int]) -> Dims:
    return tuple(Dim(dim.const, tuple(to.get(b, b) for b in dim.blocks)) if dim.blocks else dim for dim in dims)


def _lanes(dims: Dims) -> list[int]:
    return [block for dim in dims for block in dim.blocks]


def _walks_twice(dims: Dims, blocks: frozenset[int]) -> bool:
    found = [block for block in _lanes(dims) if block in blocks]
    return len(found) > len(set(found))


def _moves_lanes(op: Op, blocks: frozenset[int]) -> bool:
    """Return whether a ``reshape`` changes the position or order of tiles of ``blocks``."""
    if not isinstance(op.attrs, ViewAttrs) or op.attrs.name != "reshape":
        return False
    (value,) = op.values()
    return _between(value.dims, blocks) != _between(op.result.dims, blocks)


def _between(dims: Dims, blocks: frozenset[int]) -> list[tuple[int, list[int]]]:
    """Return the dimensions of one of ``blocks``, and between them the product of constants, and the other blocks."""
    found: list[tuple[int, list[int]]] = [(1, [])]
    for dim in dims:
        if dim.const == 1 and len(dim.blocks) == 1 and dim.blocks[0] in blocks:
            found += [(1, list(dim.blocks)), (1, [])]
        else:
            const, others = found[-1]
            found[-1] = const * dim.const, sorted((*others, *dim.blocks))
    return found


def _follows(op: Op, blocks: Mapping[int, int]) -> bool:
    """Return whether an op depends on the size or position of tiles of ``blocks``."""
    match op.attrs:
        case TileAttrs(block=block) | IotaAttrs(block=block, relative=True):
            return block in blocks
        case ReduceAttrs(dims=dims):
            (value,) = op.values()
            return any(block in blocks for dim in dims for block in value.dims[dim].blocks)
        case NumberAttrs(expr=expr):
            return _measures(expr, blocks)
        case MemoryAttrs(indices=indices):
            return any(_measures(index.shift, blocks) for index in indices)
    return False


def _mentions(op: Op, block: int) -> bool:
    """Return whether a value has lanes of a block, or depends on the place or size of its tile."""
    if any(block in dim.blocks for value in (*op.results, *op.values()) for dim in value.dims):
        return True
    if isinstance(op.attrs, MemoryAttrs) and any(index.block == block for index in op.attrs.indices):
        return True
    return _follows(op, {block: block}) or (isinstance(op.attrs, IotaAttrs) and op.attrs.block == block)


def _measures(number: Bound | float, blocks: Collection[int]) -> bool:
    leaves = number.leaves() if isinstance(number, Expr) else ()
    return any(leaf.op == "block" and leaf.args[0] in blocks for leaf in leaves)


def _attributes(op: Op, to: Mapping[int, int]) -> object:
    match op.attrs:
        case MemoryAttrs(indices=indices):
            moved = (i if i.block is None else replace(i, block=to.get(i.block, i.block)) for i in indices)
            return replace(op.attrs, indices=tuple(moved))
        case IotaAttrs(block=block):
            return replace(op.attrs, block=to.get(block, block))
        case TileAttrs(block=block):
            return replace(op.attrs, block=to.get(block, block))
    return op.attrs


def _neutral(value: Value, way: str) -> float | int:
    """Return the neutral element of a combination."""
    if way == "add":
        return 0.0 if value.dtype.is_floating_point else 0
    if value.dtype.is_floating_point:
        return -math.inf if way == "maximum" else math.inf
    limits = torch.iinfo(value.dtype)
    return limits.min if way == "maximum" else limits.max
