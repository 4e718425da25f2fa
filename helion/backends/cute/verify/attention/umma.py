"""The simulation of attention on tcgen05: MMAs that are complete in the order of their issue, the lanes of tensor memory of
each warp, and messages from softmax to correction.

It finds scores that are overwritten before their weights were multiplied, outputs that change under an MMA, and stale
messages. It also finds accesses of tensor memory without the fence that orders them.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable

from ....._support.records import dataclass, field
from ...plan.attention.gradients import STREAMED
from ...plan.attention.umma import CORRECTION_WARPS, SOFTMAX_WARPS, UmmaPlan, allocated_columns
from ...plan.attention.umma_backward import UmmaBackwardPlan
from ...roles import grammar as g
from ...roles.attention import grammar as a
from ...roles.attention import umma as u
from ...roles.attention.grammar import rule_of
from ...roles.attention.umma import UmmaProgram
from ...roles.attention.umma_backward import UmmaBackwardProgram
from ..state import Fault
from .machine import Machine, Running, Stage, Warp
from .rules import RULES as SHARED
from .rules import execute, run_steps, stage_of

SCHEDULES = ((0, 0), (3, 1), (3, 4))
"""Simulated (tiles, seed). They expose each of the faults that tests plant (test_umma_verify.py)."""
WITHOUT_SOFTMAX = ((5, 57),)
"""Those of programs without a softmax besides, whose outputs are handed over once."""
OF_BLOCKS = ("k", "v", *STREAMED)
"""Pipelines of streamed blocks, whose stages MMAs release."""
ORDERED = ("scores", "weights", "lefts", "output")
"""Pipelines that hand tensor memory to other threads."""
Rule = Callable[..., Running | None]
RULES: dict[type[g.Step], Rule] = {}
Block = tuple[int | None, int]


@dataclass
class Lanes:
    """The columns of a group in tensor memory: what each warp's lanes hold."""

    scores: dict[int, tuple[str, Block]] = field(default_factory=dict)
    """By warp: ``scores``, ``weights``, or weights that were ``multiplied``, and their block."""
    added: dict[int, list[Block]] = field(default_factory=dict)
    """By warp: the blocks of the output."""
    scaled: dict[int, Block] = field(default_factory=dict)
    """By warp: the block whose factors the output has, the last ones."""


@dataclass
class Registers:
    """The registers of a thread of a softmax warp, or of a correcting one."""

    scores: tuple[str, Block] | None = None
    factors: Block | None = None
    """The block whose factors are computed."""
    unsummed: Block | None = None
    message: tuple[str, Block] | None = None
    ordered: bool = True
    """False after a wait, until a fence orders the accesses that follow it."""
    open: bool = False
    """True after an access, until a fence orders it before an arrival."""


class UmmaMachine(Machine):
    """The state of one CTA with tensor memory."""

    program: UmmaProgram
    plan: UmmaPlan

    def __init__(self, program: UmmaProgram | UmmaBackwardProgram, tiles: int, seed: int) -> None:
        super().__init__(program, tiles, seed)
        self.rules = RULES
        self.lanes = [Lanes() for _ in range(program.plan.groups)]
        self.messages_held: dict[tuple[int, int], tuple[str, Block]] = {}
        """By group and warp: what shared memory has for the correction."""
        self.issued: deque[Callable[[], None]] = deque()
        """MMAs, and arrivals that wait for them, in the order of their issue."""
        self.registers: dict[int, Registers] = {}
        self.multiplying: dict[tuple[str, int], int] = {}
        """By kind and group: issued MMAs that are not complete."""

    def of(self, warp: Warp) -> Registers:
        return self.registers.setdefault(id(warp), Registers())

    def issue(self, action: Callable[[], None]) -> None:
        """Queue an action that the tensor pipe does after those before it."""
        self.issued.append(action)
        self.messages.append(lambda: self.issued.popleft()())

    def cursor_stage(self, warp: Warp, cursor: str) -> tuple[Stage, int]:
        """Return the stage of a cursor, that of the warp's group where each group has one, and the parity to wait for."""
        name = cursor.partition("_")[0]
        if name == self.rows:
            parity = (warp.visited & 1) ^ (1 if cursor.endswith("_fill") else 0)
            return self.rings[name][warp.group], parity
        if _is_of_groups(self.program, name):
            return self.rings[name][warp.group], warp.cursors.get(cursor, (name, 0, 0))[2]
        return stage_of(self, warp, cursor)

    def last_block(self, tile: int | None) -> int:
        assert tile is not None
        return self.tiles[tile].blocks - 1


def _is_of_groups(program: a.ScoreProgram, name: str) -> bool:
    return any(each.name == name and each.kind == "of_groups" for each in program.pipelines)


def check_tensor_memory(plan: UmmaPlan | UmmaBackwardPlan) -> None:
    """Check the columns of tensor memory. Raises ``Fault``."""
    if plan.memory_columns > plan.tensor_memory_limit_columns:
        raise Fault(f"{plan.memory_columns} columns of tensor memory; a CTA has {plan.tensor_memory_limit_columns}")
    columns = allocated_columns(plan)
    if columns < plan.memory_columns or columns & (columns - 1) or columns > plan.tensor_memory_limit_columns:
        raise Fault(f"{columns} columns of tensor memory are allocated for {plan.memory_columns}")


def simulate(program: UmmaProgram) -> None:
    """Run schedules of a program. Raises ``Fault``."""
    for tiles, seed in SCHEDULES + (() if program.plan.problem.softmax else WITHOUT_SOFTMAX):
        UmmaMachine(program, tiles=tiles, seed=seed).run(execute)


_rule = functools.partial(rule_of, RULES)


# Pipelines -------------------------------------------------------------------------------------------------------------


@_rule(g.Acquire)
def _(machine: UmmaMachine, step: g.Acquire, warp: Warp) -> Running:
    name = step.cursor.partition("_")[0]
    if not _is_of_groups(machine.program, name):
        yield from SHARED[g.Acquire](machine, step, warp) or ()
        return
    stage, parity = machine.cursor_stage(warp, step.cursor)
    yield lambda: stage.empty.passed(parity)
    _wake(machine, warp, name)


@_rule(g.Wait)
def _(machine: UmmaMachine, step: g.Wait, warp: Warp) -> Running:
    stage, parity = machine.cursor_stage(warp, step.cursor)
    yield lambda: stage.full.passed(parity)
    _wake(machine, warp, step.cursor.partition("_")[0])


def _wake(machine: UmmaMachine, warp: Warp, name: str) -> None:
    if name in ORDERED:
        machine.of(warp).ordered = False


@_rule(g.Commit)
def _(machine: UmmaMachine, step: g.Commit, warp: Warp) -> None:
    if not _is_of_groups(machine.program, step.cursor.partition("_")[0]):
        return
    stage, _ = machine.cursor_stage(warp, step.cursor)
    _arrive(machine, warp, step.cursor)
    stage.full.arrive()


@_rule(g.Release)
def _(machine: UmmaMachine, step: g.Release, warp: Warp) -> None:
    stage, _ = machine.cursor_stage(warp, step.cursor)
    if step.cursor.partition("_")[0] in OF_BLOCKS:
        machine.issue(stage.empty.arrive)
        return
    _arrive(machine, warp, step.cursor)
    if stage.readers:
        raise Fault(f"{step.cursor}: a stage is released while MMAs read it")
    stage.empty.arrive()


def _arrive(machine: UmmaMachine, warp: Warp, cursor: str) -> None:
    if cursor.partition("_")[0] in ORDERED and machine.of(warp).open:
        raise Fault(f"{cursor}: an arrival without a fence after accesses of tensor memory")


@_rule(u.CommitMma)
def _(machine: UmmaMachine, step: u.CommitMma, warp: Warp) -> None:
    stage, _ = machine.cursor_stage(warp, step.cursor)
    machine.issue(stage.full.arrive if step.cursor.endswith("_fill") else stage.empty.arrive)


@_rule(g.Advance)
def _(machine: UmmaMachine, step: g.Advance, warp: Warp) -> None:
    name, index, parity = warp.cursors[step.cursor]
    if _is_of_groups(machine.program, name):
        warp.cursors[step.cursor] = (name, index, parity ^ 1)
    else:
        SHARED[g.Advance](machine, step, warp)


@_rule(u.TensorFence)
def _(machine: UmmaMachine, step: u.TensorFence, warp: Warp) -> None:
    if step.after:
        machine.of(warp).ordered = True
    else:
        machine.of(warp).open = False


def access(machine: UmmaMachine, warp: Warp) -> Registers:
    """Return the registers of a warp that accesses tensor memory. Raises ``Fault`` if no fence orders that."""
    found = machine.of(warp)
    if not found.ordered:
        raise Fault(f"{warp.role.name} accesses tensor memory without a fence after its wait")
    return found


@_rule(u.LastGroup)
def _(machine: UmmaMachine, step: u.LastGroup, warp: Warp) -> Running:
    if warp.group == machine.plan.groups - 1:
        yield from run_steps(machine, warp, step.body)


# MMAs ------------------------------------------------------------------------------------------------------------------


@_rule(a.ScoreMma)
def _(machine: UmmaMachine, step: a.ScoreMma, warp: Warp) -> None:
    stage, _ = machine.cursor_stage(warp, step.cursor)
    rows, group, block = machine.rings[machine.rows][warp.group], warp.group, (warp.tile, warp.block)
    if machine.plan.computes_queries and rows.changed != dict.fromkeys(range(CORRECTION_WARPS), True):
        raise Fault(f"queries of tile {warp.tile} are multiplied before all warps have computed and fenced theirs")
    if stage.held != (warp.tile, warp.place) or rows.held != warp.tile or rows.overwritten:
        raise Fault(
            f"stale operands: stages hold {stage.held} and queries of {rows.held}, to be multiplied are {block}"
        )
    begin(machine, "scores", group, stage, rows)

    def done() -> None:
        lanes = machine.lanes[group]
        if any(kind != "multiplied" for kind, _ in lanes.scores.values()):
            raise Fault(f"scores of {block} overwrite {lanes.scores}, which were not read or not multiplied")
        lanes.scores = {number: ("scores", block) for number in range(SOFTMAX_WARPS)}
        end(machine, "scores", group, stage, rows)

    machine.issue(done)


@_rule(u.OutputOfBlock)
def _(machine: UmmaMachine, step: u.OutputOfBlock, warp: Warp) -> None:
    access(machine, warp)
    stage, _ = machine.cursor_stage(warp, step.cursor)
    group, number = warp.group, warp.block + (1 if step.behind else 0)
    block, first = (warp.tile, number), number == machine.last_block(warp.tile)
    if stage.held != (warp.tile, (warp.place[0], number)):
        raise Fault(f"stale operands: a stage of V holds {stage.held}, to be multiplied is {block}")
    lanes = machine.lanes[group]
    if lanes.scores != {number: ("weights", block) for number in range(SOFTMAX_WARPS)}:
        raise Fault(f"the output of {block} is multiplied while tensor memory holds {lanes.scores}")
    softmax = machine.plan.problem.softmax
    if softmax and not first and lanes.scaled != {number: block for number in range(CORRECTION_WARPS)}:
        raise Fault(f"the output of {block} is added to one with the factors of {lanes.scaled}")
    if first and any(held and held[0][0] == warp.tile for held in lanes.added.values()):
        raise Fault(f"the first output of tile {warp.tile} is multiplied twice")
    if first and any(lanes.added.values()):
        raise Fault(f"the output of {block} overwrites one that was not stored")
    begin(machine, "output", group, stage)

    def done() -> None:
        if any(kind != "weights" for kind, _ in lanes.scores.values()):
            raise Fault(f"weights of {block} change while MMAs read them: {lanes.scores}")
        lanes.scores = dict.fromkeys(range(SOFTMAX_WARPS), ("multiplied", block))
        for each in range(CORRECTION_WARPS):
            lanes.added.setdefault(each, []).append(block)
        end(machine, "output", group, stage)

    machine.issue(done)


def begin(machine: UmmaMachine, kind: str, group: int, *stages: Stage) -> None:
    """Count MMAs of a kind that read stages."""
    machine.multiplying[kind, group] = machine.multiplying.get((kind, group), 0) + 1
    for stage in stages:
        stage.readers += 1


def end(machine: UmmaMachine, kind: str, group: int, *stages: Stage) -> None:
    """Count them as complete."""
    machine.multiplying[kind, group] -= 1
    for stage in stages:
        stage.readers -= 1


# Softmax ---------------------------------------------------------------------------------------------------------------


@_rule(u.ReadScores)
def _(machine: UmmaMachine, step: u.ReadScores, warp: Warp) -> None:
    found, block = access(machine, warp), (warp.tile, warp.block)
    held = machine.lanes[warp.group].scores.get(warp.number % 4)
    if held != ("scores", block) or machine.multiplying.get(("scores", warp.group)):
        raise Fault(f"scores of {block} are read while tensor memory holds {held}, or MMAs write it")
    found.scores, found.open = ("scores", block), True


@_rule(u.Maxima)
def _(machine: UmmaMachine, step: u.Maxima, warp: Warp) -> None:
    found, block = machine.of(warp), (warp.tile, warp.block)
    if found.scores != ("scores", block):
        raise Fault(f"the maximum of {block} is that of registers with {found.scores}")
    if warp.part != "free" and not step.masked:
        raise Fault(f"block {warp.block} of part {warp.part} is not masked")
    if step.first != (warp.part is None):
        raise Fault(f"block {warp.block} of part {warp.part} sets, or does not set, the first maximum")
    if found.unsummed is not None:
        raise Fault(f"the weights of {found.unsummed} are not summed before the factor of {block}")
    found.scores, found.factors = ("raised", block), block


@_rule(u.WriteFactors)
def _(machine: UmmaMachine, step: u.WriteFactors, warp: Warp) -> None:
    block = (warp.tile, warp.block)
    if machine.of(warp).factors != block or warp.part is None:
        raise Fault(f"factors of {machine.of(warp).factors} are sent as those of {block}")
    _send(machine, warp, ("factors", block))


@_rule(u.WriteTotals)
def _(machine: UmmaMachine, step: u.WriteTotals, warp: Warp) -> None:
    if machine.of(warp).unsummed is not None or warp.block != 0:
        raise Fault(f"the sum of tile {warp.tile} is sent without all of its blocks")
    _send(machine, warp, ("totals", (warp.tile, 0)))


def _send(machine: UmmaMachine, warp: Warp, message: tuple[str, Block]) -> None:
    held = machine.messages_held.get((warp.group, warp.number % 4))
    if held is not None:
        raise Fault(f"a message {message} overwrites {held}, which was not read")
    machine.messages_held[warp.group, warp.number % 4] = message


@_rule(u.Exponentials)
def _(machine: UmmaMachine, step: u.Exponentials, warp: Warp) -> None:
    found, block = machine.of(warp), (warp.tile, warp.block)
    if found.scores != ("raised", block):
        raise Fault(f"weights of {block} are computed from {found.scores}")
    found.scores = ("weights", block)
    found.unsummed = block if machine.plan.problem.needs_total else None


@_rule(u.DropWeights)
def _(machine: UmmaMachine, step: u.DropWeights, warp: Warp) -> None:
    found, block = machine.of(warp), (warp.tile, warp.block)
    if found.scores != ("weights", block) or found.unsummed is not None:
        raise Fault(f"weights of {found.scores} are changed as those of {block}, or before they are summed")
    if step.first != (warp.part is None):
        raise Fault(f"block {block} of part {warp.part} is printed as the first one, or as a later one")
    found.scores = ("dropped", block)


@_rule(u.WriteWeights)
def _(machine: UmmaMachine, step: u.WriteWeights, warp: Warp) -> None:
    found, block = access(machine, warp), (warp.tile, warp.block)
    if found.scores != ("weights" if machine.plan.problem.dropped is None else "dropped", block):
        raise Fault(f"weights of {block} are stored from {found.scores}")
    if machine.multiplying.get(("scores", warp.group)):
        raise Fault(f"weights of {block} are stored while MMAs write scores")
    machine.lanes[warp.group].scores[warp.number % 4] = ("weights", block)
    found.open = True


@_rule(u.AddWeights)
def _(machine: UmmaMachine, step: u.AddWeights, warp: Warp) -> None:
    found, block = machine.of(warp), (warp.tile, warp.block)
    if found.unsummed != block or step.first != (warp.part is None):
        raise Fault(f"weights of {found.unsummed} are summed as those of {block}")
    found.unsummed = None


# Correction ------------------------------------------------------------------------------------------------------------


@_rule(u.ReadMessage)
def _(machine: UmmaMachine, step: u.ReadMessage, warp: Warp) -> None:
    block = (warp.tile, 0 if step.last else warp.block)
    wanted = ("totals" if step.last else "factors", block)
    held = machine.messages_held.pop((warp.group, warp.number % 4), None)
    if held != wanted:
        raise Fault(f"the message {held} is read as {wanted}")
    machine.of(warp).message = held


def _output(machine: UmmaMachine, warp: Warp, blocks: list[Block], why: str) -> Lanes:
    """Return the lanes of a group's output, which no MMA writes and which has ``blocks``."""
    access(machine, warp).open = True
    lanes = machine.lanes[warp.group]
    held = lanes.added.get(warp.number % 4)
    if machine.multiplying.get(("output", warp.group)) or held != blocks:
        raise Fault(f"an output is {why} with blocks {held} of {blocks}, or while MMAs add to it")
    return lanes


@_rule(a.Rescale)
def _(machine: UmmaMachine, step: a.Rescale, warp: Warp) -> None:
    block = (warp.tile, warp.block)
    if machine.of(warp).message != ("factors", block):
        raise Fault(f"an output is rescaled by {machine.of(warp).message}, not by the factors of {block}")
    added: list[Block] = [
        (warp.tile, each) for each in reversed(range(warp.block + 1, machine.last_block(warp.tile) + 1))
    ]
    lanes = _output(machine, warp, added, "rescaled")
    lanes.scaled[warp.number % 4] = block


def _whole(machine: UmmaMachine, warp: Warp, why: str) -> None:
    """Take the output of all blocks of a tile, with its sums, from tensor memory."""
    if machine.of(warp).message != ("totals", (warp.tile, 0)):
        raise Fault(f"tile {warp.tile} is {why} with the message {machine.of(warp).message}")
    blocks: list[Block] = [(warp.tile, each) for each in reversed(range(machine.last_block(warp.tile) + 1))]
    _output(machine, warp, blocks, why).added[warp.number % 4] = []


@_rule(g.StorePartials)
def _(machine: UmmaMachine, step: g.StorePartials, warp: Warp) -> None:
    assert warp.tile is not None
    _whole(machine, warp, "stored as a partial")
    warp.put = (warp.tile, warp.group)


@_rule(u.FinishRow)
def _(machine: UmmaMachine, step: u.FinishRow, warp: Warp) -> None:
    assert warp.tile is not None
    if machine.plan.splits == 1:
        _whole(machine, warp, "finished")
    elif warp.combined != (warp.tile, warp.group):
        raise Fault(f"the outputs of item {warp.tile} are computed from its own keys alone")
    buffer, rows = machine.buffers[warp.group, 0], machine.rings[machine.rows][warp.group]
    if not buffer.last.done:
        raise Fault(f"the output of tile {warp.tile} overwrites one that is being stored")
    if machine.shares_memory:
        if rows.readers or rows.held != warp.tile:
            raise Fault(f"the output of tile {warp.tile} overwrites queries that MMAs read")
        rows.overwritten.add(0)
    buffer.written[warp.number % 4] = warp.tile
    buffer.fenced.discard(warp.number % 4)
    key = (warp.tile // machine.plan.splits, warp.group, 0)
    machine.finished[key] = machine.finished.get(key, 0) + 1


@_rule(g.FenceShared)
def _(machine: UmmaMachine, step: g.FenceShared, warp: Warp) -> None:
    machine.buffers[warp.group, 0].fenced.add(warp.number % 4)
    changed = machine.rings[machine.rows][warp.group].changed
    if warp.number in changed:
        changed[warp.number] = True


# Tensor memory, barriers -------------------------------------------------------------------------------------------------


@_rule(g.AllocateSums)
def _(machine: UmmaMachine, step: g.AllocateSums, warp: Warp) -> None:
    """Allocate: the barrier of ``FindSums`` orders it before all uses."""


@_rule(g.FindSums)
def _(machine: UmmaMachine, step: g.FindSums, warp: Warp) -> Running:
    yield machine.meetings["tensor_memory"].come()


@_rule(g.FreeSums)
def _(machine: UmmaMachine, step: g.FreeSums, warp: Warp) -> None:
    if any(machine.multiplying.values()) or machine.meetings["end"].phase != 1:
        raise Fault("tensor memory is freed while it is in use")


@_rule(g.BarrierSync)
def _(machine: UmmaMachine, step: g.BarrierSync, warp: Warp) -> Running:
    yield machine.meetings[step.barrier].come()
