"""Exponentials of a loaded 16-bit element relative to a maximum, by one fused multiply-add and one exp2 instruction.

::

    exp(x - top)   →   exp2(fma(x, log2(e), -b)) * 2**-d,   with b = top * log2(e), rounded, and d = top * log2(e) - b

``d`` is the same for all elements of a row, so that its power is multiplied once per row. From 2**16 on, distinct 16-bit
numbers differ by at least 256, and the factor is 1: the power is 1 for the maximum, and 0 for others, as it is of e.

An element may be scaled before, by a constant or a number of the launch. Then its factor is part of log2(e), and top is
the element of the maximum: the product with the inverse of the factor, rounded to 16 bits. So b has no rounding of the
scaled element. From 2**24 on, scaled elements differ by much, and the factor is a power of two, with which b is exact.
"""

from __future__ import annotations

import functools

from ....._support.records import dataclass
from ..epilogue import Constant, Epilogue
from ..joint import OwnPart
from .passes import HALF, Schedule
from .records import RowProblem
from .shorts import hidden_values, short_values


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A loaded 16-bit element, by its value, that ``op`` (``mul`` or ``div``) scales by a number; as it is without an op."""

    element: int
    op: str = ""
    by: int | Constant = 0


@functools.lru_cache(maxsize=256)
def fused_powers(problem: RowProblem, schedule: Schedule) -> tuple[OwnPart, ...]:
    """Return the sums of exponentials of a row whose terms are fused."""
    return tuple(
        part
        for part in schedule.joint
        if part.kind == "powers" and (part.op, part.scale) == ("exp", 1.0)
        if scaled_element(problem, part) is not None
    )


def scaled_element(problem: RowProblem, part: OwnPart) -> Scaled | None:
    """Return the element whose multiple the maximum is subtracted from; None for other values."""
    x, _ = problem.epilogue.instruction(part.difference).arguments
    assert isinstance(x, int)
    return _scaled(problem, x)


@functools.lru_cache(maxsize=256)
def _scaled(problem: RowProblem, value: int) -> Scaled | None:
    epilogue = problem.epilogue
    if _is_half(epilogue, value):
        return Scaled(element=value)
    made = epilogue.made(value)
    if made is None or made.op not in ("mul", "div") or value not in hidden_values(problem):
        return None
    x, by = made.arguments
    if made.op == "mul" and not (isinstance(x, int) and _is_half(epilogue, x)):
        x, by = by, x
    of_launch = isinstance(by, int) and 0 < by <= len(epilogue.operands) and epilogue.operands[by - 1].kind == "number"
    known = isinstance(by, Constant) and made.op == "mul" and 0 < abs(float(by.text)) < float("inf")
    if not (isinstance(x, int) and _is_half(epilogue, x)) or not (of_launch or known):
        return None
    return Scaled(element=x, op=made.op, by=by)


@functools.lru_cache(maxsize=256)
def fused_quotients(problem: RowProblem, schedule: Schedule) -> dict[int, OwnPart]:
    """Return the quotients of a power by the sum of all powers that are stored in 16 bits, and read by nothing.

    A power relative to the logarithm of that sum is such a quotient as well, if no output of more bits shows it.
    """
    epilogue, found = problem.epilogue, {}
    for part in fused_powers(problem, schedule):
        for value in range(len(epilogue.operands) + 1, epilogue.last + 1):
            made = epilogue.instruction(value)
            quotient = part.about == part.of and made.op == "div" and made.arguments == (part.term, part.value)
            if quotient and _is_stored_short(problem, value):
                found[value] = part
            if made.op == "exp" and value in short_values(problem) and _is_share(epilogue, made.arguments[0], part):
                found[value] = part
    return found


def _is_share(epilogue: Epilogue, difference: int | Constant, part: OwnPart) -> bool:
    """Return whether a value is an element minus the sum of a number and the logarithm of the powers relative to it."""
    made = epilogue.made(difference) if isinstance(difference, int) else None
    if made is None or made.op != "sub" or made.arguments[0] != epilogue.instruction(part.difference).arguments[0]:
        return False
    total = epilogue.made(about) if isinstance(about := made.arguments[1], int) else None
    if total is None or total.op != "add" or part.about not in total.arguments:
        return False
    (log,) = [x for x in total.arguments if x != part.about] or [part.about]
    logarithm = epilogue.made(log) if isinstance(log, int) else None
    return logarithm is not None and (logarithm.op, logarithm.arguments) == ("log", (part.value,))


def _is_half(epilogue: Epilogue, value: int) -> bool:
    return 0 < value <= len(epilogue.operands) and epilogue.operands[value - 1].dtype in HALF


def _is_stored_short(problem: RowProblem, value: int) -> bool:
    read = any(value in made.arguments for made in problem.epilogue.instructions)
    stored = [output.dtype for output in problem.outputs if output.value == value]
    return bool(stored) and not read and all(dtype in HALF for dtype in stored)
