"""Sizes and strides that are known at compile time, or only at launch."""

from __future__ import annotations

from typing import TypeGuard

from ...._shapes import Expr, Number, hint_of, number_key
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


def dividing(multiple: int, number: Number) -> frozenset[str] | None:
    """Return names of host numbers that have to be multiples so that ``number`` is one.

    Returns None if they are not all multiples for the bound arguments.
    """
    if not isinstance(number, Expr):
        return frozenset() if number % multiple == 0 else None
    if number.op == "host":
        return frozenset((number.args[0],)) if number.hint % multiple == 0 else None
    found = [dividing(multiple, arg) for arg in number.args] if number.op in ("mul", "add", "sub", "neg") else [None]
    known = [names for names in found if names is not None]
    if number.op == "mul":
        return known[0] if known else None
    return frozenset().union(*known) if len(known) == len(found) else None
