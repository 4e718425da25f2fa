"""Rows held whole in the steps of a loop: rows that it reduces again, and rows that it reads.

The warps of a row that is reduced again meet in each step, and a warp alone does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ......_compiler.facts.records import AxisFact, KernelFacts, ReductionFact
from ......_shapes import cdiv
from ......hardware import VECTOR_BYTES, Target
from ....proposal import TritonProposal
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import all_sizes, estimate, programs_of

#: Stages of a loop over steps of rows.
_STAGES = 3


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


def whole_rows(
    proposal: TritonProposal, primary: ReductionFact, facts: KernelFacts, target: Target, held: int, most: int
) -> TritonProposal:
    """Return the same with fewer rows in a step of the kernel's own loop, if many rows leave pieces of sectors of each.

    A loop over rows with a reduction along each one needs no more rows than its threads have registers for. A pipeline
    loads the next rows meanwhile, where all programs have room for its stages at once (measurement ``rows_in_steps``). A thread has ``held``
    elements, and a program at most ``most`` threads.
    """
    rows = facts.axes[primary.axis]
    pieces = [
        (facts.axes[axis].padded, chunk, op.itemsize)
        for op in facts.memory_ops
        if op.kind == "load" and {primary.axis, op.inner_axis} <= set(op.tile_axes)
        for axis, chunk in proposal.reduction_loops.items()
        if axis == op.inner_axis
        and axis != primary.axis
        and chunk is not None
        and chunk * op.itemsize < 4 * VECTOR_BYTES
    ]
    if not pieces or primary.full_extent or not rows.tunable:
        return proposal
    width = max(padded for padded, *_ in pieces)
    chunks = {axis: None if chunk == pieces[0][1] else chunk for axis, chunk in proposal.reduction_loops.items()}
    row_bytes = sum(padded * itemsize for padded, _, itemsize in pieces)

    def step_of(warps: int) -> TritonProposal | None:
        """Return the steps of rows that the registers of so many warps hold."""
        step = max(rows.min_size, held * warps * target.warp_size // width)
        sizes = {**proposal.block_sizes, rows.block_id: step}
        if step < 2 or estimate(facts, target, sizes, warps, 1, chunks).spill_risk:
            return None
        reason = f"{proposal.reason}, {step} rows of {width} whole"
        programs = cdiv(programs_of(facts, all_sizes(facts, sizes), primary.root), target.num_sms)
        stages = min(_STAGES, target.smem_per_block_bytes // (programs * step * row_bytes))
        ranges = {"range_num_stages": {rows.block_id: stages}} if stages > 1 else {}
        return replace(
            proposal, reason=reason, block_sizes=sizes, num_warps=warps, reduction_loops=chunks, ranges=ranges
        )

    warps = proposal.num_warps or 1
    first = step_of(warps)
    if first is None:
        return proposal
    more = (step_of(warps * times) for times in (2, 4, 8, 16) if warps * times * target.warp_size <= most)
    timed = [(each, proposal_us(facts, each, target)) for each in more if each is not None]
    return unless_faster((first, proposal_us(facts, first, target)), timed, trust(target).nearby)
