"""Scans along a strided dimension: running sums over the steps of sequences, or of columns.

Matches kernels without a dot, a reduction or a loop of their own. A tile has a sector or two of the axis along which memory
is contiguous: with fewer elements several programs read each sector. A tile of few elements has more columns, and one
whose rows are not aligned fewer (measurement ``column_scans``). Long dimensions are scanned in chunks, others where that is
predicted to be much faster: few registers let many programs share an SM.
"""

from __future__ import annotations

from typing import ClassVar

from ....._compiler.facts.records import AxisFact, KernelFacts
from ....._support.records import dataclass
from .....autotuner.proposal import Declined, Heuristic
from .....hardware import VECTOR_BYTES, Target
from ...proposal import TritonProposal
from ..choose import trust, unless_faster
from ..predicted_time import proposal_us
from ..sizing import clamp, estimate, warps_for_threads
from ..tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "column_scan"

    #: Columns, those of rows that are not aligned, and elements of a tile up to which it has twice as many.
    columns: int
    unaligned: int
    few: int
    #: Most steps that are held at once, steps of the chunks of more, elements of a thread, and least warps.
    held: int
    chunk: int
    #: Steps of a chunk that are tried where all are held.
    short_chunk: int
    thread_elements: int
    warps: int


_TUNED = tuned(_Numbers)


class TritonColumnScanHeuristic(Heuristic):
    name: ClassVar[str] = "TritonColumnScanHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if facts.matmuls or facts.reductions or not facts.scans:
            return Declined("the kernel has a matmul or a reduction, or no scan")
        if any(not axis.on_grid for axis in facts.tunable_axes):
            return Declined("the kernel has loops of its own")
        along = {fact.axis for fact in facts.scans}
        steps = [facts.axes[axis] for axis in along if axis is not None]
        if len(along) > 1 or not steps or not steps[0].padded:
            return Declined("several dimensions are scanned, or one of unknown length")
        moved = [op for op in facts.memory_ops if steps[0].block_id in op.tile_axes]
        beside = {op.inner_axis for op in moved}
        columns = [axis for axis in facts.tunable_axes if axis.block_id in beside]
        if len(beside) != 1 or len(columns) != 1:
            return Declined("memory is contiguous along the scanned dimension, or along no tile")
        aligned = not any(s != 1 and s * op.itemsize % VECTOR_BYTES for op in moved for s in op.strides)
        chunk = _TUNED.chunk if steps[0].rollable and steps[0].padded > _TUNED.held else steps[0].padded
        first = _proposed(steps[0], columns[0], aligned, chunk, facts, target)
        if isinstance(first, Declined):
            return first
        if any(first.reduction_loops.values()) or not (steps[0].rollable and aligned):
            return (first,)  # no time of chunks of rows that are not aligned is known
        shorter = _proposed(steps[0], columns[0], aligned, _TUNED.short_chunk, facts, target)
        others = [] if isinstance(shorter, Declined) else [(shorter, proposal_us(facts, shorter, target))]
        best = unless_faster((first, proposal_us(facts, first, target)), others, trust(target).chunked_scans)
        return (first,) if best is first else (best, first)


def _proposed(
    steps: AxisFact, columns: AxisFact, aligned: bool, chunk: int, facts: KernelFacts, target: Target
) -> TritonProposal | Declined:
    """Return the proposal for chunks of so many steps, or fewer if they exceed the registers."""
    width = _TUNED.columns if aligned else _TUNED.unaligned
    if (aligned and 2 * width * chunk <= _TUNED.few) or chunk < steps.padded:
        width *= 2
    width = clamp(width, columns)
    sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes} | {columns.block_id: width}
    most = target.max_threads_per_block // target.warp_size
    while True:
        chunks = {axis.block_id: None if axis.padded <= chunk else chunk for axis in facts.rolled_axes}
        threads = max(_TUNED.warps * target.warp_size, chunk * width // _TUNED.thread_elements)
        warps = warps_for_threads(2 * threads if _TUNED.short_chunk < chunk < steps.padded else threads, target)
        while estimate(facts, target, sizes, warps, 1, chunks).spill_risk and 2 * warps <= most:
            warps *= 2
        if not estimate(facts, target, sizes, warps, 1, chunks).spill_risk:
            break
        if not steps.rollable or chunk <= target.warp_size:
            return Declined("its steps exceed the registers")
        chunk //= 2
    way = "at once" if chunk >= steps.padded else f"in chunks of {chunk}"
    return TritonProposal(
        reason=f"{width} scans of {steps.extent} steps, {way}, {warps} warps",
        block_sizes=sizes,
        reduction_loops=chunks,
        num_warps=warps,
        num_stages=1,
    )
