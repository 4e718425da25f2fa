"""Frames: the names of a kernel and of the functions it calls, and their values."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ... import exc
from ..._names import KERNEL_LIBRARIES
from ..._support.records import dataclass, field
from ..._support.syntax import nodes_of
from ..source import FunctionSource
from .state import TraceState
from .values import HostTensorValue, Missing


def lift_object(t: TraceState, value: Any, source: str) -> Any:
    """Return a Python object from outside the kernel as an abstract value; ``source`` is a host expression for it."""
    if isinstance(value, torch.Tensor):
        known = t.tensors.lifted.get((id(value), source))
        if known is None:
            storage = t.tensors.storage_of(value)
            known = HostTensorValue(
                t,
                tuple(map(int, value.shape)),
                tuple(map(int, value.stride())),
                value.dtype,
                value.device,
                storage,
                source,
                python_type=type(value),
                offset=int(value.storage_offset()),
                begin=int(value.storage_offset()) * value.dtype.itemsize,
            )
            t.tensors.lifted[(id(value), source)] = known
        return known
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(lift_object(t, v, f"{source}.{n}") for n, v in zip(value._fields, value, strict=True)))
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return type(value)(lift_object(t, v, f"{source}[{i}]") for i, v in enumerate(value))
    if type(value) is dict:
        return {k: lift_object(t, v, f"{source}[{k!r}]") for k, v in value.items()}
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        t.world.function_sources[id(value)] = source
    elif source and hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        t.world.function_sources.setdefault(id(value), source)
    if isinstance(value, types.MethodType):
        t.world.function_sources[id(value.__self__)] = f"{source}.__self__" if source else ""
    return value


def outside_object(t: TraceState, value: Any, source: str) -> Any:
    """Return a global or closure variable as an abstract value. A container has one copy in the trace for all its
    names.
    """
    if not isinstance(value, (list, dict, set)):
        return lift_object(t, value, source)
    if id(value) in t.world.poisoned:
        return t.world.poisoned[id(value)][1]
    if id(value) not in t.world.copies:
        copied = set(value) if isinstance(value, set) else lift_object(t, value, source)
        t.world.copies[id(value)] = (value, copied)
    return t.world.copies[id(value)][1]


@dataclass
class Frame:
    """The names of one function during its walk.

    ``host_names`` are the kernel's own variables, which device code may read but not assign.
    """

    source: FunctionSource
    module_globals: dict[str, Any]
    closure: dict[str, tuple[Any, str]]
    names: dict[str, Any] = field(default_factory=dict)
    host_names: frozenset[str] = frozenset()
    globals_source: str = "_source_module"
    is_kernel: bool = False
    #: Number of open regions at the start of the function.
    depth: int = 0
    #: The defining frame of a function that the kernel's own code defines.
    outer: Frame | None = None

    def holds(self, name: str) -> bool:
        """Return whether a name is a local variable."""
        return name in self.names or (self.outer is not None and self.outer.holds(name))

    def closes_over(self, name: str) -> bool:
        """Return whether a name is a variable of the enclosing function."""
        return name in self.closure or (self.outer is not None and self.outer.closes_over(name))

    def in_globals(self, expression: str) -> str:
        """Return the host expression of one that begins with a name of the function's module; none is ``""``."""
        if not self.globals_source.endswith(".__globals__"):
            return f"{self.globals_source}.{expression}" if self.globals_source else ""
        name = re.split(r"\W", expression, maxsplit=1)[0]
        return f"{self.globals_source}[{name!r}]{expression[len(name) :]}"

    def peek(self, name: str) -> Any:
        """Return the current value of a name without recording the read; None if it has none."""
        if name in self.names:
            return self.names[name]
        if self.outer is not None:
            return self.outer.peek(name)
        if name in self.closure:
            return self.closure[name][0]
        return self.module_globals.get(name, getattr(builtins, name, None))

    def lookup(self, t: TraceState, name: str) -> Any:
        if name in self.names:
            value = self.names[name]
            if isinstance(value, Missing):
                raise value.error()
            return value
        if self.outer is not None:
            return self.outer.lookup(t, name)
        if name in self.closure:
            value, source = self.closure[name]
            return outside_object(t, value, source)
        if name in self.module_globals:
            value = self.module_globals[name]
            changed = t.world.attributes.get((id(self.module_globals), name))
            if changed is not None:
                return changed[1]
            t.world.assume("item", self.module_globals, name, value)
            return outside_object(t, value, self.in_globals(name))
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise exc.UndefinedVariable(name=name, detail="")


def defaults_of(t: TraceState, fn: types.FunctionType) -> list[tuple[str, Any, str]]:
    """Return the parameters with defaults: names, defaults, and host expressions for them."""
    where = t.world.function_sources.get(id(fn), "")
    code = fn.__code__
    positional = code.co_varnames[: code.co_argcount]
    given = fn.__defaults__ or ()
    found = [
        (name, value, f"{where}.__defaults__[{at}]" if where else "")
        for at, (name, value) in enumerate(zip(positional[len(positional) - len(given) :], given, strict=True))
    ]
    keywords = (fn.__kwdefaults__ or {}).items()
    return [*found, *((n, v, f"{where}.__kwdefaults__[{n!r}]" if where else "") for n, v in keywords)]


def _assume_function(t: TraceState, fn: types.FunctionType) -> None:
    """Record guards on the code and the closure of a function, which can change while the object stays the same. Those
    of arguments are part of the key.
    """
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        t.world.assume("attribute", fn, name, getattr(fn, name))
    for cell in fn.__closure__ or ():
        if cell != types.CellType():
            t.world.assume("attribute", cell, "cell_contents", cell.cell_contents)


def function_frame(t: TraceState, fn: types.FunctionType, source: FunctionSource, caller: Frame) -> Frame:
    """Return a frame for a plain function called from device code; closure cells have separate host expressions."""
    where = t.world.function_sources.get(id(fn), "")
    if not where or where.startswith(caller.globals_source or "_source_module"):
        _assume_function(t, fn)
    closure = {}
    for at, (name, cell) in enumerate(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)):
        try:
            closure[name] = (cell.cell_contents, f"{where}.__closure__[{at}].cell_contents" if where else "")
        except ValueError:  # the cell is still empty: the name has no value yet
            continue
    same_module = fn.__globals__ is caller.module_globals
    prefix = caller.globals_source if same_module else (f"{where}.__globals__" if where else "")
    return Frame(source, fn.__globals__, closure, globals_source=prefix)


def resolve_source(t: TraceState, value: HostTensorValue, frame: Frame) -> None:
    """Find a host expression by which the launch can pass ``value``. Prefer a variable of the kernel that is bound to
    it, then an item of a list, tuple or dict that one is bound to.
    """
    names = {n: v for n, v in frame.names.items() if not frame.host_names or n in frame.host_names}
    for name, known in names.items():
        if known is value:
            value.source = name
            return
    if not value.source:
        value.source = next((f"{n}{path}" for n, v in names.items() if (path := _path(v, value)) is not None), "")


def path_to(value: Any, frame: Frame) -> str:
    """Return a host expression for an object that a variable of the kernel refers to or contains; empty if there is
    none.
    """
    names = {n: v for n, v in frame.names.items() if not frame.host_names or n in frame.host_names}
    paths = ((n, "" if held is value else _path(held, value)) for n, held in names.items())
    return next((f"{n}{path}" for n, path in paths if path is not None), "")


def _path(container: Any, value: Any) -> str | None:
    """Return the subscripts that lead from a container to ``value``; None if it is not in it."""
    if isinstance(container, dict):
        items = list(container.items())
    elif isinstance(container, (tuple, list)):
        items = list(enumerate(container))
    else:
        return None
    for key, item in items:
        path = "" if item is value else _path(item, value)
        if path is not None:
            return f"[{key!r}]{path}"
    return None


def assigned_names(statements: Iterable[Any]) -> tuple[str, ...]:
    """Return names that statements bind, in order of appearance, without those of nested functions."""
    return _assigned_names(tuple(statements))


@functools.lru_cache(maxsize=512)
def _assigned_names(statements: tuple[Any, ...]) -> tuple[str, ...]:
    """Return names that statements bind. Nodes are compared by identity; those of a function that is traced again are
    unchanged.
    """
    found: dict[str, None] = {}
    stack = list(reversed(statements))
    visit: Callable[[Any], None] = stack.append
    while stack:
        node = stack.pop()
        kind = type(node).__name__
        if kind == "Name":
            if type(node.ctx).__name__ == "Store":
                found[node.id] = None
            continue
        if kind == "FunctionDef":
            found[node.name] = None
        if kind in ("FunctionDef", "Lambda", "ListComp", "SetComp", "DictComp", "GeneratorExp"):
            stack += [n for n in _walrus_targets(node) if kind not in ("FunctionDef", "Lambda")]
            continue
        if kind in ("ExceptHandler", "MatchAs", "MatchStar", "ClassDef") and node.name:
            found[node.name] = None
        if kind == "alias":
            found[(node.asname or node.name).split(".")[0]] = None
        for child in reversed([c for _, c in _fields(node)]):
            visit(child)
    return tuple(found)


@functools.lru_cache(maxsize=128)
def names_in(node: ast.AST) -> frozenset[str]:
    """Return every variable that a function's nodes name; nodes as in ``assigned_names``."""
    return frozenset(n.id for n in nodes_of(node) if isinstance(n, ast.Name))


def _walrus_targets(node: Any) -> list[Any]:
    """Return the targets of ``:=`` in a comprehension, which bind outside of it."""
    return [inner.target for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr)]


_PLAIN_GETATTR = (torch.nn.Module, types.ModuleType)


def is_plain_object(value: Any, name: str) -> bool:
    """Return whether reading an attribute runs no user code."""
    cls = type(value)
    if isinstance(value, _PLAIN_GETATTR) or (cls.__module__ or "").split(".")[0] in _TRUSTED:
        return True
    described = inspect.getattr_static(cls, name, None)
    if isinstance(described, property):
        return False
    if _runs_code(described) and name not in getattr(value, "__dict__", ()):
        return False
    if isinstance(value, type) or not hasattr(cls, "__getattr__"):
        return not isinstance(cls.__getattribute__, types.FunctionType)
    return inspect.getattr_static(value, name, None) is not None


def _runs_code(described: Any) -> bool:
    """Return whether a class attribute is a descriptor implemented in Python."""
    cls = type(described)
    getter = inspect.getattr_static(cls, "__get__", None)
    return isinstance(getter, types.FunctionType) and (cls.__module__ or "").split(".")[0] not in ("enum", "types")


#: Modules whose classes read attributes without effects.
_TRUSTED = frozenset(("torch", "builtins", "enum", "numpy", "types", "collections", "functools", *KERNEL_LIBRARIES))


def _fields(node: Any) -> list[tuple[str, Any]]:
    found = []
    for name in getattr(node, "_fields", ()):
        value = getattr(node, name, None)
        for item in value if isinstance(value, list) else [value]:
            if hasattr(item, "_fields"):
                found.append((name, item))
    return found
