"""Names: where a name in a kernel, or in a function it calls, gets its value from."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ... import exc
from ..source import FunctionSource
from .values import HostTensorValue, Missing

if TYPE_CHECKING:
    from .tracer import Tracer


def lift_object(t: Tracer, value: Any, source: str) -> Any:
    """A Python object from outside the kernel as an abstract value; ``source`` is a host expression for it."""
    if isinstance(value, torch.Tensor):
        known = t.lifted.get((id(value), source))
        if known is None:
            storage = t.storage_of(value)
            known = HostTensorValue(
                t,
                tuple(map(int, value.shape)),
                tuple(map(int, value.stride())),
                value.dtype,
                value.device,
                storage,
                source,
            )
            t.lifted[(id(value), source)] = known
        return known
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(lift_object(t, v, f"{source}.{n}") for n, v in zip(value._fields, value, strict=True)))
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return type(value)(lift_object(t, v, f"{source}[{i}]") for i, v in enumerate(value))
    if type(value) is dict:
        return {k: lift_object(t, v, f"{source}[{k!r}]") for k, v in value.items()}
    if isinstance(value, types.FunctionType):
        t.function_sources[id(value)] = source
    return value


@dataclass
class Frame:
    """The names of one function while it is walked.

    ``host_names`` are the kernel's own variables, which device code may read but not assign.
    """

    source: FunctionSource
    module_globals: dict[str, Any]
    closure: dict[str, tuple[Any, str]]
    names: dict[str, Any] = field(default_factory=dict)
    host_names: frozenset[str] = frozenset()
    globals_source: str = "_source_module"
    is_kernel: bool = False
    #: How many regions were open when the function began.
    depth: int = 0

    def lookup(self, t: Tracer, name: str) -> Any:
        if name in self.names:
            value = self.names[name]
            if isinstance(value, Missing):
                raise value.error()
            return value
        if name in self.closure:
            value, source = self.closure[name]
            return lift_object(t, value, source)
        if name in self.module_globals:
            value = self.module_globals[name]
            t.assume("item", self.module_globals, name, value)
            return lift_object(t, value, f"{self.globals_source}.{name}")
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise exc.UndefinedVariable(name=name, detail="")


def function_frame(t: Tracer, fn: types.FunctionType, source: FunctionSource, caller: Frame) -> Frame:
    """A frame for a plain function called from device code; closure cells keep a host expression of their own."""
    where = t.function_sources.get(id(fn), "")
    closure = {}
    for at, (name, cell) in enumerate(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)):
        try:
            closure[name] = (cell.cell_contents, f"{where}.__closure__[{at}].cell_contents" if where else "")
        except ValueError:  # the cell is still empty: the name has no value yet
            continue
    same_module = fn.__globals__ is caller.module_globals
    prefix = caller.globals_source if same_module else (f"{where}.__globals__" if where else "")
    return Frame(source, fn.__globals__, closure, globals_source=prefix)


def resolve_source(t: Tracer, value: HostTensorValue, frame: Frame) -> None:
    """Make sure the launch can name ``value``: prefer a variable of the kernel that is bound to it, then an item of a
    list, tuple or dict that one is bound to."""
    names = {n: v for n, v in frame.names.items() if not frame.host_names or n in frame.host_names}
    for name, known in names.items():
        if known is value:
            value.source = name
            return
    if not value.source:
        value.source = next((f"{n}{path}" for n, v in names.items() if (path := _path(v, value)) is not None), "")


def path_to(value: Any, frame: Frame) -> str:
    """A host expression for an object that a variable of the kernel holds, or has inside; empty if none does."""
    names = {n: v for n, v in frame.names.items() if not frame.host_names or n in frame.host_names}
    paths = ((n, "" if held is value else _path(held, value)) for n, held in names.items())
    return next((f"{n}{path}" for n, path in paths if path is not None), "")


def _path(container: Any, value: Any) -> str | None:
    """The subscripts that lead from a container to ``value``, None where it is not in it."""
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


def assigned_names(statements: list[Any]) -> list[str]:
    """Names that statements bind, in order of appearance, without those of nested functions."""
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
        if kind in ("FunctionDef", "Lambda", "ListComp", "GeneratorExp"):
            continue
        for child in reversed([c for _, c in _fields(node)]):
            visit(child)
    return list(found)


def _fields(node: Any) -> list[tuple[str, Any]]:
    found = []
    for name in getattr(node, "_fields", ()):
        value = getattr(node, name, None)
        for item in value if isinstance(value, list) else [value]:
            if hasattr(item, "_fields"):
                found.append((name, item))
    return found
