"""Ranges of keys by the number of a part, whose size is known only at launch or is loaded for each sequence.

Part p of ``parts`` goes from ``p * step`` to ``min(p * step + step, keys)``, where ``step`` is ``keys / parts``, rounded up. All
parts together are the keys from 0 on. The last ones may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....._compiler.ir.grammar import NumberAttrs, Op, Operand, PointwiseAttrs, TileAttrs, Value
from ....._shapes import Expr

Term = Any
"""An integer as nested tuples, in which sums and products have their operands in one order."""
PART: Term = ("part",)
_NAMES = {"minimum": "min", "maximum": "max"}


class Terms:
    """Integers of a program as terms. ``makers`` are the ops of values by number, and ``part`` is the block of the parts."""

    def __init__(self, makers: Mapping[int, Op], part: int) -> None:
        self._makers, self._part = makers, part

    def of(self, value: Operand | Expr) -> Term:
        """Return the term of an integer; a value that nothing is known of is its own number."""
        if isinstance(value, Expr):
            return self._of_expr(value)
        if not isinstance(value, Value):
            return value
        made = self._makers.get(value.number)
        if made is None:
            return ("value", value.number)
        if isinstance(made.attrs, NumberAttrs):
            return self.of(made.attrs.expr)
        if isinstance(made.attrs, TileAttrs) and made.attrs.block == self._part:
            return PART if made.attrs.field in ("begin", "index", "id") else ("value", value.number)
        if made.kind == "full":
            return self.of(made.operands[0])
        if not isinstance(made.attrs, PointwiseAttrs) or value.dtype.is_floating_point:
            return ("value", value.number)
        if made.attrs.name == "cast":
            return self.of(made.operands[0])
        return _term(made.attrs.name, [self.of(each) for each in made.operands])

    def _of_expr(self, number: Expr) -> Term:
        if number.op in ("host", "block", "tunable"):
            return number.key
        terms = [self.of(each) for each in number.args]
        if number.op == "max" and 0 in terms:  # sizes are not negative
            return next(each for each in terms if each != 0)
        return _term(number.op, terms)


def _term(name: str, terms: list[Term]) -> Term:
    name = _NAMES.get(name, name)
    if name == "sub" and isinstance(terms[1], int):
        name, terms = "add", [terms[0], -terms[1]]
    if name == "add":
        return _sum(terms)
    return (name, *(sorted(terms, key=repr) if name in ("mul", "min", "max") else terms))


def _sum(terms: list[Term]) -> Term:
    """Return a sum without nested ones: its terms, then the number that is added."""
    number, flat = 0, list[Term]()
    for each in terms:
        if isinstance(each, int):
            number += each
        elif each[0] == "sum":
            flat += each[1]
            number += each[2]
        else:
            flat.append(each)
    return ("sum", tuple(sorted(flat, key=repr)), number) if flat else number


def all_keys(terms: Terms, begin: Operand | Expr, end: Operand | Expr, parts: int) -> Term:
    """Return the term of the keys whose ``parts`` have these bounds, or None for other bounds."""
    bound = terms.of(end)
    if not isinstance(bound, tuple) or bound[0] != "min" or len(bound) != 3:
        return None
    for keys in bound[1:]:
        for step in (
            ("floordiv", _sum([keys, parts - 1]), parts),
            ("neg", ("floordiv", ("neg", keys), parts)),
        ):
            at = _term("mul", [PART, step])
            ends = (_sum([at, step]), _term("mul", [_sum([PART, 1]), step]))
            begins = (at, _term("min", [at, keys]))
            if terms.of(begin) in begins and bound in [_term("min", [each, keys]) for each in ends]:
                return keys
    return None
