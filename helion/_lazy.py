"""Modules that are imported when first used, so that ``import helion`` stays light.

The compiler is 150 ms of imports that a process pays with its first kernel, not before.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for a module of the package; its first attribute access imports it."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def lazy(name: str) -> Any:
    """The module ``name``, imported when first used."""
    return LazyModule(name)
