"""Matmuls with a reduction of the whole output row in the epilogue, beyond the published choice: the default there.

Matches the same kernels as ``TritonMatmulReductionEpilogueHeuristic``, on GPUs with asynchronous copies. Rows are as
many as fit an accumulator of a quarter or a half of the register file, and fewer while SMs are idle. K is as wide as
three stages of both operands allow. The published choice is slower in a sweep, and a loop over tiles of N is faster for
long rows (measurement ``row_epilogue``). docs/performance.md has the default's times.
"""

from __future__ import annotations

from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_shapes import cdiv, previous_power_of_2
from ......_support.records import dataclass
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import Target
from ....proposal import TritonProposal
from ...sizing import estimate, extent_of
from ...tuned import Tuned, tuned
from .whole_rows import WholeRows, whole_rows


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "row_epilogue"

    #: Elements of the accumulator for operands of up to 2 bytes, and of 4; least and most rows.
    accumulator: int
    wide_accumulator: int
    least_rows: int
    most_rows: int
    stages: int
    #: Stages of programs of which an SM has two at most.
    most_stages: int
    most_k: int
    most_wide_k: int
    #: Accumulator elements per thread, and fewer for the least rows of narrow operands.
    thread_elements: int
    narrow_thread_elements: int
    least_warps: int
    most_warps: int


_TUNED = tuned(_Numbers)


class TritonRowEpilogueHeuristic(Heuristic):
    name: ClassVar[str] = "TritonRowEpilogueHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not target.has("cp_async"):
            return Declined(f"{target.name} has no asynchronous copies")
        found = whole_rows(facts)
        if isinstance(found, Declined):
            return found
        m = _rows(found, facts, target)
        while m >= _TUNED.least_rows:
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
    predicted = estimate(facts, target, sizes, warps, _TUNED.stages)
    if not predicted.fits or predicted.spills:
        return None
    programs = cdiv(extent_of(facts.axes[found.m_block_id]), m)
    stages = _stages(found, m, k, programs, target)
    if stages > _TUNED.stages and not estimate(facts, target, sizes, warps, stages).fits:
        stages = _TUNED.stages
    rows = f"{m} whole rows of {found.n} reduced by {'+'.join(found.reduction.names)}"
    reason = f"{rows}, {programs} programs on {target.num_sms} SMs, K tiles of {k}"
    return TritonProposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=stages)


def _stages(found: WholeRows, m: int, k: int, programs: int, target: Target) -> int:
    """Return more stages where two programs of an SM have room for them, and no SM has more programs.

    The loads of few programs are all that hides latency there (measurement ``stages_of_few_rows``).
    """
    together = cdiv(programs, target.num_sms)
    room = target.smem_per_sm_bytes // (together * (m + found.n) * k * _itemsize(found))
    return max(_TUNED.stages, min(_TUNED.most_stages, room - 1)) if together <= 2 else _TUNED.stages


def _itemsize(found: WholeRows) -> int:
    return max(found.matmul.lhs_dtype.itemsize, found.matmul.rhs_dtype.itemsize)


def _is_wide(found: WholeRows) -> bool:
    return _itemsize(found) > 2


def _rows(found: WholeRows, facts: KernelFacts, target: Target) -> int:
    """Return the rows of a program: by the accumulator, halved while that gives idle SMs a program."""
    budget = _TUNED.wide_accumulator if _is_wide(found) else _TUNED.accumulator
    m = max(_TUNED.least_rows, min(_TUNED.most_rows, previous_power_of_2(budget // found.n)))
    extent = extent_of(facts.axes[found.m_block_id])
    while m > _TUNED.least_rows and cdiv(extent, m) < target.num_sms:
        m //= 2
    return m


def _k_tiles(found: WholeRows, facts: KernelFacts, target: Target, m: int) -> tuple[int, ...]:
    """Return tiles along K, the widest first, of which all stages fit in shared memory."""
    itemsize = _itemsize(found)
    least = target.min_dot(itemsize)[2]
    k = _TUNED.most_wide_k if _is_wide(found) else _TUNED.most_k
    k = max(least, min(k, facts.axes[found.k_block_id].padded or k))
    tiles = []
    while k >= least:
        if (m + found.n) * k * itemsize * _TUNED.stages <= target.smem_per_block_bytes:
            tiles.append(k)
        k //= 2
    return tuple(tiles)


def _warps(found: WholeRows, m: int, target: Target) -> int:
    narrow = m == _TUNED.least_rows and not _is_wide(found)
    each = _TUNED.narrow_thread_elements if narrow else _TUNED.thread_elements
    warps = previous_power_of_2(m * found.n // (target.warp_size * each))
    return max(_TUNED.least_warps, min(_TUNED.most_warps, warps))
