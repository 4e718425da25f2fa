"""The bound kernels of a kernel: a table with a bound, out of which the least recently used go."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from .. import knobs

_TICKS = itertools.count()


class Entry(Protocol):
    """One of several that were compiled for one key."""

    def has_numbers_of(self, values: tuple[Any, ...]) -> bool:
        """Whether the numbers that it depends on are in these arguments what they were, or near enough."""
        ...

    def is_current(self) -> bool:
        """Whether the globals that were compiled in still are what they were."""
        ...


E = TypeVar("E", bound=Entry)


@dataclass(eq=False)
class _Held(Generic[E]):
    """``used`` is when that was last, in ticks."""

    entry: E
    used: int


class BoundKernels(Generic[E]):
    """By key, the bound kernels that are told apart by the numbers their compilation turned out to depend on.

    ``find`` may run in any thread; ``add`` under the lock of the kernel. ``HELION_MAX_SPECIALIZATIONS`` is how many there
    are at most.
    """

    def __init__(self) -> None:
        self._variants: dict[Hashable, tuple[_Held[E], ...]] = {}
        self._count = 0

    def mend(self) -> None:
        """Count anew, after a thread that was adding one is gone."""
        self._count = sum(map(len, self._variants.values()))

    def __len__(self) -> int:
        return self._count

    def find(self, key: Hashable, values: tuple[Any, ...]) -> E | None:
        """The one for these arguments, which counts as used now."""
        for held in self._variants.get(key, ()):
            if held.entry.has_numbers_of(values) and held.entry.is_current():
                held.used = next(_TICKS)
                return held.entry
        return None

    def of(self, key: Hashable) -> list[E]:
        """All of one key."""
        return [held.entry for held in self._variants.get(key, ())]

    def add(self, key: Hashable, entry: E, in_use: Callable[[], Collection[object]]) -> list[E]:
        """Take one in, and give those that had to leave for it: never it, and others before those ``in_use``."""
        newest = _Held(entry, next(_TICKS))
        self._variants[key] = (*self._variants.get(key, ()), newest)
        self._count += 1
        excess = self._count - max(1, knobs.MAX_SPECIALIZATIONS.read())
        return self._drop(excess, newest, in_use()) if excess > 0 else []

    def _drop(self, excess: int, newest: _Held[E], in_use: Collection[object]) -> list[E]:
        held = [(h.entry in in_use, h.used, key, h) for key, variants in self._variants.items() for h in variants]
        held = sorted((each for each in held if each[3] is not newest), key=lambda each: each[:2])[:excess]
        for _, _, key, gone in held:
            left = tuple(h for h in self._variants[key] if h is not gone)
            if left:
                self._variants[key] = left
            else:
                del self._variants[key]
        self._count -= len(held)
        return [gone.entry for *_, gone in held]
