"""Rounds in which registers exchange operands of dots that no loop prefetches into shared memory."""

from __future__ import annotations

from collections.abc import Mapping

from ...._compiler.facts.records import KernelFacts, MatmulFact, StagedOperand
from ....hardware import REGISTER_BYTES, Target
from .layouts import fragment_warps, moved_at_once, rounds, rows_held
from .matrix import tile_shape
from .tiles import VECTOR_BYTES, vector_elements

#: Lanes along K of the fragment of an operand of ``mma``.
_LANES_ALONG_K = 4


def product_layout(
    fact: MatmulFact, facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target
) -> tuple[object, ...]:
    """Return the key of the layout of a left operand in AMD's threads.

    It depends on the warps along M and N, on chaining, and on the width of the elements.
    """
    consumed = any(fact.number in other.consumes for other in facts.matmuls)
    m, n, _ = tile_shape(fact, sizes)
    return fragment_warps((m, n), num_warps, target), bool(fact.consumes), consumed, fact.lhs_dtype.itemsize


def rounds_in_place(
    operand: StagedOperand, fact: MatmulFact, sizes: Mapping[int, int], num_warps: int, target: Target
) -> int:
    """Return the rounds in which a right operand reaches AMD's threads, which read rows along K, from a descriptor."""
    m, n, _ = tile_shape(fact, sizes)
    of_warp, (_, across) = fragment_warps((m, n), num_warps, target)
    row, column = operand.axes[-2:]
    vector = VECTOR_BYTES // operand.itemsize
    taken = {row: (n - 1) & ~(of_warp[1] * across - 1), column: vector - 1}
    held = rows_held(operand.axes, sizes, vector, num_warps * target.warp_size)
    return rounds(held, taken, operand.itemsize)


def rounds_transposed(
    operand: StagedOperand,
    fact: MatmulFact,
    facts: KernelFacts,
    sizes: Mapping[int, int],
    num_warps: int,
    target: Target,
) -> int:
    """Return the rounds in which loaded rows become fragments of their transpose.

    Four lanes along K have neighbours of 4 bytes each, eight lanes are along N.
    """
    m, n, _ = tile_shape(fact, sizes)
    of_warp, (_, across) = fragment_warps((m, n), num_warps, target)
    # by position, because sides of one length are one axis
    own = dict(enumerate(sizes[axis] for axis in operand.axes))
    *_, row, column = own
    together = max(1, REGISTER_BYTES // operand.itemsize)
    lanes = _LANES_ALONG_K * together - together
    taken = {
        row: (own[row] - 1) & ~(of_warp[1] * across - 1),
        column: (own[column] - 1) & ~lanes,
    }
    op = next(op for op in facts.memory_ops if op.slot == operand.slot)
    threads = num_warps * target.warp_size
    vector = vector_elements(op, sizes, threads)
    held = rows_held(tuple(own), own, vector, threads)
    moved = moved_at_once(vector * operand.itemsize, together * operand.itemsize, target)
    return rounds(held, taken, operand.itemsize, moved)
