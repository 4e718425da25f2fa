"""Simulation rules of copies by threads: of operands to shared memory, and of results to global memory."""

from __future__ import annotations

from ..plan.counts import is_raw, raw_bytes
from ..plan.records import WARP_THREADS
from ..roles import grammar as g
from ..roles.halves import ConvertHalf, MmaHalf, OrderReads, ReadHalf
from .cluster import Cluster, Ready, Running, rule
from .elements import copied_by
from .state import Fault, Sums, Tag, Warp


def _part(cluster: Cluster, operand: str, warp: Warp) -> str:
    """Return the part of an operand that a warp copies, which is that of a warp of each group that takes turns."""
    return copied_by(operand, warp.number // cluster.turns)


@rule(g.LoadElements)
def _(cluster: Cluster, step: g.LoadElements, warp: Warp) -> None:
    warp.copies.loaded[step.operand] = (warp.tile, warp.k_tile + step.ahead)


@rule(g.LoadRaw)
def _(cluster: Cluster, step: g.LoadRaw, warp: Warp) -> None:
    ring, index, _ = cluster.slot(warp, step.cursor)
    copied = cluster.plan.problem.copy_of(step.operand)
    assert copied is not None
    slot, full, tag = ring.slots[index], ring.full[index], (warp.tile, warp.k_tile)

    def land() -> None:
        slot.held[step.operand, warp.cta.rank] = tag
        full.complete(raw_bytes(cluster.plan, copied))

    cluster.send(warp.cta, land)


@rule(g.ReadRaw)
def _(cluster: Cluster, step: g.ReadRaw, warp: Warp) -> None:
    ring, index, _ = cluster.slot(warp, step.cursor)
    tag, held = (warp.tile, warp.k_tile), ring.slots[index].held.get((step.operand, warp.cta.rank))
    if held != tag:
        raise Fault(f"stale raw tile: a slot of {step.operand} holds {held}, to be read is {tag}")
    warp.unfenced_reads.append(ring.slots[index])
    warp.copies.read[step.operand] = tag
    warp.copies.synced = False


def _overwrite(warp: Warp, half: int, tag: Tag | None) -> None:
    """Fill the fragments of half of a K tile."""
    in_flight = len(warp.groups) + bool(warp.open_group)
    if in_flight and half in warp.copies.multiplied[-in_flight:]:
        raise Fault(f"half {half} of A is converted to registers that the matrix unit may still read")
    warp.copies.converted[half] = tag


@rule(ConvertHalf)
def _(cluster: Cluster, step: ConvertHalf, warp: Warp) -> None:
    _overwrite(warp, step.half, warp.copies.read.get("a"))


@rule(ReadHalf)
def _(cluster: Cluster, step: ReadHalf, warp: Warp) -> None:
    tag, slot = cluster.awaited(warp, step.cursor, "read")
    warp.unfenced_reads.append(slot)
    _overwrite(warp, step.half, tag)


@rule(OrderReads)
def _(cluster: Cluster, step: OrderReads, warp: Warp) -> None:
    warp.unfenced_reads = []


@rule(MmaHalf)
def _(cluster: Cluster, step: MmaHalf, warp: Warp) -> None:
    """Issue the MMAs of half a K tile, which is added to the accumulator after its second half."""
    tag, slot = cluster.awaited(warp, step.cursor, "multiplied")
    if not warp.fenced or warp.open_group:
        raise Fault("wgmma uses registers without a fence before it, or before the group of the other half ends")
    if warp.copies.converted.get(step.half) != tag:
        raise Fault(
            f"half {step.half} of {tag} is multiplied from the raw tile of {warp.copies.converted.get(step.half)}"
        )
    slot.readers += 1
    warp.fenced = False
    warp.sums = Sums() if step.first else warp.sums
    warp.copies.multiplied.append(step.half)
    if step.half:
        warp.sums.added.append(tag)
    warp.open_group.append((slot, tag))


@rule(g.CopyAcquire)
def _(cluster: Cluster, step: g.CopyAcquire, warp: Warp) -> Ready:
    ring, index, parity = cluster.slot(warp, step.cursor)
    return lambda: ring.empty[index].passed(parity)


@rule(g.WriteElements)
def _(cluster: Cluster, step: g.WriteElements, warp: Warp) -> None:
    """Write the part of one warp. The matrix unit sees it after the fence and the arrival."""
    ring, index, _ = cluster.slot(warp, step.cursor)
    tag: Tag = (warp.tile, warp.k_tile)
    slot = ring.slots[index]
    copied = cluster.plan.problem.copy_of(step.operand)
    assert copied is not None
    raw = is_raw(cluster.plan, copied)
    if raw and warp.copies.read.get(step.operand) != tag:
        raise Fault(f"{step.operand} of {tag} is made of the raw tile of {warp.copies.read.get(step.operand)}")
    loaded, varying = warp.copies.loaded.get(step.operand), any(each.k_pitch for each in copied.sources[raw:])
    held = loaded == tag if varying or not raw else loaded is not None and loaded[0] == warp.tile
    if len(copied.sources) > raw and not held:
        raise Fault(f"{step.operand} of {tag} is made of the elements of {warp.copies.loaded.get(step.operand)}")
    if slot.readers:
        raise Fault(f"{step.operand} of K tile {tag[1]} of tile {tag[0]} overwrites a slot that is being read")
    slot.held.pop((_part(cluster, step.operand, warp), warp.cta.rank), None)
    warp.copies.unfenced.append((index, step.operand, tag))
    warp.copies.synced = False


@rule(g.CopyCommit)
def _(cluster: Cluster, step: g.CopyCommit, warp: Warp) -> None:
    ring, index, _ = cluster.slot(warp, step.cursor)
    if warp.copies.unfenced:
        raise Fault("a stage is full before a fence orders its writes before the reads of the matrix unit")
    if not warp.copies.synced:
        raise Fault("a lane arrives for the others before they have written and fenced")
    for written, operand, tag in warp.copies.fenced:
        if written != index:
            raise Fault(f"stage {index} is full, and {operand} was written to stage {written}")
        ring.slots[index].held[_part(cluster, operand, warp), warp.cta.rank] = tag
    warp.copies.fenced = []
    ring.full[index].arrive()


@rule(g.StartCopies)
def _(cluster: Cluster, step: g.StartCopies, warp: Warp) -> None:
    ring, index, _ = cluster.slot(warp, step.cursor)
    if ring.slots[index].readers:
        raise Fault(f"{step.operand} of K tile {warp.k_tile} of tile {warp.tile} overwrites a slot that is being read")
    ring.slots[index].held.pop((_part(cluster, step.operand, warp), warp.cta.rank), None)
    warp.copies.started.append((index, step.operand, (warp.tile, warp.k_tile)))


@rule(g.ArriveAfterCopies)
def _(cluster: Cluster, step: g.ArriveAfterCopies, warp: Warp) -> None:
    """Send the arrivals of all lanes, which come with the last copy."""
    ring, index, _ = cluster.slot(warp, step.cursor)
    started, warp.copies.started = warp.copies.started, []
    for written, operand, _ in started:
        if written != index:
            raise Fault(f"stage {index} is full, and {operand} was copied to stage {written}")

    def complete() -> None:
        for _, operand, tag in started:
            ring.slots[index].held[_part(cluster, operand, warp), warp.cta.rank] = tag
        ring.slots[index].copied = True
        for _ in range(WARP_THREADS):
            ring.full[index].arrive()

    cluster.send(warp.cta, complete)


@rule(g.OrderCopies)
def _(cluster: Cluster, step: g.OrderCopies, warp: Warp) -> None:
    _, index, _ = cluster.slot(warp, step.cursor)
    warp.copies.unordered.discard(index)


@rule(g.CopyTail)
def _(cluster: Cluster, step: g.CopyTail, warp: Warp) -> Running:
    ring, index, parity = cluster.slot(warp, step.cursor)
    for _ in ring.slots:
        empty = ring.empty[index]
        yield lambda empty=empty, parity=parity: empty.passed(parity)  # type: ignore[misc]
        index += 1
        if index == len(ring.slots):
            index, parity = 0, parity ^ 1


@rule(g.StoreStrided)
def _(cluster: Cluster, step: g.StoreStrided, warp: Warp) -> None:
    if warp.evaluated != (warp.tile, warp.subtile):
        raise Fault(f"sub-tile {warp.subtile} of tile {warp.tile} is stored with the values of {warp.evaluated}")
    key = (warp.cta.rank, (warp.tile, warp.subtile), cluster.matrices + step.output)
    cluster.stored[key] = cluster.stored.get(key, 0) + 1
