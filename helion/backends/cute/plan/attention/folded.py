"""Formulas with one product for several constant factors.

    x1 = x0 * 0.125
    x2 = x1 / 30.0
    x3 = tanh(x2)
    x4 = x3 * 30.0            x4 = scaled_tanh(x0, 0.125 / 30.0, 30.0)

Only rounding differs: a score is rounded once instead of after each factor.
"""

from __future__ import annotations

from collections import Counter

from ....._support.records import replace
from ..epilogue import Constant, Instruction, constant
from .records import Formula

SCALED_TANH = "scaled_tanh"
"""The operation ``tanh(x * a) * b``, which only the printer of scores knows: both factors are parts of its constants."""
#: Magnitudes of factors that neither overflow nor lose bits in fp32.
_LEAST, _MOST = 2.0**-100, 2.0**100


def folded(formula: Formula) -> Formula:
    """Return the formula with constant factors in a row as one, and tanh with those before and after it.

    Values keep their numbers, so those that nothing reads any more are left for the printer to skip.
    """
    readers = Counter(each for made in formula.instructions for each in made.arguments if isinstance(each, int))
    readers[formula.value] += 1
    found: list[Instruction] = []
    for each in formula.instructions:
        value = next((argument for argument in each.arguments if isinstance(argument, int)), None)
        before = None
        if value is not None and value >= formula.computed and readers[value] == 1:
            before = found[value - formula.computed]
        found.append(_joined(each, before) or (_scaled(value) if each.op == "tanh" and value is not None else each))
    return replace(formula, instructions=tuple(found))


def needed(formula: Formula) -> list[int]:
    """Return the numbers of the computed values that a formula's result takes, in order."""
    return sorted(each for each in formula.read_by([formula.value]) if each >= formula.computed)


def _scaled(value: int) -> Instruction:
    return Instruction(SCALED_TANH, (value, constant(1.0), constant(1.0)))


def _joined(made: Instruction, before: Instruction | None) -> Instruction | None:
    """Return one instruction for two, of which the second alone reads the first; None if there is none."""
    factor, former = _factor(made), _factor(before) if before is not None else None
    if made.op == "tanh" and former is not None:
        return _bounded(Instruction(SCALED_TANH, (former[0], constant(former[1]), constant(1.0))))
    if factor is None or before is None:
        return None
    if former is not None:
        return _bounded(Instruction("mul", (former[0], constant(former[1] * factor[1]))))
    if before.op == SCALED_TANH:
        of, inner, outer = before.arguments
        assert isinstance(outer, Constant)
        return _bounded(Instruction(SCALED_TANH, (of, inner, constant(float(outer.text) * factor[1]))))
    return None


def _factor(made: Instruction) -> tuple[int, float] | None:
    """Return the value and the constant that it is multiplied by, of a product with a constant or a quotient by one."""
    if made.op not in ("mul", "div") or len(made.arguments) != 2:
        return None
    one, other = made.arguments
    if made.op == "mul" and isinstance(one, Constant):
        one, other = other, one
    if not (isinstance(one, int) and isinstance(other, Constant)) or not float(other.text):
        return None
    return one, 1 / float(other.text) if made.op == "div" else float(other.text)


def _bounded(made: Instruction) -> Instruction | None:
    """Return an instruction whose constants fp32 holds; else None."""
    factors = [abs(float(each.text)) for each in made.arguments if isinstance(each, Constant)]
    return made if all(_LEAST <= each <= _MOST for each in factors) else None
