"""The simulation of each step of attention: a generator that yields conditions to wait for, or a function if the step
never waits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

from ...plan.attention.records import AttentionPlan, AttentionProblem
from ...roles import grammar as g
from ...roles.attention import grammar as a
from ...roles.attention.grammar import rule_of
from ..state import Fault
from .machine import Machine, Running, Stage, Store, Warp

Rule = Callable[..., Running | None]
RULES: dict[type[g.Step], Rule] = {}

_rule = functools.partial(rule_of, RULES)


def execute(machine: Machine, warp: Warp) -> Running:
    """Run the program of a warp's role."""
    yield from run_steps(machine, warp, warp.role.program)


def run_steps(machine: Machine, warp: Warp, steps: Sequence[g.Step]) -> Running:
    for step in steps:
        simulated = machine.rules.get(type(step)) or RULES.get(type(step))
        if simulated is None:
            raise NotImplementedError(f"no rule simulates {type(step).__name__}")
        waits = simulated(machine, step, warp)
        if waits is not None:
            yield from waits


# Control ---------------------------------------------------------------------------------------------------------------


@_rule(a.WorkLoop)
def _(machine: Machine, step: a.WorkLoop, warp: Warp) -> Running:
    while warp.tile is not None:
        warp.passed, warp.repeat, warp.block = 0, 0, machine.tiles[warp.tile].blocks - 1
        warp.part = None
        yield from run_steps(machine, warp, step.body)
        warp.visited += 1


@_rule(a.BlockLoop)
def _(machine: Machine, step: a.BlockLoop, warp: Warp) -> Running:
    assert warp.tile is not None
    part = {"side": warp.side, "middle": "free"}.get(step.part, step.part)
    for each, visits in machine.tiles[warp.tile].parts.items():
        skipped = (step.part == "middle" and warp.side == "edge") or (step.part != "any" and each != part)
        for _ in range(0 if skipped else visits):
            warp.block -= 1
            warp.part = each
            yield from run_steps(machine, warp, step.body)


@_rule(a.SideLoop)
def _(machine: Machine, step: a.SideLoop, warp: Warp) -> Running:
    for warp.side in ("diagonal", "edge"):
        yield from run_steps(machine, warp, step.body)


@_rule(a.RepeatLoop)
def _(machine: Machine, step: a.RepeatLoop, warp: Warp) -> Running:
    assert warp.tile is not None
    if step.first:
        warp.block = machine.tiles[warp.tile].blocks - 1
    for warp.repeat in range(step.begin, machine.repeats):
        warp.part = "again" if step.begin else warp.part
        yield from run_steps(machine, warp, step.body)


@_rule(a.LoadLoop)
def _(machine: Machine, step: a.LoadLoop, warp: Warp) -> Running:
    assert warp.tile is not None
    for block in reversed(range(machine.tiles[warp.tile].blocks - 1)):
        warp.block = block
        yield from run_steps(machine, warp, step.body)


@_rule(a.GroupLoop)
def _(machine: Machine, step: a.GroupLoop, warp: Warp) -> Running:
    for group in range(machine.plan.groups):
        warp.group = group
        yield from run_steps(machine, warp, step.body)


@_rule(a.FirstWarp)
def _(machine: Machine, step: a.FirstWarp, warp: Warp) -> Running:
    if warp.number % 4 == 0:
        yield from run_steps(machine, warp, step.body)


@_rule(g.SetUp)
def _(machine: Machine, step: g.SetUp, warp: Warp) -> None:
    pass


# Pipelines -------------------------------------------------------------------------------------------------------------


@_rule(g.Cursor)
def _(machine: Machine, step: g.Cursor, warp: Warp) -> None:
    warp.cursors[step.name] = (step.pipeline, 0, 1 if step.side == "producer" else 0)


def stage_of(machine: Machine, warp: Warp, cursor: str) -> tuple[Stage, int]:
    """Return the stage of a cursor, and the parity of the phase to wait for. That of Q is the group's own."""
    if cursor.partition("_")[0] == machine.rows:
        parity = warp.visited // machine.plan.row_buffers & 1
        return machine.rows_of(warp), parity ^ (1 if cursor.endswith("_fill") else 0)
    name, index, parity = warp.cursors[cursor]
    return machine.rings[name][index], parity


@_rule(g.Acquire)
def _(machine: Machine, step: g.Acquire, warp: Warp) -> Running:
    stage, parity = stage_of(machine, warp, step.cursor)
    yield lambda: stage.empty.passed(parity)
    stage.full.arrive(machine.bytes_of(step.cursor.partition("_")[0]))
    yield None


@_rule(g.Commit)
def _(machine: Machine, step: g.Commit, warp: Warp) -> None:
    pass


@_rule(g.Wait)
def _(machine: Machine, step: g.Wait, warp: Warp) -> Running:
    stage, parity = stage_of(machine, warp, step.cursor)
    yield lambda: stage.full.passed(parity)


@_rule(g.Release)
def _(machine: Machine, step: g.Release, warp: Warp) -> None:
    stage, _ = stage_of(machine, warp, step.cursor)
    if warp.reads(stage):
        raise Fault(f"{step.cursor}: a stage is released while MMAs read it")
    stage.empty.arrive()


@_rule(g.Advance)
def _(machine: Machine, step: g.Advance, warp: Warp) -> None:
    name, index, parity = warp.cursors[step.cursor]
    index += 1
    if index == len(machine.rings[name]):
        index, parity = 0, parity ^ 1
    warp.cursors[step.cursor] = (name, index, parity)


@_rule(g.Tail)
def _(machine: Machine, step: g.Tail, warp: Warp) -> Running:
    if step.cursor.partition("_")[0] == machine.rows:
        groups, buffers = machine.plan.groups, machine.plan.row_buffers
        for group, visited in itertools.product(range(groups), range(warp.visited, warp.visited + buffers)):
            stage, parity = machine.rings[machine.rows][visited % buffers * groups + group], visited // buffers & 1
            yield lambda stage=stage, parity=parity: stage.empty.passed(parity ^ 1)  # type: ignore[misc]
        return
    for _ in machine.rings[warp.cursors[step.cursor][0]]:
        stage, parity = stage_of(machine, warp, step.cursor)
        yield lambda stage=stage, parity=parity: stage.empty.passed(parity)  # type: ignore[misc]
        RULES[g.Advance](machine, g.Advance(step.cursor), warp)


# Loads -----------------------------------------------------------------------------------------------------------------


def _fill(machine: Machine, stage: Stage, name: str, tag: object) -> None:
    """Start a transfer to a stage, which lands later."""
    if stage.readers:
        raise Fault(f"{name}: a stage is filled while MMAs read it")
    stage.held, stage.changed, stage.overwritten = None, {}, set()
    size = machine.bytes_of(name)

    def land() -> None:
        stage.held = tag
        stage.full.complete(size)

    machine.messages.append(land)


@_rule(a.LoadRows)
def _(machine: Machine, step: a.LoadRows, warp: Warp) -> None:
    stage, _ = stage_of(machine, warp, step.cursor)
    sharing = range(warp.group * machine.plan.column_groups, (warp.group + 1) * machine.plan.column_groups)
    buffers = (machine.buffers[group, output] for group in sharing for output in range(machine.outputs))
    if machine.shares_memory and not all(buffer.last.done for buffer in buffers):
        raise Fault("queries are loaded to shared memory whose output is being stored")
    _fill(machine, stage, machine.rows, warp.tile)


@_rule(a.LoadBlock)
def _(machine: Machine, step: a.LoadBlock, warp: Warp) -> None:
    stage, _ = stage_of(machine, warp, step.cursor)
    _fill(machine, stage, step.operand, (warp.tile, (warp.place[0], warp.block + 1 if step.behind else warp.block)))


@_rule(a.LoadBias)
def _(machine: Machine, step: a.LoadBias, warp: Warp) -> None:
    stage, _ = stage_of(machine, warp, step.cursor)
    _fill(machine, stage, "bias", (warp.tile, warp.place))


@_rule(a.ReadBias)
def _(machine: Machine, step: a.ReadBias, warp: Warp) -> None:
    stage, _ = stage_of(machine, warp, step.cursor)
    if stage.held != (warp.tile, warp.place):
        raise Fault(f"a stage of the bias holds {stage.held}, to be read is {(warp.tile, warp.place)}")
    warp.bias = warp.tile, warp.place


# MMAs ------------------------------------------------------------------------------------------------------------------


@_rule(g.WgmmaFence)
def _(machine: Machine, step: g.WgmmaFence, warp: Warp) -> None:
    warp.fenced = True


def issue(warp: Warp, kind: str, *stages: Stage) -> None:
    if not warp.fenced:
        raise Fault(f"MMAs of the {kind} are issued without a fence after accesses of their registers")
    for stage in stages:
        stage.readers += 1
        warp.open_group.append((kind, stage))


@_rule(a.TransformQueries)
def _(machine: Machine, step: a.TransformQueries, warp: Warp) -> None:
    rows = machine.rows_of(warp)
    if rows.held != warp.tile or rows.readers or machine.part_of_rows(warp) in rows.changed:
        raise Fault(
            f"queries of tile {rows.held} are computed as those of {warp.tile}, or twice, or while MMAs read them"
        )
    rows.changed[machine.part_of_rows(warp)] = False


@_rule(a.ScoreMma)
def _(machine: Machine, step: a.ScoreMma, warp: Warp) -> None:
    stage, _ = stage_of(machine, warp, step.cursor)
    rows, tag = machine.rows_of(warp), (warp.tile, warp.place)
    if stage.held != tag or rows.held != warp.tile or rows.overwritten:
        raise Fault(f"stale operands: stages hold {stage.held} and queries of {rows.held}, to be multiplied are {tag}")
    problem = machine.plan.problem
    computed = isinstance(problem, AttentionProblem) and problem.query.instructions
    if computed and rows.changed != dict.fromkeys(range(4 * machine.plan.column_groups), True):
        raise Fault(f"queries of tile {warp.tile} are multiplied before all warps have computed and fenced theirs")
    if warp.scores is not None and warp.scores[0] != "rounded":
        raise Fault(f"scores of block {warp.block} overwrite {warp.scores}")
    warp.scores = ("mma", warp.block)
    issue(warp, "scores", stage, rows)


@_rule(a.OutputMma)
def _(machine: Machine, step: a.OutputMma, warp: Warp) -> None:
    stage, _ = stage_of(machine, warp, step.cursor)
    tag = (warp.tile, (0, warp.weights))
    if warp.weights is None or stage.held != tag:
        raise Fault(f"stale operands: a stage of V holds {stage.held}, to be multiplied is {tag}")
    if warp.factors is not None:
        raise Fault(f"the output of block {warp.weights} is added to an accumulator that has not been rescaled")
    if warp.unadded is not None:
        raise Fault(f"the product of block {warp.unadded} is overwritten before it is added")
    if isinstance(machine.plan, AttentionPlan) and machine.plan.adds_products:
        warp.unadded = warp.weights
    warp.added.setdefault(0, []).append((0, warp.weights))
    issue(warp, "output 0", stage)


@_rule(a.AddProduct)
def _(machine: Machine, step: a.AddProduct, warp: Warp) -> None:
    if warp.in_flight("output 0"):
        raise Fault("a product is added while MMAs write it")
    if warp.unadded is None:
        raise Fault("a product is added twice, or before its MMAs")
    warp.unadded = None


@_rule(g.WgmmaCommit)
def _(machine: Machine, step: g.WgmmaCommit, warp: Warp) -> None:
    warp.groups.append(warp.open_group)
    warp.open_group = []


@_rule(g.WgmmaWait)
def _(machine: Machine, step: g.WgmmaWait, warp: Warp) -> Running:
    yield None  # other warps run while MMAs are in flight
    while len(warp.groups) > step.pending:
        for kind, stage in warp.groups.pop(0):
            stage.readers -= 1
            if kind == "scores" and warp.scores is not None:
                warp.scores = ("scores", warp.scores[1])
            if kind.startswith("product"):
                product = int(kind.split()[1])
                warp.products[product] = ("ready", warp.products[product][1])
    warp.fenced = False
    yield None


def _turn(machine: Machine, group: int) -> Callable[[], bool]:
    return machine.meetings[f"turn_{group}"].come()


@_rule(a.TakeTurn)
def _(machine: Machine, step: a.TakeTurn, warp: Warp) -> Running:
    if not step.last or warp.group == 0:
        yield _turn(machine, warp.group)


@_rule(a.PassTurn)
def _(machine: Machine, step: a.PassTurn, warp: Warp) -> None:
    groups = machine.plan.groups
    if not step.first:
        _turn(machine, (warp.group + 1) % groups)
    elif warp.group == groups - 1:
        _turn(machine, 0)


# Softmax ---------------------------------------------------------------------------------------------------------------


@_rule(a.Softmax)
def _(machine: Machine, step: a.Softmax, warp: Warp) -> None:
    if warp.scores != ("scores", warp.block):
        raise Fault(f"the softmax of block {warp.block} reads registers in state {warp.scores}")
    if warp.part != "free" and not step.masked:
        raise Fault(f"block {warp.block} of part {warp.part} is not masked")
    if step.first != (warp.part is None):
        raise Fault(f"block {warp.block} of part {warp.part} sets, or does not set, the first maxima")
    if (
        isinstance(machine.plan, AttentionPlan)
        and machine.plan.bias is not None
        and warp.bias != (warp.tile, warp.place)
    ):
        raise Fault(f"the softmax of block {warp.place} of tile {warp.tile} adds the bias of {warp.bias}")
    warp.scores = ("weights", warp.block)
    problem = machine.plan.problem
    rescaled = isinstance(problem, AttentionProblem) and problem.softmax and not step.first
    warp.factors = warp.block if rescaled else None


@_rule(a.Rescale)
def _(machine: Machine, step: a.Rescale, warp: Warp) -> None:
    if warp.in_flight("output 0"):
        raise Fault("an accumulator is rescaled while MMAs add to it")
    if warp.unadded is not None:
        raise Fault(f"an accumulator is rescaled without the product of block {warp.unadded}")
    if warp.factors != warp.block:
        raise Fault(f"an accumulator is rescaled by the factors of block {warp.factors}")
    warp.factors = None


@_rule(a.RoundWeights)
def _(machine: Machine, step: a.RoundWeights, warp: Warp) -> None:
    if warp.in_flight("output 0"):
        raise Fault("weights are overwritten while MMAs read them")
    if warp.scores != ("weights", warp.block):
        raise Fault(f"registers in state {warp.scores} are rounded as weights of block {warp.block}")
    warp.weights, warp.scores = warp.block, ("rounded", warp.block)


@_rule(a.ClearOutput)
def _(machine: Machine, step: a.ClearOutput, warp: Warp) -> None:
    if warp.in_flight("output 0"):
        raise Fault("an accumulator is cleared while MMAs add to it")
    warp.added, warp.weights, warp.factors = {}, None, None
    warp.joined = False


@_rule(a.JoinTotals)
def _(machine: Machine, step: a.JoinTotals, warp: Warp) -> None:
    warp.joined = True


@_rule(a.RestoreMaxima)
def _(machine: Machine, step: a.RestoreMaxima, warp: Warp) -> None:
    if warp.in_flight("output 0"):
        raise Fault("an accumulator is rescaled while MMAs add to it")


@_rule(a.Finish)
def _(machine: Machine, step: a.Finish, warp: Warp) -> None:
    assert warp.tile is not None
    problem = machine.plan.problem
    if isinstance(problem, AttentionProblem) and problem.needs_total and not warp.joined:
        raise Fault(f"the sums of tile {warp.tile} are read before the lanes of a row have added theirs")
    blocks, added = machine.visits(warp.tile, step.output), warp.added.get(step.output)
    if warp.unadded is not None:
        raise Fault(f"output {step.output} is computed without the product of block {warp.unadded}")
    if warp.in_flight(f"output {step.output}") or added != blocks:
        raise Fault(f"output {step.output} of tile {warp.tile} has blocks {added} of {blocks}, or MMAs add to it")
    warp.finished[step.output] = warp.tile
    if machine.plan.splits > 1 and warp.combined != (warp.tile, warp.group):
        raise Fault(f"the outputs of item {warp.tile} are computed from its own keys alone")
    key = (warp.tile // machine.plan.splits, warp.group, step.output)
    machine.finished[key] = machine.finished.get(key, 0) + 1


# Stores ----------------------------------------------------------------------------------------------------------------


@_rule(a.GroupSync)
def _(machine: Machine, step: a.GroupSync, warp: Warp) -> Running:
    yield machine.meetings[f"group_{warp.group}"].come()


@_rule(a.RowsSync)
def _(machine: Machine, step: a.RowsSync, warp: Warp) -> Running:
    yield machine.meetings["rows"].come()


@_rule(a.WriteOutput)
def _(machine: Machine, step: a.WriteOutput, warp: Warp) -> None:
    buffer, rows = machine.buffers[warp.group, step.output], machine.rows_of(warp)
    if not buffer.last.done:
        raise Fault(f"the output of tile {warp.tile} overwrites one that is being stored")
    if machine.shares_memory:
        if rows.readers or rows.held != warp.tile:
            raise Fault(f"the output of tile {warp.tile} overwrites queries that MMAs read")
        rows.overwritten.add(machine.memory_of(step.output))
    if warp.finished.get(step.output) != warp.tile or warp.tile is None:
        raise Fault(f"the output of tile {warp.tile} is written before it is computed")
    buffer.written[warp.number % 4] = warp.tile
    buffer.fenced.discard(warp.number % 4)


@_rule(g.FenceShared)
def _(machine: Machine, step: g.FenceShared, warp: Warp) -> None:
    for output in range(machine.outputs):
        machine.buffers[warp.group, output].fenced.add(warp.number % 4)
    changed = machine.rows_of(warp).changed
    if machine.part_of_rows(warp) in changed:
        changed[machine.part_of_rows(warp)] = True
    for stage in machine.rings.get("exchange", ()):
        stage.changed[warp.number] = True
    warp.sum.fenced = True


@_rule(a.StoreOutput)
def _(machine: Machine, step: a.StoreOutput, warp: Warp) -> None:
    buffer = machine.buffers[warp.group, step.output]
    assert warp.tile is not None
    if buffer.written != dict.fromkeys(range(4), warp.tile) or len(buffer.fenced) < 4:
        raise Fault(f"tile {warp.tile} is stored while its buffer holds {buffer.written}, or without a fence")
    store = buffer.last = Store()
    warp.stores.append(store)
    key = (warp.tile // machine.plan.splits, warp.group, step.output)
    machine.stored[key] = machine.stored.get(key, 0) + 1


@_rule(g.StoreWait)
def _(machine: Machine, step: g.StoreWait, warp: Warp) -> Running:
    """Complete the stores that are awaited. Others read shared memory until then, as long as they may on the GPU."""
    yield None
    for store in warp.stores[: len(warp.stores) - step.pending]:
        store.done = True


# Scheduler -------------------------------------------------------------------------------------------------------------


@_rule(a.TakeTicket)
def _(machine: Machine, step: a.TakeTicket, warp: Warp) -> None:
    machine.counter += 1
    warp.ticket = machine.counter


@_rule(a.HandOut)
def _(machine: Machine, step: a.HandOut, warp: Warp) -> Running:
    assert warp.tile is not None
    if machine.plan.scheduler != "dynamic":
        warp.tile = machine.after(warp.tile)
        return
    if warp.ticket is None:
        raise Fault("a tile is handed out that was not drawn")
    stage, parity = machine.rings["tile"][warp.visited & 1], (warp.visited >> 1) & 1
    yield lambda: stage.empty.passed(parity ^ 1)
    warp.tile = warp.ticket if warp.ticket < len(machine.tiles) else None
    if warp.tile is None and machine.counter == len(machine.tiles):
        machine.counter = 0
    stage.held, warp.ticket = (warp.visited, warp.tile), None
    stage.full.arrive()
    yield None


@_rule(a.NextTile)
def _(machine: Machine, step: a.NextTile, warp: Warp) -> Running:
    assert warp.tile is not None
    if machine.plan.scheduler != "dynamic":
        warp.tile = machine.after(warp.tile)
        return
    stage, parity = machine.rings["tile"][warp.visited & 1], (warp.visited >> 1) & 1
    yield lambda: stage.full.passed(parity)
    held = stage.held
    assert isinstance(held, tuple)
    if held[0] != warp.visited:
        raise Fault(f"the mailbox holds tile number {held[0]} of this CTA, to be read is number {warp.visited}")
    warp.tile = held[1]
    yield None
    stage.empty.arrive()
    yield None
