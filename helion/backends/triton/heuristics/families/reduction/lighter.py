"""Loops over rows in fewer warps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ......_compiler.facts.records import KernelFacts, ReductionFact
from ......hardware import Target
from ....proposal import TritonProposal
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import estimate


def lighter_tiles(
    first: TritonProposal, primary: ReductionFact, facts: KernelFacts, target: Target
) -> Iterator[TritonProposal]:
    """Yield the same with a half and a quarter of the warps, in the same tiles and in tiles half as long.

    The warps of a row exchange its sums in each step of the loop, with barriers (measurement ``rows_of_bytes``,
    measurement ``low_ranks``).
    """
    warps, size = first.num_warps or 1, first.block_sizes.get(primary.axis, 1)
    least = max(1, facts.axes[primary.axis].min_size)
    for fewer, tile in itertools.product((warps // 2, warps // 4), (size, size // 2)):
        if not fewer or tile < least:
            continue
        sizes = {**first.block_sizes, primary.axis: tile}
        if not estimate(facts, target, sizes, fewer, 1, first.reduction_loops).spill_risk:
            reason = f"{first.reason}; predicted to be faster in tiles of {tile} and {fewer} warps"
            yield replace(first, reason=reason, block_sizes=sizes, num_warps=fewer)


def in_quarter(proposal: TritonProposal, primary: ReductionFact, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return the same tile in a quarter of the warps, if that is predicted to be faster (measurement ``low_ranks``)."""
    fewer = (proposal.num_warps or 1) // 4
    lighter = lighter_tiles(proposal, primary, facts, target)
    same = [each for each in lighter if each.block_sizes == proposal.block_sizes and each.num_warps == fewer]
    timed = [(each, proposal_us(facts, each, target)) for each in (proposal, *same)]
    return unless_faster(timed[0], timed[1:], trust(target).lighter_rows)


def shorter_loops(
    proposal: TritonProposal, primary: ReductionFact, facts: KernelFacts, target: Target
) -> TritonProposal:
    """Return shorter tiles of all loops over a row in fewer warps, if that is predicted to be faster.

    A program of all threads has an SM alone: it loads nothing while it reduces or stores (measurement ``rows_read_twice``).
    Steps of whole rows may be twice as long instead: short rows leave registers (measurement ``groups_of_channels``).
    """
    loops = [axis for axis in facts.tunable_axes if not axis.on_grid and axis.extent == primary.extent]
    warps, size = proposal.num_warps or 1, proposal.block_sizes.get(primary.axis, 1)
    few = warps < target.max_threads_per_block // target.warp_size
    if few or primary.full_extent or not primary.re_read or any(proposal.reduction_loops.values()):
        return proposal
    every = [proposal]
    shorter = itertools.product((size // 2, size // 4, size // 8), (4, 8))
    for tile, share in ((2 * size, 1),) if proposal.reduction_loops else shorter:
        sizes = {**proposal.block_sizes, **{axis.block_id: max(axis.min_size, tile) for axis in loops}}
        if not estimate(facts, target, sizes, warps // share, 1, proposal.reduction_loops).spill_risk:
            longer = f"{proposal.reason}; steps of {tile} are predicted to be faster"
            fewer = f"{proposal.reason}; predicted to be faster in tiles of {tile} and {warps // share} warps"
            reason = longer if share == 1 else fewer
            every.append(replace(proposal, reason=reason, block_sizes=sizes, num_warps=warps // share))
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    return unless_faster(timed[0], timed[1:], trust(target).shorter_loops)
