"""Kernels that no other rule knows: tiles to which predicted times lead from moderate ones.

No sweep chose their tiles, so that nothing but the model tells a good one. Steps double or halve a tile, or halve one for
another, while the predicted time falls (measurement ``predicted_tiles``). No time of other warps is known.

Scans have fewer warps and shorter chunks too. Each thread combines the ends of all warps for each run of its neighbours
(measurement ``scanned_rows``).
"""

from __future__ import annotations

from typing import ClassVar

from ....._compiler.facts.records import KernelFacts
from ....._support.records import dataclass, replace
from .....autotuner.proposal import Declined, Heuristic
from .....hardware import Target
from ...proposal import TritonProposal
from ..candidates import moderate_sizes
from ..choose import trust
from ..nearby import steps
from ..predicted_time import proposal_us
from ..sizing import estimate
from ..tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "predicted_tiles"

    #: Warps of the first tile, and most steps from it.
    warps: int
    steps: int
    #: Elements of a whole dimension from which a loop over it has chunks, which are not tried here.
    longest: int
    #: Elements of the chunks of a scanned row that steps begin from, too.
    scanned: tuple[int, ...]


class TritonPredictedTilesHeuristic(Heuristic):
    name: ClassVar[str] = "TritonPredictedTilesHeuristic"
    promote_seed_to_default: ClassVar[bool] = True
    fallback_only: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        numbers = tuned(_Numbers)
        if facts.matmuls or facts.sorts or facts.atomics or facts.messages or facts.num_roots > 1:
            return Declined("the kernel has a matmul, a sort, an atomic, messages, or several grids")
        if not facts.scans and any(axis.padded > numbers.longest for axis in facts.rolled_axes):
            return Declined(f"a whole dimension of more than {numbers.longest} elements")
        if any(axis.extent is None and axis.outer is None for axis in facts.axes):
            return Declined("a length depends on data")
        first = TritonProposal(
            reason="moderate tiles", block_sizes=moderate_sizes(facts, {}), num_warps=numbers.warps, num_stages=1
        )
        starts = [first, *(_in_chunks(first, size, facts) for size in numbers.scanned if facts.scans)]
        best, us = min((_descended(each, facts, target, numbers.steps) for each in starts), key=lambda found: found[1])
        ratio = trust(target).predicted_scans if facts.scans else trust(target).predicted_tiles
        if not us < ratio * _cost(first, facts, target):
            return Declined("moderate tiles are predicted to be as fast as others")
        chunks = (f"chunks of {size}" for size in best.reduction_loops.values() if size is not None)
        shape = ", ".join((" x ".join(map(str, best.block_sizes.values())) or "single rows", *chunks))
        reason = f"{shape} in {best.num_warps} warps, to which predicted times lead from moderate tiles"
        return (replace(best, reason=reason),)


def _descended(best: TritonProposal, facts: KernelFacts, target: Target, most: int) -> tuple[TritonProposal, float]:
    """Return the tile to which steps lead, and its time: of as many warps without a scan."""
    us = _cost(best, facts, target)
    for _ in range(most):
        tried = steps(best, facts, target, few=False)
        timed = [
            (_cost(each, facts, target), each) for each in tried if facts.scans or each.num_warps == best.num_warps
        ]
        after, each = min(timed, key=lambda pair: pair[0], default=(us, best))
        if after >= us:
            break
        best, us = each, after
    return best, us


def _in_chunks(proposal: TritonProposal, size: int, facts: KernelFacts) -> TritonProposal:
    """Return the same with scanned rows in chunks of ``size`` elements, where they are longer."""
    scanned = {fact.axis for fact in facts.scans}
    rows = (axis for axis in facts.rolled_axes if axis.block_id in scanned and axis.padded > size)
    return replace(proposal, reduction_loops={axis.block_id: size for axis in rows})


def _cost(proposal: TritonProposal, facts: KernelFacts, target: Target) -> float:
    """Return the predicted time; infinite if the launch does not fit, or registers do not hold its tiles."""
    predicted = estimate(facts, target, proposal.block_sizes, proposal.num_warps or 1, 1, proposal.reduction_loops)
    return proposal_us(facts, proposal, target) if predicted.fits and not predicted.spill_risk else float("inf")
