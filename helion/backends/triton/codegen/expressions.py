"""Expressions of Triton code under construction: text with the data needed to embed it in a larger one."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...._compiler.ir.pointwise import Scalar
from ...._support.records import dataclass

#: Precedence of operators, as in Python.
_BINDING = {
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 1),
    "|": 2,
    "^": 3,
    "&": 4,
    **dict.fromkeys(("<<", ">>"), 5),
    **dict.fromkeys(("+", "-"), 6),
    **dict.fromkeys(("*", "/", "//", "%"), 7),
}
_COMPARISON = _BINDING["=="]
#: Precedence of a sign, and of a number, which has no methods without parentheses.
_UNARY = 8
#: Precedence of names, calls, and bracketed expressions.
ATOM = 9

LIBDEVICE = "libdevice"
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression. ``binding`` is the precedence of the outermost operator.

    ``needs`` are names that the module must provide: ``libdevice``, or helper functions.
    """

    text: str
    binding: int = ATOM
    needs: frozenset[str] = _NOTHING


def number(value: Scalar) -> Expression:
    """Return a literal. Infinities and NaN are printed as ``float('inf')``."""
    if isinstance(value, float) and not math.isfinite(value):
        return Expression(f"float('{value}')")
    return Expression(repr(value), ATOM if isinstance(value, bool) else _UNARY)


def infix(left: Expression, symbol: str, right: Expression) -> Expression:
    """Return a binary operation, with operands in parentheses where Python needs them."""
    binding = _BINDING[symbol]
    # comparisons of comparisons would be chained
    first = left if left.binding > binding or left.binding == binding != _COMPARISON else in_parentheses(left)
    second = right if right.binding > binding else in_parentheses(right)
    return Expression(f"{first.text} {symbol} {second.text}", binding, _needs((left, right)))


def prefix(symbol: str, operand: Expression) -> Expression:
    inner = operand if operand.binding >= _UNARY else in_parentheses(operand)
    return Expression(f"{symbol}{inner.text}", _UNARY, operand.needs)


def call(
    function: str, *arguments: Expression, needs: frozenset[str] = _NOTHING, keywords: Iterable[str] = ()
) -> Expression:
    """Return a call. ``keywords`` are written as ``name=value``."""
    text = f"{function}({', '.join([*(a.text for a in arguments), *keywords])})"
    return Expression(text, ATOM, _needs(arguments) | needs)


def libdevice(function: str, *arguments: Expression) -> Expression:
    return call(f"{LIBDEVICE}.{function}", *arguments, needs=_LIBDEVICE_ALONE)


def helper(function: str, *arguments: Expression) -> Expression:
    """Return a call of a function that the module defines."""
    return call(function, *arguments, needs=frozenset((function,)))


def method(owner: Expression, text: str) -> Expression:
    """Return ``owner.text``, where ``text`` is a method call."""
    return Expression(f"{atom(owner).text}.{text}", ATOM, owner.needs)


def atom(expression: Expression) -> Expression:
    """Return the expression in parentheses, unless it is a name, a call or bracketed already."""
    return expression if expression.binding == ATOM else in_parentheses(expression)


def in_parentheses(expression: Expression) -> Expression:
    return Expression(f"({expression.text})", ATOM, expression.needs)


def _needs(parts: Iterable[Expression]) -> frozenset[str]:
    found = _NOTHING
    for part in parts:
        if part.needs:
            found |= part.needs
    return found


_LIBDEVICE_ALONE = frozenset((LIBDEVICE,))
