"""Logarithms of elements that are computed from 16-bit inputs, by one lg2 instruction and a polynomial near 1.

::

    log(x)   →   lg2(x) * log(2), and where t = x - 1 is small: t - t**2/2 + t**3/3 - t**4/4 + t**5/5
    log1p(t)  →  the same of x = 1 + t

The instruction has an absolute error of 2**-22 where the logarithm is small (PTX ISA, ``lg2.approx``). So its relative error
has no bound near 1. With the polynomial it is below 2e-6 everywhere. Elements of 32 bits keep the exact logarithm,
whose instructions their loads hide.
"""

from __future__ import annotations

import functools

from .passes import elements
from .powers import HALF
from .records import RowProblem


@functools.lru_cache(maxsize=256)
def short_logs(problem: RowProblem) -> frozenset[int]:
    """Return the logarithms of elements, all of whose rows of inputs are of 16 bits."""
    epilogue = problem.epilogue
    found = set()
    for value in range(len(epilogue.operands) + 1, epilogue.last + 1):
        if epilogue.instruction(value).op not in ("log", "log1p") or epilogue.per_row[value]:
            continue
        read = {each for each in elements(epilogue, [value]) if 0 < each <= len(epilogue.operands)}
        rows = [epilogue.operands[each - 1] for each in read]
        if all(each.dtype in HALF for each in rows if each.kind == "exact"):
            found.add(value)
    return frozenset(found)
