"""Integers of a kernel as polynomials, a canonical form for sizes of device values and bounds of slices and ``arange``.

A polynomial is a sum of products of *atoms*: block sizes, host numbers, scalars of the device, and quotients with a
remainder. A tile has a power of two of elements, so half of it is exact if it has at least two. Coefficients may
therefore be fractions, and ``needs`` has the block sizes that make them exact.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

from ..._shapes import Expr, Number, is_power_of_2, number_key
from ..._support.records import dataclass, field

#: The identity of an atom; one that begins with "block" is a block size.
Atom = tuple[Any, ...]
Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class Polynomial:
    """A sum of products of atoms.

    ``terms`` has the coefficients, none of them 0; ``numbers`` has the host numbers among its atoms. ``needs`` has the
    minimum size of each block, a power of two, for the value to be exact.
    """

    terms: Mapping[Monomial, Fraction]
    numbers: Mapping[Atom, Expr] = field(default_factory=dict)
    needs: Mapping[int, int] = field(default_factory=dict)

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, Fraction(0)) + coefficient
        return self._with(other, {m: c for m, c in terms.items() if c})

    def __neg__(self) -> Polynomial:
        return Polynomial({m: -c for m, c in self.terms.items()}, self.numbers, self.needs)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        terms: dict[Monomial, Fraction] = {}
        for first, a in self.terms.items():
            for second, b in other.terms.items():
                monomial = tuple(sorted((*first, *second), key=repr))
                terms[monomial] = terms.get(monomial, Fraction(0)) + a * b
        return self._with(other, {m: c for m, c in terms.items() if c})

    def __floordiv__(self, divisor: int) -> Polynomial:
        """Return the quotient: divisible terms are divided, the others become one atom."""
        even: dict[Monomial, Fraction] = {}
        rest: dict[Monomial, Fraction] = {}
        needs = dict(self.needs)
        for monomial, coefficient in self.terms.items():
            quotient = coefficient / divisor
            blocks = [atom[1] for atom in monomial if atom[0] == "block"]
            if quotient.denominator == 1:
                even[monomial] = quotient
            elif blocks and is_power_of_2(quotient.denominator):
                even[monomial] = quotient
                needs[blocks[-1]] = max(needs.get(blocks[-1], 1), quotient.denominator)
            elif not monomial:
                whole, rest[monomial] = divmod(coefficient, divisor)
                even |= {monomial: Fraction(whole)} if whole else {}
            else:
                rest[monomial] = coefficient
        rest = {m: c for m, c in rest.items() if c}
        result = Polynomial(even, self.numbers, needs)
        if not any(rest):  # a constant less than the divisor
            return result
        key = ("floordiv", tuple(sorted(rest.items(), key=repr)), divisor)
        return result + Polynomial({(key,): Fraction(1)})

    def _with(self, other: Polynomial, terms: Mapping[Monomial, Fraction]) -> Polynomial:
        needs = {b: max(self.needs.get(b, 1), other.needs.get(b, 1)) for b in {**self.needs, **other.needs}}
        return Polynomial(terms, {**self.numbers, **other.numbers}, needs)

    @property
    def constant(self) -> int | None:
        """The number, if the polynomial is constant."""
        if not self.terms:
            return 0
        value = self.terms.get(())
        return int(value) if value is not None and len(self.terms) == 1 and value.denominator == 1 else None

    @property
    def atoms(self) -> frozenset[Atom]:
        return frozenset(atom for monomial in self.terms for atom in monomial)

    def same(self, other: Polynomial) -> bool:
        return dict(self.terms) == dict(other.terms)

    def over(self, step: int) -> Polynomial | None:
        """Return the exact quotient, or None."""
        quotient = self // step
        return quotient if (quotient * constant(step)).same(self) else None

    def quotient(self, other: Polynomial) -> Polynomial | None:
        """Return the exact quotient of two products, or None."""
        if len(self.terms) != 1 or len(other.terms) != 1:
            return None
        ((left, a),), ((right, b),) = self.terms.items(), other.terms.items()
        rest = list(left)
        for each in right:
            if each not in rest:
                return None
            rest.remove(each)
        return self._with(other, {tuple(rest): a / b})

    def number(self) -> Number | None:
        """Return the polynomial as a host number; None if it has scalars of the device, or fractions."""
        terms: list[Number] = []
        for monomial, coefficient in self.terms.items():
            if coefficient.denominator != 1 or not all(atom in self.numbers for atom in monomial):
                return None
            terms.append(reduce(operator.mul, (self.numbers[atom] for atom in monomial), int(coefficient)))
        return reduce(operator.add, terms) if terms else 0


def constant(value: int) -> Polynomial:
    return Polynomial({(): Fraction(value)} if value else {})


def atom(key: Atom) -> Polynomial:
    """Return a scalar that is not computed from others."""
    return Polynomial({(key,): Fraction(1)})


def of_number(number: Number) -> Polynomial:
    """Return a host number or a block size as a polynomial."""
    if not isinstance(number, Expr):
        return constant(int(number))
    if number.op in ("add", "sub", "mul", "neg", "floordiv"):
        parts = [of_number(arg) for arg in number.args]
        combined = combine(number.op, parts)
        if combined is not None:
            return combined
    key = ("block", number.args[0]) if number.op == "block" else ("number", number_key(number))
    return Polynomial({(key,): Fraction(1)}, {key: number})


def combine(name: str, parts: list[Polynomial]) -> Polynomial | None:
    """Return the result of an operator on polynomials; None if it is no polynomial."""
    if name == "neg":
        return -parts[0]
    first, second = parts
    if name == "floordiv":
        divisor = second.constant
        return first // divisor if divisor is not None and divisor > 0 else None
    return {"add": first.__add__, "sub": first.__sub__, "mul": first.__mul__}[name](second)
