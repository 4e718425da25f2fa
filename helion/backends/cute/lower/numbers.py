"""Sizes and strides that are known when a kernel is compiled, or only when it is launched."""

from __future__ import annotations

from typing import TypeGuard

from ...._shapes import Expr, Number, hint_of, number_key
from ..plan.refusal import Refusal


def is_known(number: Number) -> TypeGuard[int]:
    return isinstance(number, int)


def known(number: object, what: str) -> int:
    """Raises ``Refusal`` for a number that only a launch knows."""
    if not isinstance(number, int):
        raise Refusal(f"{what} is known only at run time")
    return number


def equal(one: object, other: object) -> bool:
    """Whether two numbers are the same in every launch."""
    return bool(number_key(one) == number_key(other))


def size(number: object) -> Number:
    """The size of a dimension without what only bounds it. Raises ``Refusal`` for one that depends on data."""
    if isinstance(number, Expr) and number.op in ("sub", "max"):
        first, second = number.args if number.op == "sub" else number.args[::-1]
        if is_known(second) and second == 0:  # sizes are not below it
            return size(first)
    if isinstance(number, bool) or not isinstance(number, (int, Expr)):
        raise Refusal("an extent is known only at run time, and is no size of a tensor")
    return number


def example(number: Number, multiple: int = 1) -> int:
    """A number as it is, or one like those of launches: the next multiple of so much."""
    return number if is_known(number) else -(-int(hint_of(number)) // multiple) * multiple


def dividing(multiple: int, number: Number) -> frozenset[str] | None:
    """Names of the host's numbers which have to be multiples so that ``number`` is one; None where they are not all, for
    the arguments that it was bound for."""
    if not isinstance(number, Expr):
        return frozenset() if number % multiple == 0 else None
    if number.op == "host":
        return frozenset((number.args[0],)) if number.hint % multiple == 0 else None
    found = [dividing(multiple, arg) for arg in number.args] if number.op in ("mul", "add", "sub", "neg") else [None]
    known = [names for names in found if names is not None]
    if number.op == "mul":
        return known[0] if known else None
    return frozenset().union(*known) if len(known) == len(found) else None
