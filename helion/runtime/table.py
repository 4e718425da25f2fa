"""The bound kernels of a kernel: a table of bounded size, which evicts the least recently used."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from .. import knobs

_TICKS = itertools.count()


class Entry(Protocol):
    """An entry of the table: one of several that were compiled for one key."""

    def has_numbers_of(self, values: tuple[Any, ...]) -> bool:
        """Return whether the numbers that it depends on are the same in these arguments, or in the same bucket."""
        ...

    def is_current(self) -> bool:
        """Return whether the globals that were compiled in are unchanged."""
        ...

    def serves(self, values: tuple[Any, ...]) -> bool:
        """Return whether its code is right for the sizes and strides of these arguments."""
        ...


E = TypeVar("E", bound=Entry)


@dataclass(eq=False)
class _Held(Generic[E]):
    """An entry with ``used``, the tick of its last use; ``borrowed`` if it was compiled for another key."""

    entry: E
    used: int
    borrowed: bool = False


class BoundKernels(Generic[E]):
    """Bound kernels by key; those of one key differ in numbers that their compilation depends on.

    ``find`` may run in any thread; ``add`` runs under the lock of the kernel. ``HELION_MAX_SPECIALIZATIONS`` is the
    maximum of entries.
    """

    def __init__(self) -> None:
        self._variants: dict[Hashable, tuple[_Held[E], ...]] = {}
        self._count = 0

    def mend(self) -> None:
        """Count the entries again, after a thread that was adding one is gone."""
        self._count = sum(map(len, self._variants.values()))

    def __len__(self) -> int:
        return self._count

    def find(self, key: Hashable, values: tuple[Any, ...]) -> E | None:
        """Return the entry for these arguments, and mark it as used now."""
        for held in self._variants.get(key, ()):
            fits = held.entry.has_numbers_of(values) and held.entry.is_current()
            if fits and (not held.borrowed or held.entry.serves(values)):
                held.used = next(_TICKS)
                return held.entry
        return None

    def of(self, key: Hashable) -> list[E]:
        """List all entries of one key."""
        return [held.entry for held in self._variants.get(key, ())]

    def add(
        self, key: Hashable, entry: E, in_use: Callable[[], Collection[object]], *, borrowed: bool = False
    ) -> list[E]:
        """Add an entry, and return the evicted ones: never the new one, and others before those ``in_use``."""
        newest = _Held(entry, next(_TICKS), borrowed)
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
