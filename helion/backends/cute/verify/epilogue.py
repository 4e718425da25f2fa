"""Simulation rules of epilogues: accumulators and partials, numbers per row, and the buffers that a sub-tile is stored
from."""

from __future__ import annotations

import functools

from ..plan.counts import row_peers
from ..plan.joint import exchanged, meeting
from ..plan.passes import Pass, passes
from ..plan.reductions import exchanges
from ..plan.shared import staged_as
from ..roles import grammar as g
from .cluster import Cluster, Ready, rule
from .drawn import check_drawn
from .messages import land
from .partial import check_partial
from .rules import EVERY_TILE, check_views, multiplied_tiles
from .state import Barrier, Buffer, Fault, Slot, Store, Warp

# Accumulators ----------------------------------------------------------------------------------------------------------


@rule(g.ReadSums)
def _(cluster: Cluster, step: g.ReadSums, warp: Warp) -> None:
    wanted = [(warp.tile, k_tile) for k_tile in multiplied_tiles(cluster, warp)]
    if step.cursor is None:
        if warp.groups or warp.open_group:
            raise Fault("an accumulator is read while the matrix unit still adds to it")
        sums = warp.sums
        added = warp.total if cluster.plan.totals else sums.added
    else:
        _, index, _ = cluster.slot(warp, step.cursor)
        sums = warp.cta.stages[index]
        added = sums.added
    if added != wanted:
        raise Fault(f"the accumulator of tile {warp.tile} consists of {added}")
    check_partial(cluster, warp, sums)
    warp.taken = None
    warp.held = (warp.tile, warp.subtile)


@rule(g.SendPartials)
def _(cluster: Cluster, step: g.SendPartials, warp: Warp) -> None:
    """Send partials: each thread of the owner reads those of the same thread of this CTA."""
    ring, index, _ = cluster.slot(warp, step.cursor)
    tag = (warp.tile, warp.subtile)
    if warp.held != tag:
        raise Fault(f"the partials of {warp.held} are sent as those of {tag}")
    to = cluster.owner(warp).rings[ring.pipeline.name]
    key = (f"sub-tile {warp.subtile} of warp {warp.number}", warp.cta.rank)
    size = cluster.counts.parts_stage_bytes // (cluster.plan.splits - 1) // cluster.plan.consumer_warps

    def land() -> None:
        if key in to.slots[index].held:
            raise Fault(f"partials of sub-tile {tag[1]} of tile {tag[0]} overwrite others that have not been read")
        to.slots[index].held[key] = tag
        to.full[index].complete(size)

    cluster.send(cluster.owner(warp), land)


@rule(g.AddPartials)
def _(cluster: Cluster, step: g.AddPartials, warp: Warp) -> None:
    ring, index, _ = cluster.slot(warp, step.cursor)
    tag = (warp.tile, warp.subtile)
    held = ring.slots[index].held
    for other in cluster.others(warp.cta.rank):
        found = held.pop((f"sub-tile {warp.subtile} of warp {warp.number}", other.rank), None)
        if found != tag:
            raise Fault(
                f"stale partials: of CTA {other.rank} there are those of {found}, to be added are those of {tag}"
            )
    warp.gathered = tag


# Numbers per row ---------------------------------------------------------------------------------------------------------


@rule(g.ClearRows)
def _(cluster: Cluster, step: g.ClearRows, warp: Warp) -> None:
    warp.terms = []


@rule(g.AddTerms)
def _(cluster: Cluster, step: g.AddTerms, warp: Warp) -> None:
    _check_walk(cluster, warp, passes(cluster.plan)[step.number])
    warp.terms.append(warp.subtile)


@rule(g.JoinLanes)
def _(cluster: Cluster, step: g.JoinLanes, warp: Warp) -> None:
    if warp.terms != list(range(cluster.plan.subtiles)):
        raise Fault(f"rows of tile {warp.tile} are reduced over sub-tiles {warp.terms}")
    warp.joined[step.number] = warp.tile


@rule(g.OwnRows)
def _(cluster: Cluster, step: g.OwnRows, warp: Warp) -> None:
    if warp.joined.get(0) != warp.tile:
        raise Fault(f"the second walk of tile {warp.tile} is about reductions of tile {warp.joined.get(0)}")
    warp.own = warp.tile


@rule(g.ArmRows)
def _(cluster: Cluster, step: g.ArmRows, warp: Warp) -> None:
    ring, index, _ = cluster.slot(warp, step.cursor)
    if warp.number == 0:
        ring.full[index].arrive(ring.pipeline.counts.transaction_bytes * len(exchanged(cluster.plan, step.number)))


@rule(g.SendRows)
def _(cluster: Cluster, step: g.SendRows, warp: Warp) -> None:
    """Send reductions: each warp of the others reads those of the same warp of this CTA."""
    ring, index, _ = cluster.slot(warp, step.cursor)
    tag, key = (warp.tile, step.number), (f"rows of warp {warp.number}", warp.cta.rank)
    for number in meeting(cluster.plan, step.number):
        if warp.joined.get(number) != warp.tile:
            raise Fault(f"reductions of tile {warp.joined.get(number)} are sent as those of {tag}")
    numbers, peers = cluster.counts.rows, row_peers(cluster.plan, warp.cta.rank)
    assert numbers is not None
    size = numbers.transaction_bytes // len(peers) // cluster.plan.consumer_warps
    size *= len(exchanged(cluster.plan, step.number))

    def land(slot: Slot, full: Barrier) -> None:
        if key in slot.held:
            raise Fault(f"reductions of tile {tag[0]} overwrite others that have not been read")
        slot.held[key] = tag
        full.complete(size)

    for rank in peers:
        to = cluster.ctas[rank].rings[ring.pipeline.name]
        cluster.send(cluster.ctas[rank], functools.partial(land, to.slots[index], to.full[index]))


@rule(g.GatherRows)
def _(cluster: Cluster, step: g.GatherRows, warp: Warp) -> None:
    ring, index, _ = cluster.slot(warp, step.cursor)
    together, held = meeting(cluster.plan, step.number), ring.slots[index].held
    tag = (warp.tile, together[-1])
    for rank in row_peers(cluster.plan, warp.cta.rank):
        key = f"rows of warp {warp.number}", rank
        found = held.pop(key, None) if step.number == together[-1] else held.get(key)
        if found != tag:
            raise Fault(f"stale reductions: of CTA {rank} there are those of {found}, to be read are those of {tag}")
    if step.number != together[0] and warp.level != (warp.tile, step.number):
        raise Fault(f"reductions of {tag} are made with the numbers per row of {warp.level}")
    warp.whole = (warp.tile, step.number)


@rule(g.EvaluateRows)
def _(cluster: Cluster, step: g.EvaluateRows, warp: Warp) -> None:
    tag = (warp.tile, step.level - 1)
    reached = warp.whole if cluster.counts.rows else (warp.joined.get(step.level - 1), step.level - 1)
    if step.level and reached != tag:
        raise Fault(f"numbers per row of {tag} are made of reductions of {reached}")
    if cluster.plan.problem.epilogue.of_kind("column") and warp.vectors != warp.tile:
        raise Fault(f"numbers per row of tile {warp.tile} are made of the vectors of tile {warp.vectors}")
    warp.level = (warp.tile, step.level)


@rule(g.StoreRows)
def _(cluster: Cluster, step: g.StoreRows, warp: Warp) -> None:
    if warp.level != (warp.tile, len(exchanges(cluster.plan))):
        raise Fault(f"numbers per row of tile {warp.tile} are stored while those of {warp.level} are there")
    key = (warp.cta.rank, warp.tile)
    cluster.stored_rows[key] = cluster.stored_rows.get(key, 0) + 1


# Stores ----------------------------------------------------------------------------------------------------------------


@rule(g.Evaluate)
def _(cluster: Cluster, step: g.Evaluate, warp: Warp) -> None:
    tag = (warp.tile, warp.subtile)
    if cluster.plan.grid_splits > 1 and warp.tile >= cluster.whole_tiles:
        if warp.taken != tag:
            raise Fault(f"the epilogue of {tag} lacks partials of other clusters")
    elif cluster.plan.splits > 1 and warp.gathered != tag:
        raise Fault(f"the epilogue of {tag} lacks partials of other CTAs")
    check_drawn(cluster, warp)
    _check_walk(cluster, warp, passes(cluster.plan)[-1])
    warp.evaluated = tag


def _check_walk(cluster: Cluster, warp: Warp, walk: Pass) -> None:
    """Check that all inputs of `walk` for a sub-tile are present."""
    tag = (warp.tile, warp.subtile)
    if warp.held != tag:
        raise Fault(f"the epilogue of {tag} has the accumulator of {warp.held}")
    if cluster.reads_matrices[walk.number] and warp.residual != tag:
        raise Fault(f"the epilogue of {tag} has the residual of {warp.residual}")
    if cluster.reads_columns and warp.vectors != warp.tile:
        raise Fault(f"the epilogue of tile {warp.tile} has the vectors of tile {warp.vectors}")
    if cluster.reads_rows:
        shared = warp.cta.vectors.get(warp.role.team, {})
        tiles = set(shared.values())
        if len(shared) != warp.role.warps or (tiles != {warp.tile} and tiles != {EVERY_TILE}):
            raise Fault(f"the epilogue of tile {warp.tile} reads vectors of tiles {sorted(set(shared.values()))}")
    level = walk.number
    if cluster.plan.joins and level == 1:
        level = 0
        if warp.own != warp.tile:
            raise Fault(f"the second walk of tile {warp.tile} is about numbers of tile {warp.own}")
    if cluster.by_rows and warp.level != (warp.tile, level):
        raise Fault(f"the epilogue of tile {warp.tile} has the numbers per row of {warp.level}")


def _buffer(cluster: Cluster, warp: Warp, output: int) -> Buffer:
    stages, exact = cluster.plan.store_stages, cluster.plan.problem.outputs_of("exact")
    output = exact.index(staged_as(cluster.plan.problem, exact[output]))
    first = (warp.role.team * cluster.matrices + output) * stages
    at = first + warp.subtile // cluster.plan.splits % stages
    return warp.cta.buffers[at * cluster.plan.storing_warps + (warp.number if cluster.plan.warp_stores else 0)]


@rule(g.WriteStage)
def _(cluster: Cluster, step: g.WriteStage, warp: Warp) -> None:
    buffer = _buffer(cluster, warp, step.output)
    if buffer.stores or not buffer.last.awaited:
        raise Fault(f"sub-tile {warp.subtile} of tile {warp.tile} overwrites a buffer that is being stored")
    if warp.waited:
        raise Fault(
            "a buffer is written by lanes that have not synchronized with the one which has waited for its store"
        )
    warp.written = cluster.plan.warp_stores
    warp.unfenced_writes.append((buffer, (warp.tile, warp.subtile)))


@rule(g.FenceShared)
def _(cluster: Cluster, step: g.FenceShared, warp: Warp) -> None:
    for buffer, tag in warp.unfenced_writes:
        buffer.written[warp.number] = tag
    warp.unfenced_reads, warp.unfenced_writes = [], []
    warp.copies.fence()


@rule(g.TmaStore)
def _(cluster: Cluster, step: g.TmaStore, warp: Warp) -> None:
    tag, buffer = (warp.tile, warp.subtile), _buffer(cluster, warp, step.output)
    check_views(cluster, warp, f"output {step.output}")
    if warp.written:
        raise Fault(
            f"sub-tile {tag} is stored by a lane that has not synchronized with the others, which write to its buffer"
        )
    writers = [warp.number] if cluster.plan.warp_stores else range(warp.role.warps)
    if buffer.written != dict.fromkeys(writers, tag):
        raise Fault(f"sub-tile {tag} is stored while a buffer holds {sorted(buffer.written.values())}")
    store = Store()
    buffer.stores += 1
    buffer.last = store
    warp.stores.append(store)

    def read() -> None:
        buffer.stores -= 1
        store.done = True
        land(cluster, warp, store)

    key = (warp.cta.rank, tag, step.output)
    cluster.stored[key] = cluster.stored.get(key, 0) + 1
    cluster.send(warp.cta, read)


@rule(g.StoreWait)
def _(cluster: Cluster, step: g.StoreWait, warp: Warp) -> Ready:
    warp.waited = cluster.plan.warp_stores
    awaited = warp.stores[: len(warp.stores) - step.pending] if step.pending else list(warp.stores)
    for store in awaited:
        store.awaited = True
    return lambda: all(store.done for store in awaited)
