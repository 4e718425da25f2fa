"""Chunks of long rows of few programs: one or two for each SM, whose warps alone keep bytes in flight there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from ......_compiler.facts.records import KernelFacts, ReductionFact
from ......hardware import Target
from ....proposal import TritonProposal
from ...choose import unless_faster
from ...predicted_time import proposal_us
from ...sizing import all_sizes, programs_of

#: The proposal for so many elements of a row at once, and threads.
Makes = Callable[[int, int], TritonProposal]


def one_on_each(width: int, primary: ReductionFact, makes: Makes, target: Target) -> Iterator[TritonProposal]:
    """Yield wider programs that loop over longer chunks than ``width``, for fewer programs than SMs."""
    for times, share in itertools.product((1, 2, 4, 8), (2, 1)):
        if times * width >= primary.extent:
            return
        proposal = makes(times * width, target.max_threads_per_block // share)
        yield replace(proposal, reason=f"{proposal.reason}, with an SM for each program")


def two_on_each(
    proposal: TritonProposal, primary: ReductionFact, stores: bool, makes: Makes, facts: KernelFacts, target: Target
) -> TritonProposal:
    """Return the same with other chunks for programs of which an SM gets two.

    One of all threads leaves no registers for the other, which begins after it. Two of half the threads and elements
    overlap: one reads its row for the first time while the other writes (measurement ``programs_in_pairs``), if the rows
    of the kernel's own loop are stored (``stores``). Chunks of a row that is not stored are for as many programs as
    registers allow. Of two, they are twice as long, if that is predicted to be as fast (measurement ``chunks_of_pairs``).
    """
    if programs_of(facts, all_sizes(facts, proposal.block_sizes), primary.root) > 2 * target.num_sms:
        return proposal
    axis, threads = primary.axis, (proposal.num_warps or 1) * target.warp_size
    width = proposal.block_sizes.get(axis) or proposal.reduction_loops.get(axis) or primary.extent
    if width >= primary.extent:
        return proposal
    if threads == target.max_threads_per_block:
        if primary.full_extent or not primary.re_read or not stores:
            return proposal
        found = makes(width // 2, threads // 2)
        return replace(found, reason=f"{found.reason}, two on each SM")
    if not primary.full_extent or stores or 2 * width >= primary.extent:
        return proposal
    longer = makes(2 * width, threads)
    timed = [(each, proposal_us(facts, each, target)) for each in (proposal, longer)]
    return unless_faster(timed[0], timed[1:], 1.0)
