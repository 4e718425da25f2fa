"""Quotients of an epilogue without branches.

An exact division of the DSL branches for each element, around which ptxas moves no instructions: the divisions of a thread
follow each other (measurement ``long_quotients``). The quotients here are products with reciprocals, which are the same for
all elements.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import TypeGuard

from ...plan.epilogue import Constant
from ...plan.reductions import Evaluated
from ...plan.rowwise.records import RowProblem
from ...plan.rowwise.shorts import EXTREMES, POWERS, short_values

LEAST_DIVISOR = 2.0**-60
"""Constants from it to its reciprocal are divisors whose reciprocals and remainders are normal numbers."""
NEAR_ONE = (2.0**-64, 2.0**64)
"""Other divisors are scaled, so that their reciprocals are normal numbers."""
INFINITY = 'cutlass.Float32(float("inf"))'
STEPS = frozenset(("floor", "ceil", "trunc", "round", "eq", "ne", "lt", "le", "gt", "ge", "row_first"))
"""Operations whose result can differ by a whole step if an argument differs by a rounding error."""


def has_inverse(number: int | Constant) -> TypeGuard[Constant]:
    """Return whether a number is a constant whose reciprocal is normal, and no power of two, by which the DSL multiplies."""
    if not isinstance(number, Constant):
        return False
    size = abs(float(number.text))
    return LEAST_DIVISOR < size < 1 / LEAST_DIVISOR and math.frexp(size)[0] != 0.5


#: Operations of row kernels whose own error, or choice among equals, is as large as that of a quotient within 2 units.
ABSORBING = frozenset((*POWERS, *EXTREMES, "row_sum", "row_first"))


@functools.lru_cache(maxsize=256)
def near_quotients(problem: RowProblem) -> frozenset[int]:
    """Return the quotients by other elements of a row of which outputs show no more than sums, powers and extremes of them.

    A position is that of an element equal to the extreme, and all passes compute an element in the same way. Comparisons
    and roundings could differ by a whole step.
    """
    epilogue, short = problem.epilogue, short_values(problem)
    first = len(epilogue.operands) + 1
    shown = {output.value for output in problem.outputs} - short
    for value in reversed(range(first, epilogue.last + 1)):
        made = epilogue.instruction(value)
        if (value in shown or made.op in STEPS) and made.op not in ABSORBING and value not in short:
            shown.update(each for each in made.arguments if isinstance(each, int))

    def divides(value: int) -> bool:
        made = epilogue.instruction(value)
        over = made.arguments[1] if made.op == "div" else None
        return isinstance(over, int) and over > 0 and not (epilogue.per_row[over] or epilogue.grouped[over])

    return frozenset(value for value in range(first, epilogue.last + 1) if value not in shown and divides(value))


@functools.lru_cache(maxsize=256)
def is_hidden(problem: Evaluated, value: int) -> bool:
    """Return whether outputs of 16 bits are all that show a value, and no step depends on it.

    Their rounding is 1000 times as coarse as a few rounding errors of fp32.
    """
    if any(output.dtype not in ("float16", "bfloat16") for output in problem.outputs):
        return False
    epilogue, reached = problem.epilogue, {value}
    for number, made in enumerate(epilogue.instructions, start=len(epilogue.operands) + 1):
        if reached.intersection(each for each in made.arguments if isinstance(each, int)):
            if made.op in STEPS:
                return False
            reached.add(number)
    return True


def quotient(problem: Evaluated, value: int, name: str, arguments: Sequence[str]) -> list[str]:
    """Return code that sets ``name`` to the quotient that ``value`` is of two texts; none for other operations.

    A remainder corrects the product with the reciprocal of a constant, unless the error is hidden. Products that are not
    finite stay as they are.
    """
    made = problem.epilogue.instruction(value)
    if made.op != "div":
        return []
    numerator, divisor = arguments
    over = made.arguments[1]
    hidden = is_hidden(problem, value)
    if has_inverse(over):
        (rounded,) = struct.unpack("f", struct.pack("f", float(over.text)))
        inverse = f"cutlass.Float32({1 / rounded!r})"
        if hidden:
            return [f"{name} = {numerator} * {inverse}"]
        return [
            f"dividend = {numerator}",
            f"{name} = dividend * {inverse}",
            f"nearer = cute.math.fma(cute.math.fma(-{name}, {divisor}, dividend), {inverse}, {name})",
            f"{name} = cutlass.Float32(cutlass.select_(cute.math.abs({name}) < {INFINITY}, nearer, {name}))",
        ]
    if isinstance(over, Constant) or not hidden:
        return []
    operands = problem.epilogue.operands
    if 0 < over <= len(operands) and operands[over - 1].kind == "number":
        return [
            f"divisor_scale = {scale_of(divisor)}",
            f"divisor_inverse = cutlass.Float32(1.0) / ({divisor} * divisor_scale)",
            f"{name} = {numerator} * divisor_scale * divisor_inverse",
        ]
    return [f"{name} = {near_quotient(numerator, divisor)}"]


def scale_of(divisor: str) -> str:
    """Return a power of two that scales a divisor, so that its reciprocal is no subnormal number."""
    small, large = (f"cutlass.Float32({1 / each!r})" for each in NEAR_ONE)
    least = f"cutlass.select_(cute.math.abs({divisor}) < {NEAR_ONE[0]}, {small}, cutlass.Float32(1.0))"
    return f"cutlass.Float32(cutlass.select_(cute.math.abs({divisor}) > {NEAR_ONE[1]}, {large}, {least}))"


def near_quotient(x: str, y: str) -> str:
    """Return a quotient within 2 units of fp32 (PTX ISA, ``div.full``), for divisors that differ by element."""
    numbers = f"cutlass.Float32({x}), cutlass.Float32({y})"
    text = '"div.full.f32 {$w0}, {$r0}, {$r1};"'
    return f"cute.arch.inline_ptx({text}, write_only_types=[cutlass.Float32], read_only_args=[{numbers}])"
