"""Sorts of rows: quantiles, samples of the likeliest tokens, trimmed means, ranks.

Matches kernels without a dot that sort a whole dimension. The exchanges of the sort take most of the time. A warp takes
a row alone as long as its code is not too long to assemble: lanes exchange without barriers. Longer rows have many
warps (measurement ``sorted_rows``).
"""

from __future__ import annotations

import math
from typing import ClassVar

from ....._compiler.facts.records import KernelFacts
from ....._support.records import dataclass
from .....autotuner.proposal import Declined, Heuristic
from .....hardware import Target
from ...proposal import TritonProposal
from ..sizing import all_sizes, clamp, estimate
from ..tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "sorted_rows"

    #: Bytes of the keys of a row that one warp sorts, and least elements of a program of one warp.
    warp_bytes: int
    least_elements: int
    #: Warps of longer rows, and of those that leave a thread more than so many elements.
    warps: int
    most_warps: int
    thread_elements: int


class TritonSortedRowsHeuristic(Heuristic):
    name: ClassVar[str] = "TritonSortedRowsHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if facts.matmuls or not facts.sorts:
            return Declined("the kernel has a matmul, or no sort")
        if any(fact.axis is None or facts.axes[fact.axis].kind != "full" for fact in facts.sorts):
            return Declined("a sorted dimension is no whole one")
        if any(not axis.on_grid for axis in facts.tunable_axes):
            return Declined("the kernel has loops of its own")
        numbers = tuned(_Numbers)
        sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
        rows, warps = 1, 1
        for fact in facts.sorts:
            assert fact.axis is not None
            lanes = facts.axes[fact.axis].padded
            rows = max(rows, numbers.least_elements // lanes)
            if lanes * fact.itemsize > numbers.warp_bytes:
                is_long = lanes > numbers.thread_elements * numbers.warps * target.warp_size
                warps = max(warps, numbers.most_warps if is_long else numbers.warps)
        if warps == 1 and facts.tunable_axes:
            last = facts.tunable_axes[-1]
            sizes[last.block_id] = clamp(rows, last)
        if estimate(facts, target, all_sizes(facts, sizes), warps, 1).spill_risk:
            return Declined(f"sorted rows spill in {warps} warps")
        count = math.prod(sizes.values())
        return (
            TritonProposal(
                reason=f"{count} sorted rows, {warps} warps",
                block_sizes=sizes,
                reduction_loops={axis.block_id: None for axis in facts.rolled_axes},
                num_warps=warps,
                num_stages=1,
            ),
        )
