"""Exponentials of a loaded 16-bit element relative to a maximum, by one fused multiply-add and one exp2 instruction.

::

    exp(x - top)   →   exp2(fma(x, log2(e), -b)) * 2**-d,   with b = top * log2(e), rounded, and d = top * log2(e) - b

``d`` is the same for all elements of a row, so that its power is multiplied once per row. From 2**16 on, distinct 16-bit
numbers differ by at least 256, and the factor is 1: the power is 1 for the maximum, and 0 for others, as it is of e.
"""

from __future__ import annotations

import functools

from ..epilogue import Epilogue
from ..joint import OwnPart
from .passes import HALF, Schedule
from .records import RowProblem


@functools.lru_cache(maxsize=256)
def fused_powers(problem: RowProblem, schedule: Schedule) -> tuple[OwnPart, ...]:
    """Return the sums of exponentials of a row whose terms are fused."""
    epilogue = problem.epilogue
    return tuple(
        part
        for part in schedule.joint
        if part.kind == "powers" and (part.op, part.scale) == ("exp", 1.0)
        if _is_half(epilogue, minuend(problem, part))
    )


def minuend(problem: RowProblem, part: OwnPart) -> int:
    """Return the value that the maximum is subtracted from."""
    x, _ = problem.epilogue.instruction(part.difference).arguments
    assert isinstance(x, int)
    return x


@functools.lru_cache(maxsize=256)
def fused_quotients(problem: RowProblem, schedule: Schedule) -> dict[int, OwnPart]:
    """Return the quotients of a power by the sum of all powers that are stored in 16 bits, and read by nothing."""
    epilogue, found = problem.epilogue, {}
    for part in (each for each in fused_powers(problem, schedule) if each.about == each.of):
        for value in range(len(epilogue.operands) + 1, epilogue.last + 1):
            made = epilogue.instruction(value)
            if made.op == "div" and made.arguments == (part.term, part.value) and _is_stored_short(problem, value):
                found[value] = part
    return found


def _is_half(epilogue: Epilogue, value: int) -> bool:
    return 0 < value <= len(epilogue.operands) and epilogue.operands[value - 1].dtype in HALF


def _is_stored_short(problem: RowProblem, value: int) -> bool:
    read = any(value in made.arguments for made in problem.epilogue.instructions)
    stored = [output.dtype for output in problem.outputs if output.value == value]
    return bool(stored) and not read and all(dtype in HALF for dtype in stored)
