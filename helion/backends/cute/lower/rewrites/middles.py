"""Products in sequence with a narrow middle, as two matmuls: one that stores the middle, and one that multiplies it.

::

    for tile_m, tile_n in hl.tile([m, n]):                       for tile_m, tile_r in hl.tile([m, r]):
        for tile_k in hl.tile(k):                                    for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[...], acc=acc)             low = hl.dot(x[tile_m, tile_k], down[...], acc=low)
            low = hl.dot(x[tile_m, tile_k], down[...], acc=low)      middle[tile_m, tile_r] = low
        acc = hl.dot(low.to(...), up[...], acc=acc)          →
        out[tile_m, tile_n] = acc                                for tile_m, tile_n in hl.tile([m, n]):
                                                                     for tile_k in hl.tile(k): acc = hl.dot(x, w, acc=acc)
                                                                     for tile_r in hl.tile(r): acc = hl.dot(middle, up, acc=acc)
                                                                     out[tile_m, tile_n] = acc

A loop over tiles of columns that multiplies the middle, as of ``x @ a @ b``, is the second grid. The middle is rounded as
the program rounds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ....._compiler.ir.grammar import (
    ForAttrs,
    HostTensor,
    Index,
    LoopAxis,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Operand,
    Program,
    Region,
    Root,
    Value,
    ViewAttrs,
)
from ....._compiler.ir.ops import OPS
from ....._compiler.ir.rewrite import remembered
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import next_power_of_2
from ....._support.records import dataclass
from ...plan.chained.choice import MIDDLE_SLOT
from ...plan.records import TMA_ALIGNMENT_BYTES

MAX_MIDDLE = 256
"""Columns of a middle, which are those of one tile."""
_BY_ELEMENT = ("load", "view", "pointwise", "full", "number", "mask")


@dataclass(frozen=True, kw_only=True)
class Middle:
    """Two programs: ``first`` stores ``middle``, a tensor in the workspace, which ``main`` loads."""

    first: Program
    main: Program
    middle: HostTensor


@remembered
def in_sequence(program: Program) -> Middle | None:
    """Return the programs of both products; None for other programs."""
    if len(program.roots) != 1 or len(program.roots[0].axes) not in (1, 2):
        return None
    return _Splitter(program).split()


class _Splitter:
    """A rewrite of a grid loop to two of them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        (self.root,) = program.roots
        self.makers = {result.number: op for op in program.walk() for result in op.results}
        numbers = (number for op in program.walk() for number in (op.number, *(each.number for each in op.results)))
        params = (each.number for op in program.walk() for region in op.regions for each in region.params)
        self.free = 1 + max((*numbers, *params))

    def split(self) -> Middle | None:
        loops = [op for op in self.root.body.ops if op.regions]
        if not loops or any(op.kind != "for" or len(op.attributes(ForAttrs).axes) != 1 for op in loops):
            return None
        loop, *others = loops
        if any(op.regions or OPS[op.kind].stays for op in loop.regions[0].ops):
            return None
        if len(self.root.axes) == 2 and not others:
            return self._of_dot(loop, None, self.root.body)
        if len(self.root.axes) == 1 and len(others) == 1 and not others[0].results:
            return self._of_dot(loop, others[0], others[0].regions[0])
        return None

    def _of_dot(self, loop: Op, columns: Op | None, body: Region) -> Middle | None:
        """Return the programs of a body that multiplies what a loop returns."""
        dots = [op for op in body.ops if op.kind == "dot"]
        if len(dots) != 1 or any(op.regions for op in body.ops if op is not loop):
            return None
        (dot,) = dots
        for side in (0, 1):
            value = self._unmasked(dot.operands[side])
            low = self._source(value, loop)
            if low is None or not isinstance(value, Value):
                continue
            rows, middle = self._middle(value, side, low)
            if middle is None or rows is None:
                return None
            made = self._tensor(value, rows, middle)
            first = self._first(loop, low, value, made, (rows, middle), body)
            main = self._main(loop, low, columns, dot, side, made, (rows, middle))
            if main is None or not all(map(_is_whole, (first, main))):
                return None
            return Middle(first=first, main=main, middle=made)
        return None

    # Reading -------------------------------------------------------------------------------------------------------------

    def _made(self, value: Operand) -> Op | None:
        return self.makers.get(value.number) if isinstance(value, Value) else None

    def _source(self, value: Operand, loop: Op) -> Value | None:
        """Return the only result of a loop that a value is computed from, element by element."""
        found, waiting = list[Value](), [value]
        while waiting:
            value = waiting.pop()
            op = self._made(value)
            if op is loop and isinstance(value, Value):
                found.append(value)
            elif op is not None:
                if op.kind not in _BY_ELEMENT or (op.kind == "mask" and op.attributes(MaskAttrs).fill != 0.0):
                    return None
                waiting += [x for x in op.operands if isinstance(x, Value)]
            elif isinstance(value, Value):
                return None
        return found[0] if found and all(each is found[0] for each in found) else None

    def _middle(self, value: Value, side: int, low: Value) -> tuple[int | None, int | None]:
        """Return the blocks of the rows and of the columns of the middle: a tile of the grid, and a whole dimension."""
        blocks = [dim.block for dim in value.dims]
        if len(blocks) != 2 or {*blocks} != {dim.block for dim in low.dims} or None in blocks:
            return None, None
        rows, middle = blocks if side == 0 else blocks[::-1]
        walked = [axis.block for axis in self.root.axes]
        if rows not in walked or middle is None:
            return None, None
        whole = self.program.blocks[middle]
        known = whole.kind == "full" and isinstance(whole.extent, int) and 1 < whole.extent <= MAX_MIDDLE
        return (rows, middle) if known and isinstance(self.program.blocks[rows].extent, int) else (None, None)

    # Writing -------------------------------------------------------------------------------------------------------------

    def _number(self) -> int:
        self.free += 1
        return self.free - 1

    def _tensor(self, value: Value, rows: int, middle: int) -> HostTensor:
        """Return the tensor of the middle, whose rows begin at multiples of 16 bytes."""
        m, r = (self.program.blocks[block].extent for block in (rows, middle))
        assert isinstance(m, int) and isinstance(r, int)
        step = TMA_ALIGNMENT_BYTES // value.dtype.itemsize
        storage = 1 + max(tensor.storage for tensor in self.program.tensors)
        return HostTensor(
            id=len(self.program.tensors),
            name="middle",
            source="",
            dtype=value.dtype,
            shape=(m, r),
            strides=(-(-r // step) * step, 1),
            storage=storage,
            made=True,
        )

    def _upright(self, value: Value, blocks: tuple[int, int]) -> tuple[Value, bool]:
        """Return a value of the middle's dimensions in order, and whether it is another one."""
        if value.dims[0].block == blocks[0]:
            return value, False
        return dataclasses.replace(value, number=self._number(), dims=value.dims[::-1]), True

    def _stored(self, made: HostTensor, value: Value, blocks: tuple[int, int]) -> list[Op]:
        """Return the ops that store a tile of the middle."""
        upright, turned = self._upright(value, blocks)
        number = self._number()
        store = Op(
            number=number,
            kind="store",
            operands=(upright,),
            results=(dataclasses.replace(upright, number=number),),
            attrs=_tile_of(made, blocks),
        )
        return [_permuted(value, upright), store] if turned else [store]

    def _loaded(self, made: HostTensor, value: Value, blocks: tuple[int, int]) -> list[Op]:
        """Return the ops that load a tile of the middle; the result of the last one has the dimensions of ``value``."""
        upright, turned = self._upright(value, blocks)
        loaded = upright if turned else dataclasses.replace(value, number=self._number())
        load = Op(number=loaded.number, kind="load", operands=(), results=(loaded,), attrs=_tile_of(made, blocks))
        return [load, _permuted(loaded, dataclasses.replace(value, number=self._number()))] if turned else [load]

    def _first(
        self, loop: Op, low: Value, value: Value, made: HostTensor, blocks: tuple[int, int], body: Region
    ) -> Program:
        """Return the program that stores the middle, whose steps may be in the ``body`` that multiplies it."""
        stored = self._stored(made, value, blocks)
        narrow = _with_carried(loop, [[result is low for result in loop.results].index(True)])
        ops = [narrow if op is loop else op for op in self.root.body.ops if op is loop or not op.regions]
        ops += [] if body is self.root.body else body.ops
        needed = _needed(ops, [value])
        rows = next(axis for axis in self.root.axes if axis.block == blocks[0])
        return self._program((*needed, *stored), (rows, self._axis(blocks[1])), made, tile=blocks[1])

    def _axis(self, block: int) -> LoopAxis:
        extent = self.program.blocks[block].extent
        assert isinstance(extent, int)
        return LoopAxis(block=block, begin=0, end=extent)

    def _main(
        self, loop: Op, low: Value, columns: Op | None, dot: Op, side: int, made: HostTensor, blocks: tuple[int, int]
    ) -> Program | None:
        value = self._unmasked(dot.operands[side])
        assert isinstance(value, Value)
        loaded = self._loaded(made, value, blocks)
        if columns is not None:
            return self._by_columns(columns, dot, side, loaded, made)
        at = [result is low for result in loop.results].index(True)
        kept = [number for number in range(len(loop.results)) if number != at]
        if not kept:
            return self._program(self._without(loop, dot, side, loaded), self.root.axes, made)
        ops = list[Op]()
        for op in self.root.body.ops:
            if op is loop:
                ops.append(_with_carried(loop, kept))
            elif op is dot:
                ops += self._loop_over(dot, side, loaded, blocks[1])
            else:
                ops.append(op)
        return self._program(tuple(ops), self.root.axes, made, tile=blocks[1])

    def _without(self, loop: Op, dot: Op, side: int, loaded: Sequence[Op]) -> list[Op]:
        """Return the ops of the grid without a loop, whose result the dot has in memory."""
        sides = list(dot.operands)
        sides[side], sides[1 - side] = loaded[-1].result, self._unmasked(sides[1 - side])
        ops = list[Op]()
        for op in self.root.body.ops:
            if op is dot:
                ops += [*loaded, dataclasses.replace(dot, operands=tuple(sides))]
            elif op is not loop:
                ops.append(op)
        return ops

    def _loop_over(self, dot: Op, side: int, loaded: Sequence[Op], block: int) -> list[Op]:
        """Return the loop over the columns of the middle that computes a dot."""
        inside, given = self._operand(dot.operands[1 - side])
        start, zeros = dot.operands[2] if len(dot.operands) == 3 else None, list[Op]()
        if start is None:
            number = self._number()
            start = dataclasses.replace(dot.result, number=number)
            zeros.append(Op(number=number, kind="full", operands=(0.0,), results=(start,), attrs=None))
        param, total = (dataclasses.replace(dot.result, number=self._number()) for _ in range(2))
        middle = loaded[-1].result
        sides = (middle, given) if side == 0 else (given, middle)
        added = dataclasses.replace(dot, operands=(*sides, param), results=(total,))
        region = Region(params=(param,), ops=(*inside, *loaded, added), results=(total,))
        loop = Op(
            number=self._number(),
            kind="for",
            operands=(start,),
            results=(dot.result,),
            attrs=ForAttrs(axes=(self._axis(block),), carried=1),
            regions=(region,),
            location=dot.location,
        )
        return [*zeros, loop]

    def _operand(self, value: Operand) -> tuple[list[Op], Operand]:
        """Return copies of the ops that compute the other operand, without masks of zeros."""
        needed, waiting = dict[int, Op](), [value]
        while waiting:
            op = self._made(waiting.pop())
            if op is not None and not op.regions:
                needed[op.number] = op
                waiting += op.operands
        found, values = list[Op](), dict[int, Operand]()
        for op in self.root.body.ops:
            if op.number not in needed:
                continue
            operands = tuple(values.get(x.number, x) if isinstance(x, Value) else x for x in op.operands)
            if op.kind == "mask":
                values[op.result.number] = operands[0]
                continue
            made = dataclasses.replace(op.result, number=self._number())
            found.append(dataclasses.replace(op, number=made.number, operands=operands, results=(made,)))
            values[op.result.number] = made
        assert isinstance(value, Value)
        return found, values[value.number]

    def _by_columns(self, columns: Op, dot: Op, side: int, loaded: Sequence[Op], made: HostTensor) -> Program | None:
        """Return the program whose grid has the tiles of a loop over columns."""
        attrs, region = columns.attributes(ForAttrs), columns.regions[0]
        if attrs.carried or any(OPS[op.kind].stays for op in self.root.body.ops if not op.regions):
            return None
        before = [op for op in self.root.body.ops if not op.regions]
        ops = list[Op]()
        for op in region.ops:
            if op is dot:
                sides = list(dot.operands)
                sides[side] = loaded[-1].result
                sides[1 - side] = self._unmasked(sides[1 - side])
                op = dataclasses.replace(dot, operands=tuple(sides))
            ops.append(op)
        return self._program((*before, *loaded, *ops), (*self.root.axes, *attrs.axes), made)

    def _unmasked(self, value: Operand) -> Operand:
        """Return a value before zeros replace what is out of range."""
        op = self._made(value)
        masked = op is not None and op.kind == "mask" and op.attributes(MaskAttrs).fill == 0.0
        return self._unmasked(op.operands[0]) if op is not None and masked else value

    def _program(
        self, ops: Sequence[Op], axes: Sequence[LoopAxis], made: HostTensor, tile: int | None = None
    ) -> Program:
        # the config has no size for it
        blocks = tuple(
            dataclasses.replace(each, kind="tile", size=next_power_of_2(each.extent))
            if each.id == tile and isinstance(each.extent, int)
            else each
            for each in self.program.blocks
        )
        root: Root = dataclasses.replace(
            self.root, axes=tuple(axes), body=dataclasses.replace(self.root.body, ops=tuple(ops))
        )
        changed = dataclasses.replace(self.program, tensors=(*self.program.tensors, made), blocks=blocks, roots=(root,))
        return drop_dead(changed)


def _with_carried(loop: Op, kept: Sequence[int]) -> Op:
    """Return a loop that carries some of its values alone."""
    attrs, region = loop.attributes(ForAttrs), loop.regions[0]
    rest = loop.operands[attrs.carried :]
    body = dataclasses.replace(
        region,
        params=tuple(region.params[at] for at in kept),
        results=tuple(region.results[at] for at in kept),
        ops=_needed(region.ops, [region.results[at] for at in kept]),
    )
    return dataclasses.replace(
        loop,
        operands=(*(loop.operands[at] for at in kept), *rest),
        results=tuple(loop.results[at] for at in kept),
        attrs=dataclasses.replace(attrs, carried=len(kept)),
        regions=(body,),
    )


def _needed(ops: Sequence[Op], results: Sequence[Operand]) -> tuple[Op, ...]:
    """Return those of some ops that results depend on."""
    makers = {result.number: op for op in ops for result in op.results}
    found, waiting = set[int](), [*results]
    while waiting:
        value = waiting.pop()
        op = makers.get(value.number) if isinstance(value, Value) else None
        if op is not None and op.number not in found:
            found.add(op.number)
            waiting += op.reads()
    return tuple(op for op in ops if op.number in found)


def _is_whole(program: Program) -> bool:
    """Return whether a program defines all values that it reads, as where nothing else reads the middle."""
    made = {result.number for op in program.walk() for result in op.results}
    made |= {param.number for op in program.walk() for region in op.regions for param in region.params}
    return all(value.number in made for op in program.walk() for value in op.reads())


def _tile_of(made: HostTensor, blocks: tuple[int, int]) -> MemoryAttrs:
    """Return the access of a tile of the middle."""
    indices = tuple(Index("block", block, (at,)) for at, block in enumerate(blocks))
    return MemoryAttrs(tensor=made.id, indices=indices, slot=MIDDLE_SLOT, rank=2)


def _permuted(value: Value, result: Value) -> Op:
    """Return the transposition of a value to a result."""
    return Op(
        number=result.number, kind="view", operands=(value,), results=(result,), attrs=ViewAttrs("permute", (1, 0))
    )
