"""The user's modules, as generated code reaches their globals."""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any

from .result_guards import mismatch

#: Namespaces of user functions by (module name, file): generated host code reads its globals from here.
_SOURCES: dict[tuple[str, str], dict[str, Any]] = {}


def register_source(name: str, file: str, namespace: dict[str, Any]) -> None:
    """Make the globals of a user's module reachable from generated code."""
    _SOURCES[(name, file)] = namespace


def source_module(name: str, file: str) -> Any:
    """Return the user's module, as generated code sees it: its globals as attributes, always their current values.

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


#: Kernels by module, file and name; None where the file has several of the name.
_KERNELS: dict[tuple[str, str, str], weakref.ref[Any] | None] = {}


def register_kernel(fn: types.FunctionType, kernel: Any) -> None:
    """Make a kernel reachable from its generated code."""
    key = (fn.__module__, fn.__code__.co_filename, fn.__code__.co_name)
    known = _KERNELS.get(key)
    other = None if known is None else known()
    same = key not in _KERNELS or (known is not None and (other is None or other.fn.__code__ == fn.__code__))
    _KERNELS[key] = weakref.ref(kernel) if same else None


def forget_source(name: str, file: str) -> None:
    """Drop a module that was written for one kernel, and the kernel."""
    _SOURCES.pop((name, file), None)
    for key in [key for key in _KERNELS if key[:2] == (name, file)]:
        del _KERNELS[key]


class KernelFallback:
    """Fallback of a generated module for arguments whose sizes or strides its code was not made for.

    It calls the kernel that the module was generated from.

    Raises ``exc.InvalidAPIUsage`` if the kernel is not in this process, or its file has several kernels of the name. A
    saved module that runs by itself must import the user's module first.
    """

    def __init__(self, module: str, file: str, name: str) -> None:
        self._key = (module, file, name)

    def __call__(self, number: int | None, names: Any) -> Any:
        kernel = self._kernel() if number is None else None
        if kernel is None:
            return mismatch(number, names)
        return kernel.variant(names).variant.run(*names)

    def _kernel(self) -> Any:
        known = _KERNELS.get(self._key)
        return None if known is None else known()


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
