"""More rows for programs that add sums over their rows to the same elements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

from ......_compiler.facts.records import AxisFact, KernelFacts, ReductionFact
from ......_support.records import dataclass, replace
from ......hardware import Target
from ....proposal import TritonProposal
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import estimate
from ...tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "summed_rows"

    #: Factors of the rows of a program, and those of its warps.
    rows: tuple[int, ...]
    warps: tuple[int, ...]


def fewer_sums(
    proposal: TritonProposal, rows: Sequence[AxisFact], primary: ReductionFact, facts: KernelFacts, target: Target
) -> TritonProposal:
    """Return the same with more rows and warps, if that is predicted to be faster, for programs with such sums.

    All programs add to the elements that no row selects, one after the other (measurement ``sums_in_memory``).
    """
    able = [axis.block_id for axis in rows if axis.tunable]
    summed = any(op.tile_axes and not set(able).intersection(op.tile_axes) for op in facts.atomics)
    if not able or not summed:
        return proposal
    warps, axis = proposal.num_warps or 1, max(able, key=lambda block: proposal.block_sizes[block])
    size, most = proposal.block_sizes[axis], facts.axes[axis].max_size or facts.axes[axis].padded
    every, numbers = [proposal], tuned(_Numbers)
    for more, share in itertools.product(numbers.rows, numbers.warps):
        taken, sizes = warps * share, {**proposal.block_sizes, axis: size * more}
        if share > more or taken > target.max_threads_per_block // target.warp_size or (most and size * more > most):
            continue
        if not estimate(facts, target, sizes, taken, 1, proposal.reduction_loops).spill_risk:
            reason = f"{size * more} rows of {primary.extent} per program, which adds their sums, {taken} warps"
            every.append(replace(proposal, reason=reason, block_sizes=sizes, num_warps=taken))
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    return unless_faster(timed[0], timed[1:], trust(target).fewer_sums)
