"""Rows of a program that share loads: those of a batch, whose scales and shifts are as long as a row.

One row for each program loads them again and again. With two rows, a thread adds up twice the elements between two
meetings of the warps (measurement ``rows_of_a_batch``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ......_compiler.facts.records import AxisFact, KernelFacts
from ......hardware import Target
from ....proposal import TritonProposal
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import estimate


def sharing(
    proposal: TritonProposal, rows: Sequence[AxisFact], along: frozenset[int], facts: KernelFacts, target: Target
) -> TritonProposal:
    """Return the same with two rows of a batch, if that is predicted to be faster, for one row held whole.

    ``rows`` are the axes that rows are distributed over, ``along`` those along a row.
    """
    sizes, warps = proposal.block_sizes, proposal.num_warps or 1
    if None not in proposal.reduction_loops.values() or any(sizes[axis.block_id] > 1 for axis in rows):
        return proposal
    shared = [op for op in facts.memory_ops if op.kind == "load" and not along.isdisjoint(op.tile_axes)]
    grids = [{axis.block_id for axis in rows}.intersection(op.tile_axes) for op in shared]
    able = [axis for axis in rows if any(grid and axis.block_id not in grid for grid in grids) and axis.padded > 1]
    every = [
        replace(
            proposal,
            reason=f"2 rows that share loads per program, at once, {each} warps",
            block_sizes={**sizes, axis.block_id: 2},
            num_warps=each,
        )
        for axis in able
        if (axis.max_size or 2) > 1
        for each in sorted({warps, max(1, warps // 2)})
    ]
    every = [
        each
        for each in every
        if not estimate(facts, target, each.block_sizes, each.num_warps or 1, 1, each.reduction_loops).spill_risk
    ]
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    if not timed:
        return proposal
    return unless_faster((proposal, proposal_us(facts, proposal, target)), timed, trust(target).sharing_rows)
