"""Norms over rows that few programs would read alone: sums in parts, by as many programs as fill the GPU.

Matches kernels without a dot whose grid loop adds up tiles of rows and then walks over them again (``passes/spread.py``: batch norm, group norm
of images whose channels lie together, norms of columns, of few long rows), on GPUs with fast memory, where its grid has fewer programs than
two for each SM. A tile has whole cache lines of columns, and a loop's chunk as many rows as keep memory busy with two programs
on each SM. It contends: what runs is the seed that is predicted to be faster.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts, ReductionFact
from ...._shapes import cdiv, previous_power_of_2
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import MemoryClass, Target
from ..proposal import TritonProposal
from .reduction_budget import column_axis, reduction_alone
from .sizing import all_sizes, clamp, estimate, extent_of, warps_for_threads

#: Bytes of a tile's rows at least where columns lie together: a cache line.
_LINE_BYTES = 128
#: Bytes of a chunk for each thread, in vectors of 16, and of the elements that no loop walks over.
_THREAD_BYTES = 128
#: Threads, programs of an SM, and stages of the loops, in the order of the seeds.
_LAUNCHES = ((256, 2, 1), (128, 4, 1), (128, 2, 3))
#: Chunks of a part at least.
_LEAST_CHUNKS = 2


class TritonSplitReductionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonSplitReductionHeuristic"
    promote_seed_to_default: ClassVar[bool] = False

    def contends(self, target: Target) -> bool:
        return target.memory is MemoryClass.FAST

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if target.memory is not MemoryClass.FAST:
            return Declined(f"made for H200, not for {target.device}")
        primary = reduction_alone(facts)
        if isinstance(primary, Declined):
            return primary
        if not facts.divisible or not facts.spread:
            return Declined("no loop of sums stands before others that programs could share")
        if primary.category != "user_tile" or not facts.axes[primary.axis].tunable:
            return Declined(f"the reduction over axis {primary.axis} is not over tiles of a loop")
        found = [_proposal(facts, primary, target, *chosen) for chosen in _LAUNCHES]
        proposals = tuple(each for each in found if each is not None)
        return proposals or Declined("the grid has a program or two for each SM")


def _proposal(
    facts: KernelFacts, primary: ReductionFact, target: Target, threads: int, per_sm: int, stages: int
) -> TritonProposal | None:
    itemsize = max(1, primary.input_load_itemsize)
    sizes = _grid_sizes(facts, primary, itemsize)
    programs = math.prod(cdiv(extent_of(facts.axes[a]), all_sizes(facts, sizes)[a]) for a in facts.grid_axes)
    parts = previous_power_of_2(max(1, per_sm * target.num_sms // programs))
    walked = facts.axes[primary.axis]
    loads = sum(op.kind == "load" and primary.axis in op.tile_axes for op in facts.memory_ops)
    lanes = math.prod(all_sizes(facts, sizes)[a] for a in primary.tile if a != primary.axis)
    chunk = previous_power_of_2(max(1, threads * _THREAD_BYTES // (lanes * itemsize * max(1, loads))))
    parts = min(parts, previous_power_of_2(max(1, extent_of(walked) // (_LEAST_CHUNKS * chunk))))
    if parts == 1:
        return None
    axes = [facts.axes[axis] for axis in (primary.axis, *facts.spread) if facts.axes[axis].tunable]
    warps = warps_for_threads(threads, target)
    sizes |= {axis.block_id: clamp(chunk, axis) for axis in axes}
    while estimate(facts, target, sizes, warps, stages).spill_risk and sizes[primary.axis] > walked.min_size:
        sizes |= {axis.block_id: clamp(sizes[axis.block_id] // 2, axis) for axis in axes}
    return TritonProposal(
        reason=f"{programs} tiles, whose {extent_of(walked)} rows {parts} programs share in chunks of {sizes[primary.axis]}, {warps} warps",
        block_sizes=sizes,
        range_num_stages={axis.block_id: stages for axis in axes} if stages > 1 else {},
        num_warps=warps,
        num_stages=1,
        launch={"split_k": parts},
    )


def _grid_sizes(facts: KernelFacts, primary: ReductionFact, itemsize: int) -> dict[int, int]:
    """Whole cache lines along columns that lie together, else as few elements as the kernel allows."""
    sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes if axis.on_grid}
    column = column_axis(facts, primary)
    if column is not None:
        axis = facts.axes[column]
        sizes[column] = clamp(min(_LINE_BYTES // itemsize, axis.padded or _LINE_BYTES // itemsize), axis)
    return sizes


__all__ = ["TritonSplitReductionHeuristic"]
