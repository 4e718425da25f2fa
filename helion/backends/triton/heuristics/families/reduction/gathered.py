"""Rows of elements that data selects: few of them in a thread, whose loads wait for their addresses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts, ReductionFact
from ......_shapes import cdiv
from ......_support.records import dataclass, replace
from ......hardware import Target
from ....proposal import TritonProposal
from ...sizing import all_sizes, clamp
from ...tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "gathered_reduction"

    #: Most elements of a thread, of rows that are loaded whole.
    thread_elements: int
    #: Ratio of the lanes of a loop from which shorter steps with fewer lanes are taken, and least elements of a step.
    idle: float
    least_step: int


def fewer_gathered(
    proposal: TritonProposal, primary: ReductionFact, facts: KernelFacts, target: Target
) -> TritonProposal:
    """Return the same with fewer rows, if data selects each element along them (measurement ``gathered_rows``).

    Rows that data selects as a whole have vectors, as others do (measurement ``selected_rows``).
    """
    along = [op for op in facts.memory_ops if op.kind == "load" and op.gathered and primary.axis in op.tile_axes]
    gathers = [op for op in along if primary.axis not in op.subscript_axes]
    rows = [axis for axis in primary.tile if proposal.block_sizes.get(axis, 1) > facts.axes[axis].min_size]
    if not any(op.subscript_axes[0] is None for op in gathers) or any(proposal.reduction_loops.values()):
        return proposal
    proposal = _without_idle_lanes(proposal, primary, rows, facts)
    threads = (proposal.num_warps or 1) * target.warp_size
    sizes = dict(proposal.block_sizes)
    for axis in rows:
        whole = all_sizes(facts, sizes, proposal.reduction_loops)
        each = math.prod(whole[block] for block in primary.tile) // threads
        share = max(1, each // tuned(_Numbers).thread_elements)
        sizes[axis] = max(facts.axes[axis].min_size, sizes[axis] // share)
    if sizes == dict(proposal.block_sizes):
        return proposal
    return replace(proposal, reason=f"{proposal.reason}, fewer of rows that data selects", block_sizes=sizes)


def _without_idle_lanes(
    proposal: TritonProposal, primary: ReductionFact, rows: Sequence[int], facts: KernelFacts
) -> TritonProposal:
    """Return the same with shorter steps of the kernel's own loop, if the last one has many idle lanes.

    Lanes without an element take as long as others where each lane loads from an address of its own. Half of the elements
    that steps lose are those of more rows (measurement ``idle_gathers``).
    """
    axis, size = facts.axes[primary.axis], proposal.block_sizes.get(primary.axis)
    others = [row for row in rows if row != primary.axis]
    if primary.category != "user_tile" or size is None or not axis.extent or not others:
        return proposal
    numbers, extent = tuned(_Numbers), axis.extent
    steps = [size >> n for n in range(1, size.bit_length()) if size >> n >= max(axis.min_size, numbers.least_step)]
    step = min(steps, key=lambda each: (cdiv(extent, each) * each, -each), default=size)
    if cdiv(extent, step) * step * numbers.idle > cdiv(extent, size) * size:
        return proposal
    more = clamp(proposal.block_sizes[others[-1]] * max(1, size // step // 2), facts.axes[others[-1]])
    sizes = {**proposal.block_sizes, primary.axis: step, others[-1]: more}
    return replace(proposal, reason=f"{proposal.reason}, in steps of {step} without idle lanes", block_sizes=sizes)
