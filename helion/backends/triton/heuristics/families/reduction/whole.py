"""Reductions over whole rows: ``x[tile, :]`` reduced, loaded whole or in chunks.

Matches kernels without a dot whose longest reduction is over a whole dimension. Examples are softmax, rms_norm,
layer_norm, sum, cross_entropy, and gradients accumulated per feature. Chunk, rows per program, tiles of other loops and
warps come from one budget over live tiles. The numbers are published for H100, and were not measured on a GPU here.
Compiled offline, few of its seeds spill (measurement ``whole_rows``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import Target
from ....proposal import TritonProposal
from ...sizing import keep_load, stream_loads
from .budget import Allocation, allocate, reduction_alone, row_budget
from .launch import launch, prefetched


class TritonReductionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonReductionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        primary = reduction_alone(facts)
        if isinstance(primary, Declined):
            return primary
        if not primary.full_extent:
            return Declined(f"the reduction over axis {primary.axis} is a loop of the kernel's own")
        first = allocate(facts, target)
        proposals = [self._proposal(first, facts, target)]
        if not first.looped and first.chunks:
            proposals.append(self._proposal(allocate(facts, target, hold=False), facts, target))
        staged = prefetched(proposals[0], facts, target)
        return (staged, *proposals) if staged is not proposals[0] else tuple(proposals)

    def _proposal(self, found: Allocation, facts: KernelFacts, target: Target) -> TritonProposal:
        primary = found.primary
        chosen = launch(found, facts, target)
        chunk = chosen.chunks.get(primary.axis)
        way = "loaded whole" if chunk is None else f"in chunks of {chunk}"
        reason = (
            f"row of {primary.extent}, {primary.body_live_tiles} live tiles against {row_budget(target)} bytes: {way}, "
            f"{chosen.num_warps} warps"
        )
        return TritonProposal(
            reason=reason,
            block_sizes=chosen.sizes,
            reduction_loops=chosen.chunks,
            num_warps=chosen.num_warps,
            num_stages=1,
            eviction=self._eviction(found, chosen.chunks, facts),
        )

    def _eviction(self, found: Allocation, chunks: Mapping[int, int | None], facts: KernelFacts) -> dict[int, str]:
        primary = found.primary
        looped = any(chunk is not None for chunk in chunks.values())
        if primary.num_loads == 1 and not (looped and primary.re_read):
            return stream_loads(facts)
        if primary.re_read and found.reduced_away:
            return keep_load(facts, primary.re_read_slot)
        return {}
