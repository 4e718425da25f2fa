"""Logarithms of elements that are computed from 16-bit inputs, by one lg2 instruction and a polynomial near 1.

::

    log(x)   →   lg2(x) * log(2), and where t = x - 1 is small: t - t**2/2 + t**3/3 - t**4/4 + t**5/5
    log1p(t)  →  the same of x = 1 + t

The instruction has an absolute error of 2**-22 where the logarithm is small (PTX ISA, ``lg2.approx``). So its relative error
has no bound near 1. With the polynomial it is below 2e-6 everywhere. Elements of 32 bits keep the exact logarithm,
whose instructions their loads hide.

Sums over a row have no polynomial: there a logarithm near 1 has an absolute error of 2**-22. That is 2**-13 of what the
rounding of a bf16 argument changes, and 2**-10 of a fp16 one.
"""

from __future__ import annotations

import functools

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
        read = {each for each in epilogue.elements_for([value]) if 0 < each <= len(epilogue.operands)}
        rows = [epilogue.operands[each - 1] for each in read]
        if all(each.dtype in HALF for each in rows if each.kind == "exact"):
            found.add(value)
    return frozenset(found)


@functools.lru_cache(maxsize=256)
def summed_logs(problem: RowProblem) -> frozenset[int]:
    """Return those of ``short_logs`` that outputs depend on by sums over a row alone, of rows of 16 bits."""
    epilogue = problem.epilogue
    if not all(operand.dtype in HALF for operand in problem.inputs):
        return frozenset()
    seen: set[int] = set()
    left = [output.value for output in problem.outputs]
    while left:
        value = left.pop()
        made = epilogue.made(value)
        if value not in seen and made is not None and made.op != "row_sum":
            left += [x for x in made.arguments if isinstance(x, int)]
        seen.add(value)
    logs = {value for value in short_logs(problem) if epilogue.instruction(value).op == "log"}
    return frozenset(logs - seen)
