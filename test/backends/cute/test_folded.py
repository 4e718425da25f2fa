"""Formulas of scores with one product for several constant factors: values, and what stays as it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from helion.backends.cute.codegen.attention.formula import computed
from helion.backends.cute.plan.attention.folded import SCALED_TANH, folded, needed
from helion.backends.cute.plan.attention.records import Formula
from helion.backends.cute.plan.epilogue import Constant, Instruction, constant

MATH = SimpleNamespace(exp2=lambda x, fastmath: 2.0 ** min(x, 1000.0), abs=abs)
NAMES = {
    "cute": SimpleNamespace(math=MATH, arch=SimpleNamespace(rcp_approx=lambda x: 1 / x)),
    "cutlass": SimpleNamespace(Float32=float),
}


def made(op: str, *arguments: float | int) -> Instruction:
    """Return an instruction; whole numbers are values, others constants."""
    return Instruction(op, tuple(constant(each) if isinstance(each, float) else each for each in arguments))


def formula(*instructions: Instruction, value: int | None = None) -> Formula:
    return Formula(instructions=instructions, value=len(instructions) if value is None else value)


def value_of(of: Formula, x: float) -> float:
    """Return the value of the printed expressions for a score."""
    found = {"x0": x}
    for each in needed(of):
        text = computed(of, each, lambda value: f"x{value}", ("0", "0"))
        found[f"x{each}"] = eval(text, NAMES, found)
    return found[f"x{of.value}"]


def operations(of: Formula) -> Sequence[str]:
    return [of.instructions[each - of.computed].op for each in needed(of)]


CAPPED = formula(
    made("mul", 0, 0.125), made("div", 1, 30.0), made("tanh", 2), made("mul", 3, 30.0), made("mul", 4, 0.5)
)


@pytest.mark.parametrize(
    ("of", "left"),
    [
        (CAPPED, [SCALED_TANH]),
        (formula(made("mul", 0.125, 0), made("mul", 1, -2.0), made("add", 2, 1.0)), ["mul", "add"]),
        (formula(made("tanh", 0), made("div", 1, -4.0)), [SCALED_TANH]),
        (
            formula(made("mul", 0, 3.0), made("tanh", 1), made("add", 2, 1.0), made("mul", 3, 2.0)),
            [SCALED_TANH, "add", "mul"],
        ),
    ],
)
def test_constant_factors_become_one(of: Formula, left: Sequence[str]) -> None:
    found = folded(of)
    assert operations(found) == left
    for x in (-1e4, -50.0, -1.0, -1e-3, 0.0, 0.3, 7.0, 1e5):
        assert value_of(found, x) == pytest.approx(value_of(of, x), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "of",
    [
        formula(made("mul", 0, 0.125), made("mul", 1, 3.0), made("add", 1, 2)),
        formula(made("mul", 0, 0.125), made("add", 1, 1.0), made("mul", 2, 3.0)),
        formula(made("mul", 0, 1e30), made("mul", 1, 1e30)),
        formula(made("mul", 0, 0.0), made("mul", 1, 2.0)),
        formula(made("div", 0, 0.0), made("mul", 1, 2.0)),
        formula(made("mul", 0, math.inf), made("mul", 1, 2.0)),
        formula(made("mul", 0, 0), made("mul", 1, 2.0)),
        formula(made("div", 1.0, 0), made("mul", 1, 2.0)),
        formula(made("mul", 0, 2.0), made("round_bfloat16", 1), made("mul", 2, 2.0)),
    ],
    ids=[
        "read twice",
        "a sum between",
        "an overflow",
        "zero",
        "by zero",
        "infinity",
        "a square",
        "a reciprocal",
        "rounded",
    ],
)
def test_other_factors_stay(of: Formula) -> None:
    assert operations(folded(of)) == [each.op for each in of.instructions]


def test_the_result_of_a_factor_stays() -> None:
    of = formula(made("mul", 0, 2.0), made("mul", 1, 3.0), value=1)
    assert operations(folded(of)) == ["mul"] and value_of(folded(of), 5.0) == 10.0
    assert isinstance(folded(CAPPED).instructions[-1].arguments[-1], Constant)
