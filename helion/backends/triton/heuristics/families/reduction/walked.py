"""Loops over several tiles that they reduce, and short steps of those.

Programs that share an SM have the tiles of rows. Short steps of few warps, along contiguous memory first, replace them
by predicted time (measurement ``nested_steps``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ......_compiler.facts.records import AxisFact, KernelFacts, ReductionFact
from ......autotuner.proposal import Declined
from ......hardware import Target
from ....proposal import TritonProposal
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import clamp, estimate, is_contiguous, warps_for_threads
from ...tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "nested_steps"

    #: Elements of a step, and threads of a program.
    step: int
    threads: int


_TUNED = tuned(_Numbers)


def walked_by(facts: KernelFacts, primary: ReductionFact) -> tuple[AxisFact, ...] | Declined:
    """Return the tiles that the loop of the reduction iterates over, outermost first, if it reduces all of them."""
    region = facts.regions[primary.region]
    walked = tuple(facts.axes[axis] for axis in region.axes)
    if region.kind != "loop" or len(walked) < 2 or not all(axis.tunable for axis in walked):
        return Declined("no loop over several tiles")
    if len(facts.tunable_axes) > len(walked) + len(facts.grid_axes):
        return Declined("the kernel has another loop")
    reduced = {fact.axis for fact in facts.reductions if fact.region == primary.region}
    if not reduced.issuperset(region.axes) or primary.re_read or any(fact.carried_2d for fact in facts.reductions):
        return Declined("the loop does more than reduce its tiles")
    if any(op.kind != "load" for op in facts.memory_ops if op.region == primary.region):
        return Declined("the loop stores")
    return walked


def in_short_steps(
    proposal: TritonProposal, primary: ReductionFact, facts: KernelFacts, target: Target
) -> TritonProposal:
    """Return short steps of a loop over several tiles that it reduces, if predicted to be faster than the proposal."""
    walked = walked_by(facts, primary)
    if isinstance(walked, Declined) or primary.after is None:
        return proposal
    sizes, room = dict(proposal.block_sizes), _TUNED.step
    for axis in sorted(walked, key=lambda axis: not is_contiguous(axis, facts)):
        sizes[axis.block_id] = clamp(min(room, axis.padded or room), axis)
        room = max(1, room // sizes[axis.block_id])
    warps = warps_for_threads(_TUNED.threads, target)
    if estimate(facts, target, sizes, warps, 1).spill_risk:
        return proposal
    tile = " x ".join(str(sizes[axis.block_id]) for axis in walked)
    reason = f"steps of {tile} of a result per program, {warps} warps"
    short = TritonProposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=1)
    timed = [(each, proposal_us(facts, each, target)) for each in (proposal, short)]
    return unless_faster(timed[0], timed[1:], trust(target).short_steps)
