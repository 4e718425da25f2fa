"""Reductions as Triton expressions, with the helpers that give torch's treatment of nan."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..expressions import Expression, call, helper, in_parentheses, infix, method
from ..expressions import number as number_text
from .literals import ROUND_TO_BF16, TRITON_DTYPES

#: ``tl.max`` drops nan; torch propagates it.
HELPERS: Mapping[str, str] = {
    "_max_nan": """\
@triton.jit
def _max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_min_nan": """\
@triton.jit
def _min_nan(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_prod": """\
@triton.jit
def _prod(a, b):
    return a * b
""",
}


def render(name: str, operand: Expression, axis: int | None, dtype: torch.dtype) -> Expression:
    """Return one reduction over one axis, or over all of them.

    The result of ``tl.sum`` and its like may be wider than ``dtype``.
    """
    if name == "prod":
        return _by_helper("_prod", operand, axis)
    if name in ("max", "min") and dtype.is_floating_point:
        return _by_helper(f"_{name}_nan", operand, axis)
    if name in ("sum", "max", "min"):
        return call(f"tl.{name}", operand, _axis(axis))
    raise KeyError(name)


def render_rounded(name: str, reduced: Expression, *, kept: bool) -> Expression:
    """Return the result of :func:`render` for bf16 operands in fp32, rounded to the value that it has in bf16."""
    rounded = reduced if name in ("max", "min") else helper(ROUND_TO_BF16, reduced)
    return infix(rounded, "+", number_text(0.0)) if kept else rounded


def render_arg(value: str, extremum: str, index: str, axis: int, lanes: int, dtype: torch.dtype) -> Expression:
    """Return the first index of an extremum over one axis, or of the first nan.

    ``extremum`` has the axis with one lane, and ``index`` is an integer expression of the value's shape. Pairs of value and
    index would take twice the instructions (measurement ``first_indices``).
    """
    found = f"({value} == {extremum})"
    if dtype.is_floating_point:
        found = f"({found} | ({value} != {value}))"
    return Expression(f"tl.min(tl.where({found}, {index}, {lanes}), {axis})")


def _by_helper(name: str, operand: Expression, axis: int | None) -> Expression:
    return call("tl.reduce", operand, _axis(axis), Expression(name), needs=frozenset((name,)))


def _axis(axis: int | None) -> Expression:
    return Expression("None") if axis is None else number_text(axis)


def cast(operand: Expression, dtype: torch.dtype) -> Expression:
    return method(in_parentheses(operand), f"to({TRITON_DTYPES[dtype]})")
