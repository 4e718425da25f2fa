"""A random schedule of the roles of one cluster: every wait, arrival, transfer and asynchronous read, with what each
slot holds. Finds deadlocks, overruns, stale reads, and messages to CTAs that have left.

What it does not model: the order in which one thread's plain writes to memory become visible to others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..plan.counts import multicast_masks, owner, part_of, place, rank_at
from ..roles import grammar as g

Tag = tuple[int, int]
"""What a slot holds: (tile, K tile or sub-tile)."""
Ready = Callable[[], bool]
Running = Iterator[Ready | None]


LOOKING = 1
"""How many of the warps that wait look, per step, whether they still have to; all of them look at once."""


class Fault(Exception):
    """The roles of a plan do not work together; the message says what happens first."""


@dataclass
class Barrier:
    """An mbarrier: its phase ends when all arrivals and all announced bytes are there."""

    name: str
    count: int
    pending: int = 0
    bytes: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.count

    def arrive(self, announced: int = 0) -> None:
        if self.pending == 0:
            raise Fault(f"{self.name}: more than {self.count} arrivals in one phase")
        self.pending -= 1
        self.bytes += announced
        self._turn()

    def complete(self, size: int) -> None:
        self.bytes -= size
        self._turn()

    def passed(self, parity: int) -> bool:
        return self.phase != parity

    def _turn(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase ^= 1
            self.pending = self.count


@dataclass
class Slot:
    held: dict[tuple[str, int], Tag] = field(default_factory=dict)
    """By operand and the CTA that loaded its part."""
    readers: int = 0


@dataclass
class Ring:
    pipeline: g.Pipeline
    full: list[Barrier]
    empty: list[Barrier]
    slots: list[Slot]


@dataclass
class Sums:
    """A stage of tensor memory, or the registers of a warp."""

    added: list[Tag] = field(default_factory=list)


@dataclass
class Buffer:
    written: dict[int, Tag] = field(default_factory=dict)
    stores: int = 0


@dataclass
class Cta:
    rank: int
    rings: dict[str, Ring]
    stages: list[Sums]
    buffers: list[Buffer]
    meetings: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By barrier: (warps waiting, meetings so far)."""
    vectors: dict[int, dict[int, int]] = field(default_factory=dict)
    """By team and warp: the tile whose part of the row operands is in shared memory."""
    allocated: bool = False
    freed: bool = False
    running: int = 0


@dataclass
class Store:
    done: bool = False


@dataclass
class Warp:
    """One warp of a role in one CTA."""

    cta: Cta
    role: g.Role
    number: int
    cursors: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """By name: (pipeline, slot, parity)."""
    tile: int = 0
    k_tile: int = 0
    group: range | None = None
    """The K tiles that a loop over them has, where not all."""
    subtile: int = 0
    sums: Sums = field(default_factory=Sums)
    total: list[Tag] = field(default_factory=list)
    stage: int = 0
    overwrite: bool = False
    fenced: bool = False
    open_group: list[tuple[Slot, Tag]] = field(default_factory=list)
    groups: list[list[tuple[Slot, Tag]]] = field(default_factory=list)
    held: Tag | None = None
    """The sub-tile whose sums are in the registers of the epilogue."""
    gathered: Tag | None = None
    """The sub-tile whose sums of other CTAs have been added to them."""
    vectors: int | None = None
    residual: Tag | None = None
    stores: list[Store] = field(default_factory=list)


def _passes(ready: Ready | None) -> bool:
    return ready is None or ready()


class Cluster:
    """One cluster that works on `tiles` tiles of `k_tiles` K tiles each, under the schedule of `seed`."""

    def __init__(self, program: g.KernelProgram, *, tiles: int, k_tiles: int, seed: int) -> None:
        self.program, self.plan = program, program.plan
        self.tiles, self.k_tiles = tiles, k_tiles
        self.random = random.Random(seed)
        self.newest_first = self.random.choice((0.0, 0.9))  # of messages, which starves the oldest
        self.messages: list[tuple[int, Callable[[], None]]] = []
        self.queues: dict[int, list[Callable[[], None]]] = {}
        """Per leading CTA: what its tensor core does, in order."""
        self.ctas = [self._cta(rank) for rank in range(self.plan.ctas)]
        self.stored: dict[tuple[int, Tag], int] = {}
        self._parts: dict[int, set[tuple[str, int]]] = {}
        self.exits = 0
        self.exiting = sum(role.warps for role in program.roles) * self.plan.ctas

    def _cta(self, rank: int) -> Cta:
        rings = {}
        for pipeline in self.program.pipelines:
            numbers = pipeline.counts
            rings[pipeline.name] = Ring(
                pipeline=pipeline,
                full=[Barrier(f"{pipeline.name} full", numbers.full_arrivals) for _ in range(numbers.stages)],
                empty=[Barrier(f"{pipeline.name} empty", numbers.empty_arrivals) for _ in range(numbers.stages)],
                slots=[Slot() for _ in range(numbers.stages)],
            )
        return Cta(
            rank=rank,
            rings=rings,
            stages=[Sums() for _ in range(self.plan.accumulator_stages)],
            buffers=[Buffer() for _ in range(self.plan.teams * self.plan.store_stages)],
        )

    # Schedule ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises ``Fault`` unless every sub-tile of every CTA is stored once and all warps end."""
        agents: list[tuple[Warp, Running]] = []
        for cta in self.ctas:
            for role in self.program.roles:
                for number in range(role.warps):
                    warp = Warp(cta=cta, role=role, number=number)
                    cta.running += 1
                    agents.append((warp, self._agent(warp)))
        self._schedule(agents)
        for cta in self.ctas:
            for tile in range(self.tiles):
                for subtile in self.own(cta):
                    if self.stored.get((cta.rank, (tile, subtile))) != 1:
                        raise Fault(f"sub-tile {subtile} of tile {tile} is not stored once")
            for ring in cta.rings.values():
                for barrier in (*ring.full, *ring.empty):
                    if barrier.pending != barrier.count or barrier.bytes:
                        raise Fault(
                            f"{barrier.name}: {barrier.count - barrier.pending} arrivals of a phase are left over"
                        )

    def _schedule(self, agents: list[tuple[Warp, Running]]) -> None:
        """Steps and transfers at random; warps that wait look again from time to time, and when nothing else can go on."""
        draw = self.random.random
        speeds = [0.05 + draw() ** 2 for _ in agents]
        waits: list[Ready | None] = [None] * len(agents)
        delivery = self.random.choice((0.1, 0.4, 0.8))
        able, parked = list(range(len(agents))), list[int]()
        changed = False
        while able or parked:
            if changed and parked and (not able or draw() * len(parked) < LOOKING):
                passing = {i for i in parked if _passes(waits[i])}
                able, parked = [*able, *passing], [i for i in parked if i not in passing]
                changed = False
            if self._deliver(delivery if able else 1.0):
                changed = True
            elif able:
                at = int(draw() * len(able))
                i = able[at]
                if draw() > speeds[i]:
                    continue
                if not _passes(waits[i]):
                    parked.append(able.pop(at))
                    continue
                changed = True
                try:
                    waits[i] = next(agents[i][1])
                except StopIteration:
                    able.pop(at)
            elif not changed:
                raise Fault(self._deadlock([agents[i][0] for i in parked]))
        while self._deliver(1.0):
            pass

    def _deliver(self, chance: float) -> bool:
        """One transfer or one step of a tensor core, at times."""
        if self.random.random() >= chance:
            return False
        queues = [queue for queue in self.queues.values() if queue]
        if not self.messages and not queues:
            return False
        if queues and (not self.messages or self.random.random() < 0.5):
            self.random.choice(queues).pop(0)()
            return True
        late = self.random.random() < self.newest_first
        rank, deliver = self.messages.pop(-1 if late else int(self.random.random() * len(self.messages)))
        if self.ctas[rank].running == 0:
            raise Fault(f"something arrives at CTA {rank}, which has left")
        deliver()
        return True

    def _deadlock(self, warps: list[Warp]) -> str:
        where = sorted({f"{warp.role.name} at tile {warp.tile}, K tile {warp.k_tile}" for warp in warps})
        return f"deadlock with {self.tiles} tiles of {self.k_tiles} K tiles: " + "; ".join(where)

    def _agent(self, warp: Warp) -> Running:
        yield from self.steps(warp.role.program, warp)
        if warp.open_group or warp.groups:
            raise Fault("a warp leaves with matrix instructions in flight")
        for step in self.program.exit:
            yield from self._step(step, warp)
        warp.cta.running -= 1

    def steps(self, steps: tuple[g.Step, ...], warp: Warp) -> Running:
        for step in steps:
            yield from self._step(step, warp)

    def _step(self, step: g.Step, warp: Warp) -> Running:
        rule = RULES.get(type(step))
        if rule is None:
            raise NotImplementedError(f"no rule simulates {type(step).__name__}")
        return rule(self, step, warp)

    def own(self, cta: Cta) -> list[int]:
        """The sub-tiles of a tile that `cta` stores."""
        return [i for i in range(self.plan.subtiles) if owner(self.plan, i) == part_of(self.plan, cta.rank)]

    # Places -----------------------------------------------------------------------------------------------------------

    def slot(self, warp: Warp, cursor: str) -> tuple[Ring, int, int]:
        pipeline, index, parity = warp.cursors[cursor]
        return warp.cta.rings[pipeline], index, parity

    def leader(self, rank: int) -> Cta:
        """The CTA that issues for the pair of CTA `rank`, itself without pairs."""
        if self.plan.ctas_per_mma == 1:
            return self.ctas[rank]
        _, pair_m, cta_n = place(self.plan, rank)
        return self.ctas[rank_at(self.plan, 0, pair_m, cta_n)]

    def pair(self, rank: int) -> list[Cta]:
        _, pair_m, cta_n = place(self.plan, rank)
        return [self.ctas[rank_at(self.plan, half, pair_m, cta_n)] for half in range(self.plan.ctas_per_mma)]

    def others(self, rank: int) -> list[Cta]:
        """CTAs that split K with CTA `rank`."""
        return [cta for cta in self.ctas if cta.rank != rank and place(self.plan, cta.rank) == place(self.plan, rank)]

    def owner(self, warp: Warp) -> Cta:
        """The CTA that stores the sub-tile of `warp`, of those that split K with it."""
        return self.ctas[rank_at(self.plan, *place(self.plan, warp.cta.rank), owner(self.plan, warp.subtile))]

    def sharers(self, rank: int) -> list[Cta]:
        """CTAs that load something which CTA `rank` reads."""
        loaders = []
        for cta in self.ctas:
            a, b = multicast_masks(self.plan, cta.rank)
            if (a | b) >> rank & 1:
                loaders.append(cta)
        return loaders

    def parts(self, rank: int) -> set[tuple[str, int]]:
        """What has to be in a slot of A and B of CTA `rank` before it is read."""
        found = self._parts.get(rank)
        if found is None:
            found = self._parts[rank] = set()
            of_b = ("b", *(operand.label for operand in self.plan.problem.epilogue.of_kind("product")))
            for cta in self.ctas:
                a, b = multicast_masks(self.plan, cta.rank)
                found |= {("a", cta.rank)} if a >> rank & 1 else set()
                found |= {(name, cta.rank) for name in of_b} if b >> rank & 1 else set()
        return found

    def expect(self, cta: Cta, slot: Slot, tag: Tag) -> None:
        if set(slot.held) != self.parts(cta.rank) or any(held != tag for held in slot.held.values()):
            raise Fault(f"stale operands: a slot holds {sorted(set(slot.held.values()))}, to be read is {tag}")

    def send(self, cta: Cta, deliver: Callable[[], None]) -> None:
        self.messages.append((cta.rank, deliver))

    def queue(self, cta: Cta) -> list[Callable[[], None]]:
        return self.queues.setdefault(cta.rank, [])


Rule = Callable[[Cluster, g.Step, Warp], Running]
RULES: dict[type[g.Step], Rule] = {}


def rule(kind: type[g.Step]) -> Callable[[Callable[..., Running]], Callable[..., Running]]:
    def register(function: Callable[..., Running]) -> Callable[..., Running]:
        RULES[kind] = function
        return function

    return register
