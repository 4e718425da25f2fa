"""Matmuls with a reduction of the whole output row in the epilogue, beyond the published choice: the default there.

Matches the same kernels as ``TritonMatmulReductionEpilogueHeuristic``, on GPUs with asynchronous copies. Rows are as
many as fit an accumulator of a quarter or a half of the register file, and fewer while SMs are idle. K is as wide as
three stages of both operands allow. In sweeps of six shapes the published choice takes 1.1 to 1.3 times as long as the
best config (H200, CUDA 13.0, Triton 3.6, 2026-11-20; `python benchmarks/sweep.py --score`). docs/performance.md has the
default's times. At N = 2048 and beyond a loop over tiles of N is more than twice as fast.
"""

from __future__ import annotations

from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ...._shapes import cdiv, previous_power_of_2
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from .sizing import estimate, extent_of
from .whole_rows import WholeRows, whole_rows

#: Elements of the accumulator for operands of up to 2 bytes, and of 4; least and most rows.
_ACCUMULATOR, _WIDE_ACCUMULATOR = 32768, 16384
_LEAST_ROWS, _MOST_ROWS = 16, 64
_STAGES, _MOST_K, _MOST_WIDE_K = 3, 64, 16
#: Accumulator elements per thread, and fewer for the least rows of narrow operands.
_THREAD_ELEMENTS, _NARROW_THREAD_ELEMENTS = 128, 64
_LEAST_WARPS, _MOST_WARPS = 4, 16


class TritonRowEpilogueHeuristic(Heuristic):
    name: ClassVar[str] = "TritonRowEpilogueHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not target.has("cp_async"):
            return Declined(f"measured for GPUs with asynchronous copies, not for {target.device}")
        found = whole_rows(facts)
        if isinstance(found, Declined):
            return found
        m = _rows(found, facts, target)
        while m >= _LEAST_ROWS:
            for k in _k_tiles(found, facts, target, m):
                proposal = _proposal(found, facts, target, m, k)
                if proposal is not None:
                    return (proposal,)
            m //= 2
        return Declined("every number of rows spills or does not fit")


def _proposal(found: WholeRows, facts: KernelFacts, target: Target, m: int, k: int) -> TritonProposal | None:
    """Return a proposal of ``m`` rows with tiles of ``k``; None where it spills or does not fit."""
    sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
    for block, size in ((found.m_block_id, m), (found.k_block_id, k)):
        sizes[block] = max(facts.axes[block].min_size, size)
    warps = _warps(found, m, target)
    predicted = estimate(facts, target, sizes, warps, _STAGES)
    if not predicted.fits or predicted.spills:
        return None
    programs = cdiv(extent_of(facts.axes[found.m_block_id]), m)
    rows = f"{m} whole rows of {found.n} reduced by {'+'.join(found.reduction.names)}"
    reason = f"{rows}, {programs} programs on {target.num_sms} SMs, K tiles of {k}"
    return TritonProposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=_STAGES)


def _is_wide(found: WholeRows) -> bool:
    return max(found.matmul.lhs_dtype.itemsize, found.matmul.rhs_dtype.itemsize) > 2


def _rows(found: WholeRows, facts: KernelFacts, target: Target) -> int:
    """Return the rows of a program: by the accumulator, halved while that gives idle SMs a program."""
    budget = _WIDE_ACCUMULATOR if _is_wide(found) else _ACCUMULATOR
    m = max(_LEAST_ROWS, min(_MOST_ROWS, previous_power_of_2(budget // found.n)))
    extent = extent_of(facts.axes[found.m_block_id])
    while m > _LEAST_ROWS and cdiv(extent, m) < target.num_sms:
        m //= 2
    return m


def _k_tiles(found: WholeRows, facts: KernelFacts, target: Target, m: int) -> tuple[int, ...]:
    """Return tiles along K, the widest first, of which all stages fit in shared memory."""
    itemsize = max(found.matmul.lhs_dtype.itemsize, found.matmul.rhs_dtype.itemsize)
    least = target.min_dot(itemsize)[2]
    k = _MOST_WIDE_K if _is_wide(found) else _MOST_K
    k = max(least, min(k, facts.axes[found.k_block_id].padded or k))
    tiles = []
    while k >= least:
        if (m + found.n) * k * itemsize * _STAGES <= target.smem_per_block_bytes:
            tiles.append(k)
        k //= 2
    return tuple(tiles)


def _warps(found: WholeRows, m: int, target: Target) -> int:
    narrow = m == _LEAST_ROWS and not _is_wide(found)
    each = _NARROW_THREAD_ELEMENTS if narrow else _THREAD_ELEMENTS
    warps = previous_power_of_2(m * found.n // (target.warp_size * each))
    return max(_LEAST_WARPS, min(_MOST_WARPS, warps))
