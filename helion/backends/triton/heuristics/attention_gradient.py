"""The backward pass of attention: loops that make scores and their gradient again, for queries, for keys and values, or
for all three at once.

Tiles as in the published kernels for H100 and A100: 128 rows held against 64 walked over for heads of 128, 64 against 64
for heads of 64; less where that spills or does not fit, and where SMs would be idle. On an H200 five unseen cells take 1.4 to
2.2 times as long as the fastest library (benchmarks/results/nvidia-h200-unseen.json).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from . import register_safety as safety
from .attention_tiles import Tile, cost_of, fits, programs_of
from .sizing import Sizes, clamp

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
            found = tuple(itertools.islice(_feasible(facts, target, percent), _KEPT))
            if found:
                return found
        return Declined("no tile of queries and keys fits without spilling")


def _feasible(facts: KernelFacts, target: Target, percent: int) -> Iterator[TritonProposal]:
    """Those that fit, the least that an SM works through first, and of one height in the order of the table."""

    def sizes_of(tile: Tile) -> Sizes:
        sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
        for fact in facts.attention_gradients:
            sizes[fact.held_axis] = clamp(tile.held, facts.axes[fact.held_axis])
            sizes[fact.walked_axis] = clamp(tile.walked, facts.axes[fact.walked_axis])
        return sizes

    def programs(sizes: Sizes) -> list[int]:
        return [programs_of(facts, facts.regions[fact.region].root, sizes) for fact in facts.attention_gradients]

    def cost(tile: Tile) -> float:
        sizes = sizes_of(tile)
        loops = zip(facts.attention_gradients, programs(sizes), strict=True)
        return sum(cost_of(tile, made, sizes[fact.held_axis], target) for fact, made in loops)

    for tile in sorted(_CANDIDATES, key=cost):
        sizes = sizes_of(tile)
        predicted = fits(facts, target, sizes, tile, percent)
        if predicted is not None:
            yield TritonProposal(
                reason=f"{tile.held} rows held and {tile.walked} walked over at once, "
                f"{predicted.registers_per_thread} registers, {sum(programs(sizes))} programs on {target.num_sms} SMs",
                block_sizes=sizes,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
