"""Splits a matmul epilogue into column subtiles, which reduces its live registers and staging memory.

Before::

    %1: [b0, b1] = for ..: dot ..; %2: [b1] = load bias[b1]; %3: [b0, b1] = add %1, %2; store out[b0, b1] <- %3

After splitting b1 in two, into blocks b3 and b4::

    %4: [b0, 2, b3] = reshape %1; %5: [b0, b3, 2] = permute %4; %6: [b0, b3], %7: [b0, b4] = split %5

    %8: [b3] = load bias[b3]; %9: [b0, b3] = add %6, %8; store out[b0, b3] <- %9
    %10: [b4] = load bias[b4]; %11: [b0, b4] = add %7, %10; store out[b0, b4] <- %11

Each subtile has its own block, which covers a contiguous range of the columns of the split block. Loads and stores of
all subtiles keep the slot of the access in the kernel's source.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from ..._shapes import Dim
from ..._support.records import dataclass, replace
from ..ir.build import Builder, Numbers
from ..ir.effects import apart_along, ordered
from ..ir.grammar import Block, ForAttrs, IotaAttrs, MemoryAttrs, Op, Operand, Part, Program, Region, Value, ViewAttrs
from ..ir.ops import OPS
from ..ir.rewrite import Declined, Makers, map_regions
from ..passes.always.simplify import drop_dead

#: Columns of the narrowest subtile: 16 bytes of a 2-byte type, the widest access of one thread.
MIN_COLUMNS = 8
#: Numbers of subtiles that a tile may be split into.
COUNTS = (2, 4)
#: A tile size, divisible by every count, for testing whether a block can be split.
_SOME_SIZE = 64


def subtile_blocks(program: Program) -> tuple[tuple[int, ...], str]:
    """Return the blocks, in order, that are columns of a splittable epilogue, and the reason if there are none."""
    good: list[int] = []
    reason = "no store writes tiled columns of a matmul"
    for block in _columns(program):
        try:
            _, found = _split(program, program.blocks[block], COUNTS[0], _SOME_SIZE)
        except Declined as declined:
            reason = str(declined)
        else:
            if found:
                good.append(block)
    return tuple(good), reason


def largest_count(sizes: Mapping[int, int], blocks: Collection[int], wanted: int) -> int:
    """Return the largest number of subtiles, up to ``wanted``, that the widest tile of ``blocks`` allows; 1 if none is
    wide enough."""
    widest = max((sizes[block] for block in blocks), default=0)
    return next((count for count in reversed(COUNTS) if count <= wanted and widest >= count * MIN_COLUMNS), 1)


def subtile(program: Program, count: int, sizes: Mapping[int, int]) -> Program:
    """Return the program with every splittable epilogue in ``count`` column subtiles.

    A narrow tile of ``sizes`` gets as many subtiles as it is wide enough for.
    """
    changed = program
    for block in _columns(program):
        own = largest_count(sizes, (block,), count)
        if own == 1:
            continue
        try:
            changed, _ = _split(changed, program.blocks[block], own, sizes[block])
        except Declined:
            continue  # declined before as well, or rolling another dimension made it illegal: the tile stays whole
    return changed if changed is program else drop_dead(changed)


def _columns(program: Program) -> list[int]:
    """Return the tiles that are columns of a matmul."""
    dots = (op.result.dims[-1].block for op in program.walk() if op.kind == "dot")
    return sorted(
        {b for b in dots if b is not None and program.blocks[b].kind == "tile" and not program.blocks[b].merged}
    )


def _split(program: Program, block: Block, count: int, size: int) -> tuple[Program, bool]:
    """Return the program with ``block``, of ``size`` lanes, split in ``count``, and whether it split an epilogue."""
    axes = (axis for op in program.walk() if isinstance(op.attrs, ForAttrs) for axis in op.attrs.axes)
    if any(axis.block == block.id and axis.jagged is not None for axis in axes):
        raise Declined("the columns are those of a jagged tile")
    first = len(program.blocks)
    parts = tuple(
        Block(
            id=first + at,
            kind="tile",
            extent=block.extent,
            name=f"part {at + 1} of {count} of {block.name}",
            part=Part(block=block.id, at=at, count=count),
        )
        for at in range(count)
    )
    splitter = _Splitter(program, block.id, parts, size // count)
    changed = program.map_regions(splitter.region)
    if not splitter.found:
        return program, False
    return replace(changed, blocks=(*program.blocks, *parts)), True


@dataclass(frozen=True, kw_only=True)
class _Epilogue:
    """The part of the program that is done per subtile.

    ``ops`` are in order, the last one a store. ``sources`` are the values that they read and that must be split.
    """

    ops: tuple[Op, ...]
    sources: tuple[Value, ...]


class _Splitter:
    def __init__(self, program: Program, block: int, parts: tuple[Block, ...], lanes: int) -> None:
        self.program = program
        self.block = block
        self.parts = parts
        self.lanes = lanes
        self.found = False
        self.numbers = Numbers.after(program)

    def carries(self, value: Value) -> bool:
        return any(self.block in dim.blocks for dim in value.dims)

    def is_wide(self, op: Op) -> bool:
        return any(self.carries(v) for v in (*op.values(), *op.results))

    def region(self, region: Region) -> Region:
        region = replace(region, ops=tuple(map_regions(op, self.region) for op in region.ops))
        epilogue = self.epilogue(region)
        if epilogue is None:
            return region
        self.found = True
        self.check_uses(region, epilogue)
        self.check_memory(region, epilogue)
        stores = {op.number for op in epilogue.ops if op.kind == "store"}
        made: list[Op] = []
        for op in region.ops:
            if op.number not in stores:
                made.append(op)
            elif op is epilogue.ops[-1]:
                self.emit(epilogue, {v.number: v for v in epilogue.sources}, self.parts, made)
        return Region(region.params, tuple(made), region.results)

    # --- members of the epilogue --------------------------------------------------------------------------------------

    def epilogue(self, region: Region) -> _Epilogue | None:
        """Return the stores of the result of a matmul, and all ops between matmul and stores."""
        makers = Makers.among(region.ops)
        chosen: set[int] = set()
        sources: dict[int, Value] = {}
        for op in region.ops:
            if op.kind == "store" and self.carries(op.result):
                between, ends = self.closure(op, makers)
                if any(self.is_product(maker) for end in ends if (maker := makers.of(end)) is not None):
                    chosen |= between
                    sources.update((end.number, end) for end in ends)
        if not chosen:
            return None
        ops = tuple(op for op in region.ops if op.number in chosen)
        for op in ops:
            self.check(op)
        for source in sources.values():
            if makers.of(source) is None:
                raise Declined("a value with the columns comes from outside of a loop or a branch")
            self.check_dims(source)
            if source.dims[-1].block != self.block:
                raise Declined("the columns are not the last dimension of a value to split")
        return _Epilogue(ops=ops, sources=tuple(sources.values()))

    def closure(self, store: Op, makers: Makers) -> tuple[set[int], list[Value]]:
        """Return the ops over the columns that a store depends on, and their input values over the columns."""
        between: set[int] = set()
        ends: dict[int, Value] = {}
        stack = [store]
        while stack:
            op = stack.pop()
            if op.number in between:
                continue
            between.add(op.number)
            for value in op.values():
                maker = makers.of(value)
                if not self.carries(value):
                    continue
                if maker is not None and "subtile" in OPS[maker.kind].divided_by:
                    stack.append(maker)
                else:
                    ends[value.number] = value
        return between, list(ends.values())

    def is_product(self, op: Op) -> bool:
        """Return whether an op computes a matmul over the columns, or accumulates it in a loop."""
        return any(inner.kind == "dot" and inner.result.dims[-1].block == self.block for inner in op.walk())

    # --- legality -----------------------------------------------------------------------------------------------------

    def check(self, op: Op) -> None:
        for value in (*op.values(), *op.results):
            self.check_dims(value)
        if isinstance(op.attrs, IotaAttrs) and op.attrs.block != self.block:
            raise Declined("an index mixes dimensions")
        if isinstance(op.attrs, ViewAttrs) and op.attrs.name == "reshape":
            (value,) = op.values()
            if [d for d in value.dims if not d.is_one] != [d for d in op.result.dims if not d.is_one]:
                raise Declined("a reshape rearranges the columns")

    def check_dims(self, value: Value) -> None:
        places = [dim for dim in value.dims if self.block in dim.blocks]
        if len(places) > 1:
            raise Declined("a value has the columns twice")
        if any(dim.block is None for dim in places):
            raise Declined("a reshape merges the columns with another dimension")

    def check_uses(self, region: Region, epilogue: _Epilogue) -> None:
        """Decline if ops outside the epilogue read the matmul's result; whole values would then stay live with the
        subtiles."""
        inside = {op.number for op in epilogue.ops}
        private = {v.number for v in epilogue.sources}
        for op in epilogue.ops:
            if any(v.number in private for v in op.values()):
                private.update(r.number for r in op.results)
        outside = [v for op in region.ops if op.number not in inside for inner in op.walk() for v in inner.reads()]
        results = [v for v in region.results if isinstance(v, Value)]
        if any(v.number in private for v in (*outside, *results)):
            raise Declined("an op other than elementwise operations and stores reads the result of the matmul")

    def check_memory(self, region: Region, epilogue: _Epilogue) -> None:
        """Decline if the new order is illegal: stores of the first subtile precede loads of the second, and both follow
        all ops that were between."""
        mine = [op for op in epilogue.ops if isinstance(op.attrs, MemoryAttrs)]
        for a, b in itertools.combinations(mine, 2):
            if ordered(self.program, a, b) and not apart_along(self.program, a, b, self.block):
                raise Declined("the epilogue accesses a tensor at several positions")
        inside = {op.number for op in epilogue.ops}
        places = [at for at, op in enumerate(region.ops) if op.number in inside and isinstance(op.attrs, MemoryAttrs)]
        for op in region.ops[places[0] : places[-1]]:
            if op.number not in inside and any(ordered(self.program, op, each) for each in mine):
                raise Declined("other accesses to a tensor of the epilogue are between its loads and stores")

    # --- the subtiles -------------------------------------------------------------------------------------------------

    def emit(self, epilogue: _Epilogue, values: Mapping[int, Value], parts: tuple[Block, ...], made: list[Op]) -> None:
        """Append the epilogue for ``parts``; ``values`` holds their columns of each source."""
        if len(parts) == 1:
            self.repeat(epilogue, values, parts[0], made)
            return
        middle = len(parts) // 2
        halves: tuple[dict[int, Value], dict[int, Value]] = ({}, {})
        for key, value in values.items():
            for half, part in zip(halves, self.halve(value, parts, epilogue.ops[0], made), strict=True):
                half[key] = part
        self.emit(epilogue, halves[0], parts[:middle], made)
        self.emit(epilogue, halves[1], parts[middle:], made)

    def halve(self, value: Value, parts: tuple[Block, ...], at: Op, made: list[Op]) -> tuple[Value, ...]:
        """Return the left and the right half of the columns of a value, for the op ``at``."""
        rest, two, rank = value.dims[:-1], Dim(2), len(value.dims)
        left, right = (Dim(len(parts) // 2, (parts[first].id,)) for first in (0, len(parts) // 2))
        out = Builder(self.numbers, at.location, made)
        apart = out.emit("view", (value,), value.dtype, (*rest, two, left), ViewAttrs("reshape"))
        permuted = ViewAttrs("permute", (*range(rank - 1), rank, rank - 1))
        last = out.emit("view", (apart,), value.dtype, (*rest, left, two), permuted)
        results = tuple(out.value(value.dtype, (*rest, dim), value.name) for dim in (left, right))
        return out.append("split", (last,), results).results

    def repeat(self, epilogue: _Epilogue, values: Mapping[int, Value], part: Block, made: list[Op]) -> None:
        """Append the ops of the epilogue for one subtile."""
        renamed, out = dict(values), Builder(self.numbers, ops=made)
        for op in epilogue.ops:
            operands: tuple[Operand, ...] = tuple(
                renamed.get(o.number, o) if isinstance(o, Value) else o for o in op.operands
            )
            results = tuple(self.narrowed(r, part) for r in op.results)
            renamed.update((old.number, new) for old, new in zip(op.results, results, strict=True))
            out.repeat(op, operands=operands, results=results, attrs=self.attributes(op, part))

    def narrowed(self, value: Value, part: Block) -> Value:
        dims = tuple(Dim(1, (part.id,)) if dim.block == self.block else dim for dim in value.dims)
        return self.numbers.value(value.dtype, dims, value.name)

    def attributes(self, op: Op, part: Block) -> object:
        match op.attrs:
            case MemoryAttrs(indices=indices):
                moved = (
                    replace(i, block=part.id) if i.kind == "block" and i.block == self.block else i for i in indices
                )
                return replace(op.attrs, indices=tuple(moved))
            case IotaAttrs(block=block, relative=relative) if block == self.block:
                assert part.part is not None
                first = part.part.at * self.lanes * op.attrs.step if relative else 0
                return replace(op.attrs, block=part.id, start=op.attrs.start + first)
        return op.attrs
