"""The sides that tiles of a product can have."""

from __future__ import annotations

from ...hardware import Target
from .limits import LEAST_COLUMNS, TCGEN05_ROWS
from .plan.build import MAX_SUM_REGISTERS
from .plan.dtypes import itemsize
from .plan.records import SWIZZLE_BYTES, WGMMA_ROWS, Choice, GemmProblem

MOST_COLUMNS = 256


def tile_bounds(problem: GemmProblem, target: Target) -> tuple[tuple[int, int], ...]:
    """The fewest and the most elements of a tile along M, N and K."""
    line = SWIZZLE_BYTES // itemsize(problem.operand_dtype)
    least = LEAST_COLUMNS if problem.b_major == "k" else max(LEAST_COLUMNS, line)
    products = 1 + len(problem.epilogue.of_kind("product"))
    most, depth = MOST_COLUMNS // products, 2 * line if products == 1 else line
    if target.has("tcgen05"):
        return (WGMMA_ROWS, 2 * TCGEN05_ROWS // products), (least, most), (line, depth)
    promotes = itemsize(problem.operand_dtype) == 1 and target.fp8_partial_sum > 0
    columns = min(most, MAX_SUM_REGISTERS // products) if promotes else most
    return (WGMMA_ROWS, 4 * WGMMA_ROWS // products), (least, columns), (line, depth)


def smallest(problem: GemmProblem, target: Target) -> Choice:
    """The choice that takes least; what has no plan with it has none."""
    tile = tuple(least for least, _ in tile_bounds(problem, target))
    return Choice(tile=(tile[0], tile[1], tile[2]), epilogue_n=LEAST_COLUMNS // 2, ab_stages=2)
