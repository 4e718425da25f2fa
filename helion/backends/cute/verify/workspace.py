"""Simulation of split-K partials in global memory, with the order in which stores become visible.

A warp's stores are visible to its CTA after the next barrier, and to others after a release fence after that. Others
see them after they observe something ordered after the fence, followed by an acquire fence and a barrier.
"""

from __future__ import annotations

from ..roles import grammar as g
from .cluster import Cluster, rule
from .state import Cta, Fault, Put, Warp


def share(cta: Cta, warp: Warp, barrier: str, complete: bool) -> None:
    """Synchronize the visible partials of the warps at a barrier, when `warp` completes it."""
    cta.coming.setdefault(barrier, []).append(warp)
    if complete:
        met = cta.coming.pop(barrier)
        seen = max(each.seen for each in met)
        for each in met:
            each.seen = seen
            cta.put += each.put
            each.put = []


def _place(warp: Warp, part: int) -> Put:
    return (warp.tile, warp.cta.rank, part, warp.subtile, warp.number)


@rule(g.StorePartials)
def _(cluster: Cluster, step: g.StorePartials, warp: Warp) -> None:
    tag = (warp.tile, warp.subtile)
    if warp.held != tag or (cluster.plan.splits > 1 and warp.gathered != tag):
        raise Fault(f"the partials of {warp.held} are stored in the workspace as those of {tag}")
    warp.put.append(_place(warp, warp.part))


@rule(g.WorkspaceRelease)
def _(cluster: Cluster, step: g.WorkspaceRelease, warp: Warp) -> None:
    released = cluster.workspace.released
    for put in (*warp.cta.put, *warp.put):
        released.setdefault(put, len(released))


@rule(g.IncrementTileCounter)
def _(cluster: Cluster, step: g.IncrementTileCounter, warp: Warp) -> None:
    counters, key = cluster.workspace.counters, (warp.tile, warp.cta.rank)
    warp.cta.count = counters.get(key, 0)
    counters[key] = warp.cta.count + 1


@rule(g.WorkspaceAcquire)
def _(cluster: Cluster, step: g.WorkspaceAcquire, warp: Warp) -> None:
    warp.seen = len(cluster.workspace.released)


@rule(g.ReducePartials)
def _(cluster: Cluster, step: g.ReducePartials, warp: Warp) -> None:
    for part in range(cluster.plan.grid_splits):
        found = cluster.workspace.released.get(_place(warp, part))
        if found is None or found >= warp.seen:
            raise Fault(f"partials of part {part} of tile {warp.tile} are read which may not be visible yet")
    warp.held = warp.taken = (warp.tile, warp.subtile)


@rule(g.ResetTileCounter)
def _(cluster: Cluster, step: g.ResetTileCounter, warp: Warp) -> None:
    cluster.workspace.counters[warp.tile, warp.cta.rank] = 0
