"""Matmuls with a reduction of the whole output row in the epilogue: matmul + rms_norm, layer_norm, softmax ...

Matches exactly one dot and one reduction over its whole, untiled N. The [M_BLOCK, N] fp32 accumulator gets half of the
register file, at most 64 rows. K is narrow, because each pipeline stage holds a [K_BLOCK, N] slab of the right operand.
Published for H100 (6.9x the conservative config over 15 shapes, 1.2 - 2.0x torch.compile for N <= 512).
docs/performance.md has the times on H200. Offline with Triton 3.7 for sm_80, sm_90 and sm_100 there are no spills up to
N = 2048. At 4096 the least 16 rows fill the register file, so that any number of warps spills (376 bytes a thread or
more). A loop over tiles of N does not. The published choice comes first, then twice its warps, and half of its rows.
"""

from __future__ import annotations

from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_shapes import next_power_of_2, previous_power_of_2
from ......_support.records import dataclass
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import Target
from ....proposal import TritonProposal
from ...sizing import estimate
from ...tuned import Tuned, tuned
from .whole_rows import WholeRows, whole_rows

_ACCUMULATOR_BYTES = 4


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "matmul_reduction_epilogue"

    #: Fraction of the register file for the accumulator (131072 bytes on CUDA), and the fraction above which 8 warps
    #: share it.
    accumulator_share: int
    #: The same on AMD, whose file has twice the bytes for twice the lanes.
    accumulator_share_amd: int
    wide_share: int
    #: Most rows: 64, or as many as keep a [rows, 1] column of the operand within 128 bytes.
    max_rows: int
    row_bytes: int
    #: Rows that a matmul is padded to.
    least_rows: int
    k: int
    narrow_k: int
    stages: int
    #: Shared memory for operands grows in steps of this many bytes (196608 of the 232448 of H100).
    staged_step: int


_TUNED = tuned(_Numbers)


class TritonMatmulReductionEpilogueHeuristic(Heuristic):
    name: ClassVar[str] = "TritonMatmulReductionEpilogueHeuristic"
    promote_seed_to_default: ClassVar[bool] = False

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        found = whole_rows(facts)
        if isinstance(found, Declined):
            return found
        rows, k, warps, stages = published(found, target)
        proposals = [_proposal(found, facts, target, rows, k, warps, stages)]
        first = estimate(facts, target, proposals[0].block_sizes, warps, stages)
        if not first.fits:
            return Declined(f"N = {found.n} is too wide: {first.reason}")
        if rows * found.n * _ACCUMULATOR_BYTES < accumulator_budget(target):
            return tuple(proposals)
        # half of the accumulator per warp, or per each of two blocks, leaves registers to prefetch loads
        for fewer, more, deep in ((rows, warps * 2, max(2, stages)), (rows // 2, warps, stages)):
            if fewer < min(rows, _TUNED.least_rows) or more * target.warp_size > target.max_threads_per_block:
                continue
            other = _proposal(found, facts, target, fewer, k, more, deep)
            predicted = estimate(facts, target, other.block_sizes, more, deep)
            if predicted.fits and (predicted.spill_risk < 1 or first.spill_risk):
                proposals.append(other)
        return tuple(proposals)


def _proposal(
    found: WholeRows, facts: KernelFacts, target: Target, rows: int, k: int, warps: int, stages: int
) -> TritonProposal:
    sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
    for block, size in ((found.m_block_id, rows), (found.k_block_id, k)):
        sizes[block] = max(facts.axes[block].min_size, size)
    staged = stages * k * found.n * found.matmul.rhs_dtype.itemsize
    return TritonProposal(
        reason=(
            f"accumulator of {rows} x {found.n} in {accumulator_budget(target)} bytes; "
            f"{stages} stages of {k} x {found.n} take {staged} of {staged_budget(target)} bytes"
        ),
        block_sizes=sizes,
        num_warps=warps,
        num_stages=stages,
    )


def accumulator_budget(target: Target) -> int:
    """Return the bytes of registers for the accumulator of one program."""
    share = _TUNED.accumulator_share if target.kind == "cuda" else _TUNED.accumulator_share_amd
    return target.registers_per_sm * _ACCUMULATOR_BYTES // share


def staged_budget(target: Target) -> int:
    """Return the bytes of shared memory for staged operands; the rest is for exchanging partial sums and rows."""
    return max(_TUNED.staged_step // 2, target.smem_per_block_bytes // _TUNED.staged_step * _TUNED.staged_step)


def published(found: WholeRows, target: Target) -> tuple[int, int, int, int]:
    """Return (rows, K, warps, stages) of one program.

    The accumulator determines the rows. Where the staged operand is too large, K drops from 32 to 16 first, then the
    stages.
    """
    n, itemsize = found.n, found.matmul.lhs_dtype.itemsize
    extent = found.matmul.static_k
    budget = accumulator_budget(target)
    most = min(_TUNED.max_rows, _TUNED.row_bytes // itemsize)
    rows = max(1, min(most, previous_power_of_2(budget // (_ACCUMULATOR_BYTES * n))))
    warps = 4 if rows * n <= target.registers_per_sm // _TUNED.wide_share else 8
    k, stages = min(_TUNED.k, next_power_of_2(extent) if extent else _TUNED.k), _TUNED.stages
    if stages * k * n * itemsize > staged_budget(target):
        k = min(k, _TUNED.narrow_k)
        while stages > 1 and stages * k * n * itemsize > staged_budget(target):
            stages -= 1
    return rows, k, warps, stages
