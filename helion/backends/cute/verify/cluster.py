"""A random schedule of the roles of one cluster: every wait, arrival, transfer and asynchronous read, with the contents
of each stage.

It finds deadlocks, overruns, stale reads, and messages to CTAs that have exited. It does not model the order in which
one thread's plain stores become visible to others.
"""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..plan.counts import counts, multicast_masks, owner, part_of, place, rank_at
from ..plan.passes import passes, reads_matrices
from ..roles import grammar as g
from .elements import SCALES, copied_by, parts_of, turns_of
from .state import Barrier, Buffer, Cta, Fault, Ring, Slot, Sums, Tag, Warp, Workspace

Ready = Callable[[], bool]
Running = Iterator[Ready | None]

BURSTS = (1, 4, 16)
"""Average steps of a warp at a time: few for interleaved warps, many for one far ahead of the others."""


class Leaf(NamedTuple):
    """A step with its loop indices. Its rule is a generator if it waits within the step."""

    run: Callable[..., Any]
    waits: bool
    step: g.Step
    tile: int
    k_tile: int
    subtile: int
    part: int
    alone: bool = False
    """True if the step only touches state of the warp, so that its position in the schedule does not matter."""
    guard: Callable[[Warp], bool] | None = None
    """Dynamic predicate of the step, if any."""


ALONE = (
    *(g.SetUp, g.GroupViews, g.Cursor, g.Advance, g.Skip, g.WgmmaFence, g.WgmmaCommit, g.ClearSums, g.Promote),
    g.LoadElements,
    *(g.LoadVectors, g.ClearRows, g.JoinLanes, g.OwnRows, g.EvaluateRows),
)
"""Steps without effect on other warps, and the reverse: they run together with the next step that has one."""


class Agent:
    """The execution of a warp's steps."""

    __slots__ = ("at", "cluster", "inner", "leaves", "ready", "speed", "warp")

    def __init__(self, cluster: Cluster, warp: Warp, leaves: list[Leaf], speed: float) -> None:
        self.cluster, self.warp, self.leaves, self.speed = cluster, warp, leaves, speed
        self.at = 0
        self.ready: Ready | None = None
        self.inner: Running | None = None

    def go_on(self) -> bool:
        """Run up to the next step with an effect on other warps; return False after the last."""
        if self.inner is not None:
            try:
                self.ready = next(self.inner)
                return True
            except StopIteration:
                self.inner = None
        leaves, warp, cluster = self.leaves, self.warp, self.cluster
        while self.at < len(leaves):
            run, waits, step, warp.tile, warp.k_tile, warp.subtile, warp.part, alone, guard = leaves[self.at]
            self.at += 1
            if guard is not None and not guard(warp):
                return True
            if waits:
                self.inner = run(cluster, step, warp)
                return self.go_on()
            self.ready = run(cluster, step, warp)
            if not alone:
                return True
        return False


class Cluster:
    """One cluster that runs `tiles` tiles of `k_tiles` K tiles each, under the schedule of `seed`.

    If clusters split K, it is the ``number``-th of several that interleave the parts of all tiles and share a
    workspace. The ``first`` creates the others.
    """

    def __init__(
        self,
        program: g.KernelProgram,
        *,
        tiles: int,
        k_tiles: int,
        seed: int,
        first: Cluster | None = None,
        number: int = 0,
    ) -> None:
        self.program, self.plan = program, program.plan
        self.tiles, self.k_tiles, self.number = tiles, k_tiles, number
        self.whole_tiles = tiles // 2 if self.plan.whole_tiles else 0
        self.random: random.Random = first.random if first else random.Random(seed)
        self.workspace: Workspace = first.workspace if first else Workspace()
        self.newest_first = self.random.choice((0.02, 0.15, 0.8))  # of messages, which starves the oldest
        self.messages: list[tuple[Cta, Callable[[], None]]] = first.messages if first else []
        self.queues: dict[tuple[int, int], list[Callable[[], None]]] = first.queues if first else {}
        """By cluster and leading CTA: tensor-core operations in order."""
        self.matrices = len(self.plan.problem.outputs_of("exact"))
        self.ctas = [self._cta(rank) for rank in range(self.plan.ctas)]
        self.stored: dict[tuple[int, Tag, int], int] = first.stored if first else {}
        """By CTA, tile and sub-tile, and index of the output matrix."""
        self.stored_rows: dict[tuple[int, int], int] = {}
        """By CTA and tile: the warps that have stored per-row numbers."""
        self.waits: dict[tuple[int, int], int] = {}
        self.signals: dict[tuple[int, int], int] = {}
        """By CTA and tile: how often messages are awaited, and signalled."""
        self.counts = counts(self.plan)
        self.turns = turns_of(program)
        self.storing_warps = self.program.role("store").warps if self.plan.warp_stores else 1
        epilogue = self.plan.problem.epilogue
        self.by_rows = self.plan.by_rows
        self.reads_matrices = [reads_matrices(self.plan, walk) for walk in passes(self.plan)]
        self.reads_rows, self.reads_columns = (bool(epilogue.of_kind(kind)) for kind in ("row", "column"))
        self._rules: dict[int, tuple[Rule, bool, bool]] = {}
        self._leaves: dict[tuple[str, int, bool, bool, int], list[Leaf]] = {}
        self._ctas: dict[tuple[str, int], list[Cta]] = {}
        self._parts: dict[int, set[tuple[str, int]]] = {}
        self.exits = 0
        self.exiting = sum(role.warps for role in program.roles) * self.plan.ctas
        self.clusters: list[Cluster] = first.clusters if first else []
        self.clusters.append(self)
        if first is None and self.plan.grid_splits > 1:
            for beside in range(1, self.random.randint(1, self.plan.grid_splits)):
                Cluster(program, tiles=tiles, k_tiles=k_tiles, seed=seed, first=self, number=beside)

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
            buffers=[
                Buffer()
                for _ in range(self.plan.teams * self.plan.store_stages * self.matrices)
                for _ in range(self.plan.storing_warps)
            ],
        )

    # Schedule ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the schedule. Raises ``Fault`` unless every sub-tile of every CTA is stored once and all warps end."""
        self._schedule([agent for cluster in self.clusters for agent in cluster.agents()])
        for cta in self.ctas:
            for tile in range(self.tiles):
                self._check_stored(cta, tile)
        for (tile, rank), count in self.workspace.counters.items():
            if count:
                raise Fault(f"the counter of tile {tile} of CTA {rank} is left at {count}")
        for cluster in self.clusters:
            cluster.check_rings()

    def check_rings(self) -> None:
        """Check that no barrier is in the middle of a phase. Raises ``Fault``."""
        for cta in self.ctas:
            for ring in cta.rings.values():
                for barrier in (*ring.full, *ring.empty):
                    if barrier.pending != barrier.count or barrier.bytes:
                        raise Fault(
                            f"{barrier.name}: {barrier.count - barrier.pending} arrivals of a phase are left over"
                        )

    def agents(self) -> Iterator[Agent]:
        for cta in self.ctas:
            for role in self.program.roles:
                yield from self._agents(cta, role)

    def _check_stored(self, cta: Cta, tile: int) -> None:
        warps = next(role.warps for role in self.program.roles if role.name.startswith("store"))
        everyone = [warps] * len(self.plan.problem.outputs_of("strided"))
        for output, times in enumerate([self.storing_warps] * self.matrices + everyone):
            for subtile in self.own(cta):
                if self.stored.get((cta.rank, (tile, subtile), output)) != times:
                    raise Fault(f"sub-tile {subtile} of tile {tile} is not stored once")
        if self.plan.problem.numbers and self.stored_rows.get((cta.rank, tile)) != warps:
            raise Fault(f"numbers per row of tile {tile} are not stored once by each warp")
        epilogue, key = self.plan.problem.epilogue, (cta.rank, tile)
        for what, wanted, found in (
            ("awaited", epilogue.waits, self.waits.get(key, 0)),
            ("signalled", epilogue.signals, self.signals.get(key, 0)),
        ):
            if found != (1 if wanted else 0):
                raise Fault(f"messages of tile {tile} are {what} {found} times")

    def _agents(self, cta: Cta, role: g.Role) -> Iterator[Agent]:
        for number in range(role.warps):
            warp = Warp(cta=cta, role=role, number=number)
            cta.running += 1
            yield Agent(self, warp, self._steps_of(warp), 0.05 + self.random.random() ** 2)

    def _steps_of(self, warp: Warp) -> list[Leaf]:
        """Return the steps of a warp, cached.

        Warps of a role other than the first share them, if they take turns together. So do those of CTAs with the same
        part of K and half of a pair.
        """
        role, cta = warp.role, warp.cta
        turn = warp.number % self.turns if role.name == ("store" if self.plan.sliced else "copy") else 0
        kind = (role.name, turn, warp.number == 0, self.leader(cta.rank) is cta, part_of(self.plan, cta.rank))
        known = self._leaves.get(kind)
        if known is None:
            steps = (*role.program, *self.program.exit)
            known = self._leaves[kind] = self.steps(steps, dataclasses.replace(warp))
        return known

    def _schedule(self, agents: list[Agent]) -> None:
        """Run steps and transfers at random. Waiting warps are checked from time to time, and when no other warp can
        run."""
        draw = self.random.random
        delivery, burst = self.random.choice((0.02, 0.15, 0.8)), self.random.choice(BURSTS)
        able, parked = agents, list[Agent]()
        changed = False  # since the last check of all waiting warps
        while able or parked:
            if not able:
                if changed:
                    able, parked = self._looked(parked)
                    changed = False
                elif self._deliver(1 + int(draw() ** 2 * len(self.messages))):
                    changed = True
                else:
                    raise Fault(self._deadlock([agent.warp for agent in parked]))
                continue
            at = int(draw() * len(able))
            agent = able[at]
            steps = self._burst(agent, 1 + int(2 * burst * agent.speed * draw()))
            if agent.ready is not None or agent.at < 0:
                able[at] = able[-1]
                able.pop()
                if agent.at >= 0:
                    parked.append(agent)
            self._deliver(int(delivery * steps + draw()))
            changed = True
            if parked:
                self._look(able, parked, int(draw() * len(parked)))
        while self._deliver(1):
            pass

    def _look(self, able: list[Agent], parked: list[Agent], at: int) -> None:
        """Check one waiting warp."""
        agent = parked[at]
        if agent.ready is None or agent.ready():
            agent.ready = None
            parked[at] = parked[-1]
            parked.pop()
            able.append(agent)

    def _looked(self, parked: list[Agent]) -> tuple[list[Agent], list[Agent]]:
        """Return those of `parked` that are ready, and the others."""
        able, still = list[Agent](), list[Agent]()
        for agent in parked:
            if agent.ready is None or agent.ready():
                agent.ready = None
                able.append(agent)
            else:
                still.append(agent)
        return able, still

    def _burst(self, agent: Agent, most: int) -> int:
        """Run steps of `agent` until it waits or ends, and return their number; the agent's position shows the end."""
        for taken in range(most):
            if not agent.go_on():
                self._leave(agent)
                return taken + 1
            if agent.ready is not None:
                if not agent.ready():
                    return taken + 1
                agent.ready = None
        return most

    def _leave(self, agent: Agent) -> None:
        if agent.warp.open_group or agent.warp.groups:
            raise Fault("a warp leaves with matrix instructions in flight")
        agent.at = -1
        agent.warp.cta.running -= 1

    def _deliver(self, most: int) -> int:
        """Deliver up to ``most`` transfers and tensor-core steps; return their number."""
        draw, messages = self.random.random, self.messages
        for done in range(most):
            queues = [queue for queue in self.queues.values() if queue] if self.queues else []
            if queues and (not messages or draw() < 0.5):
                self.random.choice(queues).pop(0)()
                continue
            if not messages:
                return done
            if draw() >= self.newest_first:
                at = int(draw() * len(messages))
                messages[at], messages[-1] = messages[-1], messages[at]
            cta, deliver = messages.pop()
            if cta.running == 0:
                raise Fault(f"something arrives at CTA {cta.rank}, which has left")
            deliver()
        return most

    def _deadlock(self, warps: list[Warp]) -> str:
        where = sorted({f"{warp.role.name} at tile {warp.tile}, K tile {warp.k_tile}" for warp in warps})
        return f"deadlock with {self.tiles} tiles of {self.k_tiles} K tiles: " + "; ".join(where)

    def steps(self, steps: tuple[g.Step, ...], warp: Warp) -> list[Leaf]:
        """Return the steps of `warp` in order: its loops and gates depend only on its number and place."""
        found: list[Leaf] = []
        for step in steps:
            known = self._rules.get(id(step))
            if known is None:
                known = self._rules[id(step)] = self._rule(step)
            run, waits, alone = known
            if hasattr(step, "body"):
                found.extend(run(self, step, warp))
            else:
                found.append(Leaf(run, waits, step, warp.tile, warp.k_tile, warp.subtile, warp.part, alone))
        return found

    def _rule(self, step: g.Step) -> tuple[Rule, bool, bool]:
        """Return the rule of a step, whether it waits within, and whether it has effects only on its warp."""
        run = RULES.get(type(step))
        if run is None:
            raise NotImplementedError(f"no rule simulates {type(step).__name__}")
        return run, inspect.isgeneratorfunction(run), self._is_alone(step)

    def _is_alone(self, step: g.Step) -> bool:
        """Return whether a step only affects registers and pipeline states; tensor memory and row operands are shared."""
        if isinstance(step, g.ReadSums):
            return step.cursor is None
        if isinstance(step, (g.AddTerms, g.Evaluate)):
            return not self.reads_rows
        return isinstance(step, ALONE)

    def own(self, cta: Cta) -> list[int]:
        """Return the sub-tiles of a tile that `cta` stores."""
        return [i for i in range(self.plan.subtiles) if owner(self.plan, i) == part_of(self.plan, cta.rank)]

    # Places -----------------------------------------------------------------------------------------------------------

    def slot(self, warp: Warp, cursor: str) -> tuple[Ring, int, int]:
        pipeline, index, parity = warp.cursors[cursor]
        return warp.cta.rings[pipeline], index, parity

    def leader(self, rank: int) -> Cta:
        """Return the CTA that issues for the pair of CTA `rank`, which is itself without pairs."""
        return self.pair(rank)[0]

    def pair(self, rank: int) -> list[Cta]:
        return self._found("pair", rank, self._pair)

    def _pair(self, rank: int) -> list[Cta]:
        _, pair_m, cta_n = place(self.plan, rank)
        part = part_of(self.plan, rank)
        return [self.ctas[rank_at(self.plan, half, pair_m, cta_n, part)] for half in range(self.plan.ctas_per_mma)]

    def others(self, rank: int) -> list[Cta]:
        """Return the CTAs that split K with CTA `rank`."""
        return self._found("others", rank, self._others)

    def _others(self, rank: int) -> list[Cta]:
        return [cta for cta in self.ctas if cta.rank != rank and place(self.plan, cta.rank) == place(self.plan, rank)]

    def owner(self, warp: Warp) -> Cta:
        """Return the CTA that stores the sub-tile of `warp`, among those that split K with it."""
        ctas = self._found("splits", warp.cta.rank, self._splits)
        return ctas[owner(self.plan, warp.subtile)]

    def _splits(self, rank: int) -> list[Cta]:
        """Return the CTAs by part of K."""
        return [self.ctas[rank_at(self.plan, *place(self.plan, rank), part)] for part in range(self.plan.splits)]

    def sharers(self, rank: int) -> list[Cta]:
        """Return the CTAs whose loads CTA `rank` reads."""
        return self._found("sharers", rank, self._sharers)

    def _sharers(self, rank: int) -> list[Cta]:
        loaders = []
        for cta in self.ctas:
            a, b = multicast_masks(self.plan, cta.rank)
            if (a | b) >> rank & 1:
                loaders.append(cta)
        return loaders

    def _found(self, kind: str, rank: int, find: Callable[[int], list[Cta]]) -> list[Cta]:
        """Return `find` of `rank`, cached."""
        known = self._ctas.get((kind, rank))
        if known is None:
            known = self._ctas[kind, rank] = find(rank)
        return known

    def parts(self, rank: int) -> set[tuple[str, int]]:
        """Return the required contents of a stage of A and B of CTA `rank`."""
        found = self._parts.get(rank)
        if found is None:
            found = self._parts[rank] = set()
            of_b = ("b", *(operand.label for operand in self.plan.problem.epilogue.of_kind("product")))
            scales = self.plan.problem.scales
            found |= {(copied_by(SCALES, 0), rank)} if scales is not None and scales.micro else set()
            for cta in self.ctas:
                a, b = multicast_masks(self.plan, cta.rank)
                names = (*(("a",) if a >> rank & 1 else ()), *(of_b if b >> rank & 1 else ()))
                found |= {(part, cta.rank) for name in names for part in parts_of(self.program, name)}
        return found

    def expect(self, cta: Cta, slot: Slot, tag: Tag) -> None:
        if set(slot.held) != self.parts(cta.rank) or any(held != tag for held in slot.held.values()):
            raise Fault(f"stale operands: a slot holds {sorted(set(slot.held.values()))}, to be read is {tag}")

    def awaited(self, warp: Warp, cursor: str, done: str) -> tuple[Tag, Slot]:
        """Return the current K tile and its slot. Raises ``Fault`` unless the warp waited for it; ``done`` says for what."""
        ring, index, parity = self.slot(warp, cursor)
        tag, slot = (warp.tile, warp.k_tile), ring.slots[index]
        if warp.awaited != (index, parity):
            raise Fault(f"stale operands: K tile {tag[1]} of tile {tag[0]} is {done} without a wait for its stage")
        self.expect(warp.cta, slot, tag)
        return tag, slot

    def send(self, cta: Cta, deliver: Callable[[], None]) -> None:
        self.messages.append((cta, deliver))

    def queue(self, cta: Cta) -> list[Callable[[], None]]:
        return self.queues.setdefault((self.number, cta.rank), [])


Rule = Callable[..., Any]
"""The simulation of a step. For a step with a body it returns the steps that a warp executes. For others it runs the
step and returns a wait condition, if any; it is a generator if the step continues after the wait."""
RULES: dict[type[g.Step], Rule] = {}


def rule(kind: type[g.Step]) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES[kind] = function
        return function

    return register
