"""Fragments: the set of values one config field (or one slot of a list field) may take.

The same fragment validates a user's config, gives the default, and (in the autotuner) is sampled and mutated.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any


def _check_range(fragment: PowerOfTwoFragment | IntegerFragment) -> None:
    """Check that a range has values and includes its default, else raise ValueError.

    Bounds known only at run time pass.
    """
    bounds: tuple[object, ...] = (fragment.low, fragment.high)
    if not all(isinstance(bound, int) for bound in bounds):
        return
    low, high, default = fragment.low, fragment.high, fragment.default_val
    name = type(fragment).__name__
    if low > high:
        raise ValueError(f"{name}: low must not be above high, got {low} and {high}")
    if (why := fragment.why_not(low if default is None else default)) is not None:
        raise ValueError(f"{name}: {'low' if default is None else 'default_val'} {why}")


@dataclass(frozen=True)
class PowerOfTwoFragment:
    """Powers of two in ``[low, high]``. Raises ValueError where ``low`` or the default is none of them."""

    low: int
    high: int
    default_val: int | None = None

    def __post_init__(self) -> None:
        _check_range(self)

    def default(self) -> int:
        return self.low if self.default_val is None else self.default_val

    def why_not(self, value: object) -> str | None:
        """Return the reason why ``value`` is not in the set, or None."""
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be an integer, got {value!r}"
        if value < 1 or value & (value - 1):
            return f"must be a power of two, got {value}"
        if not self.low <= value <= self.high:
            return f"must be between {self.low} and {self.high}, got {value}"
        return None


@dataclass(frozen=True)
class IntegerFragment:
    """Integers in ``[low, high]``. Raises ValueError where there is none, or the default is not one of them."""

    low: int
    high: int
    default_val: int | None = None

    def __post_init__(self) -> None:
        _check_range(self)

    def default(self) -> int:
        return self.low if self.default_val is None else self.default_val

    def why_not(self, value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be an integer, got {value!r}"
        if not self.low <= value <= self.high:
            return f"must be between {self.low} and {self.high}, got {value}"
        return None


@dataclass(frozen=True)
class MultipleFragment:
    """Multiples of ``step`` in ``[low, high]``; the least is the default. Raises ValueError unless both ends are multiples."""

    step: int
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.step < 1 or self.low < 1 or self.low % self.step or self.high % self.step or self.high < self.low:
            raise ValueError(
                f"MultipleFragment: low and high must be multiples of the step, low not above high, got {self.step},"
                f" {self.low} and {self.high}"
            )

    def default(self) -> int:
        return self.low

    def why_not(self, value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be an integer, got {value!r}"
        if value < 1 or value % self.step:
            return f"must be a multiple of {self.step}, got {value}"
        if not self.low <= value <= self.high:
            return f"must be between {self.low} and {self.high}, got {value}"
        return None


@dataclass(frozen=True)
class EnumFragment:
    """One of the listed values; the first is the default. Raises ValueError where there is none."""

    choices: tuple[object, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))
        if not self.choices:
            raise ValueError("EnumFragment: choices must have at least one value")

    def default(self) -> object:
        return self.choices[0]

    def why_not(self, value: object) -> str | None:
        # `1 == True` in Python, but a flag is not a number here
        if any(value == choice and type(value) is type(choice) for choice in self.choices):
            return None
        return f"must be one of {', '.join(map(repr, self.choices))}, got {value!r}"


@dataclass(frozen=True)
class BooleanFragment:
    """True or False; False is the default."""

    def default(self) -> bool:
        return False

    def why_not(self, value: object) -> str | None:
        return None if isinstance(value, bool) else f"must be True or False, got {value!r}"


@dataclass(frozen=True)
class PermutationFragment:
    """Orderings of ``range(length)``; the identity is the default."""

    length: int

    def default(self) -> tuple[int, ...]:
        return tuple(range(self.length))

    def why_not(self, value: object) -> str | None:
        if isinstance(value, (list, tuple)) and sorted(value) == list(range(self.length)):
            return None
        return f"must be a permutation of {list(range(self.length))}, got {value!r}"


Fragment = (
    PowerOfTwoFragment | IntegerFragment | MultipleFragment | EnumFragment | BooleanFragment | PermutationFragment
)


@dataclass(frozen=True)
class ListOf:
    """A list of ``length`` values out of ``inner``."""

    inner: Fragment
    length: int

    def default(self) -> list[object]:
        return [self.inner.default()] * self.length

    def why_not(self, value: object) -> str | None:
        if not isinstance(value, (list, tuple)) or len(value) != self.length:
            return f"must be a list of {self.length} values, got {value!r}"
        return next((f"entry {i} {why}" for i, v in enumerate(value) if (why := self.inner.why_not(v))), None)


def values_of(fragment: Fragment) -> tuple[Any, ...]:
    """List every value, ordered by size if there is an order."""
    match fragment:
        case PowerOfTwoFragment(low, high):
            return tuple(1 << bit for bit in range(low.bit_length() - 1, high.bit_length()))
        case IntegerFragment(low, high):
            return tuple(range(low, high + 1))
        case MultipleFragment(step, low, high):
            return tuple(range(low, high + 1, step))
        case EnumFragment(choices):
            return choices
        case BooleanFragment():
            return (False, True)
        case PermutationFragment(length):
            return tuple(list(order) for order in itertools.permutations(range(length)))
