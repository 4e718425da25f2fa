"""Reductions whose loop over the row is written in the kernel: ``for tile_n in hl.tile(n)`` inside of the grid loop.

Matches kernels without a dot whose longest reduction is over such a loop (two-pass softmax, welford, long_sum, kl_div,
jsd). The same budget over live tiles sizes the loop's tile, the rows per program and the loops that apply a result.
Published for H100 with geometric means of 0.80 - 1.09 over torch.compile; not measured on a GPU here.
"""

from __future__ import annotations

from typing import ClassVar

from ......_compiler.facts.records import KernelFacts, ReductionFact
from ......_support.records import replace
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import Target
from ....proposal import TritonProposal
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...program_order import beside_pieces
from ...sizing import clamp, estimate, keep_load
from .budget import allocate, reduction_alone, row_budget
from .launch import launch, prefetched
from .lighter import lighter_tiles


class TritonUserTiledReductionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonUserTiledReductionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        primary = reduction_alone(facts)
        if isinstance(primary, Declined):
            return primary
        if primary.category != "user_tile":
            return Declined(f"the reduction over axis {primary.axis} is over a whole dimension")
        chosen = launch(allocate(facts, target), facts, target)
        applies = any(
            axis.extent == primary.extent and axis.block_id != primary.axis and not axis.on_grid
            for axis in facts.tunable_axes
        )
        reason = (
            f"loop over {primary.extent}, {primary.body_live_tiles} live tiles against {row_budget(target)} bytes: tiles "
            f"of {chosen.sizes.get(primary.axis)}, {chosen.num_warps} warps"
        )
        first = TritonProposal(
            reason=reason,
            block_sizes=chosen.sizes,
            reduction_loops=chosen.chunks,
            num_warps=chosen.num_warps,
            num_stages=1,
            eviction=keep_load(facts, primary.re_read_slot) if primary.re_read or applies else {},
        )
        every = [
            (each, proposal_us(facts, each, target)) for each in (first, *lighter_tiles(first, primary, facts, target))
        ]
        best = unless_faster(every[0], every[1:], trust(target).lighter_rows)
        staged = prefetched(best, facts, target)
        wide = _beside_each_other(staged, primary, facts, target) if applies else beside_pieces(staged, facts)
        found = (wide, staged, best, first)
        return tuple(each for at, each in enumerate(found) if each not in found[:at])


def _beside_each_other(
    proposal: TritonProposal, primary: ReductionFact, facts: KernelFacts, target: Target
) -> TritonProposal:
    """Return programs of neighbouring pieces of memory together, as few and as wide as SMs hold, for loops that read twice.

    The rows of those that run at once are then whole, and the cache has them for the later loop (measurement
    ``pieces_of_groups``). Elements of a thread stay as many.
    """
    best = along = beside_pieces(proposal, facts)
    if along is proposal or along.ranges:
        return along
    later = [a for a in facts.tunable_axes if a.extent == primary.extent and not a.on_grid]
    most = target.max_threads_per_block // target.warp_size
    while (warps := 2 * (best.num_warps or 1)) <= most:
        sizes = {**best.block_sizes, **{a.block_id: clamp(2 * best.block_sizes[a.block_id], a) for a in later}}
        if sizes == best.block_sizes or estimate(facts, target, sizes, warps, 1, best.reduction_loops).spill_risk:
            break
        best = replace(best, block_sizes=sizes, num_warps=warps, eviction={})
    return along if best is along else replace(best, reason=f"{along.reason}, in {best.num_warps} warps")
