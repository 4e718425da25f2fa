"""The bound kernels of a kernel: a table with a bound, out of which the least recently used go."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable
from typing import TYPE_CHECKING, Any

from .. import knobs

if TYPE_CHECKING:
    from .bound import BoundKernel

_TICKS = itertools.count()


class BoundKernels:
    """By key, the bound kernels that are told apart by the numbers their compilation turned out to depend on.

    ``find`` may run in any thread; ``add`` under the lock of the kernel. ``HELION_MAX_SPECIALIZATIONS`` is how many there
    are at most.
    """

    def __init__(self) -> None:
        self._variants: dict[Hashable, tuple[BoundKernel, ...]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, key: Hashable, values: tuple[Any, ...]) -> BoundKernel | None:
        """The one for these arguments, which counts as used now."""
        for bound in self._variants.get(key, ()):
            if bound.has_numbers_of(values) and bound.is_current():
                bound._used = next(_TICKS)
                return bound
        return None

    def add(
        self, key: Hashable, bound: BoundKernel, in_use: Callable[[], Collection[BoundKernel]]
    ) -> list[BoundKernel]:
        """Take one in, and give those that had to leave for it: never it, and others before those ``in_use``."""
        bound._used = next(_TICKS)
        self._variants[key] = (*self._variants.get(key, ()), bound)
        self._count += 1
        excess = self._count - max(1, knobs.MAX_SPECIALIZATIONS.read())
        return self._drop(excess, bound, in_use()) if excess > 0 else []

    def _drop(self, excess: int, newest: BoundKernel, in_use: Collection[BoundKernel]) -> list[BoundKernel]:
        held = [(b in in_use, b._used, key, b) for key, variants in self._variants.items() for b in variants]
        held = sorted((each for each in held if each[3] is not newest), key=lambda each: each[:2])[:excess]
        for _, _, key, gone in held:
            left = tuple(b for b in self._variants[key] if b is not gone)
            if left:
                self._variants[key] = left
            else:
                del self._variants[key]
        self._count -= len(held)
        return [gone for *_, gone in held]
