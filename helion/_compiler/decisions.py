"""Decisions of a config for one program: made by ``ConfigSpace.decode``, and the only form that backends read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from .._support.records import dataclass, replace

#: Key of a list's entry: a block, a memory access by slot, a loop by number, or (loop, dimension).
Place = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """A full config, decoded.

    ``sizes`` are the elements of every block of the program as traced, ``chunked`` the whole dimensions that are loops
    over chunks. ``entries`` has the lists of the config, by key and by place; ``values`` its other keys. Loops are
    numbered in program order, a grid loop before those inside it. An entry of a grid loop belongs to the loop, one of a
    loop inside to one of its dimensions. ``given`` are the keys that the config named: others may be decided again.
    """

    sizes: Mapping[int, int]
    chunked: frozenset[int]
    entries: Mapping[str, Mapping[Place, Any]]
    values: Mapping[str, Any]
    given: frozenset[str] = frozenset()

    def at(self, key: str, place: Place, default: Any = None) -> Any:
        """Return the entry of one list for ``place``; ``default`` if the program has no such entry."""
        return self.entries.get(key, {}).get(place, default)

    def accesses(self, key: str) -> Mapping[int, Any]:
        """Return a list with entries for memory accesses."""
        return cast("Mapping[int, Any]", self.entries[key])

    def with_entries(self, key: str, changes: Mapping[Place, Any]) -> Decisions:
        """Return decisions with changed entries in one list; itself if nothing changes."""
        entries = self.entries.get(key, {})
        for place, value in changes.items():
            if entries[place] != value:
                return replace(self, entries={**self.entries, key: {**entries, **changes}})
        return self

    def with_values(self, **changes: Any) -> Decisions:
        """Return decisions with changed values of keys; itself if nothing changes."""
        for key, value in changes.items():
            if self.values[key] != value:
                return replace(self, values={**self.values, **changes})
        return self

    def with_sizes(self, changes: Mapping[int, int]) -> Decisions:
        """Return decisions with other sizes of tiles that are in the config; itself if nothing changes."""
        if all(self.sizes[block] == size for block, size in changes.items()):
            return self
        return replace(self, sizes={**self.sizes, **changes})
