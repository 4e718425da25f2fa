"""Simulation rules: the effect of each step of a role program on the simulated cluster, one rule per kind of step.

Those of epilogues are in ``epilogue.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

from ..plan.counts import k_range, multicast_masks, subtile_bytes
from ..roles import grammar as g
from ..roles.halves import OfKTile
from .cluster import Cluster, Leaf, Ready, Running, rule
from .messages import check_awaited, meet
from .state import Barrier, Cta, Fault, Ring, Slot, Sums, Tag, Warp
from .workspace import share

EVERY_TILE = -1
"""In place of a tile's number."""

# Control ---------------------------------------------------------------------------------------------------------------


@rule(g.TileLoop)
def _(cluster: Cluster, step: g.TileLoop, warp: Warp) -> Iterator[Leaf]:
    parts, clusters = cluster.plan.grid_splits, len(cluster.clusters)
    whole = cluster.whole_tiles
    pieces = whole + (cluster.tiles - whole) * parts
    for work in range(cluster.number + step.first, pieces, step.every * clusters):
        split, warp.part = divmod(max(0, work - whole), parts)
        warp.tile = work if work < whole else whole + split
        warp.k_tile = multiplied_tiles(cluster, warp).start
        yield from cluster.steps(step.body, warp)


def multiplied_tiles(cluster: Cluster, warp: Warp) -> range:
    """Return the K tiles that the warp multiplies: of different numbers where K ends with tiles."""
    if cluster.plan.problem.ends is not None:
        return range(1 + (warp.tile + cluster.k_tiles // 2) % cluster.k_tiles)
    return k_range(cluster.plan, warp.cta.rank, cluster.k_tiles, warp.part, warp.tile < cluster.whole_tiles)


@rule(g.KLoop)
def _(cluster: Cluster, step: g.KLoop, warp: Warp) -> Iterator[Leaf]:
    k_tiles = warp.group or multiplied_tiles(cluster, warp)
    for warp.k_tile in k_tiles[step.first :]:
        warp.k_tiles += 1
        yield from cluster.steps(step.body, warp)


@rule(OfKTile)
def _(cluster: Cluster, step: OfKTile, warp: Warp) -> Iterator[Leaf]:
    k_tiles, current = multiplied_tiles(cluster, warp), warp.k_tile
    warp.k_tile = {"first": k_tiles[0], "previous": current - 1, "last": k_tiles[-1]}[step.which]
    yield from cluster.steps(step.body, warp)
    warp.k_tile = current


@rule(g.KGroups)
def _(cluster: Cluster, step: g.KGroups, warp: Warp) -> Iterator[Leaf]:
    k_tiles = multiplied_tiles(cluster, warp)
    for first in range(0, len(k_tiles), step.size):
        warp.group = k_tiles[first : first + step.size]
        warp.k_tile = warp.group.start
        yield from cluster.steps(step.body, warp)
    warp.group = None


@rule(g.SubtileLoop)
def _(cluster: Cluster, step: g.SubtileLoop, warp: Warp) -> Iterator[Leaf]:
    for warp.subtile in range(cluster.plan.subtiles):
        yield from cluster.steps(step.body, warp)


@rule(g.Gate)
def _(cluster: Cluster, step: g.Gate, warp: Warp) -> Iterator[Leaf]:
    if step.who in GUARDS:
        guard = functools.partial(GUARDS[step.who], cluster)
        yield from (leaf._replace(guard=guard) for leaf in cluster.steps(step.body, warp))
    elif GATES[step.who](cluster, warp):
        yield from cluster.steps(step.body, warp)


GATES: Mapping[g.Who, Callable[[Cluster, Warp], bool]] = {
    "own_turn": lambda cluster, warp: (warp.k_tiles - 1 + warp.number) % cluster.turns == 0,
    "leader": lambda cluster, warp: cluster.leader(warp.cta.rank) is warp.cta,
    "first_warp": lambda cluster, warp: warp.number == 0,
    "last_subtile": lambda cluster, warp: warp.subtile == cluster.plan.subtiles - 1,
    "owner": lambda cluster, warp: cluster.owner(warp) is warp.cta,
    "others": lambda cluster, warp: cluster.owner(warp) is not warp.cta,
    "split_tile": lambda cluster, warp: warp.tile >= cluster.whole_tiles,
    "whole_tile": lambda cluster, warp: warp.tile < cluster.whole_tiles,
}
GUARDS: Mapping[g.Who, Callable[[Cluster, Warp], bool]] = {
    "last_part": lambda cluster, warp: (
        warp.tile < cluster.whole_tiles or warp.cta.count == cluster.plan.grid_splits - 1
    ),
    "earlier_part": lambda cluster, warp: warp.cta.count != cluster.plan.grid_splits - 1,
}
"""Gates whose predicates are only known during the run."""


@rule(g.OfTerm)
def _(cluster: Cluster, step: g.OfTerm, warp: Warp) -> Iterator[Leaf]:
    if warp.k_tile in k_tiles_of(cluster, step.number):
        yield from cluster.steps(step.body, warp)


def k_tiles_of(cluster: Cluster, term: int) -> range:
    """Divide the K tiles evenly among the terms: their numbers are not part of the protocol."""
    terms, tiles = 1 + len(cluster.plan.problem.terms), cluster.k_tiles
    return range(-(-term * tiles // terms), -(-(term + 1) * tiles // terms))


@rule(g.SetUp)
def _(cluster: Cluster, step: g.SetUp, warp: Warp) -> None:
    """Ignore set-up, which is not part of the protocol."""


@rule(g.GroupViews)
def _(cluster: Cluster, step: g.GroupViews, warp: Warp) -> None:
    warp.views = warp.tile


def check_views(cluster: Cluster, warp: Warp, operand: str) -> None:
    """Check that a copy of rows addresses those of the tile's group. Raises ``Fault``."""
    if cluster.plan.problem.groups is not None and warp.views != warp.tile:
        raise Fault(f"{operand} of tile {warp.tile} has views of the group of tile {warp.views}")


# Pipelines ---------------------------------------------------------------------------------------------------------------


@rule(g.Cursor)
def _(cluster: Cluster, step: g.Cursor, warp: Warp) -> None:
    """Start with an empty pipeline: the producer's first wait is for the phase before the first."""
    warp.cursors[step.name] = (step.pipeline, 0, 1 if step.side == "producer" else 0)


@rule(g.Advance)
def _(cluster: Cluster, step: g.Advance, warp: Warp) -> None:
    pipeline, index, parity = warp.cursors[step.cursor]
    index += 1
    if index == len(warp.cta.rings[pipeline].slots):
        index, parity = 0, parity ^ 1
    warp.cursors[step.cursor] = (pipeline, index, parity)


@rule(g.Skip)
def _(cluster: Cluster, step: g.Skip, warp: Warp) -> None:
    pipeline, index, parity = warp.cursors[step.cursor]
    slots = cluster.k_tiles if step.slots == "k_tiles" else cluster.plan.subtiles
    rounds, index = divmod(index + slots, len(warp.cta.rings[pipeline].slots))
    warp.cursors[step.cursor] = (pipeline, index, (parity + rounds) % 2)


@rule(g.Acquire)
def _(cluster: Cluster, step: g.Acquire, warp: Warp) -> Running:
    ring, index, parity = cluster.slot(warp, step.cursor)
    yield lambda: ring.empty[index].passed(parity)
    arms = ring.pipeline.kind in ("tma_wgmma", "tma_epilogue")
    arms |= ring.pipeline.kind == "tma_umma" and cluster.leader(warp.cta.rank) is warp.cta
    if arms:
        ring.full[index].arrive(ring.pipeline.counts.transaction_bytes)
    if ring.pipeline.kind == "exchange" and warp.number == 0:
        ring.full[index].arrive(ring.pipeline.counts.transaction_bytes * len(cluster.own(warp.cta)))


@rule(g.Commit)
def _(cluster: Cluster, step: g.Commit, warp: Warp) -> None:
    """Commit a stage: TMA reports its own bytes; accumulators are full in both CTAs of a pair after all issued MMAs."""
    ring, index, _ = cluster.slot(warp, step.cursor)
    if ring.pipeline.kind == "umma_epilogue":
        for cta in cluster.pair(warp.cta.rank):
            _after_mma(cluster, warp, cta, cta.rings[ring.pipeline.name].full[index])


@rule(g.Wait)
def _(cluster: Cluster, step: g.Wait, warp: Warp) -> Ready:
    ring, index, parity = cluster.slot(warp, step.cursor)
    if ring.pipeline.name == "ab":
        warp.copies.unordered.add(index)
        warp.awaited = (index, parity)
    return lambda: ring.full[index].passed(parity)


@rule(g.Release)
def _(cluster: Cluster, step: g.Release, warp: Warp) -> None:
    ring, index, _ = cluster.slot(warp, step.cursor)
    name = ring.pipeline.name
    if any(slot is ring.slots[index] for slot in warp.unfenced_reads):
        raise Fault(f"a slot of {name} is released while loads from it may be in flight: there is no fence between")
    if name == "raw" and not warp.copies.synced:
        raise Fault("a lane releases a raw tile for the others before they have read it")
    if ring.pipeline.kind == "tma_umma":
        owners = {id(owner): owner for cta in cluster.pair(warp.cta.rank) for owner in cluster.sharers(cta.rank)}
        for owner in owners.values():
            _after_mma(cluster, warp, owner, owner.rings[name].empty[index])
    elif ring.pipeline.kind == "tma_wgmma":
        for owner in cluster.sharers(warp.cta.rank):
            cluster.send(owner, owner.rings[name].empty[index].arrive)
    elif ring.pipeline.kind == "exchange":
        for other in cluster.others(warp.cta.rank):
            cluster.send(other, other.rings[name].empty[index].arrive)
    elif ring.pipeline.kind == "umma_epilogue":
        leader = cluster.leader(warp.cta.rank)
        cluster.send(leader, leader.rings[name].empty[index].arrive)
    else:
        ring.empty[index].arrive()


@rule(g.Tail)
def _(cluster: Cluster, step: g.Tail, warp: Warp) -> Running:
    ring, index, parity = cluster.slot(warp, step.cursor)
    for _ in ring.slots:
        yield functools.partial(ring.empty[index].passed, parity)
        index += 1
        if index == len(ring.slots):
            index, parity = 0, parity ^ 1


def _after_mma(cluster: Cluster, warp: Warp, cta: Cta, barrier: Barrier) -> None:
    cluster.queue(warp.cta).append(lambda: cluster.send(cta, barrier.arrive))


# Loads -------------------------------------------------------------------------------------------------------------------


@rule(g.TmaLoad)
def _(cluster: Cluster, step: g.TmaLoad, warp: Warp) -> None:
    """Send a slice to every CTA that reads it; a pair counts its bytes at the CTA that issues."""
    ring, index, _ = cluster.slot(warp, step.cursor)
    name, own = ring.pipeline.name, warp.cta.rank
    multiplied = {each.label: each.base for each in cluster.plan.problem.multiplicands}
    base = multiplied.get(step.operand, step.operand)
    if step.operand == "a" or ring.pipeline.kind == "tma_epilogue":
        check_views(cluster, warp, step.operand)
    is_matrix = ring.pipeline.kind == "tma_epilogue"
    check_awaited(cluster, warp, "matrices" if is_matrix else "operands", step.operand)
    if ring.pipeline.kind == "tma_epilogue":
        tag, mask, sharers = (warp.tile, warp.subtile), 1 << own, 1
        operand = next(o for o in cluster.plan.problem.epilogue.operands if o.label == step.operand)
        size = subtile_bytes(cluster.plan, operand.dtype)
    else:
        numbers, tag = cluster.counts, (warp.tile, warp.k_tile)
        masks = multicast_masks(cluster.plan, own)
        of_b = masks[1], numbers.b_multicast, numbers.b_stage_bytes // cluster.plan.products
        mask, sharers, size = (masks[0], numbers.a_multicast, numbers.a_stage_bytes) if base == "a" else of_b
    before = (mask & ((1 << own) - 1)).bit_count()
    slice_bytes = size * (before + 1) // sharers - size * before // sharers
    for cta in cluster.ctas:
        if mask >> cta.rank & 1:
            slot = cta.rings[name].slots[index]
            counting = cluster.leader(cta.rank) if ring.pipeline.kind == "tma_umma" else cta
            cluster.send(cta, _landing(slot, base, own, tag, counting.rings[name].full[index], slice_bytes))


def _landing(slot: Slot, operand: str, rank: int, tag: Tag, full: Barrier, size: int) -> Callable[[], None]:
    def land() -> None:
        if slot.readers:
            raise Fault(f"{operand} of K tile {tag[1]} of tile {tag[0]} overwrites a slot that is being read")
        slot.held[operand, rank] = tag
        full.complete(size)

    return land


@rule(g.ReadResiduals)
def _(cluster: Cluster, step: g.ReadResiduals, warp: Warp) -> None:
    ring, index, _ = cluster.slot(warp, step.cursor)
    tag = (warp.tile, warp.subtile)
    labels = {operand.label for operand in cluster.plan.problem.epilogue.of_kind("exact")}
    held = ring.slots[index].held
    if {operand for operand, _ in held} != labels or any(found != tag for found in held.values()):
        raise Fault(f"stale residual: a slot holds {sorted(held.values())}, to be read is {tag}")
    warp.unfenced_reads.append(ring.slots[index])
    warp.residual = tag


@rule(g.LoadVectors)
def _(cluster: Cluster, step: g.LoadVectors, warp: Warp) -> None:
    if "column" in step.kinds:
        warp.vectors = warp.tile
    if "row" in step.kinds:
        warp.row_vectors = EVERY_TILE if step.once else warp.tile


@rule(g.ShareVectors)
def _(cluster: Cluster, step: g.ShareVectors, warp: Warp) -> None:
    if warp.row_vectors is None:
        raise Fault("row operands are shared before they are loaded")
    warp.cta.vectors.setdefault(warp.role.team, {}).pop(warp.number, None)
    warp.shared_vectors = warp.row_vectors


# Products ----------------------------------------------------------------------------------------------------------------


@rule(g.WgmmaFence)
def _(cluster: Cluster, step: g.WgmmaFence, warp: Warp) -> None:
    warp.fenced = True


@rule(g.Mma)
def _(cluster: Cluster, step: g.Mma, warp: Warp) -> None:
    tag, overwrite = (warp.tile, warp.k_tile), step.first or warp.overwrite

    def add(sums: Sums) -> None:
        sums.added = [*([] if overwrite else sums.added), tag]

    multiply(cluster, warp, step.cursor, add)


def multiply(cluster: Cluster, warp: Warp, cursor: str, add: Callable[[Sums], None]) -> None:
    """Multiply the current K tile, in the stage of ``cursor``, and add it to the accumulators. Raises ``Fault``."""
    ring, index, _ = cluster.slot(warp, cursor)
    if ring.slots[index].copied and index in warp.copies.unordered:
        raise Fault(f"stage {index} is read by the matrix unit before a fence orders the copies that cp.async wrote")
    if ring.pipeline.kind == "tma_umma":
        _issue_umma(cluster, warp, ring, index, add)
    else:
        if not warp.fenced:
            raise Fault("wgmma uses registers without a fence before it")
        tag, slot = cluster.awaited(warp, cursor, "multiplied")
        slot.readers += 1
        add(warp.sums)
        warp.open_group.append((slot, tag))


def _issue_umma(cluster: Cluster, warp: Warp, ring: Ring, index: int, add: Callable[[Sums], None]) -> None:
    tag, stage = (warp.tile, warp.k_tile), warp.stage
    pair = cluster.pair(warp.cta.rank)
    slots = [cta.rings[ring.pipeline.name].slots[index] for cta in pair]
    warp.overwrite = False
    for cta, slot in zip(pair, slots, strict=True):
        cluster.expect(cta, slot, tag)
        slot.readers += 1

    def complete() -> None:
        for cta, slot in zip(pair, slots, strict=True):
            if not cta.allocated or cta.freed:
                raise Fault("MMAs write to tensor memory that is not allocated")
            slot.readers -= 1
            add(cta.stages[stage])

    cluster.queue(warp.cta).append(complete)


@rule(g.WgmmaCommit)
def _(cluster: Cluster, step: g.WgmmaCommit, warp: Warp) -> None:
    warp.groups.append(warp.open_group)
    warp.open_group = []


@rule(g.WgmmaWait)
def _(cluster: Cluster, step: g.WgmmaWait, warp: Warp) -> None:
    while len(warp.groups) > step.pending:
        for slot, _ in warp.groups.pop(0):
            slot.readers -= 1
    warp.fenced = False


@rule(g.ClearSums)
def _(cluster: Cluster, step: g.ClearSums, warp: Warp) -> None:
    warp.total = []


@rule(g.LoadScales)
def _(cluster: Cluster, step: g.LoadScales, warp: Warp) -> None:
    warp.scales = block_of(cluster, warp)


def block_of(cluster: Cluster, warp: Warp) -> Tag:
    """Return the current tile and block of K."""
    return warp.tile, warp.k_tile // cluster.plan.promote_k_tiles


@rule(g.Promote)
def _(cluster: Cluster, step: g.Promote, warp: Warp) -> None:
    if warp.groups or warp.open_group:
        raise Fault("an accumulator is promoted while the matrix unit still adds to it")
    added = warp.sums.added
    if step.cursor is not None:
        _, index, _ = cluster.slot(warp, step.cursor)
        added = list(warp.cta.stages[index].added)
    if cluster.plan.problem.scales is not None:
        check_block(cluster, warp, added)
    warp.total += added


def check_block(cluster: Cluster, warp: Warp, added: list[Tag]) -> None:
    """Check that an accumulator has all of the block of K whose scales are in registers, and nothing else."""
    block = block_of(cluster, warp)
    if warp.scales != block:
        raise Fault(f"the accumulator of block {block} is multiplied by the scales of {warp.scales}")
    size = cluster.plan.promote_k_tiles
    k_tiles = range(block[1] * size, min((block[1] + 1) * size, cluster.k_tiles))
    if added != [(warp.tile, k_tile) for k_tile in k_tiles]:
        raise Fault(f"the accumulator of block {block} consists of {added}")


@rule(g.SelectSums)
def _(cluster: Cluster, step: g.SelectSums, warp: Warp) -> None:
    _, warp.stage, _ = cluster.slot(warp, step.cursor)
    warp.overwrite = True


# Meetings ----------------------------------------------------------------------------------------------------------------


def _come(cluster: Cluster, warp: Warp, name: str) -> Ready:
    """Arrive at a barrier. Return a predicate for the completion of this phase."""
    cta, barrier = warp.cta, next(barrier for barrier in cluster.program.barriers if barrier.name == name)
    if warp.slices.stored is not None:
        cta.slices[warp.number], warp.slices.stored = (warp.tile, warp.slices.stored), None
        cta.slice_readers[warp.number] = set()
    if warp.shared_vectors is not None:
        cta.vectors[warp.role.team][warp.number], warp.shared_vectors = warp.shared_vectors, None
    if cluster.plan.problem.epilogue.signals:
        meet(cta, warp)
    there, meetings = cta.meetings.get(name, (0, 0))
    complete = (there + 1) * 32 >= barrier.threads
    cta.meetings[name] = (0, meetings + 1) if complete else (there + 1, meetings)
    if cluster.plan.grid_splits > 1:
        share(cta, warp, name, complete)
    return lambda: cta.meetings[name][1] > meetings


@rule(g.WarpSync)
def _(cluster: Cluster, step: g.WarpSync, warp: Warp) -> None:
    warp.waited = warp.written = False
    warp.copies.sync()


@rule(g.BarrierSync)
def _(cluster: Cluster, step: g.BarrierSync, warp: Warp) -> Ready:
    return _come(cluster, warp, step.barrier)


@rule(g.BarrierArrive)
def _(cluster: Cluster, step: g.BarrierArrive, warp: Warp) -> None:
    _come(cluster, warp, step.barrier)


@rule(g.AllocateSums)
def _(cluster: Cluster, step: g.AllocateSums, warp: Warp) -> Ready | None:
    """Allocate tensor memory: both CTAs of a pair take part and wait for each other."""
    if warp.number:
        return None
    warp.cta.allocated = True
    pair = cluster.pair(warp.cta.rank)
    return lambda: all(cta.allocated for cta in pair)


@rule(g.FindSums)
def _(cluster: Cluster, step: g.FindSums, warp: Warp) -> Running:
    yield _come(cluster, warp, "tensor_memory")
    if not warp.cta.allocated:
        raise Fault("tensor memory is used before it is allocated")


@rule(g.FreeSums)
def _(cluster: Cluster, step: g.FreeSums, warp: Warp) -> Ready | None:
    """Free tensor memory: both CTAs of a pair wait for each other, because MMAs write to both halves."""
    if warp.number:
        return None
    warp.cta.freed = True
    pair = cluster.pair(warp.cta.rank)
    return lambda: all(cta.freed for cta in pair)


@rule(g.LaunchFinish)
def _(cluster: Cluster, step: g.LaunchFinish, warp: Warp) -> None:
    """Launch the second kernel, with no effect here. All CTAs of this kernel are resident by then, and the second one
    waits for its end."""


@rule(g.ClusterExit)
def _(cluster: Cluster, step: g.ClusterExit, warp: Warp) -> Ready:
    cluster.exits += 1
    return lambda: cluster.exits == cluster.exiting
