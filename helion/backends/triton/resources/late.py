"""Tiles that loops accumulate, so that their reductions run after the loop (``rewrites/late_reductions``)."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping

from ...._compiler.facts.records import KernelFacts, LateReductionFact
from ....hardware import Target

#: The part of a thread's registers that accumulated tiles may take.
_SHARE = 4
#: Elements of a tile that are live at once in a thread.
_STREAMED = 32
#: Largest ratio of the elements of a tile to those (offline, sm_90, tiles of 128 elements a thread).
_MOST_STREAMED = 4


def accumulator_room(register_limit: int) -> int:
    """Return the registers of a thread that accumulated tiles may take."""
    return register_limit // _SHARE


def late_regions(
    facts: Iterable[LateReductionFact], sizes: Mapping[int, int], threads: int, register_limit: int
) -> dict[int, int]:
    """Return the registers of accumulated tiles by the region of the reductions that run after their loops."""
    found: dict[int, int] = {}
    for fact in facts:
        if (folds := fact.running(sizes, threads)) is not None:
            own = folds.registers(fact.itemsize, threads)
            found[fact.region] = found.get(fact.region, 0) + own
    room = accumulator_room(register_limit)
    return {region: registers for region, registers in found.items() if registers <= room}


def late_axes(
    facts: Iterable[LateReductionFact], regions: Container[int], sizes: Mapping[int, int], threads: int
) -> frozenset[tuple[int, int]]:
    """Return the region and axis of each reduction that runs after its loop, of those in ``regions``."""
    late = [fact for fact in facts if fact.region in regions and fact.may_run(sizes, threads)]
    return frozenset((fact.region, axis) for fact in late for at in fact.reduced for axis in fact.dims[at][0])


def late_registers(
    facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, register_limit: int, target: Target
) -> tuple[int, int]:
    """Return the registers of a thread that accumulated tiles take, and the warps among which other tiles are spread.

    Where all reductions run after their loops, no element waits for another one. The assembler then loads a few vectors
    of a tile at a time, and tiles take as few registers as with more warps.
    """
    if not facts.late_reductions:
        return 0, num_warps
    regions = late_regions(facts.late_reductions, sizes, num_warps * target.warp_size, register_limit)
    own = max(regions.values(), default=0)
    if not own or target.kind == "hip" or facts.matmuls or any(fact.after is None for fact in facts.reductions):
        return own, num_warps
    most = max(math.prod(sizes[axis] for axis in op.tile_axes) for op in facts.memory_ops)
    return own, num_warps * min(max(1, most // (num_warps * target.warp_size * _STREAMED)), _MOST_STREAMED)


__all__ = ["accumulator_room", "late_axes", "late_regions", "late_registers"]
