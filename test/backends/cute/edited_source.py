"""Kernels whose source differs from a given text in one place."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from helion._testing import import_path


def edited(text: str, old: str, new: str, path: Path) -> ModuleType:
    """Return the module of ``text`` with ``new`` for the only ``old``, written to ``path``."""
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))
    return import_path(path)
