"""Reductions of what no tensor holds: each element, or row, of one tensor combined with each of another.

Matches kernels without a dot that reduce a value along an axis, where every load lacks an axis of it: elements compared with
all edges of a histogram, kernel sums, distances of all pairs of rows. Memory is read once for many elements, so what counts is
instructions. With one element along the reduced axis at a time, each thread has places of its own and adds up alone: lanes
exchange nothing, and what lanes share is one load of a warp. Held at once, rows lie across lanes, and each
sum takes five exchanges for one element of 32; but where there are fewer sums than threads, lanes had better share them. By the assembler for sm_90 (Triton 3.7), counting which of 31 edges are at most an
element takes 2.2 instructions for each of them.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts, MemoryOpFact, ReductionFact
from ...._shapes import next_power_of_2
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from .reduction_budget import reduction_alone
from .sizing import Sizes, clamp, estimate, extent_of, warps_for_threads

#: Threads, and elements of each: along the one axis that is kept; and along the others than the last, all of whose elements
#: are threads of their own, where each load of a thread is for many elements: on an H200 (2026-11-23) the distances of 4096 rows of 64
#: in fp32 from as many take 191 us with 128 of them, 248 with 64, 321 with 32, and 749 in tiles of 32 by 32 by 16.
_THREADS, _ELEMENTS, _DEEP_ELEMENTS = 128, 8, 128
#: Elements of others that a load is combined with, at least: below, memory counts.
_LEAST_REUSE = 32
#: Programs of an SM at least, as far as tiles can be smaller.
_PROGRAMS = 4


class TritonOuterReductionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonOuterReductionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        primary = reduction_alone(facts)
        if isinstance(primary, Declined):
            return primary
        if len(facts.reductions) != 1 or facts.scans or facts.num_roots != 1:
            return Declined("not one reduction alone")
        axis = facts.axes[primary.axis]
        if primary.category not in ("full_slice", "user_tile") or not (axis.rollable or axis.tunable):
            return Declined(f"axis {primary.axis} is not walked in steps of one")
        kept = [block for block in primary.tile if block != primary.axis]
        if not kept or not all(facts.axes[block].on_grid and facts.axes[block].tunable for block in kept):
            return Declined("what is kept of the reduced value is no tile of the grid")
        along = [op for op in (*facts.memory_ops, *facts.atomics) if primary.axis in op.tile_axes]
        if primary.full_extent and any(len(op.tile_axes) > 1 for op in along):
            return Declined(f"memory has rows along axis {primary.axis}, of which chunks are walked")
        elements = math.prod(extent_of(facts.axes[block]) for block in kept)
        if elements < target.num_sms * target.max_warps_per_sm * target.warp_size:
            return Declined(f"{elements} sums are fewer than threads")
        reuse = _reuse(along, facts, primary)
        if reuse < _LEAST_REUSE:
            return Declined(f"what is loaded along axis {primary.axis} serves {reuse} elements of others")
        sizes = _tiles(kept, facts, target)
        step = {primary.axis: axis.min_size or 1}
        chunks = step if axis.rollable else {}
        sizes |= {} if axis.rollable else step
        warps = warps_for_threads(_THREADS, target)
        while estimate(facts, target, sizes, warps, 1, chunks).spill_risk:
            largest = max(kept, key=lambda block: sizes[block])
            if sizes[largest] <= facts.axes[largest].min_size:
                break
            sizes[largest] //= 2
        way = " by ".join(str(sizes[block]) for block in kept)
        return (
            TritonProposal(
                reason=f"{way} sums of {primary.extent}, each in a thread, {warps} warps",
                block_sizes=sizes,
                reduction_loops=chunks,
                num_warps=warps,
                num_stages=1,
            ),
        )


def _reuse(along: list[MemoryOpFact], facts: KernelFacts, primary: ReductionFact) -> int:
    """With how many elements along axes that it lacks each element is combined that is accessed ``along`` the reduced axis, the least of
    all; 0 where none is."""
    tile = frozenset(primary.tile)
    found = (math.prod(extent_of(facts.axes[a]) for a in tile.difference(op.tile_axes)) for op in along)
    return min(found, default=0)


def _tiles(kept: list[int], facts: KernelFacts, target: Target) -> Sizes:
    """The last axis is that of neighbouring threads."""
    *others, last = kept
    sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
    highest = {block: facts.axes[block].padded or next_power_of_2(extent_of(facts.axes[block])) for block in kept}
    sizes[last] = min(highest[last], _THREADS if others else _THREADS * _ELEMENTS)
    room = _DEEP_ELEMENTS
    for block in reversed(others):
        sizes[block] = min(highest[block], room)
        room //= sizes[block]

    def programs() -> float:
        grid = (facts.axes[block] for block in facts.grid_axes)
        return math.prod(extent_of(axis) / sizes.get(axis.block_id, 1) for axis in grid)

    for block in (*others, last):
        least = 1 if block in others else _THREADS
        while sizes[block] > least and programs() < _PROGRAMS * target.num_sms:
            sizes[block] //= 2
    return {block: clamp(size, facts.axes[block]) for block, size in sizes.items()}
