"""Attention: two dots in one loop, joined by a softmax over the loop's axis.

Takes the first of a few tiles, from large to small, that fits in shared memory without spilling: what flash attention
kernels for A100 and H100 use. Not measured on a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from ...._compiler.facts.records import AttentionFact, KernelFacts
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from . import register_safety as safety
from .sizing import clamp, estimate

#: Queries, keys, stages and warps.
_CANDIDATES = (
    (128, 128, 3, 8),
    (128, 128, 2, 8),
    (128, 64, 3, 8),
    (128, 64, 3, 4),
    (128, 64, 2, 8),
    (64, 64, 3, 4),
    (64, 64, 2, 4),
    (64, 32, 3, 4),
    (64, 32, 2, 4),
    (32, 64, 3, 4),
    (32, 32, 2, 4),
    (16, 32, 2, 4),
    (16, 16, 1, 4),
)
#: Proposals given.
_KEPT = 3


class TritonAttentionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonAttentionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        fact = facts.attention
        if fact is None:
            return Declined("no two matrix products joined by a softmax")
        if not (facts.axes[fact.query_axis].tunable and facts.axes[fact.key_axis].tunable):
            return Declined("queries or keys are not tiles")
        for percent in (safety.ATTENTION, safety.ALL):
            found = tuple(itertools.islice(_feasible(facts, fact, target, percent), _KEPT))
            if found:
                return found
        return Declined("no tile of queries and keys fits without spilling")


def _feasible(facts: KernelFacts, fact: AttentionFact, target: Target, percent: int) -> Iterator[TritonProposal]:
    for queries, keys, stages, warps in _CANDIDATES:
        sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
        for block, size in ((fact.query_axis, queries), (fact.key_axis, keys)):
            sizes[block] = clamp(size, facts.axes[block])
        predicted = estimate(facts, target, sizes, warps, stages)
        if predicted.fits and not predicted.spill_risk and safety.within(predicted, percent):
            reason = f"{sizes[fact.query_axis]} queries by {sizes[fact.key_axis]} keys, {predicted.registers_per_thread} registers"
            yield TritonProposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=stages)
