"""Vectors of the threads of elementwise kernels, and how many threads there are."""

from __future__ import annotations

import math

from ...._compiler.facts.records import KernelFacts, MemoryOpFact, PointwiseFact
from ...._shapes import cdiv
from ...._support.records import replace
from ....hardware import VECTOR_BYTES, Target
from ..proposal import TritonProposal
from .candidates import moderate_sizes
from .choose import trust, unless_faster
from .predicted_time import proposal_us


def whole_vectors(
    sizes: dict[int, int], threads: int, fact: PointwiseFact, facts: KernelFacts, programs: int
) -> dict[int, int]:
    """Return ``sizes``, or more rows of whole dimensions where a thread has less than a vector of the narrowest type.

    Wider elements, such as angles of a rotation, limit the tile, but not the width of the other accesses. Threads with
    a single element of a shorter whole dimension get a second one (measurement ``rotated_views``). A launch keeps at
    least so many ``programs``.
    """
    whole = [op for op in facts.memory_ops if any(a is not None and facts.axes[a].kind == "full" for a in op.tile_axes)]
    if fact.max_op_slab == 1 or not whole:
        return sizes
    vector = VECTOR_BYTES // min(op.itemsize for op in whole)
    axis = facts.tunable_axes[-1]
    elements = math.prod(sizes.values())
    highest = min(axis.padded or 2**30, axis.max_size or 2**30)
    enough = fact.total_numel / (elements * programs)
    shortest = min((_whole_lanes(op, facts) for op in whole if axis.block_id in op.tile_axes), default=0)

    def lacks(more: int) -> bool:
        """Return whether threads with so many times the rows have less than a vector, or one element of the shortest."""
        rows = elements * more
        return 2 * rows * fact.max_op_slab <= threads * vector or rows * shortest == threads

    more = 1
    while lacks(more) and 2 * more * sizes[axis.block_id] <= highest and (more == 1 or 2 * more <= enough):
        more *= 2
    return {**sizes, axis.block_id: more * sizes[axis.block_id]}


def _whole_lanes(op: MemoryOpFact, facts: KernelFacts) -> int:
    return math.prod(facts.axes[a].padded for a in op.tile_axes if a is not None and facts.axes[a].kind == "full")


def has_part_vectors(
    sizes: dict[int, int], threads: int, fact: PointwiseFact, facts: KernelFacts, target: Target
) -> bool:
    """Return whether half as many threads have whole vectors, or more of one, and load more at once.

    Of whole dimensions these are vectors of bytes (measurement ``whole_vectors``). Of tiles that many tensors make short,
    they are those of the narrowest one, where fewer threads still make more than a wave (measurement ``short_tiles``).
    """
    elements = math.prod(sizes.values())
    if fact.max_op_slab == 1:
        if not trust(target).short_tiles:
            return False
        most = target.num_sms * target.max_warps_per_sm * target.warp_size
        narrowest = elements * min(op.itemsize for op in facts.memory_ops)
        launched = cdiv(fact.total_numel, elements) * threads
        return _has_only_runs(fact, facts) and narrowest < threads * VECTOR_BYTES and launched > 2 * most
    own = {axis.block_id for axis in facts.tunable_axes}
    ops = [op for op in facts.memory_ops if own <= set(op.tile_axes) and not op.gathered]
    if not any(op.itemsize == 1 for op in ops):
        return False
    narrowest = min(elements * _whole_lanes(op, facts) * op.itemsize for op in ops)
    return 2 * narrowest == threads * VECTOR_BYTES


def _has_only_runs(fact: PointwiseFact, facts: KernelFacts) -> bool:
    """Return whether each tile is accessed in vectors along the same axis, and no rows of it share a load."""
    ops = [op for op in facts.memory_ops if op.tile_axes]
    full = all(2 * op.accessed_numel >= fact.total_numel and not begins_anywhere(op) for op in ops)
    runs = all(op.inner_axis in fact.contiguous_axes and op.step == 1 and not op.gathered for op in ops)
    return (
        facts.num_roots == 1
        and full
        and runs
        and len(fact.contiguous_axes) == 1
        and not fact.window_axes
        and not facts.random_tiles
    )


def begins_anywhere(op: MemoryOpFact) -> bool:
    """Return whether rows of an access are unaligned for vectors."""
    apart = [stride for stride, extent in zip(op.strides, op.extents, strict=True) if stride != 1 and extent > 1]
    return bool(apart) and math.gcd(*apart) * op.itemsize % VECTOR_BYTES != 0


def in_fewer_warps(found: tuple[TritonProposal, ...], facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...]:
    """Return the proposals after the first one in a half or a quarter of its warps, if that is predicted to be much faster.

    Where instructions take longer than memory, threads with more elements repeat less of them (measurement
    ``fewer_threads``). Where moderate tiles are faster still, they are left to the choice among seeds.
    """
    first, ratio = found[0], trust(target).fewer_threads
    warps = first.num_warps or 1
    if not ratio or warps == 1 or first.pid_type is not None:
        return found
    every = [replace(first, num_warps=warps // share) for share in (1, 2, 4) if share <= warps]
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    best = unless_faster(timed[0], timed[1:], ratio)
    moderate = TritonProposal(reason="moderate tiles", block_sizes=moderate_sizes(facts, {}))
    if best is timed[0][0] or proposal_us(facts, moderate, target) < proposal_us(facts, best, target):
        return found
    return replace(best, reason=f"{first.reason}; predicted to be faster in {best.num_warps}"), *found
