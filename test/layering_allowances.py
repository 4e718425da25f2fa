"""What `test_layering` puts up with today. Entries may go and not come: one that is not needed any more fails too."""

from __future__ import annotations

#: Files that import each other, types included, in sets of more than three.
CIRCLES: tuple[frozenset[str], ...] = ()

#: Files outside of a backend's folder that mention it, by backend.
MENTIONS: dict[str, frozenset[str]] = {}

#: Imports, as "file: rule: what is imported".
IMPORTS = frozenset({})
