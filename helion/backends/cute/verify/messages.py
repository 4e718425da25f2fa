"""Simulation of messages to and from peers: what a tile may load after them, and what has to be stored before.

A store by TMA lands in memory some time after it has read shared memory. A warp that waits for that knows it of its own
stores, and warps that meet at a barrier know it of each other's. Peers send their messages at any time.
"""

from __future__ import annotations

from ..plan.epilogue import Awaiting
from ..roles import messages as m
from .cluster import Cluster, Ready, rule
from .state import Cta, Fault, Store, Warp


@rule(m.AwaitMessages)
def _(cluster: Cluster, step: m.AwaitMessages, warp: Warp) -> Ready:
    tile, come = warp.tile, []
    cluster.send(warp.cta, lambda: come.append(tile))
    warp.heard = tile
    key = (warp.cta.rank, tile)
    cluster.waits[key] = cluster.waits.get(key, 0) + 1
    return lambda: bool(come)


def check_awaited(cluster: Cluster, warp: Warp, loads: Awaiting, operand: str) -> None:
    """Check that a load of an operand, or of a matrix, follows the messages that its tile waits for. Raises ``Fault``."""
    if any(wait.before == loads for wait in cluster.plan.problem.epilogue.waits) and warp.heard != warp.tile:
        raise Fault(f"{operand} of tile {warp.tile} is loaded after the messages of tile {warp.heard}")


def land(cluster: Cluster, warp: Warp, store: Store) -> None:
    """Let a store that has read shared memory arrive in memory, some time later."""

    def arrive() -> None:
        store.landed = True

    if cluster.plan.problem.epilogue.signals:
        cluster.send(warp.cta, arrive)


@rule(m.StoresComplete)
def _(cluster: Cluster, step: m.StoresComplete, warp: Warp) -> Ready:
    stores = list(warp.stores)
    for store in stores:
        store.awaited = True
    warp.complete = warp.tile
    return lambda: all(store.landed for store in stores)


def meet(cta: Cta, warp: Warp) -> None:
    """Let other warps of the role know, at a barrier, that the stores of a warp are complete."""
    cta.complete.setdefault(warp.role.team, {})[warp.number] = warp.complete


@rule(m.SignalPeers)
def _(cluster: Cluster, step: m.SignalPeers, warp: Warp) -> None:
    there = warp.cta.complete.get(warp.role.team, {})
    known = {there.get(number) for number in range(warp.role.warps)}
    if known != {warp.tile}:
        raise Fault(f"tile {warp.tile} is signalled while stores of tiles {sorted(known, key=str)} are complete")
    key = (warp.cta.rank, warp.tile)
    cluster.signals[key] = cluster.signals.get(key, 0) + 1
