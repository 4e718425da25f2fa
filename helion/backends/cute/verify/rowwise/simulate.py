"""A random schedule of the roles of one cluster of a row kernel.

Every wait, arrival, bulk copy and message is a step of a warp or of the memory system. The simulation finds deadlocks,
overruns of stages and messages, stale reads, and messages to CTAs that have exited.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence

from ....._support.records import dataclass, field
from ...plan.rowwise.choice import OVERLAPPED_ROWS
from ...plan.rowwise.demand import WORD_BYTES
from ...plan.rowwise.passes import schedule_of
from ...roles import grammar as g
from ...roles.rowwise import program as r
from ..state import Barrier, Fault

Ready = Callable[[], bool]
Running = Iterator[Ready | None]
Tag = tuple[int, int]
"""Contents of a stage: (tile, chunk); of a message: (tile, exchange)."""


@dataclass
class Stage:
    """One stage of the ring. ``readers`` are warps that may still read it."""

    held: Tag | None = None
    readers: int = 0


@dataclass
class Cta:
    rank: int
    full: list[Barrier]
    empty: list[Barrier]
    messages: list[Barrier]
    stages: list[Stage]
    slots: list[list[dict[int, Tag]]]
    """Messages by stage, row and sending warp."""
    meetings: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By named barrier: (waiting warps, completed phases)."""
    running: int = 0
    added: dict[Tag, int] = field(default_factory=dict)
    """Warps whose sums over the rows of a residue are in shared memory, by block and residue."""
    stored: dict[int, int] = field(default_factory=dict)
    """Warps that have stored their part of the sums of a block."""
    held: dict[Tag, int] = field(default_factory=dict)
    """Warps that have stored parts of wide groups, by tile and row of the tile."""
    joined: dict[Tag, int] = field(default_factory=dict)
    """Warps that have read these, and stored what follows."""


@dataclass
class Warp:
    cta: Cta
    role: r.RowRole
    group: int
    number: int
    cursors: dict[str, tuple[int, int]] = field(default_factory=dict)
    block: int = 0
    residue: int = 0
    tile: int = 0
    chunk: int = 0
    taken: list[Tag] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """Stages that hold the row until its last pass."""
    reduced: set[int] = field(default_factory=set)
    """Passes whose reductions this warp has for the row."""
    summed: list[int] | None = None
    """Tiles of rows whose values are in the sums of the block."""
    filled: int = 0
    """Rows that the warp has loaded itself."""
    combined: int = -1
    """The last exchange whose results the warp has."""
    stored: int = 0
    next_kept: list[int] = field(default_factory=list)
    """Stages of the row that is reduced while another is mapped."""
    following: int | None = None
    """The tile that is reduced while another is mapped."""


BLOCK_ROWS = 3
"""Rows of a block with sums."""


class RowCluster:
    """One cluster that runs ``tiles`` tiles under the schedule of ``seed``."""

    def __init__(self, program: r.RowProgram, *, tiles: int, seed: int) -> None:
        self.program, self.tiles = program, tiles
        self.layout, self.choice = program.plan.layout, program.plan.layout.choice
        self.rows_each = BLOCK_ROWS if program.plan.problem.sums else 1
        self.random = random.Random(seed)
        self.flying: list[tuple[Cta, Callable[[], None]]] = []
        self.ctas = [self._cta(rank) for rank in range(self.choice.cluster)]
        self.exits = 0
        self.meetings = sum(isinstance(step, r.Combine) for role in program.roles for step in _all(role.program))
        self.rows: dict[tuple[int, int, int], int] = {}
        """Warps that have finished a row, by CTA, tile and row of the tile."""

    def _cta(self, rank: int) -> Cta:
        ring, exchange = self.program.ring, self.program.exchange
        arrivals = exchange.full_arrivals if exchange else 1
        return Cta(
            rank=rank,
            full=[Barrier("ring full", ring.full_arrivals) for _ in range(ring.stages)],
            empty=[Barrier("ring empty", ring.empty_arrivals) for _ in range(ring.stages)],
            messages=[Barrier("messages", arrivals) for _ in range(self.layout.exchange_stages)],
            stages=[Stage() for _ in range(ring.stages)],
            slots=[[{} for _ in range(self.choice.rows)] for _ in range(self.layout.exchange_stages)],
        )

    def run(self) -> None:
        """Run the schedule. Raises ``Fault`` unless every row is finished once by each of its warps."""
        warps = [warp for cta in self.ctas for warp in self._warps(cta)]
        running = [self._program(warp) for warp in warps]
        waits: list[Ready | None] = [None] * len(running)
        left = set(range(len(running)))
        eagerness = self.random.choice((0.05, 0.3, 0.8))
        while left:
            able = [at for at in left if waits[at] is None or waits[at]()]  # type: ignore[misc]
            if self.flying and (not able or self.random.random() < eagerness):
                self._deliver()
                continue
            if not able:
                where = sorted({f"{warps[at].role.name} at tile {warps[at].tile}" for at in left})
                raise Fault(f"deadlock with {self.tiles} tiles: {'; '.join(where)}")
            at = self.random.choice(able)
            try:
                waits[at] = next(running[at])
            except StopIteration:
                left.remove(at)
                warps[at].cta.running -= 1
        while self.flying:
            self._deliver()
        self._check_end()

    def _deliver(self) -> None:
        cta, land = self.flying.pop(self.random.randrange(len(self.flying)))
        if cta.running == 0:
            raise Fault(f"something arrives at CTA {cta.rank}, which has left")
        land()

    def _check_end(self) -> None:
        for cta in self.ctas:
            for tile in range(self.tiles * self.rows_each):
                for group in range(self.choice.rows):
                    if self.rows.get((cta.rank, tile, group)) != self.choice.warps:
                        raise Fault(f"row {group} of tile {tile} is not finished once by each warp")
            for barrier in (*cta.full, *cta.empty, *cta.messages):
                if barrier.pending != barrier.count or barrier.bytes:
                    raise Fault(f"{barrier.name}: arrivals or bytes of a phase are left over")

    def _warps(self, cta: Cta) -> Iterator[Warp]:
        for role in self.program.roles:
            for number in range(role.warps):
                cta.running += 1
                group, place = divmod(number, self.choice.warps) if role.name == "rows" else (0, 0)
                yield Warp(cta=cta, role=role, group=group, number=place)

    def _program(self, warp: Warp) -> Running:
        yield from self._steps((*warp.role.program, *self.program.exit), warp)

    def _steps(self, steps: Sequence[g.Step], warp: Warp) -> Running:
        for step in steps:
            if isinstance(step, r.BlockLoop):
                for warp.block in range(self.tiles):
                    yield from self._steps(step.body, warp)
            elif isinstance(step, r.ResidueLoop):
                for warp.residue in range(self.layout.period):
                    yield from self._steps(step.body, warp)
            elif isinstance(step, r.RowLoop):
                yield from self._rows(step, warp)
            elif isinstance(step, r.Lead):
                tiles = self.tiles_of(warp)[:OVERLAPPED_ROWS]
                for warp.tile in tiles:
                    yield from self._steps(step.body, warp)
            elif isinstance(step, r.Following):
                if warp.following is not None:
                    warp.tile, before = warp.following, warp.tile
                    yield from self._steps(step.body, warp)
                    warp.tile = before
            elif isinstance(step, r.ChunkLoop):
                for warp.chunk in range(self.layout.chunks):
                    yield from self._steps(step.body, warp)
            else:
                yield _run(step, self, warp)

    def _rows(self, loop: r.RowLoop, warp: Warp) -> Running:
        """Run the rows of a loop: the steps of the former row come after those of the next one."""
        tiles = self.tiles_of(warp)
        if self.choice.overlap and warp.role.name == "rows":
            for warp.tile in tiles:
                following = warp.tile + OVERLAPPED_ROWS * tiles.step
                warp.following = following if following in tiles else None
                yield from self._steps(loop.body, warp)
                self._finish(warp)
            return
        if not any(isinstance(step, r.Ahead) for step in loop.body):
            for warp.tile in tiles:
                yield from self._steps(loop.body, warp)
                self._finish(warp)
            return
        for at in range(len(tiles) + 1):
            for step in loop.body:
                if isinstance(step, r.Ahead) and at < len(tiles):
                    warp.tile = tiles[at]
                    yield from self._steps(step.body, warp)
                elif isinstance(step, r.Former) and at:
                    warp.tile = tiles[at - 1]
                    yield from self._steps(step.body, warp)
                    self._finish(warp)

    def tiles_of(self, warp: Warp) -> range:
        """Return the tiles of rows of a warp's block, or all of them."""
        if not self.program.plan.problem.sums:
            return range(self.tiles)
        first, end = warp.block * self.rows_each, (warp.block + 1) * self.rows_each
        if self.program.plan.interleaved:
            return range(warp.block, self.tiles * self.rows_each, self.tiles)
        if not self.layout.by_columns:
            return range(first, end)
        return range(first + warp.residue, end, self.layout.period)

    def _finish(self, warp: Warp) -> None:
        """Check that a warp has all results of its row."""
        if warp.role.name != "rows":
            return
        if warp.combined != self.meetings - 1:
            raise Fault(f"a row ends after exchange {warp.combined} of {self.meetings}")
        key = warp.cta.rank, warp.tile, warp.group
        self.rows[key] = self.rows.get(key, 0) + 1
        if self.program.plan.problem.sums:
            if warp.summed is None:
                raise Fault(f"tile {warp.tile} is added to sums that were not cleared")
            warp.summed.append(warp.tile)

    def hold(self, warp: Warp, number: int) -> None:
        """Store parts of wide groups in pass ``number``, if it has such, where those of the tile before were read."""
        if not any(each.wide for each in schedule_of(self.program.plan.problem).passes if each.number == number):
            return
        before, now, cta = (warp.tile - 1, warp.group), (warp.tile, warp.group), warp.cta
        if cta.held.get(before, 0) and cta.joined.get(before) != self.choice.warps:
            raise Fault(f"parts of groups of tile {warp.tile} overwrite those of the tile before")
        cta.held[now] = cta.held.get(now, 0) + 1

    def meet(self, warp: Warp, name: str, warps: int) -> Ready:
        """Arrive at a named barrier of the CTA; return a predicate for the completion of this phase."""
        there, phases = warp.cta.meetings.get(name, (0, 0))
        done = there + 1 == warps
        warp.cta.meetings[name] = (0, phases + 1) if done else (there + 1, phases)
        return lambda: warp.cta.meetings[name][1] > phases

    def send(self, cta: Cta, land: Callable[[], None]) -> None:
        self.flying.append((cta, land))


def _all(steps: Sequence[g.Step]) -> Iterator[g.Step]:
    for step in steps:
        yield step
        yield from _all(getattr(step, "body", ()))


@functools.singledispatch
def _run(step: g.Step, cluster: RowCluster, warp: Warp) -> Ready | None:
    """Run a step; return the condition of its wait, if any."""
    raise NotImplementedError(f"no rule simulates {type(step).__name__}")


@_run.register(r.LoadVectors)
@_run.register(r.AwaitVectors)
@_run.register(r.ShareVectors)
@_run.register(r.StoreNumbers)
@_run.register(g.Tail)
def _(step: g.Step, cluster: RowCluster, warp: Warp) -> None:
    """Ignore steps that the ring and the exchange do not depend on."""


@_run.register
def _(step: g.Cursor, cluster: RowCluster, warp: Warp) -> None:
    warp.cursors[step.name] = (0, 1 if step.side == "producer" else 0)


@_run.register
def _(step: g.Advance, cluster: RowCluster, warp: Warp) -> None:
    exchange = step.cursor.startswith(r.EXCHANGE)
    stages = cluster.layout.exchange_stages if exchange else cluster.program.ring.stages
    index, phase = warp.cursors[step.cursor]
    warp.cursors[step.cursor] = (index + 1, phase) if index + 1 < stages else (0, phase ^ 1)


@_run.register
def _(step: r.AcquireChunk, cluster: RowCluster, warp: Warp) -> Ready:
    index, phase = warp.cursors[step.cursor]
    return lambda: warp.cta.empty[index].passed(phase)


@_run.register
def _(step: r.LoadChunk, cluster: RowCluster, warp: Warp) -> None:
    """Set the expected bytes of a chunk, which land later; some chunks after the end of a row have none."""
    index, _ = warp.cursors[step.cursor]
    cta, tag = warp.cta, (warp.tile, warp.chunk)
    size = 0 if cluster.random.random() < 0.1 else cluster.program.ring.transaction_bytes
    stage, full = cta.stages[index], cta.full[index]
    if stage.readers:
        raise Fault(f"chunk {tag} overwrites a stage that is being read")
    stage.held = tag if not size else None

    def land() -> None:
        stage.held = tag
        full.complete(size)

    full.arrive(size)
    if size:
        cluster.send(cta, land)


@_run.register
def _(step: r.ClearSums, cluster: RowCluster, warp: Warp) -> None:
    warp.summed = []


@_run.register
def _(step: r.AddSums, cluster: RowCluster, warp: Warp) -> None:
    """Add to columns that other warps have added to for the residue before, or stored for the block before."""
    cta, warps = warp.cta, cluster.choice.warps
    if warp.summed != [*cluster.tiles_of(warp)]:
        raise Fault(f"the sums of residue {warp.residue} of block {warp.block} have the rows {warp.summed}")
    if warp.residue and cta.added.get((warp.block, warp.residue - 1)) != warps:
        raise Fault(f"sums of residue {warp.residue} are added before all of the one before are")
    if not warp.residue and warp.block and cta.stored.get(warp.block - 1) != warps:
        raise Fault(f"sums of block {warp.block} overwrite those of the block before")
    cta.added[warp.block, warp.residue] = cta.added.get((warp.block, warp.residue), 0) + 1


@_run.register
def _(step: r.StoreSums, cluster: RowCluster, warp: Warp) -> None:
    cta = warp.cta
    cta.stored[warp.block] = cta.stored.get(warp.block, 0) + 1
    if cluster.layout.by_columns:
        if cta.added.get((warp.block, cluster.layout.period - 1)) != cluster.choice.warps:
            raise Fault(f"sums of block {warp.block} are stored before all warps have added theirs")
        return
    if warp.summed != [*cluster.tiles_of(warp)]:
        raise Fault(f"the sums of block {warp.block} have the rows {warp.summed}")


@_run.register
def _(step: r.BeginRow, cluster: RowCluster, warp: Warp) -> None:
    if not step.again:
        warp.taken, warp.reduced = [], set()
    warp.kept, warp.combined = [], -1


@_run.register
def _(step: g.Wait, cluster: RowCluster, warp: Warp) -> Ready:
    index, phase = warp.cursors[step.cursor]
    barriers = warp.cta.messages if step.cursor.startswith(r.EXCHANGE) else warp.cta.full
    return lambda: barriers[index].passed(phase)


@_run.register
def _(step: r.TakeChunk, cluster: RowCluster, warp: Warp) -> None:
    index, _ = warp.cursors[step.cursor]
    _take(warp, index, (warp.tile, warp.chunk))
    warp.kept.append(index)
    if warp.chunk == cluster.layout.chunks - 1:
        cluster.hold(warp, 0)


def _take(warp: Warp, index: int, tag: Tag) -> None:
    stage = warp.cta.stages[index]
    if stage.held != tag:
        raise Fault(f"a stage holds chunk {stage.held}, to be read is {tag}")
    stage.readers += 1
    warp.taken.append(tag)


@_run.register
def _(step: r.Restart, cluster: RowCluster, warp: Warp) -> None:
    warp.cursors[step.cursor] = warp.cursors[step.place]


@_run.register
def _(step: r.Follow, cluster: RowCluster, warp: Warp) -> Ready:
    """Wait for the chunks of the row that follows, if there is one, and note their stages."""
    warp.taken, warp.reduced, warp.next_kept, waits = [], set(), [], []
    for _ in range(cluster.layout.chunks):
        waits.append(warp.cursors[step.cursor])
        warp.next_kept.append(warp.cursors[step.cursor][0])
        _run(g.Advance(step.cursor), cluster, warp)
    full, there = warp.cta.full, warp.following is not None
    return lambda: not there or all(full[index].passed(phase) for index, phase in waits)


@_run.register
def _(step: r.Overlap, cluster: RowCluster, warp: Warp) -> None:
    for chunk, index in enumerate(warp.next_kept if warp.following is not None else ()):
        _take(warp, index, (warp.following or 0, chunk))
    _run(r.WalkRow(step.number, releases=step.cursor), cluster, warp)


@_run.register
def _(step: r.HoldChunk, cluster: RowCluster, warp: Warp) -> None:
    warp.kept.append(warp.cursors[step.cursor][0])


@_run.register
def _(step: g.Release, cluster: RowCluster, warp: Warp) -> None:
    _release(warp, warp.cursors[step.cursor][0])


def _release(warp: Warp, index: int) -> None:
    warp.kept.remove(index)
    warp.cta.stages[index].readers -= 1
    warp.cta.empty[index].arrive()


@_run.register
def _(step: r.FillRing, cluster: RowCluster, warp: Warp) -> None:
    for index in range(cluster.program.ring.stages):
        _fill(cluster, warp, index)


@_run.register
def _(step: r.Refill, cluster: RowCluster, warp: Warp) -> None:
    index = warp.cursors[step.cursor][0] if step.cursor else warp.kept[0]
    _release(warp, index)
    _fill(cluster, warp, index)


def _fill(cluster: RowCluster, warp: Warp, index: int) -> None:
    """Load the next row of a warp that loads its own; its arrival at the empty barrier completes a phase of that."""
    rows = cluster.tiles * cluster.rows_each
    if warp.filled == rows:
        return
    cta, tag, size = warp.cta, (warp.filled, 0), cluster.program.ring.transaction_bytes
    stage, full = cta.stages[index], cta.full[index]
    warp.filled += 1
    if stage.readers:
        raise Fault(f"chunk {tag} overwrites a stage that is being read")
    stage.held = None

    def land() -> None:
        stage.held = tag
        full.complete(size)

    full.arrive(size)
    cluster.send(cta, land)


@_run.register
def _(step: r.WalkRow, cluster: RowCluster, warp: Warp) -> None:
    layout = cluster.layout
    if step.follows and warp.following is None:
        return
    tile, kept = (warp.following, warp.next_kept) if step.follows else (warp.tile, warp.kept)
    wanted = [(tile, chunk) for chunk in range(layout.chunks)]
    if layout.held_stages and [warp.cta.stages[index].held for index in kept] != wanted:
        raise Fault(f"pass {step.number} of tile {tile} reads a stage that was released")
    for index in list(warp.kept) if step.releases else ():
        _release(warp, index)
    cluster.hold(warp, step.number)


@_run.register
def _(step: r.StoreGroups, cluster: RowCluster, warp: Warp) -> None:
    now, warps = (warp.tile, warp.group), cluster.choice.warps
    if warp.cta.held.get(now) != warps:
        raise Fault(f"parts of groups of tile {warp.tile} are added up before all of them are stored")
    warp.cta.joined[now] = warp.cta.joined.get(now, 0) + 1


@_run.register
def _(step: r.ReduceWarp, cluster: RowCluster, warp: Warp) -> None:
    tile = warp.tile if warp.following is None else warp.following
    over = [(tile, chunk) for chunk in range(cluster.layout.chunks)]
    if warp.taken != over and not (cluster.choice.overlap and not warp.taken):
        raise Fault(f"a row of tile {tile} is reduced over the chunks {warp.taken}")
    warp.reduced.add(step.number)


@_run.register
def _(step: r.ArmExchange, cluster: RowCluster, warp: Warp) -> None:
    index, _ = warp.cursors[step.cursor]
    assert cluster.program.exchange is not None
    if warp.number == 0:
        warp.cta.messages[index].arrive(cluster.program.exchange.transaction_bytes)


@_run.register
def _(step: r.SendMessage, cluster: RowCluster, warp: Warp) -> None:
    """Send to every CTA of the row, or store to the CTA's own slots at once."""
    index, _ = warp.cursors[step.cursor]
    tag, sender = (warp.tile, step.number), warp.cta.rank * cluster.choice.warps + warp.number
    if not warp.reduced:
        raise Fault(f"a message of tile {warp.tile} has no results")

    def land(cta: Cta) -> None:
        slots = cta.slots[index][warp.group]
        if sender in slots:
            raise Fault(f"a message of tile {tag[0]} overwrites one that has not been read")
        slots[sender] = tag
        if cluster.choice.cluster == 1 and cluster.program.exchange is not None:
            cta.messages[index].arrive()
        elif cluster.program.exchange is not None:
            cta.messages[index].complete(cluster.layout.slot_words * WORD_BYTES)

    for cta in cluster.ctas:
        if cluster.choice.cluster == 1:
            land(cta)
        else:
            cluster.send(cta, functools.partial(land, cta))


@_run.register
def _(step: r.Combine, cluster: RowCluster, warp: Warp) -> None:
    warp.combined = step.number
    if not step.cursor:
        return
    index, _ = warp.cursors[step.cursor]
    slots = warp.cta.slots[index][warp.group]
    if list(slots.values()) != [(warp.tile, step.number)] * cluster.layout.partials:
        raise Fault(f"exchange {step.number} of tile {warp.tile} reads the messages {sorted(slots.values())}")
    reads = warp.cta.meetings.setdefault(f"read {index} {warp.group}", (0, 0))[0] + 1
    warp.cta.meetings[f"read {index} {warp.group}"] = (reads % cluster.choice.warps, 0)
    if reads == cluster.choice.warps:
        slots.clear()


@_run.register
def _(step: g.BarrierSync, cluster: RowCluster, warp: Warp) -> Ready:
    if step.barrier in r.CTA_BARRIERS:
        return cluster.meet(warp, step.barrier, cluster.choice.rows * cluster.choice.warps)
    named = next(each for each in cluster.program.barriers if each.name == f"row_{warp.group}")
    return cluster.meet(warp, named.name, named.threads // 32)


@_run.register
def _(step: g.ClusterExit, cluster: RowCluster, warp: Warp) -> Ready:
    cluster.exits += 1
    everyone = sum(role.warps for role in cluster.program.roles) * cluster.choice.cluster
    return lambda: cluster.exits == everyone
