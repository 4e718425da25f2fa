"""Sizes and strides that are known at compile time, or only at launch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeGuard

from ...._compiler.ir.grammar import Program
from ...._shapes import Expr, Number, hint_of, number_key
from ..plan.epilogue import MAX_NUMBERED
from ..plan.refusal import Refusal


def is_known(number: Number) -> TypeGuard[int]:
    return isinstance(number, int)


def known(number: object, what: str) -> int:
    """Return a number that is known at compile time. Raises ``Refusal`` for others."""
    if not isinstance(number, int):
        raise Refusal(f"{what} is known only at run time")
    return number


def equal(one: object, other: object) -> bool:
    """Return whether two numbers are equal in every launch."""
    return bool(number_key(one) == number_key(other))


def factors(number: Number, fixed: Collection[str] = ()) -> tuple[int, list[Any]]:
    """Return a product as its known factor and the identities of others, in order; host numbers ``fixed`` are known."""
    if not isinstance(number, Expr):
        return int(number), []
    if number.op == "host" and number.args[0] in fixed:
        return int(number.hint), []
    if number.op != "mul":
        return 1, [number.key]
    (one, first), (other, second) = (factors(each, fixed) for each in number.args)
    return one * other, sorted((*first, *second), key=repr)


def size(number: object) -> Number:
    """Return the size of a dimension without redundant bounds. Raises ``Refusal`` for one that depends on data."""
    if isinstance(number, Expr) and number.op in ("sub", "max"):
        first, second = number.args if number.op == "sub" else number.args[::-1]
        if is_known(second) and second == 0:  # sizes are not negative
            return size(first)
    if isinstance(number, bool) or not isinstance(number, (int, Expr)):
        raise Refusal("an extent is known only at run time, and is no size of a tensor")
    return number


def example(number: Number, multiple: int = 1) -> int:
    """Return a known number as it is, or a typical one: the next multiple of ``multiple``."""
    return number if is_known(number) else -(-int(hint_of(number)) // multiple) * multiple


DIVISIBLE = ("mul", "add", "sub", "neg", "min", "max")
"""Operations of multiples whose result is a multiple."""


def dividing(multiple: int, number: Number) -> frozenset[str] | None:
    """Return names of host numbers that have to be multiples so that ``number`` is one.

    Returns None if they are not all multiples for the bound arguments.
    """
    if not isinstance(number, Expr):
        return frozenset() if number % multiple == 0 else None
    if number.op == "host":
        return frozenset((number.args[0],)) if number.hint % multiple == 0 else None
    found = [dividing(multiple, arg) for arg in number.args] if number.op in DIVISIBLE else [None]
    known = [names for names in found if names is not None]
    if number.op == "mul":
        return known[0] if known else None
    return frozenset().union(*known) if len(known) == len(found) else None


def linear(number: Number) -> tuple[dict[Any, int], int]:
    """Return the coefficients of other numbers, by their identity, and the constant of an integer."""
    if not isinstance(number, Expr):
        return {}, int(number)
    if number.op == "neg":
        terms, constant = linear(number.args[0])
        return {key: -factor for key, factor in terms.items()}, -constant
    if number.op in ("add", "sub"):
        (terms, constant), (others, second) = map(linear, number.args)
        sign = 1 if number.op == "add" else -1
        found = {key: terms.get(key, 0) + sign * others.get(key, 0) for key in (*terms, *others)}
        return {key: factor for key, factor in found.items() if factor}, constant + sign * second
    if number.op == "mul":
        (terms, constant), (others, second) = map(linear, number.args)
        if not terms:
            return {key: each * constant for key, each in others.items() if constant}, second * constant
        if not others:
            return {key: each * second for key, each in terms.items() if second}, constant * second
    return {number.key: 1}, 0


def at_most(one: Number, other: Number) -> bool:
    """Return whether an integer is at most another one in every launch, by a constant difference.

    The least of some numbers is at most each of them, and the greatest at least.
    """
    if isinstance(one, Expr) and one.op == "min" and any(at_most(each, other) for each in one.args):
        return True
    if isinstance(other, Expr) and other.op == "max" and any(at_most(one, each) for each in other.args):
        return True
    terms, difference = linear(other - one)
    return not terms and difference >= 0


def exact_in_fp32(program: Program, number: int | Expr, below: int = MAX_NUMBERED) -> dict[str, range]:
    """Return the integers ``below`` a limit that are exact in fp32, by the name of a number that is one of them now. Raises
    ``Refusal`` for others, and for numbers that the arguments do not have."""
    leaf, factor, constant = _of_one_number(number)
    if leaf is None or leaf.args[0] not in program.host.symbols:
        raise Refusal("comparisons of two integers, which fp32 may not hold, are not implemented")
    least, most = 1 - MAX_NUMBERED - constant, below - 1 - constant
    if factor < 0:
        least, most = -most, -least
    values = range(-(-least // abs(factor)), most // abs(factor) + 1)
    if leaf.hint not in values:
        raise Refusal(
            f"integers are compared with {number!r}, which is {hint_of(number)}; less than {below} is exact in fp32"
        )
    return {leaf.args[0]: values}


def _of_one_number(number: Number) -> tuple[Expr | None, int, int]:
    """Return the number of the launch, the factor and the constant that a number is the sum of; None for others."""
    terms, constant = linear(number)
    leaves = {leaf.key: leaf for leaf in number.leaves()} if isinstance(number, Expr) else {}
    if len(terms) != 1:
        return None, 0, constant
    ((key, factor),) = terms.items()
    leaf = leaves.get(key)
    return (leaf if leaf is not None and leaf.op == "host" else None), factor, constant
