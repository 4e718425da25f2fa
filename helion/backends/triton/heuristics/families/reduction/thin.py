"""Fewer rows for programs of one warp whose threads would hold most of their registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ......_compiler.facts.records import AxisFact, KernelFacts, ReductionFact
from ......hardware import Target
from ....proposal import TritonProposal
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import estimate


def thinner(
    proposal: TritonProposal, rows: Sequence[AxisFact], primary: ReductionFact, facts: KernelFacts, target: Target
) -> TritonProposal:
    """Return the same with a half or a quarter of the rows of a warp, if that is predicted to be faster.

    Rows of a warp share its shuffles and accesses. With more than half of a thread's registers, few warps share an SM, and
    nothing hides the latency of each (measurement ``rows_of_a_warp``).
    """
    sizes, warps = proposal.block_sizes, proposal.num_warps or 1
    able = [axis.block_id for axis in rows if sizes[axis.block_id] > axis.min_size]
    if warps > 1 or not able or None not in proposal.reduction_loops.values():
        return proposal
    predicted = estimate(facts, target, sizes, warps, 1, proposal.reduction_loops)
    if 2 * predicted.registers_per_thread <= predicted.register_limit:
        return proposal
    axis = max(able, key=lambda block: sizes[block])
    every = [proposal]
    for share in (2, 4):
        fewer = sizes[axis] // share
        if fewer >= facts.axes[axis].min_size:
            reason = f"{fewer} rows of {primary.extent} per program, at once, {warps} warps"
            every.append(replace(proposal, reason=reason, block_sizes={**sizes, axis: fewer}))
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    return unless_faster(timed[0], timed[1:], trust(target).thinner_rows)
