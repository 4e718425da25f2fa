"""Modules that are imported on first use, so that ``import helion`` stays light, and actions after imports.

The compiler is 150 ms of imports that a process pays with its first kernel, not before.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from .locks import importing


class LazyModule(ModuleType):
    """A placeholder for a module of the package; its first attribute access imports it."""

    def __getattr__(self, name: str) -> Any:
        with importing():
            value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def lazy(name: str) -> Any:
    """Return the module ``name``, which is imported on first use."""
    return LazyModule(name)


class LazyTable(Mapping[Any, Any]):
    """A table that ``make`` builds on first use."""

    def __init__(self, make: Callable[[], Mapping[Any, Any]]) -> None:
        self._make = make

    @functools.cached_property
    def _table(self) -> Mapping[Any, Any]:
        return self._make()

    def __getitem__(self, key: Any) -> Any:
        return self._table[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Call ``action`` after the import of ``name``, or now if that has been imported."""
    if name in sys.modules:
        importlib.import_module(name)  # another thread may be at it
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(importlib.abc.MetaPathFinder):
    """Finder of one module, which asks the later finders once and wraps the loader so that it calls ``action``."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._action)
        return spec


class _Loader(importlib.abc.Loader):
    """A loader that calls ``action`` when the module has run; all else is that of ``loader``."""

    def __init__(self, loader: Any, action: Callable[[], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
