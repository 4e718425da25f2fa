"""Reductions whose loop over the row the kernel spells out: ``for tile_n in hl.tile(n)`` inside of the grid loop.

Matches kernels without a dot whose longest reduction is over such a loop (two-pass softmax, welford, long_sum, kl_div,
jsd). The same budget over live tiles sizes the loop's tile, the rows per program and the loops that apply a result.
Published for H100 with geometric means of 0.80 - 1.09 over torch.compile; not measured on a GPU here.
"""

from __future__ import annotations

from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Proposal, Verdict
from ....hardware import Target
from .reduction_budget import allocate, row_budget
from .reduction_launch import launch
from .sizing import keep_load


class TritonUserTiledReductionHeuristic:
    name: ClassVar[str] = "TritonUserTiledReductionHeuristic"
    backend: ClassVar[str] = "triton"
    promote_seed_to_default: ClassVar[bool] = True

    def is_eligible(self, facts: KernelFacts, target: Target) -> Verdict:
        if facts.matmuls:
            return Verdict(eligible=False, reason="the kernel has a matrix product")
        primary = facts.primary_reduction
        if primary is None:
            return Verdict(eligible=False, reason="no reduction of known extent inside of a program")
        if primary.category != "user_tile":
            return Verdict(eligible=False, reason=f"the reduction over axis {primary.axis} is over a whole dimension")
        return Verdict(eligible=True, reason=f"{'+'.join(primary.names)} over a loop of {primary.extent}")

    def get_seed_configs(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...]:
        found = allocate(facts, target)
        primary = found.primary
        chosen = launch(found, facts, target)
        applies = any(
            axis.extent == primary.extent and axis.block_id != primary.axis and not axis.on_grid
            for axis in facts.tunable_axes
        )
        reason = (
            f"loop over {primary.extent}, {primary.body_live_tiles} live tiles against {row_budget(target)} bytes: tiles "
            f"of {chosen.sizes.get(primary.axis)}, {chosen.num_warps} warps"
        )
        return (
            Proposal(
                reason=reason,
                block_sizes=chosen.sizes,
                reduction_loops=chosen.chunks,
                num_warps=chosen.num_warps,
                num_stages=1,
                eviction=keep_load(facts, primary.re_read_slot) if primary.re_read or applies else {},
            ),
        )
