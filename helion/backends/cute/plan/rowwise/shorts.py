"""Values that short sequences of instructions compute, since nothing shows their error.

It is far below the rounding of outputs of 16 bits or fewer. In sums over a row of 16-bit elements an exponential of x has a
relative error of 2**-24 times x. A quotient as the argument of an exponential, or of a maximum, has two rounding errors
in place of one.
"""

from __future__ import annotations

import functools

from ..dtypes import itemsize
from .passes import HALF
from .records import RowProblem

POWERS = ("exp", "exp2")
EXTREMES = ("row_maximum", "row_minimum")


@functools.lru_cache(maxsize=256)
def short_values(problem: RowProblem) -> frozenset[int]:
    """Return the per-element values whose error no output shows, except by sums of 16-bit elements.

    Outputs of more than 16 bits show it, and so do codes of pairs of columns.
    """
    epilogue = problem.epilogue
    exact: set[int] = set()
    half = all(operand.dtype in HALF for operand in problem.inputs)
    left = [output.value for output in problem.outputs if itemsize(output.dtype) > 2 or output.kind == "pair"]
    while left:
        value = left.pop()
        if value not in exact:
            exact.add(value)
            made = epilogue.made(value)
            summed = made is not None and made.op == "row_sum" and half
            left += [x for x in made.arguments if isinstance(x, int)] if made and not summed else []
    made_here = range(len(epilogue.operands) + 1, epilogue.last + 1)
    return frozenset(value for value in made_here if value not in exact and not epilogue.per_row[value])


def short_quotients(problem: RowProblem) -> frozenset[int]:
    """Return the per-element quotients that only short values, exponentials and extremes depend on."""
    return frozenset(value for value in hidden_values(problem) if problem.epilogue.instruction(value).op == "div")


@functools.lru_cache(maxsize=256)
def hidden_values(problem: RowProblem) -> frozenset[int]:
    """Return the computed per-element values that only short values, exponentials and extremes depend on."""
    epilogue, short = problem.epilogue, short_values(problem)
    made_here = range(len(epilogue.operands) + 1, epilogue.last + 1)
    stored = {output.value for output in problem.outputs}
    readers: dict[int, list[int]] = {value: [] for value in range(epilogue.last + 1)}
    for reader in made_here:
        for value in epilogue.instruction(reader).arguments:
            if isinstance(value, int):
                readers[value].append(reader)

    def hides(reader: int) -> bool:
        op = epilogue.instruction(reader).op
        shifted = op == "sub" and reader not in stored and not epilogue.per_row[reader]
        powers = shifted and all(epilogue.instruction(each).op in POWERS for each in readers[reader])
        return reader in short or op in (*POWERS, *EXTREMES) or powers

    return frozenset(
        value
        for value in made_here
        if not epilogue.per_row[value]
        if value in short or (value not in stored and all(hides(each) for each in readers[value]))
    )
