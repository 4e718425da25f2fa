"""Prevents the import of torch's compiler in processes whose host code only evaluates shapes.

Torch computes many shapes in Python, in functions that Dynamo must not trace. At the first call, their wrappers import
``torch._dynamo``, which takes seconds. They request an untraced form from it, and cache that form as an attribute.
Before Dynamo is imported nothing is traced, so the function itself is a valid untraced form.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from ...._support.lazy import when_imported
from ...._support.locks import new_lock

#: Attribute of a wrapper that caches the untraced form, and the file of the wrapper.
_FORM, _WRAPPER = "__dynamo_disable", "torch/_compile.py"
#: Modules with shape functions in Python.
_MODULES = ("torch._refs", "torch._decomp", "torch._prims", "torch._meta_registrations")
_LOCK = new_lock()
_SEEN: set[str] = set()
#: The number of modules whose names were read: there is nothing to do until an import adds one.
_READ = [0]
_GIVEN: list[Any] = []


def keep_dynamo_out() -> None:
    """Set the untraced form of wrappers in loaded modules to the functions themselves, until Dynamo is imported."""
    if len(sys.modules) == _READ[0] or "torch._dynamo" in sys.modules:
        return
    loaded = tuple(sys.modules)  # a copy: other threads import meanwhile
    names = [name for name in loaded if name.startswith(_MODULES) and name not in _SEEN]
    if not names:
        _READ[0] = len(loaded)
        return
    with _LOCK:
        first = not _SEEN
        _SEEN.update(names)
        for function in _wrapped(names):
            if not hasattr(function, _FORM):
                setattr(function, _FORM, function)
                _GIVEN.append(function)
        if first:
            when_imported("torch._dynamo", _take_back)


def _take_back() -> None:
    """Remove the forms, so that Dynamo makes its own."""
    with _LOCK:
        while _GIVEN:
            function = _GIVEN.pop()
            if getattr(function, _FORM, None) is function:
                delattr(function, _FORM)


def _wrapped(names: list[str]) -> Iterator[Any]:
    """Yield the functions in wrappers of the modules, also those inside of other wrappers."""
    pending: list[Any] = []
    for name in names:
        pending += tuple(vars(sys.modules[name]).values())
    seen: set[int] = set()
    while pending:
        found = pending.pop()
        if not isinstance(found, types.FunctionType) or id(found) in seen:
            continue
        seen.add(id(found))
        inside = [each for cell in found.__closure__ or () for each in _contents(cell)]
        pending += inside
        if found.__code__.co_filename.endswith(_WRAPPER):
            yield from (each for each in inside if isinstance(each, types.FunctionType))


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # a variable that has no value yet
        return []
