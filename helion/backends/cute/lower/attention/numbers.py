"""The integers of a program with attention: constants, and those that only launches know."""

from __future__ import annotations

from ....._shapes import LEAVES, Expr, Number, hint_of
from ...plan.attention.numbers import LaunchInt
from ...plan.dtypes import SIZE
from ..numbers import at_most, linear


class LaunchNumbers:
    """Launch-time integers by their host expressions. Expressions that are equal in every launch give one integer.

    The host numbers ``specialized`` are constants. So is what was computed from them before ``hl.specialize``.
    """

    def __init__(self, specialized: frozenset[str] = frozenset()) -> None:
        self._specialized = specialized
        self._known: dict[object, LaunchInt] = {}
        self.expressions: dict[str, Expr] = {}
        """Host expressions by name."""
        self.units: dict[int, None] = {}
        """Strides that have to be 1."""

    def of(self, number: Number, label: str, kind: str = SIZE) -> int:
        """Return a number as the plan has it. The first name of an expression is ``label``, made unique."""
        if isinstance(number, LaunchInt):
            return number
        number = self._resolved(number)
        if not isinstance(number, Expr):
            return int(number)
        terms, constant = linear(number)
        if not terms:
            return constant
        key = (kind, tuple(sorted(terms.items(), key=repr)), constant)
        if key not in self._known:
            name, at = label, 1
            while name in self.expressions:
                name, at = f"{label}_{at}", at + 1
            self.expressions[name] = number
            self._known[key] = LaunchInt(int(hint_of(number)), name, kind)
        return self._known[key]

    def number(self, number: int) -> Number:
        """Return the host expression of a number of the plan, or the constant."""
        return self.expressions[number.name] if isinstance(number, LaunchInt) else number

    def at_most(self, one: Number, other: Number) -> bool:
        """Return whether a number is at most another one in every launch, as far as that shows."""
        return at_most(self._expression(one), self._expression(other))

    def least(self, numbers: list[int], label: str) -> int:
        """Return the least of some numbers."""
        return self._extreme("min", numbers, label)

    def greatest(self, numbers: list[int], label: str) -> int:
        """Return the greatest of some numbers."""
        return self._extreme("max", numbers, label)

    def _extreme(self, op: str, numbers: list[int], label: str) -> int:
        best = numbers[0]
        for each in numbers[1:]:
            small, large = (best, each) if op == "min" else (each, best)
            if self.at_most(small, large):
                continue
            if self.at_most(large, small):
                best = each
                continue
            one, other = self.number(best), self.number(each)
            chosen = min if op == "min" else max
            best = self.of(Expr(op, (one, other), chosen(hint_of(one), hint_of(other))), label)
        return best

    def _expression(self, number: Number) -> Number:
        return self.number(number) if isinstance(number, LaunchInt) else self._resolved(number)

    def _resolved(self, number: Number) -> Number:
        """Return a number with constants in the place of specialized ones."""
        if not isinstance(number, Expr) or number.op in LEAVES:
            is_constant = isinstance(number, Expr) and number.op == "host" and number.args[0] in self._specialized
            return hint_of(number) if is_constant else number
        args = tuple(self._resolved(each) for each in number.args)
        return Expr(number.op, args, number.hint) if any(isinstance(each, Expr) for each in args) else number.hint
