"""Guards of a kernel in a form that another process can check: objects are named, and functions described by their code."""

from __future__ import annotations

import hashlib
import sys
import types
from typing import TYPE_CHECKING, Any

from ..._exact import exact_key, is_constant
from ..._support.lazy import lazy
from ..._support.records import dataclass

if TYPE_CHECKING:
    from ..._compiler.frontend import guards, values
else:
    # read only where a kernel has guards
    guards = lazy("helion._compiler.frontend.guards")
    values = lazy("helion._compiler.frontend.values")

#: Packages whose files or versions are part of what a record is found by.
_LIBRARIES = ("helion", "torch")


@dataclass(frozen=True)
class Named:
    """An object by its kind and name; ``digest`` describes the code of a function."""

    kind: str
    module: str
    name: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Assumption:
    """A guard whose ``owner`` is named. ``value`` is a constant, or named as well."""

    kind: str
    owner: Named
    key: Any
    value: Any


def portable(found: tuple[guards.Guard, ...], own: dict[str, Any]) -> tuple[Assumption, ...] | None:
    """Return guards of a kernel with the globals ``own`` for other processes; None if one of them names no other's object."""
    kept = []
    for each in found:
        if isinstance(each.value, values.DeviceValue):  # its owner is a container of the trace alone
            continue
        owner = _owner(each.owner, own)
        value = _value(each.value)
        if owner is None or value is None or not is_constant(each.key):
            return None
        kept.append(Assumption(each.kind, owner, each.key, value[0]))
    return tuple(kept)


def restored(kept: tuple[Assumption, ...], own: dict[str, Any]) -> tuple[guards.Guard, ...] | None:
    """Return the guards of assumptions that hold in this process; None if one does not."""
    found = []
    for each in kept:
        owner = _object(each.owner, own)
        if owner is None or (isinstance(owner, types.FunctionType) and _named(owner) != each.owner):
            return None
        value = each.value
        if isinstance(value, Named):
            try:
                value = owner[each.key] if each.kind == "item" else getattr(owner, each.key)
            except (KeyError, IndexError, AttributeError):
                return None
            if _named(value) != each.value:
                return None
        guard = guards.Guard(each.kind, owner, each.key, value)  # type: ignore[arg-type]
        if not guard.holds():
            return None
        found.append(guard)
    return tuple(found)


def code_digest(code: types.CodeType) -> str:
    """Return a digest of what a code object does, and of its place in a file."""
    return hashlib.sha256(repr(_described(code)).encode()).hexdigest()[:32]


def with_code(key: Any) -> Any:
    """Return a key with digests of what code objects do, whose own text differs between processes."""
    if isinstance(key, tuple):
        return tuple(map(with_code, key))
    if isinstance(key, frozenset):
        return tuple(sorted(repr(with_code(each)) for each in key))
    if not isinstance(key, types.CodeType):
        return key
    parts = (key.co_code, key.co_names, key.co_varnames, with_code(key.co_consts))
    return key.co_name, hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def named(function: types.FunctionType) -> Any:
    """Return the name of a function with a digest of its code; the function itself if it has state."""
    return _named(function) or function


def _described(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        flags = (value.co_flags, value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount)
        lines = (value.co_filename, value.co_firstlineno)
        return (value.co_name, value.co_code, names, flags, lines, tuple(map(_described, value.co_consts)))
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    if isinstance(value, tuple):
        return tuple(map(_described, value))
    return exact_key(value)


def _owner(owner: Any, own: dict[str, Any]) -> Named | None:
    """Name the owner of what a guard reads: globals, a module, or a function that its module has."""
    if owner is own:
        return Named("own", "")
    if isinstance(owner, dict):
        module = owner.get("__name__")
        is_module = isinstance(module, str) and getattr(sys.modules.get(module), "__dict__", None) is owner
        return Named("globals", str(module)) if is_module and module != "__main__" else None
    if isinstance(owner, (types.ModuleType, types.BuiltinFunctionType)):
        return _named(owner)
    named = _named(owner) if isinstance(owner, types.FunctionType) else None
    return named if named is not None and _object(named, own) is owner else None


def _value(value: Any) -> tuple[Any] | None:
    """Return a constant or a named object, in a tuple since None is a constant; None for other objects."""
    if is_constant(value):
        return (value,)
    named = _named(value)
    return None if named is None else (named,)


def _named(value: Any) -> Named | None:
    """Name a module, code, a function without state, or what a library defines; None for other objects."""
    if isinstance(value, types.CodeType):
        return Named("code", "", value.co_name, code_digest(value))
    if isinstance(value, types.ModuleType):
        return Named("module", value.__name__) if sys.modules.get(value.__name__) is value else None
    if isinstance(value, types.BuiltinFunctionType):
        named = Named("builtin", str(value.__module__), value.__qualname__)
        return named if _object(named, {}) is value else None
    if isinstance(value, (types.FunctionType, type)) and str(value.__module__).split(".")[0] in _LIBRARIES:
        named = Named("library", value.__module__, value.__qualname__)
        return named if _object(named, {}) is value else None
    if type(value) is types.FunctionType and not value.__closure__:
        defaults = (value.__defaults__ or (), tuple(sorted((value.__kwdefaults__ or {}).items())))
        if all(map(is_constant, defaults)):
            digest = f"{code_digest(value.__code__)} {exact_key(defaults)!r}"
            return Named("function", value.__module__, value.__qualname__, digest)
    return None


def _object(named: Named, own: dict[str, Any]) -> Any:
    """Return the object that is named; None if there is none."""
    if named.kind == "own":
        return own
    found: Any = sys.modules.get(named.module)
    if named.kind == "globals":
        return getattr(found, "__dict__", None)
    for part in named.name.split(".") if named.name else ():
        found = getattr(found, part, None)
    return found


__all__ = ["Assumption", "Named", "code_digest", "named", "portable", "restored", "with_code"]
