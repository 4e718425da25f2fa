"""What a config means for one program: ``ConfigSpace.decode`` makes it, and whoever compiles reads nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

#: What an entry of a list is about: a block, a memory access by slot, a loop by number, or (loop, dimension).
Place = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """A full config by what it decides.

    ``sizes`` are the elements of every block of the program as traced, ``chunked`` the whole dimensions walked in chunks.
    ``entries`` has the lists of the config, by key and by what each entry is about; ``values`` its other keys. Loops are
    numbered in program order, a grid loop before those inside it; an entry of a grid loop is about the loop, one of a
    loop inside about one of its dimensions. ``given`` are the keys that the config named: others may be decided anew.
    """

    sizes: Mapping[int, int]
    chunked: frozenset[int]
    entries: Mapping[str, Mapping[Place, Any]]
    values: Mapping[str, Any]
    given: frozenset[str] = frozenset()

    def at(self, key: str, place: Place, default: Any = None) -> Any:
        """The entry of one list about ``place``; ``default`` where the program has no such entry."""
        return self.entries.get(key, {}).get(place, default)

    def accesses(self, key: str) -> Mapping[int, Any]:
        """A list with entries about memory accesses."""
        return cast("Mapping[int, Any]", self.entries[key])

    def having(self, key: str, changes: Mapping[Place, Any]) -> Decisions:
        """With other entries in one list; itself where they are what they were."""
        entries = self.entries.get(key, {})
        if all(entries[place] == value for place, value in changes.items()):
            return self
        return replace(self, entries={**self.entries, key: {**entries, **changes}})

    def valued(self, **changes: Any) -> Decisions:
        """With other values of keys; itself where they are what they were."""
        if all(self.values[key] == value for key, value in changes.items()):
            return self
        return replace(self, values={**self.values, **changes})
