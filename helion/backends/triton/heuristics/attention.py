"""Attention: two dots in one loop, joined by a softmax over the loop's axis.

Takes the first of a few tiles, from large to small, that fits in shared memory without spilling: what flash attention
kernels for A100 and H100 use. Not measured on a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ....autotuner.proposal import Proposal, Verdict
from ....hardware import Target
from ..resources.registers import register_limit
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
#: Part of a thread's registers, in percent, that is planned with where some tile needs no more: offline for sm_80 to
#: sm_120, of eleven seeds of 88 % and more seven spill 24 to 264 bytes, of fourteen of at most 86 % none.
_REGISTER_PERCENT = 87


class TritonAttentionHeuristic:
    name: ClassVar[str] = "TritonAttentionHeuristic"
    backend: ClassVar[str] = "triton"
    promote_seed_to_default: ClassVar[bool] = True

    def is_eligible(self, facts: KernelFacts, target: Target) -> Verdict:
        fact = facts.attention
        if fact is None:
            return Verdict(eligible=False, reason="no two matrix products joined by a softmax")
        if not (facts.axes[fact.query_axis].tunable and facts.axes[fact.key_axis].tunable):
            return Verdict(eligible=False, reason="queries or keys are not tiles")
        if next(self._feasible(facts, target, 100), None) is None:
            return Verdict(eligible=False, reason="no tile of queries and keys fits without spilling")
        return Verdict(eligible=True, reason="scores, softmax and output in one loop over keys")

    def get_seed_configs(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...]:
        sure = tuple(itertools.islice(self._feasible(facts, target, _REGISTER_PERCENT), _KEPT))
        return sure or tuple(itertools.islice(self._feasible(facts, target, 100), _KEPT))

    def _feasible(self, facts: KernelFacts, target: Target, percent: int) -> Iterator[Proposal]:
        fact = facts.attention
        assert fact is not None
        for queries, keys, stages, warps in _CANDIDATES:
            sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
            for block, size in ((fact.query_axis, queries), (fact.key_axis, keys)):
                sizes[block] = clamp(size, facts.axes[block])
            predicted = estimate(facts, target, sizes, warps, stages)
            most = register_limit(warps, target) * percent // 100
            if predicted.fits and not predicted.spill_risk and predicted.registers_per_thread <= most:
                reason = f"{sizes[fact.query_axis]} queries by {sizes[fact.key_axis]} keys, {predicted.registers_per_thread} registers"
                yield Proposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=stages)
