"""The matrix unit that a dot runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from ...._compiler.facts.records import KernelFacts, MatmulFact
from ...._shapes import next_power_of_2
from ....hardware import GROUP_WARPS, Target
from .layouts import fragment_warps

#: ``mma``: operands go through registers. ``wgmma``: one warp group (4 warps) reads them from shared memory.
#: ``tcgen05``: the same, and the accumulator is in tensor memory.
Unit = Literal["mma", "wgmma", "tcgen05"]

#: Least rows and columns of the asynchronous matrix units.
ASYNC_ROWS, ASYNC_COLUMNS = 64, 16
_TCGEN05_WARPS = 8
#: Elements along K of one asynchronous instruction with 8-bit operands.
_ASYNC_DEPTH = 32
#: Most columns of one asynchronous instruction; wider tiles take several.
_ASYNC_COLUMNS = 256
#: Rows of tensor memory, and bytes of one of its cells.
_LANES = 128
_CELL_BYTES = 4
#: Tensor memory is allocated in powers of two of at least this many columns.
_MIN_COLUMNS = 32


def tile_shape(fact: MatmulFact, sizes: Mapping[int, int]) -> tuple[int, int, int]:
    """Return (M, N, K) of the matmul of one tile by one, in elements."""
    m, n, k = fact.m_axis, fact.n_axis, fact.k_axis
    return (
        sizes[m] if m is not None else fact.static_m or 1,
        sizes[n] if n is not None else fact.static_n or 1,
        sizes[k] if k is not None else fact.static_k or 1,
    )


def rate_name(fact: MatmulFact) -> str:
    """Return the name of the operands' dtype for ``Target.matrix_tflops_for``."""
    name = str(fact.lhs_dtype).removeprefix("torch.")
    return "tf32" if name == "float32" and fact.precision != "ieee" else name


def unit_of(fact: MatmulFact, sizes: Mapping[int, int], num_warps: int, target: Target) -> Unit:
    """Return the matrix unit that Triton lowers a dot fact to."""
    rows, columns, depth = tile_shape(fact, sizes)
    if _is_small(rows, columns, num_warps):
        return "mma"
    batched = bool(fact.batch_axes) and any([sizes[axis] > 1 for axis in fact.batch_axes])
    # a scaled dot without a unit of its own becomes a 16-bit one
    scaled = fact.lhs_format or fact.rhs_format
    dtypes = (torch.bfloat16, torch.bfloat16) if scaled else (fact.lhs_dtype, fact.rhs_dtype)
    return unit_for(
        rows=rows,
        columns=columns,
        depth=depth,
        batched=batched,
        dtypes=dtypes,
        k_major=is_k_major(fact),
        precision=fact.precision,
        warps=num_warps,
        target=target,
    )


def is_k_major(fact: MatmulFact) -> bool:
    """Return whether both operands, as far as they come from memory, are K-major."""
    return fact.lhs_layout in (None, "k_major") and fact.rhs_layout in (None, "k_major")


def is_swapped(fact: MatmulFact) -> bool:
    """Return whether A of a TF32 matmul is MN-major and goes through registers, so that only B must be K-major."""
    tf32 = fact.precision == "tf32" and fact.lhs_dtype == fact.rhs_dtype == torch.float32
    layouts = (fact.lhs_layout, fact.rhs_layout) == ("mn_major", "k_major")
    return tf32 and layouts and fact.lhs_prologue and not fact.rhs_prologue


def unit_for(
    *,
    rows: int,
    columns: int,
    depth: int,
    batched: bool,
    dtypes: tuple[torch.dtype, torch.dtype],
    k_major: bool,
    precision: str,
    warps: int,
    target: Target,
) -> Unit:
    """Return the matrix unit that Triton lowers a dot to (3.6 to 3.9; measured offline for sm_80, sm_90 and sm_100 with
    3.7).

    ``rows`` are those of the left operand, ``columns`` those of the right one, ``depth`` the elements along K; operands have ``dtypes`` and are K-major or
    not.

    8-bit float operands that are not K-major use the synchronous unit. wgmma takes none, so each would be transposed
    through registers first, which costs more than it gains. benchmarks/fp8.py times both layouts.
    """
    left = dtypes[0]
    exact = left == torch.float64 or (left == torch.float32 and precision != "tf32")
    if batched or exact or _is_small(rows, columns, warps):
        return "mma"
    if target.has("wgmma"):
        if left.itemsize > 1 or not are_float8(dtypes):
            return "wgmma"
        return "wgmma" if k_major and partial_sum(dtypes, depth, target) else "mma"
    whole_numbers = not all(dtype.is_floating_point for dtype in dtypes)
    return "tcgen05" if target.has("tcgen05") and warps <= _TCGEN05_WARPS and not whole_numbers else "mma"


def _is_small(rows: int, columns: int, warps: int) -> bool:
    """Return whether the asynchronous unit takes no matmul of so few rows, columns or warps."""
    return rows < ASYNC_ROWS or columns < ASYNC_COLUMNS or warps < GROUP_WARPS


def are_float8(dtypes: tuple[torch.dtype, torch.dtype]) -> bool:
    return all(dtype.itemsize == 1 and dtype.is_floating_point for dtype in dtypes)


def partial_sum(dtypes: tuple[torch.dtype, torch.dtype], depth: int, target: Target) -> int:
    """Return the elements along K that wgmma may accumulate by itself: as many as ``target`` allows, and at most those
    of a tile.

    Return 0 where each must be added in fp32, which the unit refuses for operands of 8-bit floats.
    """
    most = min(target.fp8_partial_sum, depth)
    return most if are_float8(dtypes) and most >= _ASYNC_DEPTH else 0


def is_transposed(fact: MatmulFact, unit: Unit) -> bool:
    """Return whether the 8-bit right operand goes through registers to become K-major in shared memory."""
    narrow = fact.lhs_dtype.itemsize == 1 and not fact.lhs_format
    return unit == "wgmma" and narrow and fact.rhs_layout not in (None, "k_major")


def is_promoted(fact: MatmulFact, unit: Unit, depth: int, target: Target) -> bool:
    """Return whether fp8 partials leave the matrix unit to be added to a second accumulator, in fp32.

    That happens where a result over ``depth`` elements of K is added to others, or exceeds the unit's own accumulation.
    """
    narrow = unit == "wgmma" and not fact.lhs_format and are_float8((fact.lhs_dtype, fact.rhs_dtype))
    return narrow and (fact.added or depth > target.fp8_partial_sum)


def is_waiting(unit: Unit) -> bool:
    """Return whether the loop waits for each matmul before the next begins, so that one buffer fewer is in flight."""
    return unit == "mma"


def keeps_rows(fact: MatmulFact, facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> bool:
    """Return whether on ``mma`` each warp has the same rows in dot ``fact`` and in those that it consumes.

    The intermediate result then bypasses shared memory.
    """
    m, n, k = tile_shape(fact, sizes)
    if target.kind == "cuda":
        return m >= n
    # AMD distributes the warps of the second dot by itself, with the same result if there are as many rows as warps
    (rows, _), _ = fragment_warps((m, n), num_warps, target)
    (consumed_rows, _), _ = fragment_warps((m, k), num_warps, target)
    together = all(facts.matmuls[number].region == fact.region for number in fact.consumes)
    return target.kind == "hip" and together and rows == consumed_rows and m >= rows * num_warps


def tensor_memory_columns(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Return the columns of 128 x 4 bytes per block for accumulators and computed left operands.

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
