"""Scans over few long rows: cumulative sums, products and extremes of waveforms or of one sequence each.

Matches kernels without a dot that scan a dimension which can be chunked. The rows exceed the registers of a program,
and the grid has fewer programs than SMs. Each program has an SM of its own, and its chunk is what 256 threads keep in
flight (measurement ``long_scan``).
"""

from __future__ import annotations

from typing import ClassVar

from ....._compiler.facts.records import KernelFacts
from ....._shapes import previous_power_of_2
from ....._support.records import dataclass
from .....autotuner.proposal import Declined, Heuristic
from .....hardware import Target
from ...proposal import TritonProposal
from ..sizing import estimate, grid_extent, warps_for_threads
from ..tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "long_scan"

    #: Elements of a chunk of 4-byte elements, fewer where several are scanned together; a row of no more is not long.
    #: Then threads.
    chunk: int
    least_chunk: int
    threads: int


_TUNED = tuned(_Numbers)

_NUMBER_BYTES = 4


class TritonLongScanHeuristic(Heuristic):
    name: ClassVar[str] = "TritonLongScanHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if facts.matmuls or not facts.scans:
            return Declined("the kernel has a matmul, or no scan")
        along = {fact.axis for fact in facts.scans}
        scanned = [facts.axes[axis] for axis in along if axis is not None]
        if len(scanned) < len(along) or not all(axis.rollable and axis.padded > _TUNED.chunk for axis in scanned):
            return Declined("the scanned dimension is short, or cannot be chunked")
        if any(not axis.on_grid for axis in facts.tunable_axes):
            return Declined("the kernel has loops of its own")
        if grid_extent(facts) >= target.num_sms:
            return Declined("there are rows for all SMs")
        sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
        together = max(fact.itemsize for fact in facts.scans)
        chunk = max(
            _TUNED.least_chunk, previous_power_of_2(_TUNED.chunk * _NUMBER_BYTES // max(_NUMBER_BYTES, together))
        )
        warps = warps_for_threads(_TUNED.threads, target)
        rolled = [axis.block_id for axis in facts.rolled_axes]
        while estimate(facts, target, sizes, warps, 1, dict.fromkeys(rolled, chunk)).spill_risk:
            if chunk <= _TUNED.least_chunk:
                return Declined("small chunks spill")
            chunk //= 2
        return (
            TritonProposal(
                reason=f"{grid_extent(facts)} rows in chunks of {chunk}, {warps} warps",
                block_sizes=sizes,
                reduction_loops={axis: chunk if facts.axes[axis].padded > chunk else None for axis in rolled},
                num_warps=warps,
                num_stages=1,
            ),
        )
