"""Rolls whole dimensions: a program that holds a whole row becomes one that loops over it in chunks.

Before::

    %1 = load x[b0, b1]; %2 = reduce max %1; %3 = exp (%1 - %2); %4 = reduce sum %3; store out <- %3 / %4

After rolling b1::

    for b1 chunked: acc = max(acc, load)          stage 0
    %2 = reduce max acc
    for b1 chunked: acc = acc + exp(load - %2)    stage 1, which loads and computes again
    %4 = reduce sum acc
    for b1 chunked: store exp(load - %2) / %4     stage 2

Stage 1 needs the maximum only to subtract it. If that saves a read of the row, the sum moves into the pass that
computes its centre, and is corrected after it (see ``online``)::

    for b1 chunked: sum about the lane's own maximum; acc = max(acc, load)
    %2 = reduce max acc; %4 = reduce sum (sum * exp(acc - %2))
    for b1 chunked: store exp(load - %2) / %4

Chunks keep the block's id; only its size differs between the two programs. So all masks and memory slots stay the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

from ...._shapes import Number
from ...._support.records import dataclass, field, replace
from ...ir.build import Builder, Numbers
from ...ir.effects import apart_along, effects_of, may_meet
from ...ir.grammar import Block, IotaAttrs, Op, Program, ReduceAttrs, Region, Value, ViewAttrs
from ...ir.ops import OPS
from ...ir.reductions import REDUCTIONS, identity
from ...ir.rewrite import Declined, Makers, map_regions
from ...passes.always.simplify import drop_dead
from . import chunked_argmax as places
from . import chunked_scan as running
from . import online
from .chunks import Pass
from .online import Centred

#: Largest number of partly rolled programs to test the next block on. Beyond it, test only the first program and the
#: fully rolled one.
_COMBINATIONS = 16


def rollable_blocks(program: Program) -> tuple[tuple[int, ...], dict[int, str]]:
    """Return the blocks that can be rolled, in any combination, in order, and the reasons against the other whole
    dimensions."""
    good: list[int] = []
    reasons: dict[int, str] = {}
    combinations = [program]
    for block in program.blocks:
        if block.kind == "full" and _is_used(program, block.id):
            try:
                rolled = [_roll_block(each, block) for each in combinations]
            except Declined as reason:
                reasons[block.id] = str(reason)
            else:
                good.append(block.id)
                combinations += rolled
                if len(combinations) > _COMBINATIONS:
                    combinations = [program, rolled[-1]]
    return tuple(good), reasons


def roll(program: Program, blocks: frozenset[int]) -> Program:
    """Roll ``blocks``, each from ``rollable_blocks``, into loops over chunks."""
    for block in sorted(blocks):
        program = _roll_block(program, program.blocks[block])
    return drop_dead(program) if blocks else program


def loads_in_chunks(program: Program, block: int) -> Mapping[int, int]:
    """Return the number of times that each load runs, by slot, if ``block``, from ``rollable_blocks``, is rolled.

    There are none if a backend describes the program with a reshape of that block.
    """
    try:
        rolled = roll(program, frozenset((block,)))
    except Declined:
        return Counter()
    return Counter(op.attrs.slot for op in rolled.walk() if op.kind == "load")


def _is_used(program: Program, block: int) -> bool:
    return any(_carries(value, block) for op in program.walk() for value in op.results)


def _carries(value: Value, block: int) -> bool:
    return any(block in dim.blocks for dim in value.dims)


def _roll_block(program: Program, block: Block) -> Program:
    numbers = Numbers.after(program)
    return program.map_regions(lambda body: _Roller(program, block, numbers).region(body))


@dataclass(frozen=True, kw_only=True)
class _Schedule:
    """Assignment of ops to passes over the row.

    - ``levels``: by op, the pass that computes it if it is wide; for other ops the first pass that they can precede.
    - ``ready``: by value, the first pass that can use it.
    - ``centred``: by op, sums that are accumulated before their centre is known.
    """

    levels: dict[int, int]
    ready: dict[int, int]
    centred: Mapping[int, Centred]

    @property
    def last(self) -> int:
        moved = [self.ready[found.total.result.number] for found in self.centred.values()]
        return max([*self.levels.values(), *moved], default=0)


@dataclass(kw_only=True)
class _Stage:
    """One pass under construction.

    - ``renamed``: values of a chunk, by those of the row.
    - ``totals``: ops after the loop that compute the results of sinks.
    - ``later``: such ops of sums that wait for their centre.
    """

    loop: Pass
    renamed: dict[int, Value] = field(default_factory=dict)
    totals: list[Op] = field(default_factory=list)
    later: dict[int, list[Op]] = field(default_factory=dict)
    maxima: dict[int, online.Maximum] = field(default_factory=dict)
    moments: dict[int, online.Moments | None] = field(default_factory=dict)


class _Roller:
    def __init__(self, program: Program, block: Block, numbers: Numbers) -> None:
        self.program = program
        self.whole = block
        self.block = block.id
        self.numbers = numbers
        self.wide: dict[int, bool] = {}

    def is_wide(self, op: Op) -> bool:
        """Return whether the op itself touches the block's dimension."""
        known = self.wide.get(op.number)
        if known is None:
            known = self.wide[op.number] = any(_carries(v, self.block) for v in (*op.values(), *op.results))
        return known

    def region(self, region: Region) -> Region:
        """Return the region with its uses of the block rolled; nested regions are rolled separately."""
        ops = [map_regions(op, self.region) for op in region.ops]
        wide = [op for op in ops if self.is_wide(op)]
        if not wide:
            return Region(region.params, tuple(ops), region.results)
        defined = {r.number for op in ops for r in op.results}
        for op in wide:
            self.check(op, defined)
        crossing = [
            v for op in ops for r in op.regions for inner in r.walk() for v in inner.values() if v.number in defined
        ]
        if any(_carries(v, self.block) for v in (*region.params, *crossing)):
            raise Declined("a value that spans the dimension crosses a loop or a branch")
        if any(isinstance(v, Value) and _carries(v, self.block) for v in region.results):
            raise Declined("a loop carries a value that spans the dimension")
        makers = Makers.among(ops)
        schedule = self.schedule(ops, makers)
        return Region(region.params, tuple(self.staged(ops, schedule, makers)), region.results)

    def check(self, op: Op, defined: set[int]) -> None:
        if "roll" not in OPS[op.kind].divided_by:
            raise Declined(f"a {op.kind} uses the dimension")
        if isinstance(op.attrs, IotaAttrs) and op.attrs.block != self.block:
            raise Declined("an index mixes dimensions")
        if op.kind == "scan":
            running.check_scan(op, self.block)
        reshapes = isinstance(op.attrs, ViewAttrs) and op.attrs.name == "reshape"
        if reshapes and len({_carries(value, self.block) for value in (*op.values(), op.result)}) > 1:
            raise Declined("a reshape merges or splits the dimension")
        for value in (*op.values(), *op.results):
            places = [d for d in value.dims if self.block in d.blocks]
            if len(places) > 1:
                raise Declined("a value has the dimension twice")
            if any(d.block is None for d in places):
                raise Declined("a reshape merges the dimension with another")
        for value in op.values():
            if _carries(value, self.block) and value.number not in defined:
                raise Declined("a value that spans the dimension comes from outside of a loop")

    # --- assignment to passes -----------------------------------------------------------------------------------------

    def schedule(self, ops: list[Op], makers: Makers) -> _Schedule:
        """Assign ops to passes. Sums are accumulated before their centre is known if that saves loads of the row."""
        pairs = self.pairs(ops)
        plain = self.levels(ops, {}, pairs, makers)
        found = [online.centred_sum(op, makers, self.block) for op in ops if self.is_sink(op)]
        centred = {one.total.number: one for one in found if one is not None}
        schedule = self.levels(ops, centred, pairs, makers) if centred else plain
        for key in centred if schedule is not None else ():
            assert schedule is not None
            fewer = {k: one for k, one in schedule.centred.items() if k != key}
            without = self.levels(ops, fewer, pairs, makers)
            if without is not None and self.loads(ops, without, makers) <= self.loads(ops, schedule, makers):
                schedule = without
        schedule = schedule or plain
        if schedule is None:
            raise Declined("loads and stores of the same element would change their order")
        return schedule

    def pairs(self, ops: list[Op]) -> list[tuple[Op, Op, bool]]:
        """Return pairs of ops that must keep their order, the earlier one first, and true if they may share a pass over
        the row."""
        effects = [(op, effects_of(self.program, op)) for op in ops]
        effects = [(op, found) for op, found in effects if found]
        return [
            (a, b, self.is_wide(a) and self.is_wide(b) and apart_along(self.program, a, b, self.block))
            for at, (a, before) in enumerate(effects)
            for b, after in effects[at + 1 :]
            if any(may_meet(one, other) for one in before for other in after)
        ]

    def levels(
        self, ops: list[Op], centred: Mapping[int, Centred], pairs: list[tuple[Op, Op, bool]], makers: Makers
    ) -> _Schedule | None:
        """Return the earliest passes in which ``pairs`` keep their order; None if passes would depend on each other
        cyclically."""
        floors: dict[int, int] = {}
        schedule = self.earliest(ops, centred, floors)
        # each reduction, and each op of a pair, delays the ops after it by at most one pass
        most = sum(self.is_sink(op) for op in ops) + 2 * len(pairs)
        while pairs and self.raise_floors(ops, schedule, pairs, makers, floors):
            schedule = self.earliest(ops, centred, floors)
            if schedule.last > most:
                return None
        return schedule

    def raise_floors(
        self,
        ops: list[Op],
        schedule: _Schedule,
        pairs: list[tuple[Op, Op, bool]],
        makers: Makers,
        floors: dict[int, int],
    ) -> bool:
        """Delay ops that would run too early, and return whether any did."""
        passes = [self.closure(self.sinks(ops, schedule, at), schedule, makers) for at in range(schedule.last + 1)]
        raised = False
        for a, b, together in pairs:
            if self.is_wide(a):
                # a load runs in every pass that needs it
                last = max((at for at, needed in enumerate(passes) if a.number in needed), default=-1)
                floor = last if together else last + 1
            else:
                floor = schedule.levels[a.number]
            if floor > schedule.levels[b.number]:
                floors[b.number] = max(floor, floors.get(b.number, 0))
                raised = True
        return raised

    def earliest(self, ops: list[Op], centred: Mapping[int, Centred], floors: Mapping[int, int]) -> _Schedule:
        ready: dict[int, int] = {}
        levels: dict[int, int] = {}
        for op in ops:
            early = centred.get(op.number)
            if early is not None:
                levels[op.number] = level = ready.get(early.value.number, 0)
                ready[op.result.number] = max(level + 1, ready.get(early.centre.number, 0))
                continue
            reads = [v for inner in op.walk() for v in inner.reads()]
            level = max((ready.get(v.number, 0) for v in reads), default=0)
            levels[op.number] = level = max(level, floors.get(op.number, 0))
            for result in op.results:
                narrow = op.kind == "reduce" and self.is_wide(op) and not _carries(result, self.block)
                ready[result.number] = level + 1 if narrow else level
        return _Schedule(levels=levels, ready=ready, centred=centred)

    def loads(self, ops: list[Op], schedule: _Schedule, makers: Makers) -> int:
        """Return the number of loads of all passes together."""
        passes = [self.closure(self.sinks(ops, schedule, at), schedule, makers) for at in range(schedule.last + 1)]
        return sum(op.kind == "load" and op.number in needed for needed in passes for op in ops)

    def sinks(self, ops: list[Op], schedule: _Schedule, level: int) -> list[Op]:
        return [op for op in ops if self.is_wide(op) and schedule.levels[op.number] == level and self.is_sink(op)]

    def staged(self, ops: list[Op], schedule: _Schedule, makers: Makers) -> list[Op]:
        result: list[Op] = []
        later: dict[int, list[Op]] = {}
        for level in range(schedule.last + 1):
            for op in ops:
                if op.number in later and schedule.ready[op.result.number] == level:
                    result += later[op.number]
                elif not self.is_wide(op) and schedule.levels[op.number] == level:
                    result.append(op)
            sinks = self.sinks(ops, schedule, level)
            if sinks:
                stage = self.stage(sinks, ops, schedule, makers)
                result += [*stage.loop.ops(), *stage.totals]
                later.update(stage.later)
        return result

    def is_sink(self, op: Op) -> bool:
        return op.kind == "store" or (op.kind == "reduce" and self.is_wide(op) and not _carries(op.result, self.block))

    # --- one pass over the row ----------------------------------------------------------------------------------------

    def stage(self, sinks: list[Op], ops: list[Op], schedule: _Schedule, makers: Makers) -> _Stage:
        needed = self.closure(sinks, schedule, makers)
        stage = _Stage(loop=Pass(self.whole, self.program.index_dtype, self.numbers, sinks[0].location))
        centred = [schedule.centred[op.number] for op in sinks if op.number in schedule.centred]
        stage.moments.update((found.value.number, None) for found in centred if found.form == "squares")
        for op in ops:
            if op.number not in needed:
                continue
            if op.kind == "reduce" and self.is_sink(op):
                stage.loop.locate(op.location)
                found = schedule.centred.get(op.number)
                if found is None:
                    self.accumulate(op, stage, makers)
                else:
                    self.centre_later(found, stage)
                continue
            operands = tuple(self.rename(o, stage) if isinstance(o, Value) else o for o in op.operands)
            if running.runs_along(op, self.block):
                stage.loop.locate(op.location)
                scanned = running.scan_chunk(op, operands, stage.loop)
                stage.renamed.update((r.number, value) for r, value in zip(op.results, scanned, strict=True))
                continue
            clones = tuple(self.clone(r, stage) for r in op.results)
            regions = tuple(running.fresh_region(region, stage.loop.body) for region in op.regions)
            stage.loop.body.repeat(op, operands=operands, results=clones, regions=regions)
        return stage

    def closure(self, sinks: Collection[Op], schedule: _Schedule, makers: Makers) -> set[int]:
        """Return the wide ops of one pass: its sinks and all their inputs."""
        needed: set[int] = set()
        stack = list(sinks)
        while stack:
            op = stack.pop()
            if op.number in needed:
                continue
            needed.add(op.number)
            early = schedule.centred.get(op.number)
            values = op.values() if early is None else (early.value,)
            stack += [makers.ops[v.number] for v in values if _carries(v, self.block)]
        return needed

    def rename(self, value: Value, stage: _Stage) -> Value:
        return stage.renamed.get(value.number, value)

    def clone(self, value: Value, stage: _Stage) -> Value:
        stage.renamed[value.number] = copy = self.numbers.value(value.dtype, value.dims, value.name)
        return copy

    def writer(self, op: Op) -> Builder:
        return Builder(self.numbers, op.location, [])

    def accumulate(self, op: Op, stage: _Stage, makers: Makers) -> None:
        """Add an accumulator with the shape of a chunk, which is reduced after the loop."""
        attrs = op.attributes(ReduceAttrs)
        name, loop = attrs.name, stage.loop
        source = online.summed(op, makers, self.block)
        if name == "sum" and source is not None and source[0].number in stage.moments:
            moments, out = self.moments(source, stage), self.writer(op)
            online.sum_total(op, moments, self.extent, out)
            stage.totals += out.ops
            return
        value = self.rename(next(op.values()), stage)
        if REDUCTIONS[name].combine is None:
            stage.totals += places.place_of_extreme(op, value, loop, self.writer(op))
            return
        carried = loop.carry(f"{op.result.name or name}_acc", value.dtype, value.dims, identity(name, value.dtype))
        combine = REDUCTIONS[name].combine
        assert combine is not None
        carried.after = loop.body.pointwise(combine, carried.before, value, like=carried.before.name)
        if name == "max" and source is not None:
            stage.maxima[source[0].number] = online.Maximum(value=value, carried=carried)
        stage.totals.append(replace(op, operands=(carried.total,)))

    def centre_later(self, found: Centred, stage: _Stage) -> None:
        """Add accumulators of a sum with an unknown centre. The correction follows once the centre is known."""
        out = self.writer(found.total)
        if found.form == "squares":
            online.squares_total(found, self.moments((found.value, found.dim), stage), self.extent, out)
        else:
            high = stage.maxima.get(found.value.number)
            if high is None:
                value = stage.loop.body.mask(self.rename(found.value, stage), (found.dim,), -math.inf)
                high = online.carry_maximum(stage.loop, value)
            online.powers_total(found, online.carry_powers(stage.loop, high, found), high, out)
        stage.later[found.total.number] = out.ops

    def moments(self, source: tuple[Value, int], stage: _Stage) -> online.Moments:
        """Return the sums about a shift of a value, which its sum and its squares share."""
        value, dim = source
        made = stage.moments[value.number]
        if made is None:
            behind = Builder(self.numbers, stage.loop.body.location, [])
            made = online.carry_moments(stage.loop, self.rename(value, stage), dim, behind)
            stage.moments[value.number] = made
            stage.totals += behind.ops
        return made

    @property
    def extent(self) -> Number:
        assert self.whole.extent is not None
        return self.whole.extent
