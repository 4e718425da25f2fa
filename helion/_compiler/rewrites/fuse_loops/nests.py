"""Loops over single numbers around loops with matmuls, unrolled so that the inner loops can be fused.

Users write the taps of a window as ``hl.grid([3, 3])``, as ``range(3)``, or as tiles of one element. Before::

    %5 = for b4 in 0..3 carrying (%1 = %0): %2 = tile b4.index
        %4 = for b5 in 0..256 tiles carrying (%3 = %1): load x[%10 + %2, b5]; load w[%2, b5, b1]; dot ..; yield %4

After::

    %4 = for b5 in 0..256 tiles carrying (%3 = %0): load x[%10 + 0, b5]; load w[0, b5, b1]; dot ..
    %6 = for b5 in 0..256 tiles carrying (%7 = %4): load x[%10 + 1, b5]; load w[1, b5, b1]; dot ..
    %5 = for b5 in 0..256 tiles carrying (%8 = %6): load x[%10 + 2, b5]; load w[2, b5, b1]; dot ..

The order of all iterations stays. A nest is left as it is if it has another effect than its carried values.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from ...._shapes import fixed_at
from ...._support.records import replace
from ...ir.build import Builder, Numbers
from ...ir.grammar import (
    ForAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Root,
    TileAttrs,
)
from ...ir.rewrite import remembered
from ...passes.always.unroll_taps import Unroller, trips

#: Ops that loops with matmuls may contain, and those of the loops around them.
INSIDE = frozenset(("number", "tile", "iota", "full", "load", "pointwise", "view", "mask", "join", "split", "dot"))
_AROUND = frozenset(("number", "tile", "iota", "full", "load", "pointwise", "view", "for"))
#: Most iterations of a nest that is unrolled: those of a window of seven by seven taps.
_MOST_TAPS = 49
#: Fields of a tile of one element that begins at 0 and is its number.
_NUMBERS = frozenset(("index", "begin", "id"))
#: Quotients and rests that Python rounds as they are rounded on a GPU.
_QUOTIENTS: Mapping[str, Callable[[int, int], int]] = {"floordiv": operator.floordiv, "remainder": operator.mod}


@remembered
def without_nests(program: Program) -> Program:
    """Return the program with each loop over taps, around loops with matmuls, replaced by its iterations; the same
    program if it has none."""
    if len(program.roots) != 1:
        return program
    (root,) = program.roots
    nests = {op.number for op in root.body.ops if isinstance(op.attrs, ForAttrs) and _is_nest(program, op)}
    if not nests:
        return program
    return replace(program, roots=(replace(root, body=_Copier(program).body(root, nests)),))


def tap_axes(program: Program, axes: tuple[LoopAxis, ...]) -> tuple[LoopAxis, ...]:
    """Return the axes of a loop that have one known number in each iteration."""
    return tuple(axis for axis in axes if trips(_numbered(program, axis)) <= _MOST_TAPS)


def _numbered(program: Program, axis: LoopAxis) -> LoopAxis:
    """Return an axis of tiles of one element as one of numbers; other axes as they are."""
    one = not axis.scalar and fixed_at(program.blocks[axis.block].size, 1) and fixed_at(axis.begin, 0)
    return replace(axis, scalar=True) if one else axis


def _is_nest(program: Program, loop: Op) -> bool:
    """Return whether a loop runs over taps alone, around loops with matmuls that depend on their numbers alone."""
    taps = tap_axes(program, loop.attributes(ForAttrs).axes)
    count = _loops_inside(program, loop)
    if not taps or count is None or count > _MOST_TAPS:
        return False
    blocks = {axis.block for inner in loop.walk() if isinstance(inner.attrs, ForAttrs) for axis in inner.attrs.axes}
    numbered = {b for b in blocks if program.blocks[b].kind == "grid" or fixed_at(program.blocks[b].size, 1)}
    return all(_follows_numbers(op, numbered) for op in loop.walk())


def _loops_inside(program: Program, loop: Op) -> int | None:
    """Return the number of loops with matmuls of an unrolled nest; None for other loops."""
    attrs = loop.attributes(ForAttrs)
    taps = tap_axes(program, attrs.axes)
    count = math.prod(trips(_numbered(program, axis)) for axis in taps)
    (region,) = loop.regions
    kinds = {op.kind for op in region.ops}
    if len(loop.operands) != attrs.carried:
        return None
    if len(taps) < len(attrs.axes):
        return count if len(attrs.axes) == len(taps) + 1 and "dot" in kinds and kinds <= INSIDE else None
    inner = [_loops_inside(program, op) for op in region.ops if op.kind == "for"]
    known = [each for each in inner if each is not None]
    return count * sum(known) if known and len(known) == len(inner) and kinds <= _AROUND else None


def _follows_numbers(op: Op, numbered: Collection[int]) -> bool:
    """Return whether an op uses axes of single numbers as scalars alone, and waits for no other program."""
    if isinstance(op.attrs, TileAttrs):
        return op.attrs.block not in numbered or op.attrs.field in _NUMBERS
    if isinstance(op.attrs, MemoryAttrs) and op.attrs.mark is not None:
        return False
    values = (*op.reads(), *op.results, *(each for region in op.regions for each in region.params))
    return not any(block in numbered for value in values for dim in value.dims for block in dim.blocks)


class _Copier(Unroller):
    """The copies of loops with matmuls, one for each iteration of the loops around them.

    The first copy of a loop keeps its number, so that its options apply.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(Numbers.after(program), program.index_dtype)
        self.program = program
        self.kept: set[int] = set()

    def body(self, root: Root, nests: Collection[int]) -> Region:
        """Return the body of the grid loop with its ``nests`` replaced by their iterations."""
        self.out = Builder(self.numbers, root.location, self.ops)
        for op in root.body.ops:
            if op.number in nests:
                self.expand(op, repeated=True)
            else:
                self.ops.append(replace(op, operands=tuple(map(self.operand, op.operands))))
        return replace(root.body, ops=tuple(self.ops))

    def expand(self, op: Op, repeated: bool) -> None:
        if isinstance(op.attrs, TileAttrs) and op.attrs.block in self.taps:
            self.known[op.result.number] = self.taps[op.attrs.block]
        else:
            super().expand(op, repeated)

    def loop(self, op: Op, attrs: ForAttrs) -> None:
        taps = tap_axes(self.program, attrs.axes)
        (region,) = op.regions
        carried = [self.operand(each) for each in op.operands]
        numbers = (_numbers_of(self.program, axis) for axis in taps)
        for each in itertools.product(*numbers):
            self.taps.update(zip((axis.block for axis in taps), each, strict=True))
            if len(taps) < len(attrs.axes):
                carried = list(self.copy(op, attrs, carried).results)
                continue
            self.known.update((param.number, now) for param, now in zip(region.params, carried, strict=True))
            for inner in region.ops:
                self.expand(inner, repeated=True)
            carried = [self.operand(result) for result in region.results]
        self.known.update((result.number, last) for result, last in zip(op.results, carried, strict=True))

    def copy(self, op: Op, attrs: ForAttrs, carried: Sequence[Operand]) -> Op:
        """Append a copy of a loop with matmuls over the axis that is left."""
        (axis,) = (each for each in attrs.axes if each.block not in self.taps)
        (region,) = op.regions
        params = tuple(self.out.value(each.dtype, each.dims, each.name) for each in region.params)
        self.known.update((old.number, new) for old, new in zip(region.params, params, strict=True))
        with self.out.region() as ops:
            for inner in region.ops:
                self.expand(inner, repeated=True)
            results = tuple(self.value(each) for each in region.results)
        self.out.location = op.location
        number = self.numbers.op() if op.number in self.kept else op.number
        self.kept.add(op.number)
        made = replace(
            op,
            number=number,
            operands=tuple(carried),
            results=tuple(self.out.value(each.dtype, each.dims, each.name) for each in op.results),
            attrs=replace(attrs, axes=(axis,)),
            regions=(Region(params, tuple(ops), results),),
        )
        self.out.ops.append(made)
        return made

    def constant(self, op: Op) -> int | None:
        found = super().constant(op)
        if found is not None or not isinstance(op.attrs, PointwiseAttrs) or op.result.dims:
            return found
        operands = [self.operand(each) for each in op.operands]
        if op.attrs.name not in _QUOTIENTS or op.result.dtype not in (torch.int32, torch.int64):
            return None
        match operands:
            case [int() as number, int() as divisor] if divisor:
                return _QUOTIENTS[op.attrs.name](number, divisor)
        return None


def _numbers_of(program: Program, axis: LoopAxis) -> range:
    numbered = _numbered(program, axis)
    return range(numbered.begin, numbered.end, numbered.step)  # type: ignore[arg-type]
