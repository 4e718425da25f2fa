"""Simulation rules of warps that multiply K tiles of their own."""

from __future__ import annotations

from collections.abc import Iterator

from ..roles.sliced import (
    AddSlices,
    ClearSlice,
    MultiplySlice,
    PassSlices,
    ReadColumns,
    SliceCursors,
    SliceLoop,
    SliceScales,
    StoreSlice,
)
from .cluster import Cluster, Leaf, rule
from .rules import check_block, multiplied_tiles
from .state import Fault, Sums, Warp


@rule(SliceLoop)
def _(cluster: Cluster, step: SliceLoop, warp: Warp) -> Iterator[Leaf]:
    own = multiplied_tiles(cluster, warp)[warp.number :: warp.role.warps]
    for warp.k_tile in own:
        yield from cluster.steps(step.body, warp)


@rule(SliceCursors)
def _(cluster: Cluster, step: SliceCursors, warp: Warp) -> None:
    position = warp.slices.passed + warp.k_tile - multiplied_tiles(cluster, warp).start
    for name in ("ab", "raw"):
        rounds, index = divmod(position, len(warp.cta.rings[name].slots))
        warp.cursors[f"{name}_read"] = (name, index, rounds % 2)


@rule(PassSlices)
def _(cluster: Cluster, step: PassSlices, warp: Warp) -> None:
    warp.slices.passed += len(multiplied_tiles(cluster, warp))


@rule(SliceScales)
def _(cluster: Cluster, step: SliceScales, warp: Warp) -> None:
    k_tiles = multiplied_tiles(cluster, warp)
    k_tile = k_tiles.start + warp.number if step.first else warp.k_tile + warp.role.warps
    warp.scales = warp.tile, min(k_tile, k_tiles.stop - 1)


@rule(ReadColumns)
def _(cluster: Cluster, step: ReadColumns, warp: Warp) -> None:
    tag, slot = cluster.awaited(warp, step.cursor, "read")
    warp.unfenced_reads.append(slot)
    warp.slices.columns = tag


@rule(MultiplySlice)
def _(cluster: Cluster, step: MultiplySlice, warp: Warp) -> None:
    ring, index, _ = cluster.slot(warp, step.cursor)
    tag, held = (warp.tile, warp.k_tile), ring.slots[index].held.get(("a", warp.cta.rank))
    if held != tag:
        raise Fault(f"stale raw tile: a slot of a holds {held}, to be multiplied is {tag}")
    if warp.slices.columns != tag:
        raise Fault(f"A of {tag} is multiplied by the columns of {warp.slices.columns}")
    warp.unfenced_reads.append(ring.slots[index])
    warp.copies.synced = False
    if cluster.plan.promote:
        check_block(cluster, warp, [tag])
        warp.total.append(tag)
    else:
        warp.sums = Sums([*warp.sums.added, tag])


@rule(ClearSlice)
def _(cluster: Cluster, step: ClearSlice, warp: Warp) -> None:
    warp.sums, warp.total = Sums(), []


@rule(StoreSlice)
def _(cluster: Cluster, step: StoreSlice, warp: Warp) -> None:
    """Store the sums, which others see after a barrier."""
    unread = {*range(warp.role.warps)} - warp.cta.slice_readers.get(warp.number, {*range(warp.role.warps)})
    if unread:
        raise Fault(f"the sums of warp {warp.number} are overwritten before warps {sorted(unread)} have read them")
    warp.slices.stored = [*(warp.total if cluster.plan.promote else warp.sums.added)]


@rule(AddSlices)
def _(cluster: Cluster, step: AddSlices, warp: Warp) -> None:
    found = {}
    for number in range(warp.role.warps):
        tile, found[number] = warp.cta.slices.get(number, (None, []))
        if tile != warp.tile:
            raise Fault(f"the sums of warp {number} for tile {warp.tile} are read, which has stored those of {tile}")
    added = sorted(tag for tags in found.values() for tag in tags)
    for readers in warp.cta.slice_readers.values():
        readers.add(warp.number)
    if cluster.plan.promote:
        warp.total = added
    else:
        warp.sums = Sums(added)
