"""A table of bounded size, which evicts the least recently used entry: the variants of a kernel."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ... import knobs

_TICKS = itertools.count()


E = TypeVar("E")


@dataclass(eq=False)
class Held(Generic[E]):
    """An entry with ``used``, the tick of its last use; ``borrowed`` if it was compiled for another key."""

    entry: E
    used: int
    borrowed: bool = False

    def use(self) -> E:
        """Return the entry, and mark it as used now."""
        self.used = next(_TICKS)
        return self.entry


class Table(Generic[E]):
    """Variants by key; those of one key differ in numbers that their compilation depends on.

    ``held`` may run in any thread; ``add`` runs under the lock of the kernel. ``HELION_MAX_SPECIALIZATIONS`` is the
    maximum of entries.
    """

    def __init__(self) -> None:
        self._variants: dict[Hashable, tuple[Held[E], ...]] = {}
        self._count = 0

    def mend(self) -> None:
        """Count the entries again, after a thread that was adding one is gone."""
        self._count = sum(map(len, self._variants.values()))

    def __len__(self) -> int:
        return self._count

    def held(self, key: Hashable) -> tuple[Held[E], ...]:
        """Return the entries of one key, each of which ``use`` marks."""
        return self._variants.get(key, ())

    def of(self, key: Hashable) -> list[E]:
        """List all entries of one key."""
        return [held.entry for held in self._variants.get(key, ())]

    def add(
        self, key: Hashable, entry: E, in_use: Callable[[], Collection[object]], *, borrowed: bool = False
    ) -> list[E]:
        """Add an entry, and return the evicted ones: never the new one, and others before those ``in_use``."""
        newest = Held(entry, next(_TICKS), borrowed)
        self._variants[key] = (*self._variants.get(key, ()), newest)
        self._count += 1
        excess = self._count - max(1, knobs.MAX_SPECIALIZATIONS.read())
        return self._drop(excess, newest, in_use()) if excess > 0 else []

    def _drop(self, excess: int, newest: Held[E], in_use: Collection[object]) -> list[E]:
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
