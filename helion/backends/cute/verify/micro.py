"""Simulation rules of scales that the matrix unit multiplies by."""

from __future__ import annotations

from ..roles.micro import MicroMma, MicroViews, MoveScales, StartScales
from .cluster import Cluster, rule
from .elements import SCALES, copied_by
from .rules import multiply
from .state import Fault, Sums, Warp


@rule(MicroViews)
def _(cluster: Cluster, step: MicroViews, warp: Warp) -> None:
    """Ignore views, which are not part of the protocol."""


@rule(StartScales)
def _(cluster: Cluster, step: StartScales, warp: Warp) -> None:
    ring, index, _ = cluster.slot(warp, step.cursor)
    if ring.slots[index].readers:
        raise Fault(f"scales of K tile {warp.k_tile} of tile {warp.tile} overwrite a slot that is being read")
    ring.slots[index].held.pop((copied_by(SCALES, 0), warp.cta.rank), None)
    warp.copies.started.append((index, SCALES, (warp.tile, warp.k_tile)))


@rule(MoveScales)
def _(cluster: Cluster, step: MoveScales, warp: Warp) -> None:
    """Move scales to the place of their stage, whose MMAs have read those before. MMAs after it wait for it."""
    ring, index, parity = cluster.slot(warp, step.cursor)
    slot, tag = ring.slots[index], (warp.tile, warp.k_tile)
    if warp.awaited != (index, parity) or slot.held.get((copied_by(SCALES, 0), warp.cta.rank)) != tag:
        raise Fault(f"stale scales: those of K tile {tag[1]} of tile {tag[0]} are moved without a wait for their stage")
    if index in warp.copies.unordered:
        raise Fault(f"scales of stage {index} are moved before a fence orders the copies that cp.async wrote")
    if slot.readers:
        raise Fault(f"scales of stage {index} in tensor memory are overwritten while MMAs read them")
    warp.copies.moved[index] = tag


@rule(MicroMma)
def _(cluster: Cluster, step: MicroMma, warp: Warp) -> None:
    _, index, _ = cluster.slot(warp, step.cursor)
    tag, overwrite = (warp.tile, warp.k_tile), step.first or warp.overwrite
    if warp.copies.moved.get(index) != tag:
        raise Fault(f"K tile {tag[1]} of tile {tag[0]} is multiplied by the scales of {warp.copies.moved.get(index)}")

    def add(sums: Sums) -> None:
        sums.added = [*([] if overwrite else sums.added), tag]

    multiply(cluster, warp, step.cursor, add)
