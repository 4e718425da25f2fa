"""Rows of elements that data selects: few of them in a thread, whose loads wait for their addresses."""

from __future__ import annotations

import math
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts, ReductionFact
from ......_support.records import dataclass, replace
from ......hardware import Target
from ....proposal import TritonProposal
from ...sizing import all_sizes
from ...tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "gathered_reduction"

    #: Most elements of a thread, of rows that are loaded whole.
    thread_elements: int


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
