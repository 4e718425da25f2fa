"""Maxima and minima of loaded 16-bit elements, of which one instruction compares two that are still packed in a word."""

from __future__ import annotations

import functools

from .passes import HALF, schedule_of
from .records import RowLayout, RowProblem

IDENTITIES = {
    ("row_maximum", "bfloat16"): 0xFF80FF80 - 2**32,
    ("row_minimum", "bfloat16"): 0x7F807F80,
    ("row_maximum", "float16"): 0xFC00FC00 - 2**32,
    ("row_minimum", "float16"): 0x7C007C00,
}
"""Two infinities in a word, as a signed integer, by reduction and type."""


@functools.lru_cache(maxsize=256)
def packed_extremes(problem: RowProblem, layout: RowLayout) -> tuple[int, ...]:
    """Return the extremes of the first pass whose elements stay packed. A pass in a loop has no place for them."""
    reductions = schedule_of(problem).reductions
    if layout.rolled or not reductions:
        return ()
    epilogue = problem.epilogue
    found = []
    for value in reductions[0]:
        x, made = epilogue.instruction(value).arguments[0], epilogue.instruction(value)
        loaded = isinstance(x, int) and 0 < x <= len(epilogue.operands) and epilogue.operands[x - 1].kind == "exact"
        if made.op in ("row_maximum", "row_minimum") and loaded and packed_dtype(problem, value) in HALF:
            found.append(value)
    return tuple(found)


def packed_dtype(problem: RowProblem, value: int) -> str:
    """Return the type of the loaded elements that a reduction is over."""
    x = problem.epilogue.instruction(value).arguments[0]
    assert isinstance(x, int)
    return problem.epilogue.operands[x - 1].dtype
