"""The user's modules, as generated code reaches their globals."""

from __future__ import annotations

import sys
from typing import Any

#: Namespaces of user functions by (module name, file): generated host code reads its globals from here.
_SOURCES: dict[tuple[str, str], dict[str, Any]] = {}


def register_source(name: str, file: str, namespace: dict[str, Any]) -> None:
    """Make the globals of a user's module reachable from generated code."""
    _SOURCES[(name, file)] = namespace


def source_module(name: str, file: str) -> Any:
    """The user's module, as generated code sees it: its globals as attributes, always their current values.

    Raises ImportError when the module is neither loaded nor registered (a saved module run on its own must import
    the user's module first).
    """
    namespace = _SOURCES.get((name, file))
    if namespace is not None:
        return _Namespace(namespace)
    module = sys.modules.get(name)
    if module is None:
        raise ImportError(f"module {name!r} ({file}) is not loaded; import it before this generated module")
    return module


class _Namespace:
    """A live view of a module's globals."""

    __slots__ = ("_names",)

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        try:
            return self._names[name]
        except KeyError:
            raise AttributeError(f"the kernel's module has no global {name!r}") from None
