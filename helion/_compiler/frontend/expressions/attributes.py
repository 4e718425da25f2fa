"""Attributes of values."""

from __future__ import annotations

import ast
import difflib
import inspect
import types
from typing import Any

import torch

from .... import exc
from ...._shapes import Expr
from ..frames import is_plain_object, lift_object
from ..host import tensors as host_tensors
from ..methods import assume_method
from ..runtime_values import Opaque, is_runtime
from ..values import DeviceValue, HostTensorValue, Tile, describe
from ..walk.kinds import type_of
from ..walk.scope import Scope, call, captured, evaluate
from .functions import is_traced_through
from .run_time import number_method, runtime_number, unknown
from .torch_calls import is_torch_function

#: Attributes of abstract values that the objects they represent do not have, or have as methods.
_INTERNAL = {
    HostTensorValue: frozenset(("tracer", "strides", "storage", "source", "aligned", "made", "python_type")),
    DeviceValue: frozenset(("tracer", "value", "number", "dims")),
    Expr: frozenset(("op", "args", "hint", "key", "kind", "leaves", "evaluate", "combine", "render")),
}


def evaluate_attribute(s: Scope, node: ast.Attribute) -> Any:
    value = evaluate(s, node.value)
    s.at(node)
    try:
        result = attribute_of(s, value, node.attr, node)
    except AttributeError as error:
        close = difflib.get_close_matches(node.attr, dir(value), 1) if isinstance(value, types.ModuleType) else []
        meant = f"; did you mean {close[0]!r}?" if close else "."
        raise exc.TypeInferenceError(f"{describe(value)} has no attribute {node.attr!r}{meant}") from error
    return captured(s, result, node) if isinstance(value, (HostTensorValue, Expr)) else result


def attribute_of(s: Scope, value: Any, name: str, node: ast.expr | None = None) -> Any:
    """Return an attribute of a value. Raises AttributeError if the represented object has none of the name."""
    if isinstance(value, Opaque):
        return value
    if isinstance(value, Expr):
        return _attribute_of_number(s, value, name)
    if isinstance(value, (HostTensorValue, DeviceValue)):
        if isinstance(value, HostTensorValue) and name in host_tensors.READS:
            s.t.tensors.rely(value)
        return _attribute_of_tensor(value, name)
    if isinstance(value, Tile):
        return getattr(value, name)
    if (id(value), name) in s.t.world.attributes:
        return s.t.world.attributes[(id(value), name)][1]
    static = inspect.getattr_static(type(value), name, None)
    if isinstance(static, property) and isinstance(static.fget, types.FunctionType) and is_traced_through(static.fget):
        s.t.world.assume("attribute", type(value), name, static)
        return call(s, static.fget, (value,), {}, node or ast.Constant(None))
    if not s.t.on_device and not is_plain_object(value, name):
        return unknown(s, getattr, (value, name))
    result = getattr(value, name)
    if callable(static):
        assume_method(s.t, value, name)
    if not callable(static):
        s.t.world.assume("attribute", value, name, result)
        where = s.t.world.function_sources.get(id(value), "")
        found = lift_object(s.t, result, f"{where}.{name}") if where else lifted(s, result, node)
        if where and hasattr(result, "__dict__") and not isinstance(result, types.ModuleType):
            s.t.world.function_sources.setdefault(id(result), f"{where}.{name}")
        return found
    return result


def lifted(s: Scope, value: Any, node: ast.expr | None) -> Any:
    """Return a tensor or a function found inside a user's object, with its host expression; other values unchanged."""
    if not isinstance(value, torch.Tensor) and (not isinstance(value, types.FunctionType) or is_torch_function(value)):
        return value
    root = node
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    if isinstance(root, ast.Name) and not s.frame.holds(root.id) and root.id in s.frame.module_globals:
        assert node is not None
        return lift_object(s.t, value, s.frame.in_globals(ast.unparse(node)))
    return lift_object(s.t, value, "") if isinstance(value, torch.Tensor) else value


def _attribute_of_number(s: Scope, value: Expr, name: str) -> Any:
    """Return an attribute of the number that a symbolic one represents."""
    if name == "__class__":
        return value.kind
    if not hasattr(value.kind, name):
        raise AttributeError(f"'{value.kind.__name__}' object has no attribute {name!r}")
    found = getattr(value.kind, name)
    if not callable(found):
        if is_runtime(s.t, value):
            return runtime_number(s, type(getattr(value.hint, name)))
        return getattr(s.t.numbers.specialize(value), name)
    method = getattr(value.hint, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        kind = type(method(*args, **kwargs)) if not args and not kwargs else None
        return number_method(s, value, name, kind, args, kwargs)

    return called


def _attribute_of_tensor(value: HostTensorValue | DeviceValue, name: str) -> Any:
    """Return an attribute of a tensor; internal attributes of the abstract value are hidden."""
    if name == "__class__":
        return type_of(value)
    if name in _INTERNAL[type(value)]:
        method = getattr(torch.Tensor, name, None)
        if method is None:
            raise AttributeError(f"'Tensor' object has no attribute {name!r}")
        return lambda *args, **kwargs: value.tracer.torch_call(method, (value, *args), kwargs)
    return getattr(value, name)
