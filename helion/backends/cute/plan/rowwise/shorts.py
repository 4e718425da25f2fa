"""Values that only reach outputs of 16 bits or fewer, whose rounding is far larger than the error of a short sequence."""

from __future__ import annotations

import functools

from ..dtypes import itemsize
from .records import RowProblem


@functools.lru_cache(maxsize=256)
def short_values(problem: RowProblem) -> frozenset[int]:
    """Return the per-element values that no output of more than 16 bits depends on."""
    epilogue = problem.epilogue
    exact: set[int] = set()
    left = [output.value for output in problem.outputs if itemsize(output.dtype) > 2]
    while left:
        value = left.pop()
        if value not in exact:
            exact.add(value)
            made = epilogue.made(value)
            left += [x for x in made.arguments if isinstance(x, int)] if made else []
    made_here = range(len(epilogue.operands) + 1, epilogue.last + 1)
    return frozenset(value for value in made_here if value not in exact and not epilogue.per_row[value])
