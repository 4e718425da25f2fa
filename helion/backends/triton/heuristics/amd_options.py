"""Alternates that set options of Triton's compiler for AMD GPUs.

None of them was timed on a GPU, so that the first seed never has them. A search and a first call measure them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...._compiler.facts.records import KernelFacts
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources.time.demand import rereads_depend_on_groups
from .sizing import estimate

#: Sides of the small matrix instruction, and of tiles for which Triton takes the large one.
_SMALL, _LARGE = 16, 32
#: Bytes of operands whose matrix instruction reads 8 bytes of each row.
_PACKED_BYTES = 2
#: SIMD units of a compute unit, each with the registers of its waves.
_UNITS = 4
#: Ratio by which the compiler can reduce registers without spilling much.
_REDUCED = 1.05
#: Waves of a unit from which one more hides little.
_MOST_WAVES = 4


def with_amd_options(
    proposals: tuple[TritonProposal, ...], facts: KernelFacts, target: Target
) -> tuple[TritonProposal, ...]:
    """Return the proposals, and on AMD those of ``_alternates`` of the first one after them."""
    if target.kind != "hip" or not proposals:
        return proposals
    return (*proposals, *_alternates(proposals[0], facts, target))


def _alternates(first: TritonProposal, facts: KernelFacts, target: Target) -> Iterator[TritonProposal]:
    """Yield proposals with neighbors on one die, small matrix instructions, wide accesses to operands, and room for one
    more wave on each unit.

    Programs that share a tensor which the cache of a die cannot keep read it less often if they run on one die. Small instructions hold operands and results of fewer rows (measurement ``amd_fragments``). An access for two steps
    along K reads 16 bytes of an operand in place of twice 8, with fewer registers (measurement ``amd_kpack``). Room for a
    wave is worth a few spilled registers where shared memory has room as well, since waves hide each other's waits.
    """
    if target.xcds > 1 and rereads_depend_on_groups(facts, target):
        yield _with(first, "xcd_remap", True, "neighbors on one die")
    sides = (
        first.block_sizes.get(axis, _LARGE)
        for fact in facts.matmuls
        for axis in (fact.m_block_id, fact.n_block_id)
        if axis is not None
    )
    if min(sides, default=_LARGE) >= _LARGE:
        yield _with(first, "matrix_instr_nonkdim", _SMALL, f"matrix instructions of {_SMALL} rows")
    if target.has("packed_k") and any(fact.lhs_dtype.itemsize == _PACKED_BYTES for fact in facts.matmuls):
        yield _with(first, "kpack", 2, "operands of two steps along K in one access")
    if len(facts.matmuls) > 1:  # registers of several matmuls are predicted too coarsely: attention spills 176 bytes
        return
    warps = first.num_warps or 1
    predicted = estimate(facts, target, first.block_sizes, warps, first.num_stages or 1, first.reduction_loops)
    file = target.registers_per_sm // (_UNITS * target.warp_size)
    waves = file // max(1, predicted.registers_per_thread) + 1
    blocks = waves * _UNITS // warps
    room = predicted.registers_per_thread * waves <= _REDUCED * file
    if room and waves <= _MOST_WAVES and blocks * predicted.shared_bytes <= target.smem_per_sm_bytes:
        yield _with(first, "waves_per_eu", waves, f"room for {waves} waves on each unit")


def _with(proposal: TritonProposal, key: str, value: object, reason: str) -> TritonProposal:
    return replace(proposal, launch={**proposal.launch, key: value}, reason=f"{proposal.reason}, {reason}")
