"""Reductions after the loop that accumulates them.

The elements of a tile are in many threads. A loop that adds the sum of a tile to a carried value makes them exchange in
each step. The step lets the loop carry a tile, and reduces that tile once (measurement ``late_reductions``). Before::

    %1 = full 0.0
    %4 = for b1 carrying %1 as %2: %3: [b0] = reduce sum %v: [b0, b1] over 1; yield (add %2, %3)

after, where a thread has two elements of the tile along ``b1`` beyond its vectors::

    %1 = full 0.0; %5: [b0, 512] = full 0.0
    %9 = for b1 carrying %5 as %6: %7: [b0, 512] = reduce sum (reshape %v to [b0, 2, 512]) over 1; yield (add %6, %7)
    %3: [b0] = reduce sum %9 over 1; %4 = add %1, %3

Elements that a thread has of one result are combined in each step, so that the tile takes few registers. Lanes out of
range have the identity already, which the reduction in the loop needed too.

Loops with a matmul keep reductions of its results, and those within a warp: these overlap with the matrix unit, and
accumulators need the registers. Sums of columns of an operand run later, since warps would wait for each other in each
step. Loops of few steps, or of many loads for each thread, keep reductions, too. So do loops whose reductions are within a
thread, and dtypes in which each step rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...._shapes import Dim, cdiv
from ...._support.records import dataclass, replace
from ...ir.build import Builder, Numbers
from ...ir.grammar import Bound, ForAttrs, LoopAxis, Op, Operand, OperandRef, Program, ReduceAttrs, Region, Value
from ...ir.ops import OPS
from ...ir.reductions import identity
from ...ir.rewrite import Makers, map_regions
from ...passes.always.simplify import drop_dead
from ..steps import StepInputs
from .terms import Body, Term, held_dtype, may_reduce_late, memory_lanes, multiplies
from .threads import LEAST_STEPS, Folds, folds_of


def reduce_after_loops(program: Program, inputs: StepInputs) -> Program:
    """Return the program with reductions after the loops that accumulate them, as far as registers allow."""
    if not inputs.accumulator_registers or not any(op.kind == "for" for op in program.walk()):
        return program
    mover = _Mover(program, inputs)
    made = program.map_regions(mover.region)
    return drop_dead(made) if mover.threaded else program


@dataclass(frozen=True, kw_only=True)
class _Moved:
    """A reduction that moves, and the elements of its tile that a thread combines in each step.

    ``inner`` is the loop of the body that has accumulated the tile already, if any.
    """

    term: Term
    folds: Folds
    inner: Op | None = None


class _Mover:
    """Rewriter of the loops of a program, inner ones first."""

    def __init__(self, program: Program, inputs: StepInputs) -> None:
        self.inputs = inputs
        self.program = program
        self.sizes = inputs.sizes_in(program)
        self.numbers = Numbers.after(program)
        self.makers = Makers.among(program.walk())
        #: Values of loops that hold an accumulated tile.
        self.threaded: set[int] = set()
        self.room = inputs.accumulator_registers
        self.multiplies = False

    def region(self, region: Region) -> Region:
        """Return a region with its loops rewritten."""
        ops: list[Op] = []
        for op in region.ops:
            if isinstance(op.attrs, ForAttrs):
                self.room, self.multiplies = self.inputs.accumulator_registers, multiplies(op)
                ops += self.loop(op, {}) if may_reduce_late(op) else (op,)
            else:
                ops.append(op if OPS[op.kind].combines else map_regions(op, self.region))
        return replace(region, ops=tuple(ops))

    def loop(self, loop: Op, passing: Mapping[int, float]) -> tuple[Op, ...]:
        """Return ops in place of a loop: initial tiles, the loop itself, and the reductions of what it accumulates.

        ``passing`` has the steps of loops around it that accumulate a carried value too, by the position here.
        """
        (region,) = loop.regions
        own, inner = self.steps(loop), list[Op]()
        steps = {at: own * passing.get(at, 1) for at in range(len(region.params))}
        inside = self.passing(Body.of(region), steps)
        for op in region.ops:
            inner += self.loop(op, inside.get(op.number, {})) if isinstance(op.attrs, ForAttrs) else (op,)
        region = replace(region, ops=tuple(inner))
        loop = replace(loop, regions=(region,))
        body = Body.of(region)
        moves = {at: [self.moved(term, body, steps[at]) for term in body.terms(at)] for at in steps if steps[at] > 1}
        chosen = {at: [each for each in found if each is not None] for at, found in moves.items()}
        wanted = sum(self.registers(each) for found in chosen.values() for each in found)
        if wanted > self.room:
            chosen = {at: [each for each in found if each.inner is not None] for at, found in chosen.items()}
        else:
            self.room -= wanted
        chosen = {at: found for at, found in chosen.items() if found}
        return _Rewriting(self, loop).loop_with(chosen) if chosen else (loop,)

    def passing(self, body: Body, steps: Mapping[int, float]) -> dict[int, dict[int, float]]:
        """Return ``steps`` of accumulated values by loop that carries them further, and by the position there."""
        found: dict[int, dict[int, float]] = {}
        for place, count in steps.items():
            path = body.path(place)
            for inner, at in () if path is None else path.loops:
                found.setdefault(inner.number, {})[at] = count
        return found

    def steps(self, loop: Op) -> float:
        """Return the steps of a loop; infinity if only the launch knows them."""
        counts = [self.count(axis) for axis in loop.attributes(ForAttrs).axes]
        return math.prod(math.inf if count is None else count for count in counts)

    def count(self, axis: LoopAxis) -> int | None:
        """Return the steps along an axis, None if only the launch knows them."""
        if not (isinstance(axis.begin, int) and isinstance(axis.end, int) and isinstance(axis.step, int)):
            return None
        steps = cdiv(axis.end - axis.begin, axis.step if axis.scalar else self.sizes[axis.block])
        return cdiv(steps, axis.split.count) if axis.split is not None else steps

    def registers(self, moved: _Moved) -> int:
        if moved.inner is not None:
            return 0
        return moved.folds.registers(held_dtype(moved.term.value.dtype).itemsize, self.inputs.threads)

    def moved(self, term: Term, body: Body, steps: float) -> _Moved | None:
        """Return a reduction that moves; None if each of its results is in one thread, or threads have many loads."""
        value = term.value
        lanes = [dim.lanes(self.sizes) for dim in value.dims]
        if value.number in self.threaded:
            inner = body.makers.of(value)
            whole = Folds(folds=(1,) * len(lanes), lanes=tuple(lanes), sharing=self.inputs.threads)
            return None if inner is None or term.masks else _Moved(term=term, folds=whole, inner=inner)
        memory = memory_lanes(self.program, value, self.makers)
        found = folds_of(lanes, term.dims, memory, self.inputs.threads)
        itemsize = held_dtype(value.dtype).itemsize
        if steps < LEAST_STEPS or not found.may_run_late(itemsize, self.inputs.threads, self.multiplies):
            return None
        kept = (fold if self.is_fixed(dim) else 1 for dim, fold in zip(value.dims, found.folds, strict=True))
        return _Moved(term=term, folds=replace(found, folds=tuple(kept)))

    def is_fixed(self, dim: Dim) -> bool:
        """Return whether a dimension has the same lanes in every launch."""
        blocks = (self.program.blocks[block] for block in dim.blocks)
        return all(
            block.kind != "full" or isinstance(block.extent, int) or block.id in self.inputs.chunked for block in blocks
        )


class _Rewriting:
    """One loop under construction that accumulates tiles."""

    def __init__(self, mover: _Mover, loop: Op) -> None:
        self.mover, self.loop = mover, loop
        (self.body,) = loop.regions
        self.setup = Builder(mover.numbers, loop.location, [])
        self.after = Builder(mover.numbers, loop.location, [])
        #: Ops in place of reductions, by number.
        self.inside: dict[int, list[Op]] = {}
        #: Results of ops that are gone, with the operands in their place.
        self.renamed: dict[int, Operand] = {}
        #: Inner loops that begin with a carried tile, by number.
        self.inner: dict[int, Op] = {}
        #: Carried values: before the loop, before and after one step, and after the loop.
        self.carried: list[tuple[Operand, Value, Operand, Value]] = []

    def loop_with(self, moves: Mapping[int, list[_Moved]]) -> tuple[Op, ...]:
        """Return the ops in place of the loop, with these reductions by position of the carried value."""
        loop, body = self.loop, self.body
        for at, param in enumerate(body.params):
            if at in moves:
                self.accumulate(at, moves[at])
            else:
                self.carried.append((loop.operands[at], param, body.results[at], loop.results[at]))
        ops: list[Op] = []
        for op in body.ops:
            if op.number in self.inside:
                ops += self.inside[op.number]
            elif not (op.results and op.results[0].number in self.renamed):
                kept = self.inner.get(op.number, op)
                ops.append(replace(kept, operands=tuple(map(self.now, kept.operands))))
        initial, params, results, totals = zip(*self.carried, strict=True)
        attrs, added = loop.attributes(ForAttrs), len(params) - len(body.params)
        axes = tuple(_with_moved_bounds(axis, added) for axis in attrs.axes)
        made = replace(
            loop,
            operands=(*initial, *loop.operands[len(body.params) :]),
            results=totals,
            attrs=replace(attrs, axes=axes, carried=len(params)),
            regions=(Region(params, tuple(ops), tuple(map(self.now, results))),),
        )
        return (*self.setup.ops, made, *self.after.ops)

    def now(self, operand: Operand) -> Operand:
        while isinstance(operand, Value) and operand.number in self.renamed:
            operand = self.renamed[operand.number]
        return operand

    def accumulate(self, at: int, moves: list[_Moved]) -> None:
        """Carry a tile for each reduction of carried value number ``at``, and the value itself if anything is left."""
        numbers, param, result = self.mover.numbers, self.body.params[at], self.loop.results[at]
        for each in moves:
            combine = each.term.combine
            (rest,) = (operand for operand in combine.operands if not each.term.is_term(operand))
            self.renamed[combine.result.number] = rest
        base, after = self.loop.operands[at], self.now(self.body.results[at])
        if after is not param:
            made = numbers.value(result.dtype, result.dims, result.name)
            self.carried.append((base, param, after, made))
            base = made
        for each in moves:
            last = each is moves[-1]
            base = self.total(each, base, result if last else numbers.value(result.dtype, result.dims, result.name))

    def total(self, moved: _Moved, base: Operand, result: Value) -> Value:
        """Carry the tile of a reduction, and compute ``result`` after the loop: ``base`` combined with the reduction."""
        term, out = moved.term, self.after
        tile = self.carry(moved)
        out.location = term.combine.location
        before = term.reduce.result
        attrs = replace(term.reduce.attributes(ReduceAttrs), dims=term.dims)
        value = out.cast(out.emit("reduce", (tile,), tile.dtype, before.dims, attrs, before.name), before.dtype)
        for view in term.views:
            made = out.value(view.result.dtype, view.result.dims, view.result.name)
            out.repeat(view, operands=(value, *view.operands[1:]), results=(made,))
            value = made
        operands = (value, base) if term.is_term(term.combine.operands[0]) else (base, value)
        out.repeat(term.combine, operands=operands, results=(result,))
        return result

    def carry(self, moved: _Moved) -> Value:
        """Add a carried tile to the loop, and return its value after the loop."""
        term, inner, value = moved.term, moved.inner, moved.term.value
        name = value.name if inner is not None else f"{term.reduce.result.name or term.name}_tile"
        out = Builder(self.mover.numbers, term.reduce.location, [])
        step = value if inner is not None else self.step(moved, out)
        param, total = (out.value(step.dtype, step.dims, name) for _ in range(2))
        after = step
        if inner is None:
            after = out.emit("pointwise", (param, step), step.dtype, step.dims, term.combine.attrs, name)
        else:
            inner = self.inner.get(inner.number, inner)
            at = next(at for at, result in enumerate(inner.results) if result is value)
            operands = (*inner.operands[:at], param, *inner.operands[at + 1 :])
            self.inner[inner.number] = replace(inner, operands=operands)
        self.inside[term.reduce.number] = out.ops
        begin = self.setup.emit("full", (identity(term.name, step.dtype),), step.dtype, step.dims, None, name)
        self.carried.append((begin, param, after, total))
        self.mover.threaded.add(total.number)
        return total

    def step(self, moved: _Moved, out: Builder) -> Value:
        """Return what one step adds to the tile: the elements of each thread combined."""
        term, value = moved.term, moved.term.value
        if term.masks:
            value = out.mask(value, tuple(sorted(set(term.masks))), identity(term.name, value.dtype))
        value = out.cast(value, held_dtype(value.dtype))
        apart: list[Dim] = []
        places: list[int] = []
        for dim, fold, lanes in zip(value.dims, moved.folds.folds, moved.folds.lanes, strict=True):
            if fold > 1:
                places.append(len(apart))
                apart.append(Dim(fold))
                dim = Dim(lanes // fold)
            apart.append(dim)
        if not places:
            return value
        value = out.reshape(value, tuple(apart))
        rest = tuple(dim for at, dim in enumerate(apart) if at not in places)
        attrs = ReduceAttrs(term.name, tuple(places))
        return out.emit("reduce", (value,), value.dtype, rest, attrs, term.reduce.result.name)


def _with_moved_bounds(axis: LoopAxis, by: int) -> LoopAxis:
    """Return an axis whose bounds are operands so many places later."""
    jagged = OperandRef(axis.jagged.at + by) if axis.jagged is not None else None
    return replace(axis, begin=_moved_bound(axis.begin, by), end=_moved_bound(axis.end, by), jagged=jagged)


def _moved_bound(bound: Bound, by: int) -> Bound:
    return OperandRef(bound.at + by) if isinstance(bound, OperandRef) else bound


__all__ = ["reduce_after_loops"]
