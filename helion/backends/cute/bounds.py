"""The sides that tiles of a product can have."""

from __future__ import annotations

from ...hardware import Target
from .limits import LEAST_COLUMNS, TCGEN05_ROWS
from .plan.build import MAX_SUM_REGISTERS
from .plan.dtypes import itemsize
from .plan.records import SWIZZLE_BYTES, WGMMA_ROWS, GemmProblem

MOST_COLUMNS = 256


def tile_bounds(problem: GemmProblem, target: Target) -> tuple[tuple[int, int], ...]:
    """The fewest and the most elements of a tile along M, N and K."""
    line = SWIZZLE_BYTES // itemsize(problem.operand_dtype)
    least = LEAST_COLUMNS if problem.b_major == "k" else max(LEAST_COLUMNS, line)
    if target.has("tcgen05"):
        return (WGMMA_ROWS, 2 * TCGEN05_ROWS), (least, MOST_COLUMNS), (line, 2 * line)
    promotes = itemsize(problem.operand_dtype) == 1 and target.fp8_partial_sum > 0
    columns = MAX_SUM_REGISTERS if promotes else MOST_COLUMNS
    return (WGMMA_ROWS, 4 * WGMMA_ROWS), (least, columns), (line, 2 * line)
