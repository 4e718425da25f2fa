"""Matrix products whose whole output row is reduced in the same program, past the published choice: the default there.

Matches what ``TritonMatmulReductionEpilogueHeuristic`` matches, on GPUs with asynchronous copies. Rows are as many as an
accumulator of a quarter or a half of the register file holds, fewer while SMs are idle; K is as wide as three stages
of both operands allow. In sweeps of six shapes the published choice takes 1.1 to 1.3 times as long as the best config
(H200, CUDA 13.0, Triton 3.6, 2026-11-20; `python benchmarks/sweep.py --score`); docs/performance.md has the default's
times. At N = 2048 and beyond a loop over tiles of N is more than twice as fast.
"""

from __future__ import annotations

from typing import ClassVar

from ...._compiler.facts.records import KernelFacts, MatmulWithReductionEpilogueFact
from ...._shapes import cdiv, previous_power_of_2
from ....autotuner.proposal import Proposal, Verdict
from ....hardware import Target
from .matmul_reduction_epilogue import TritonMatmulReductionEpilogueHeuristic
from .sizing import estimate, extent_of

#: Elements of the accumulator for operands of up to 2 bytes, and of 4; rows at least and at most.
_ACCUMULATOR, _WIDE_ACCUMULATOR = 32768, 16384
_LEAST_ROWS, _MOST_ROWS = 16, 64
_STAGES, _MOST_K, _MOST_WIDE_K = 3, 64, 16
#: Elements of the accumulator per thread: more of them for rows that the asynchronous matrix unit takes.
_THREAD_ELEMENTS, _NARROW_THREAD_ELEMENTS = 128, 64
_LEAST_WARPS, _MOST_WARPS = 4, 16
#: A spill predicted with less than this risk does not happen: the estimate is 12 % off in the median.
_SURE = 0.1


class TritonRowEpilogueHeuristic:
    name: ClassVar[str] = "TritonRowEpilogueHeuristic"
    backend: ClassVar[str] = "triton"
    promote_seed_to_default: ClassVar[bool] = True

    def is_eligible(self, facts: KernelFacts, target: Target) -> Verdict:
        if not target.has("cp_async"):
            return Verdict(
                eligible=False, reason=f"measured for GPUs with asynchronous copies, not for {target.device}"
            )
        published = TritonMatmulReductionEpilogueHeuristic().is_eligible(facts, target)
        if not published.eligible:
            return published
        if not self.get_seed_configs(facts, target):
            return Verdict(eligible=False, reason="every number of rows spills or does not fit")
        return published

    def get_seed_configs(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...]:
        fact = facts.matmul_with_reduction_epilogue
        assert fact is not None and fact.m_block_id is not None and fact.k_block_id is not None
        m = rows(fact, facts, target)
        while m >= _LEAST_ROWS:
            for k in k_tiles(fact, facts, target, m):
                sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
                sizes[fact.m_block_id] = max(facts.axes[fact.m_block_id].min_size, m)
                sizes[fact.k_block_id] = max(facts.axes[fact.k_block_id].min_size, k)
                warps = warps_of(fact, m, target)
                predicted = estimate(facts, target, sizes, warps, _STAGES)
                if predicted.fits and predicted.spill_risk < _SURE:
                    programs = cdiv(extent_of(facts.axes[fact.m_block_id]), m)
                    reason = f"{m} whole rows of {fact.n_extent}, {programs} programs on {target.num_sms} SMs, K in tiles of {k}"
                    return (Proposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=_STAGES),)
            m //= 2
        return ()


def _is_wide(fact: MatmulWithReductionEpilogueFact) -> bool:
    return max(fact.matmul.lhs_dtype.itemsize, fact.matmul.rhs_dtype.itemsize) > 2


def rows(fact: MatmulWithReductionEpilogueFact, facts: KernelFacts, target: Target) -> int:
    """Rows of a program: by the accumulator, halved while that gives idle SMs a program."""
    assert fact.m_block_id is not None
    budget = _WIDE_ACCUMULATOR if _is_wide(fact) else _ACCUMULATOR
    m = max(_LEAST_ROWS, min(_MOST_ROWS, previous_power_of_2(budget // fact.n_extent)))
    extent = extent_of(facts.axes[fact.m_block_id])
    while m > _LEAST_ROWS and cdiv(extent, m) < target.num_sms:
        m //= 2
    return m


def k_tiles(fact: MatmulWithReductionEpilogueFact, facts: KernelFacts, target: Target, m: int) -> tuple[int, ...]:
    """Tiles along K, the widest first, of which all stages fit in shared memory."""
    itemsize = max(fact.matmul.lhs_dtype.itemsize, fact.matmul.rhs_dtype.itemsize)
    least = target.min_dot(itemsize)[2]
    k = _MOST_WIDE_K if _is_wide(fact) else _MOST_K
    k = max(least, min(k, facts.axes[fact.k_block_id].padded or k))  # type: ignore[index]
    found = []
    while k >= least:
        if (m + fact.n_extent) * k * itemsize * _STAGES <= target.smem_per_block_bytes:
            found.append(k)
        k //= 2
    return tuple(found)


def warps_of(fact: MatmulWithReductionEpilogueFact, m: int, target: Target) -> int:
    narrow = m == _LEAST_ROWS and not _is_wide(fact)
    each = _NARROW_THREAD_ELEMENTS if narrow else _THREAD_ELEMENTS
    warps = previous_power_of_2(m * fact.n_extent // (target.warp_size * each))
    return max(_LEAST_WARPS, min(_MOST_WARPS, warps))
