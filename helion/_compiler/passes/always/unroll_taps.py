"""Unrolls loops over the taps of a window, whose iterations load rows that other iterations load too.

A loop over a constant number of taps loads a tile in each iteration. Rows of a tile share these loads only where each
is an op of its own (``analysis/row_windows.py``). Before::

    %1 = for b2 in 0..2 carrying (%2 = %0): %3 = tile b2.index; %4: [b0, b1] = load x[b0 + %3, b1]; yield add %2, %4

After::

    %5: [b0, b1] = load x[b0, b1]; %6 = add %0, %5; %7: [b0, b1] = load x[b0 + 1, b1]; %1 = add %6, %7

All loops of a grid loop are unrolled, or none. The order of the additions is that of the loop.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping

import torch

from ...._shapes import fixed_at
from ...._support.records import dataclass, field, replace
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
    Value,
)
from ...ir.rewrite import Makers
from ..analysis.row_windows import LEAST_LOADS, is_plain, is_simple, shared_rows
from .simplify import drop_dead, merge_common

#: Most ops of an unrolled grid loop that load tiles: those of a window of eight by eight taps.
_MOST_LOADS = 64
#: Rows of a tile, and the least ratio of the loads of all taps to those of the rows.
_ROWS, _LEAST_SHARED = 8, 1.3
#: Integer arithmetic on numbers of iterations, which has the same result in Python and on a GPU without overflow.
_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}


def unroll_taps(program: Program) -> Program:
    """Return the program with the loops over taps unrolled in the grid loops whose rows then share loads."""
    numbers: Numbers | None = None
    roots = list(program.roots)
    for at, root in enumerate(roots):
        dims = _tap_dims(root)
        if not dims:
            continue
        numbers = numbers or Numbers.after(program)
        made = Unroller(numbers, program.index_dtype).unrolled(root)
        made = drop_dead(merge_common(replace(program, roots=(made,)))).roots[0]
        if _shares_rows(program, made):
            roots[at] = replace(made, spread=root.spread + dims)
    if all(new is old for new, old in zip(roots, program.roots, strict=True)):
        return program
    return _with_slots(replace(program, roots=tuple(roots)))


def _tap_dims(root: Root) -> int:
    """Return the dimensions of the loops in a grid loop that only runs loops over a few taps; else 0."""
    dims, loads, grid = 0, 0, {axis.block for axis in root.axes}
    for op, taps in _inside(root.body.ops, 1):
        if isinstance(op.attrs, ForAttrs):
            dims += len(op.attrs.axes)
        elif not is_plain(op) or not _is_repeatable(op, taps, grid):
            return 0
        elif op.kind == "load" and op.result.dims:
            loads += taps
        if taps > _MOST_LOADS:
            return 0
    return dims if LEAST_LOADS <= loads <= _MOST_LOADS else 0


def _is_repeatable(op: Op, taps: int, grid: Collection[int]) -> bool:
    """Return whether an op may have a copy for each of its ``taps``."""
    if isinstance(op.attrs, MemoryAttrs):
        return op.attrs.mark is None and (op.kind == "load" or taps == 1)
    return not isinstance(op.attrs, TileAttrs) or op.attrs.field == "index" or op.attrs.block in grid


def _inside(ops: tuple[Op, ...], taps: int) -> Iterator[tuple[Op, int]]:
    """Yield the ops in loops of constant length, with the iterations of each; one more than is allowed for others."""
    for op in ops:
        inner = taps
        if isinstance(op.attrs, ForAttrs):
            inner *= math.prod(map(trips, op.attrs.axes))
            yield op, inner
            yield from _inside(op.regions[0].ops, inner)
        else:
            yield op, taps


def trips(axis: LoopAxis) -> int:
    """Return the iterations of a loop over single numbers that are known; too many for any other loop."""
    plain = axis.scalar and not (axis.jagged or axis.merged or axis.split or axis.backwards)
    numbers = range(axis.begin, axis.end, axis.step) if plain and _are_ints(axis) else ()  # type: ignore[arg-type]
    return len(numbers) or _MOST_LOADS + 1


def _are_ints(axis: LoopAxis) -> bool:
    return all(isinstance(bound, int) for bound in (axis.begin, axis.end, axis.step))


def _shares_rows(program: Program, root: Root) -> bool:
    """Return whether rows along an axis that is not contiguous share loads."""
    ops = root.body.ops
    stores = [op.attributes(MemoryAttrs) for op in ops if op.kind == "store"]
    contiguous = {
        index.block
        for attrs in stores
        for index, stride in zip(attrs.indices, program.tensors[attrs.tensor].strides, strict=True)
        if fixed_at(stride, 1)
    }
    makers, tiles = Makers.among(ops), [op for op in ops if op.results and len(op.result.dims) > 1]
    for axis in root.axes:
        size = program.blocks[axis.block].size
        if axis.block in contiguous or not is_simple(axis) or (isinstance(size, int) and size < 2):
            continue
        shared = shared_rows(makers, tiles, axis.block)
        if shared is None or max(map(len, shared.rows)) < 2:
            continue
        asked, made = shared.loads(_ROWS)
        if asked >= _LEAST_SHARED * made:
            return True
    return False


def _with_slots(program: Program) -> Program:
    """Return the program with its loads and stores numbered in their order."""
    slots, load_slots = itertools.count(), itertools.count()

    def numbered(op: Op) -> Op:
        if op.kind in ("load", "store"):
            attrs = op.attributes(MemoryAttrs)
            load_slot = None if attrs.load_slot is None else next(load_slots)
            return replace(op, attrs=replace(attrs, slot=next(slots), load_slot=load_slot))
        regions = tuple(replace(each, ops=tuple(map(numbered, each.ops))) for each in op.regions)
        return replace(op, regions=regions) if regions else op

    return program.map_regions(lambda body: replace(body, ops=tuple(map(numbered, body.ops))))


@dataclass
class Unroller:
    """Repeats the ops of loops with the numbers of their iterations. Integers that follow from these are constants."""

    numbers: Numbers
    index_dtype: torch.dtype
    ops: list[Op] = field(default_factory=list)
    #: The operands in place of values, by number, and the number of the running iteration, by block.
    known: dict[int, Operand] = field(default_factory=dict)
    taps: dict[int, int] = field(default_factory=dict)

    def unrolled(self, root: Root) -> Root:
        self.out = Builder(self.numbers, root.location, self.ops)
        for op in root.body.ops:
            self.expand(op, repeated=False)
        return replace(root, body=Region((), tuple(self.ops), ()))

    def operand(self, operand: Operand) -> Operand:
        return self.known.get(operand.number, operand) if isinstance(operand, Value) else operand

    def value(self, operand: Operand) -> Operand:
        """Return an operand, as a value where it was one before."""
        found = self.operand(operand)
        if not isinstance(operand, Value) or isinstance(found, Value):
            return found
        return self.out.emit("full", (found,), operand.dtype, operand.dims)

    def expand(self, op: Op, repeated: bool) -> None:
        self.out.location = op.location
        if isinstance(op.attrs, ForAttrs):
            self.loop(op, op.attrs)
        elif isinstance(op.attrs, TileAttrs) and op.attrs.field == "index" and op.attrs.block in self.taps:
            self.known[op.result.number] = self.taps[op.attrs.block]
        elif (constant := self.constant(op)) is not None:
            self.known[op.result.number] = constant
        else:
            made = self.access(op) if isinstance(op.attrs, MemoryAttrs) else self.plain(op)
            if not repeated:
                self.out.ops.append(made)
                return
            results = tuple(self.out.value(each.dtype, each.dims, each.name) for each in op.results)
            self.out.repeat(made, results=results)
            self.known.update((old.number, new) for old, new in zip(op.results, results, strict=True))

    def loop(self, op: Op, attrs: ForAttrs) -> None:
        (region,) = op.regions
        carried = [self.operand(each) for each in op.operands[: attrs.carried]]
        numbers = (range(each.begin, each.end, each.step) for each in attrs.axes)  # type: ignore[arg-type]
        for taps in itertools.product(*numbers):
            self.taps.update(zip((axis.block for axis in attrs.axes), taps, strict=True))
            self.known.update((param.number, now) for param, now in zip(region.params, carried, strict=True))
            for inner in region.ops:
                self.expand(inner, repeated=True)
            carried = [self.operand(each) for each in region.results]
        self.known.update((result.number, last) for result, last in zip(op.results, carried, strict=True))

    def constant(self, op: Op) -> int | None:
        """Return the integer that an op computes from numbers of iterations; None for any other op."""
        if not isinstance(op.attrs, PointwiseAttrs) or op.result.dims or not any(map(self.is_known, op.operands)):
            return None
        operands = [self.operand(each) for each in op.operands]
        if not all(type(each) is int for each in operands) or op.result.dtype not in (torch.int32, torch.int64):
            return None
        numbers = [each for each in operands if isinstance(each, int)]
        if op.attrs.name == "cast":
            found: int | None = numbers[0]
        else:
            compute = _ARITHMETIC.get(op.attrs.name)
            found = compute(*numbers) if compute is not None else None
        return found if found is not None and abs(found) <= torch.iinfo(torch.int32).max else None

    def is_known(self, operand: Operand) -> bool:
        return isinstance(operand, Value) and type(self.operand(operand)) is int

    def plain(self, op: Op) -> Op:
        """Return an op with its operands. Sums of indices take integers as they are, which the windows follow."""
        summed = isinstance(op.attrs, PointwiseAttrs) and op.attrs.name in _ARITHMETIC
        if summed and any(isinstance(self.operand(each), Value) and self.same(each, op) for each in op.operands):
            return replace(op, operands=tuple(map(self.operand, op.operands)))
        return replace(op, operands=tuple(map(self.value, op.operands)))

    def same(self, operand: Operand, op: Op) -> bool:
        """Return whether an operand is an integer value of the dtype of the result."""
        return isinstance(operand, Value) and operand.dtype == op.result.dtype and not operand.dtype.is_floating_point

    def access(self, op: Op) -> Op:
        """Return a load or store whose indices have the constants that were operands."""
        attrs = op.attributes(MemoryAttrs)
        operands: list[Operand] = [self.value(each) for each in op.operands[: 1 if op.kind == "store" else 0]]
        indices = []
        for index in attrs.indices:
            now = self.operand(op.operands[index.operand]) if index.operand is not None else None
            if type(now) is int and index.kind != "tensor" and isinstance(index.shift, int):
                indices.append(replace(index, shift=index.shift + now, operand=None))
            elif index.operand is not None:
                operands.append(self.value(op.operands[index.operand]))
                indices.append(replace(index, operand=len(operands) - 1))
            else:
                indices.append(index)
        mask = None
        if attrs.mask is not None:
            operands.append(self.value(op.operands[attrs.mask]))
            mask = len(operands) - 1
        return replace(op, operands=tuple(operands), attrs=replace(attrs, indices=tuple(indices), mask=mask))
