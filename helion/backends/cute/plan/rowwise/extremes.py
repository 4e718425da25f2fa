"""Maxima and minima of a row: of loaded 16-bit elements, of which one instruction compares two that are still packed in a
word, and of products, from which they are subtracted."""

from __future__ import annotations

import functools

from ..epilogue import Epilogue
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


@functools.lru_cache(maxsize=1024)
def rounded_pair(problem: RowProblem, value: int) -> tuple[int, int] | None:
    """Return the operands of a difference of a product and what extremes of the row make; None for other values.

    The product is rounded first. Its extreme is as well, so that the largest element less the maximum is 0: an FMA gives up
    to half a unit of the product's last place.
    """
    epilogue, made = problem.epilogue, problem.epilogue.made(value)
    if made is None or made.op != "sub":
        return None
    x, y = made.arguments
    if not (isinstance(x, int) and isinstance(y, int)) or epilogue.per_row[value]:
        return None
    product, other = (x, y) if epilogue.per_row[y] else (y, x)
    of = epilogue.made(product)
    return (x, y) if of is not None and of.op in ("mul", "div") and _is_extreme(epilogue, other) else None


def _is_extreme(epilogue: Epilogue, value: int) -> bool:
    """Return whether a number of a row, or of a group, is an extreme, or computed from one."""
    made = epilogue.made(value)
    if made is None:
        return False
    if made.op.endswith(("_maximum", "_minimum")):
        return True
    return any(_is_extreme(epilogue, x) for x in made.arguments if isinstance(x, int) and epilogue.per_row[x])
