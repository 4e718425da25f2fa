"""The backward pass of attention: loops that make scores and their gradient again, for queries, for keys and values, or
for all three at once.

Tiles as in the published kernels for H100 and A100: 128 rows held against 64 walked over for heads of 128, 64 against 64
for heads of 64; less where that spills or does not fit, and where SMs would be idle. Not measured on a GPU; the seeds are
proved offline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from . import register_safety as safety
from .attention_tiles import Tile, cost_of, fits, programs_of
from .sizing import clamp

_CANDIDATES = (
    Tile(128, 64, 3, 8),
    Tile(128, 64, 2, 8),
    Tile(128, 32, 2, 8),
    Tile(64, 64, 3, 4),
    Tile(64, 64, 2, 4),
    Tile(64, 64, 3, 8),
    Tile(64, 64, 2, 8),
    Tile(64, 32, 3, 4),
    Tile(64, 32, 2, 4),
    Tile(64, 32, 2, 8),
    Tile(64, 16, 2, 8),
    Tile(32, 32, 2, 4),
    Tile(32, 32, 1, 8),
    Tile(32, 16, 1, 8),
    Tile(16, 16, 1, 4),
)
_KEPT = 3


class TritonAttentionGradientHeuristic(Heuristic):
    name: ClassVar[str] = "TritonAttentionGradientHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        loops = facts.attention_gradients
        if not loops:
            return Declined("no loop makes the scores of attention and their gradient")
        if not all(facts.axes[a].tunable for fact in loops for a in (fact.held_axis, fact.walked_axis)):
            return Declined("queries or keys are not tiles")
        for percent in (safety.gradient(target), safety.ALL):
            found = sorted(_feasible(facts, target, percent), key=lambda each: each[0])
            if found:
                return tuple(proposal for _, proposal in found[:_KEPT])
        return Declined("no tile of queries and keys fits without spilling")


def _feasible(facts: KernelFacts, target: Target, percent: int) -> Iterator[tuple[float, TritonProposal]]:
    for tile in _CANDIDATES:
        sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
        for fact in facts.attention_gradients:
            sizes[fact.held_axis] = clamp(tile.held, facts.axes[fact.held_axis])
            sizes[fact.walked_axis] = clamp(tile.walked, facts.axes[fact.walked_axis])
        predicted = fits(facts, target, sizes, tile, percent)
        if predicted is None:
            continue
        cost, programs = 0.0, 0
        for fact in facts.attention_gradients:
            made = programs_of(facts, facts.regions[fact.region].root, sizes)
            cost += cost_of(tile, made, sizes[fact.held_axis], target)
            programs += made
        yield (
            cost,
            TritonProposal(
                reason=f"{tile.held} rows held and {tile.walked} walked over at once, "
                f"{predicted.registers_per_thread} registers, {programs} programs on {target.num_sms} SMs",
                block_sizes=sizes,
                num_warps=tile.warps,
                num_stages=tile.stages,
            ),
        )
