"""What `test_layering` puts up with today. Entries may go and not come: one that is not needed any more fails too."""

from __future__ import annotations

#: Files that import each other, types included, in sets of more than three.
CIRCLES = (
    frozenset(
        {
            "runtime/bound.py",
            "runtime/checked.py",
            "runtime/dispatch.py",
            "runtime/explain.py",
            "runtime/failures.py",
            "runtime/inputs.py",
            "runtime/kernel.py",
            "runtime/measure.py",
            "runtime/observed.py",
            "runtime/ref_mode.py",
            "runtime/repro.py",
            "runtime/table.py",
        }
    ),
)

#: Files outside of a backend's folder that mention it, by backend.
MENTIONS: dict[str, frozenset[str]] = {}

#: Imports, as "file: rule: what is imported".
IMPORTS = frozenset({})
