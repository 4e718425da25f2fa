"""Rows held whole that a loop over steps reduces again, as in an interval that is halved.

The warps of a row meet in each step, and a warp alone does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ......_compiler.facts.records import AxisFact, KernelFacts, ReductionFact
from ......hardware import Target
from ....proposal import TritonProposal
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import estimate


def alone_in_loops(
    proposal: TritonProposal, rows: Sequence[AxisFact], primary: ReductionFact, facts: KernelFacts, target: Target
) -> TritonProposal:
    """Return the same with one row of a warp or two, if that is predicted to be faster. ``rows`` are the axes of rows."""
    sizes = {**proposal.block_sizes, **{axis.block_id: axis.min_size for axis in rows}}
    reason = f"a row of {primary.extent} per program, which a loop reduces again"
    every = [
        replace(proposal, reason=f"{reason}, {warps} warps", block_sizes=sizes, num_warps=warps)
        for warps in (1, 2)
        if warps < (proposal.num_warps or 1) and not estimate(facts, target, sizes, warps, 1).spill_risk
    ]
    timed = [(each, proposal_us(facts, each, target)) for each in (proposal, *every)]
    return unless_faster(timed[0], timed[1:], trust(target).lighter_rows)
