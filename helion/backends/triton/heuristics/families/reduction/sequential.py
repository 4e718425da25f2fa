"""Programs of one row that take steps in order, and reduce a tile in each: few warps, which meet in no barrier.

The chain of steps takes the time. Warps of a program exchange partial results in each reduction, and wait twice for it
(measurement ``sequential_rows``). Matches loops over single indices that carry a row and reduce a tile of two dimensions,
without any tile to choose.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_shapes import next_power_of_2
from ......_support.records import dataclass
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import Target
from ....proposal import TritonProposal
from ...sizing import estimate
from ...tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "sequential_reduction"

    #: Most elements of a thread of the tile that a step reduces, and most warps.
    thread_elements: int
    most_warps: int
    #: Most predicted risk of spills, of which the assembler makes none.
    most_risk: float


class TritonSequentialReductionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonSequentialReductionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        others = facts.matmuls or facts.scans or facts.sorts or facts.atomics or facts.messages
        if others or facts.num_roots > 1 or facts.tunable_axes:
            return Declined("the kernel has tiles to choose, a matmul, a scan, an atomic or several grids")
        steps = {region.region for region in facts.regions if region.kind == "loop" and _is_single(facts, region.axes)}
        reduced = [fact.tile for fact in facts.reductions if fact.region in steps]
        if not facts.accumulators or max(map(len, reduced), default=0) < 2:
            return Declined("no loop over single indices carries a row and reduces a tile of two dimensions")
        elements = max(math.prod(max(1, facts.axes[axis].padded) for axis in tile) for tile in reduced)
        numbers = tuned(_Numbers)
        warps = next_power_of_2(-(-elements // (target.warp_size * numbers.thread_elements)))
        while warps <= numbers.most_warps and estimate(facts, target, {}, warps, 1).spill_risk > numbers.most_risk:
            warps *= 2
        if warps > numbers.most_warps:
            return Declined(f"a step reduces {elements} elements, too many for {numbers.most_warps} warps")
        reason = f"steps that reduce {elements} elements each, {warps} warps"
        return (TritonProposal(reason=reason, num_warps=warps, num_stages=1, may_spill=True),)


def _is_single(facts: KernelFacts, axes: tuple[int, ...]) -> bool:
    return bool(axes) and all(facts.axes[axis].kind == "scalar" for axis in axes)
