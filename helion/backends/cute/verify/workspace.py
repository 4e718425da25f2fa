"""Sums that clusters hand to one another through global memory, with the order in which writes become visible.

What a warp has put there is known to its CTA from the next barrier on, to others from a fence behind that on; they see it
when they have learned of something that came behind the fence, and have had a fence and a barrier of their own.
"""

from __future__ import annotations

from ..roles import grammar as g
from .cluster import Cluster, Cta, Fault, Put, Warp, rule


def share(cta: Cta, warp: Warp, barrier: str, complete: bool) -> None:
    """`warp` comes to a barrier: behind it all who meet there know what any of them knew."""
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
        raise Fault(f"the sums of {warp.held} are put into the workspace as those of {tag}")
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
            raise Fault(f"sums of part {part} of tile {warp.tile} are read which may not be visible yet")
    warp.held = warp.taken = (warp.tile, warp.subtile)


@rule(g.ResetTileCounter)
def _(cluster: Cluster, step: g.ResetTileCounter, warp: Warp) -> None:
    cluster.workspace.counters[warp.tile, warp.cta.rank] = 0
