"""A random schedule of the roles of attention in one CTA: every wait, arrival, transfer and asynchronous read, with the
contents of stages, registers and buffers.

It finds deadlocks, overruns, stale reads, registers that change under an MMA, and turns that are left over.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping

from ....._support.records import dataclass, field
from ...plan.attention.gradients import BackwardProblem
from ...plan.attention.records import AttentionPlan, Part
from ...plan.records import WARP_THREADS
from ...roles import grammar as g
from ...roles.attention.grammar import ScoreProgram
from ..state import Barrier, Fault

BURST = 8
"""The most waits that a warp passes at a time."""
DELIVERIES = (0.01, 0.1, 0.5)
"""Probabilities that a transfer lands before the next waits of a warp."""
Place = tuple[int, int]
"""A block of a tile: (repetition, number). There are repetitions in gradients of attention alone. Those of a later pass over
the blocks follow those of the one before."""
MOST_REPEATS = 3
"""Simulated repetitions of a tile's blocks in a pass."""
Block = tuple[int | None, Place]
"""A block of a tile: (tile, block)."""
Ready = Callable[[], bool]
Running = Iterator[Ready | None]


def _END() -> bool:
    """Mark the end of a role: no condition."""
    return True


@dataclass
class Stage:
    """A stage of a pipeline: its contents, and the MMAs in flight that read it."""

    full: Barrier
    empty: Barrier
    held: object = None
    readers: int = 0
    changed: dict[int, bool] = field(default_factory=dict)
    """By warp: whether its part of the queries has been computed, and fenced for the MMAs."""
    overwritten: set[int] = field(default_factory=set)
    """Numbers of the matrices of rows that outputs have overwritten."""


@dataclass
class Meeting:
    """A named barrier: the threads that have come in this phase, and the number of completed phases."""

    name: str
    threads: int
    there: int = 0
    phase: int = 0

    def come(self) -> Ready:
        """Arrive with a warp; return a predicate for the completion of the phase."""
        phase = self.phase
        self.there += WARP_THREADS
        if self.there > self.threads:
            raise Fault(f"barrier {self.name}: more than {self.threads} threads in one phase")
        if self.there == self.threads:
            self.there, self.phase = 0, phase + 1
        return lambda: self.phase > phase


@dataclass
class Store:
    """A TMA store, which reads shared memory until it is done."""

    done: bool = False


@dataclass
class Buffer:
    """The shared memory of a group's output: the tile that each warp has written, and the store that reads it."""

    written: dict[int, int] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    last: Store = field(default_factory=lambda: Store(done=True))


@dataclass
class SumPart:
    """A warp's part of a block's gradient of streamed rows, in shared memory: the block, and the addition that reads it.

    ``met``: all threads of the warp have met since its last step.
    """

    written: Block | None = None
    fenced: bool = False
    met: bool = False
    last: Store = field(default_factory=lambda: Store(done=True))


@dataclass
class Tile:
    """A tile: the numbers of its blocks by part. ``blocks`` counts the first block as well."""

    parts: dict[Part, int]

    @property
    def blocks(self) -> int:
        return 1 + sum(self.parts.values())


@dataclass
class Warp:
    """One warp of a role."""

    role: g.Role
    number: int
    cursors: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """By name: (pipeline, stage, parity)."""
    tile: int | None = 0
    visited: int = 0
    group: int = 0
    repeat: int = 0
    passed: int = 0
    """Passes over the tile's blocks before the current one."""
    block: int = 0
    part: Part | None = None
    side: Part = "diagonal"
    ticket: int | None = None
    fenced: bool = False
    open_group: list[tuple[str, Stage]] = field(default_factory=list)
    groups: list[list[tuple[str, Stage]]] = field(default_factory=list)
    scores: tuple[str, int] | None = None
    """State of the score registers, and their block: ``mma``, ``scores`` or ``weights``."""
    weights: int | None = None
    """The block whose rounded weights are in registers."""
    bias: Block | None = None
    """The block whose bias is in registers."""
    factors: int | None = None
    """The block whose factors the accumulator needs next; None after it was rescaled."""
    unadded: int | None = None
    """The block whose product has its own registers, and is not in the accumulator yet."""
    joined: bool = False
    """True after the lanes of a row have added their sums."""
    products: dict[int, tuple[str, Place]] = field(default_factory=dict)
    """State of the registers of each product, and its block: ``mma``, ``ready`` or ``used``."""
    weighed: Place | None = None
    """The block whose held values are in registers."""
    lefts: dict[int, Place] = field(default_factory=dict)
    """By gradient: the block whose left operand is in registers."""
    added: dict[int, list[Place]] = field(default_factory=dict)
    """By output: the blocks whose products the accumulator has."""
    finished: dict[int, int] = field(default_factory=dict)
    """By output: the tile that is computed."""
    exchanged: int = 0
    """Blocks whose left operands it has written."""
    former: Block | None = None
    """The block before the current one."""
    sum: SumPart = field(default_factory=lambda: SumPart())
    put: tuple[int, int] | None = None
    """The work item and group whose partial it has stored."""
    combined: tuple[int, int] | None = None
    stores: list[Store] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """The current block."""
        return self.passed * MOST_REPEATS + self.repeat, self.block

    def reads(self, stage: Stage) -> bool:
        """Return whether MMAs of the warp that may be in flight read a stage."""
        return any(each is stage for group in (*self.groups, self.open_group) for _, each in group)

    def in_flight(self, kind: str) -> bool:
        """Return whether MMAs of a kind may be in flight: ``scores``, ``product n`` or ``output n``."""
        return any(each == kind for group in (*self.groups, self.open_group) for each, _ in group)


class Machine:
    """The state of one CTA, and its warps."""

    def __init__(self, program: ScoreProgram, tiles: int, seed: int) -> None:
        self.program, self.plan, self.seed = program, program.plan, seed
        self.random = random.Random(seed)
        parts = self.plan.parts
        items = tiles * self.plan.splits
        self.tiles = [Tile(parts={part: self.random.randrange(4) for part in parts}) for _ in range(items)]
        """Work items: parts of the keys of each tile."""
        self.partials: dict[tuple[int, int], set[int]] = {}
        """By work item and group: the warps whose partials are in memory and released."""
        self.counters: dict[tuple[int, int], int] = {}
        """By tile and group."""
        self.awaited: dict[tuple[int, int], int] = {}
        """By tile and group: the CTAs that have waited for all parts, whose partials other CTAs store at the same time."""
        self.found: dict[int, tuple[int, int]] = {}
        """By group: the work item and the count before it, in shared memory."""
        self.rings = {pipeline.name: self._ring(pipeline) for pipeline in program.pipelines}
        self.meetings = {each.name: Meeting(each.name, each.threads) for each in program.barriers}
        problem = self.plan.problem
        self.repeats = min(problem.repeats, MOST_REPEATS) if isinstance(problem, BackwardProblem) else 1
        self.outputs = len(problem.gradients) if isinstance(problem, BackwardProblem) else 1
        self.passes = problem.passes if isinstance(problem, BackwardProblem) else ((0,),)
        self.rows = next(each.name for each in program.pipelines if each.kind == "tma_rows")
        """Name of the pipeline of the tile's rows."""
        places = itertools.product(range(self.plan.consumer_groups), range(self.outputs))
        self.buffers = {place: Buffer() for place in places}
        """By group and output."""
        self.messages: list[Callable[[], None]] = []
        self.rules: Mapping[type[g.Step], Callable[..., Running | None]] = {}
        """Rules of steps that a kind of programs has instead of those of wgmma."""
        self.counter = 0
        self.finished: dict[tuple[int, int, int], int] = {}
        """By tile, group and output: the warps that have computed it."""
        self.stored: dict[tuple[int, int, int], int] = {}
        self.sums: dict[tuple[Block, int], int] = {}
        """By block and group: the warps that have added its gradient to memory."""

    @property
    def shares_memory(self) -> bool:
        """True if the output takes the shared memory of Q."""
        return not self.plan.own_output

    def _ring(self, pipeline: g.Pipeline) -> list[Stage]:
        numbers = pipeline.counts
        return [
            Stage(
                full=Barrier(f"{pipeline.name} full", numbers.full_arrivals),
                empty=Barrier(f"{pipeline.name} empty", numbers.empty_arrivals),
            )
            for _ in range(numbers.stages)
        ]

    def visits(self, tile: int, output: int) -> list[Place]:
        """Return the blocks of a tile in the order of their visits by the pass of an output."""
        first = MOST_REPEATS * next(at for at, chosen in enumerate(self.passes) if output in chosen)
        blocks, repeats = reversed(range(self.tiles[tile].blocks)), range(first, first + self.repeats)
        return [(repeat, block) for block, repeat in itertools.product(blocks, repeats)]

    def memory_of(self, output: int) -> int:
        """Return the number of the matrix of rows whose shared memory an output takes."""
        problem = self.plan.problem
        return problem.output_memory(output) if isinstance(problem, BackwardProblem) else 0

    def rows_of(self, warp: Warp) -> Stage:
        """Return the stage of the rows that a loading warp's group, or a consumer warp, has."""
        shared = self.plan.column_groups if warp.role.warps > 1 else 1
        buffer = warp.visited % self.plan.row_buffers
        return self.rings[self.rows][buffer * self.plan.groups + warp.group // shared]

    def part_of_rows(self, warp: Warp) -> int:
        """Return the number of a consumer warp among those that share rows."""
        return warp.number % (4 * self.plan.column_groups)

    def first_tile(self) -> int | None:
        return 0 if self.tiles else None

    def after(self, tile: int) -> int | None:
        """Return the tile after ``tile`` of a static scheduler."""
        return tile + 1 if tile + 1 < len(self.tiles) else None

    def bytes_of(self, name: str) -> int:
        return next(each.counts.transaction_bytes for each in self.program.pipelines if each.name == name)

    def warps(self) -> Iterator[Warp]:
        for role in self.program.roles:
            for number in range(role.warps):
                yield Warp(role=role, number=number, group=number // 4 if role.warps > 1 else 0, tile=self.first_tile())

    def run(self, execute: Callable[[Machine, Warp], Running]) -> None:
        """Run all warps. Raises ``Fault`` unless every tile of every group is stored once, and nothing is left over."""
        able = [(warp, execute(self, warp)) for warp in self.warps()]
        parked: list[tuple[Warp, Running, Ready]] = []
        draw, delivery = self.random.random, self.random.choice(DELIVERIES)
        while able or parked:
            if self.messages and (not able or draw() < delivery):
                self.messages.pop(int(draw() * len(self.messages)))()
            at = int(draw() * len(parked)) if parked else 0
            for place in [at] if able else reversed(range(len(parked))):
                if place < len(parked) and parked[place][2]():
                    able.append(parked.pop(place)[:2])
            if not able:
                if not self.messages:
                    raise Fault(self._deadlock([warp for warp, _, _ in parked]))
                continue
            warp, steps = able.pop(int(draw() * len(able)))
            for _ in range(1 + int(draw() * BURST)):
                ready = next(steps, _END)
                if ready is _END:
                    self._leave(warp)
                    break
                if ready is not None and not ready():
                    parked.append((warp, steps, ready))
                    break
            else:
                able.append((warp, steps))
        while self.messages:
            self.messages.pop()()
        self._check_end()

    def _deadlock(self, warps: list[Warp]) -> str:
        where = sorted({f"{warp.role.name} at tile {warp.tile}, block {warp.block}" for warp in warps})
        return f"deadlock with {len(self.tiles)} tiles: {'; '.join(where)}"

    def _leave(self, warp: Warp) -> None:
        if warp.groups or warp.open_group:
            raise Fault("a warp leaves with MMAs in flight")
        if any(not store.done for store in warp.stores):
            raise Fault("a warp leaves while its stores read shared memory")

    def _check_sums(self) -> None:
        if not isinstance(self.plan.problem, BackwardProblem) or self.plan.problem.atomic is None:
            return
        blocks = [(tile, place) for tile in range(len(self.tiles)) for place in self.visits(tile, 0)]
        wanted = {(block, group): 4 for block in blocks for group in range(self.plan.groups)}
        if self.sums != wanted:
            raise Fault("a block's gradient is not added to memory once by each warp")

    def _check_end(self) -> None:
        for meeting in self.meetings.values():
            if meeting.there:
                raise Fault(f"barrier {meeting.name}: {meeting.there} threads of a phase are left over")
        for stages in self.rings.values():
            for stage in stages:
                for barrier in (stage.full, stage.empty):
                    if barrier.pending != barrier.count or barrier.bytes:
                        raise Fault(
                            f"{barrier.name}: {barrier.count - barrier.pending} arrivals of a phase are left over"
                        )
        self._check_sums()
        if any(self.counters.values()):
            raise Fault(f"counters are left at {self.counters}")
        stores, warps = 1, 4
        if isinstance(self.plan, AttentionPlan) and self.plan.combining > 1:
            stores = warps = 4 * min(self.plan.combining, self.plan.splits)
        for tile in range(len(self.tiles) // self.plan.splits):
            for group, output in self.buffers:
                key = tile, group, output
                if self.stored.get(key) != stores or self.finished.get(key) != warps:
                    raise Fault(f"tile {tile} of group {group} is not stored once")
