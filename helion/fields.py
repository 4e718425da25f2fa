"""Fragments: the set of values one config field (or one slot of a list field) may take.

The same fragment validates a user's config, gives the default, and (in the autotuner) is sampled and mutated.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PowerOfTwoFragment:
    """Powers of two in ``[low, high]``."""

    low: int
    high: int
    default_val: int | None = None

    def default(self) -> int:
        return self.low if self.default_val is None else self.default_val

    def why_not(self, value: object) -> str | None:
        """A reason why ``value`` is not in the set, or None."""
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be an integer, got {value!r}"
        if value < 1 or value & (value - 1):
            return f"must be a power of two, got {value}"
        if not self.low <= value <= self.high:
            return f"must be between {self.low} and {self.high}, got {value}"
        return None


@dataclass(frozen=True)
class IntegerFragment:
    """Integers in ``[low, high]``."""

    low: int
    high: int
    default_val: int | None = None

    def default(self) -> int:
        return self.low if self.default_val is None else self.default_val

    def why_not(self, value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be an integer, got {value!r}"
        if not self.low <= value <= self.high:
            return f"must be between {self.low} and {self.high}, got {value}"
        return None


@dataclass(frozen=True)
class EnumFragment:
    """One of the listed values; the first is the default."""

    choices: tuple[object, ...]

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


Fragment = PowerOfTwoFragment | IntegerFragment | EnumFragment | BooleanFragment | PermutationFragment


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
