"""Numbers of memory accesses, which config keys refer to."""

from __future__ import annotations

from ..journal import Part


class Slots(Part):
    def __init__(self) -> None:
        self._memory = 0
        self._loads = 0
        self._atomics = 0

    def memory(self) -> int:
        """Return the next number of a load or store."""
        self._memory += 1
        return self._memory - 1

    def load(self) -> int:
        """Return the next number of a load whose eviction policy is the config's."""
        self._loads += 1
        return self._loads - 1

    def atomic(self) -> int:
        """Return the next number of an atomic access."""
        self._atomics += 1
        return self._atomics - 1
