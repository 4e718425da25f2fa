"""Which matrix unit a dot runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from ..._shapes import next_power_of_2
from ...hardware import Target
from ..facts.records import KernelFacts, MatmulFact
from .layouts import fragment_warps

#: ``mma``: operands go through registers. ``wgmma``: one warp group (4 warps) reads them from shared memory. ``tcgen05``:
#: the same, and the accumulator is in tensor memory.
Unit = Literal["mma", "wgmma", "tcgen05"]

#: Rows that the asynchronous matrix units take at least.
ASYNC_ROWS = 64
#: Warps of a warp group, and the most that Triton lets share one tcgen05 product.
_GROUP_WARPS = 4
_TCGEN05_WARPS = 8
#: Columns of one accumulator of an asynchronous product; wider tiles are several.
_ASYNC_COLUMNS = 256
#: Rows of tensor memory, and bytes of one of its cells.
_LANES = 128
_CELL_BYTES = 4
#: Tensor memory is given out in powers of two of at least this many columns.
_MIN_COLUMNS = 32


def tile_shape(fact: MatmulFact, sizes: Mapping[int, int]) -> tuple[int, int, int]:
    """(M, N, K) of the product of one tile by one, in elements."""

    def size(axis: int | None, constant: int | None) -> int:
        return sizes[axis] if axis is not None else constant or 1

    return size(fact.m_axis, fact.static_m), size(fact.n_axis, fact.static_n), size(fact.k_axis, fact.static_k)


def unit_of(fact: MatmulFact, sizes: Mapping[int, int], num_warps: int, target: Target) -> Unit:
    """What Triton lowers the dot to (3.6 to 3.9; measured offline for sm_80, sm_90 and sm_100 with 3.7)."""
    rows = tile_shape(fact, sizes)[0]
    batched = any(sizes[axis] > 1 for axis in fact.batch_axes)
    exact = fact.lhs_dtype == torch.float64 or (fact.lhs_dtype == torch.float32 and fact.precision != "tf32")
    if rows < ASYNC_ROWS or num_warps < _GROUP_WARPS or batched or exact:
        return "mma"
    if target.has("wgmma"):
        # products of 8-bit operands must have both of them K-major; integers are turned, floats use the older unit
        narrow = fact.lhs_dtype.itemsize == 1 and fact.rhs_layout not in (None, "k_major")
        return "mma" if narrow and fact.lhs_dtype.is_floating_point else "wgmma"
    return "tcgen05" if target.has("tcgen05") and num_warps <= _TCGEN05_WARPS else "mma"


def is_turned(fact: MatmulFact, unit: Unit) -> bool:
    """Whether the right operand, of 8-bit integers, goes through registers to become K-major in shared memory."""
    integers = fact.lhs_dtype.itemsize == 1 and not fact.lhs_dtype.is_floating_point
    return unit == "wgmma" and integers and fact.rhs_layout not in (None, "k_major")


def is_waiting(fact: MatmulFact, unit: Unit) -> bool:
    """Whether each product is waited for before the next begins, so that one buffer fewer is in flight: on ``mma``, and
    on ``wgmma`` with 8-bit floats, whose partial sums are added up outside of the matrix unit."""
    floats = fact.lhs_dtype.itemsize == 1 and fact.lhs_dtype.is_floating_point
    return unit == "mma" or (unit == "wgmma" and floats)


def keeps_rows(fact: MatmulFact, facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> bool:
    """Whether on ``mma`` each warp has rows of its own in dot ``fact`` and in those that it consumes, so that their result
    need not pass through shared memory on the way."""
    m, n, k = tile_shape(fact, sizes)
    if target.kind == "cuda":
        return m >= n
    # AMD spreads the second product by itself, which comes to the same if there are as many rows as warps
    (rows, _), _ = fragment_warps((m, n), num_warps, target)
    (consumed_rows, _), _ = fragment_warps((m, k), num_warps, target)
    together = all(facts.matmuls[number].region == fact.region for number in fact.consumes)
    return target.kind == "hip" and together and rows == consumed_rows and m >= rows * num_warps


def tensor_memory_columns(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Columns of 128 x 4 bytes that the accumulators, and left operands that are computed, take per block.

    Tiles of 64 rows fill half of the lanes and are paired.
    """
    whole, halves = 0, []
    for fact in facts.matmuls:
        if unit_of(fact, sizes, num_warps, target) != "tcgen05":
            continue
        m, n, k = tile_shape(fact, sizes)
        if m < _LANES:
            halves += [min(n, _ASYNC_COLUMNS)] * -(-n // _ASYNC_COLUMNS)
        else:
            whole += m // _LANES * n
        if fact.lhs_prologue or fact.lhs_slot is None:
            whole += -(-m // _LANES) * k * fact.lhs_dtype.itemsize // _CELL_BYTES
    halves.sort(reverse=True)
    columns = whole + sum(halves[::2])
    return max(_MIN_COLUMNS, next_power_of_2(columns)) if columns else 0
