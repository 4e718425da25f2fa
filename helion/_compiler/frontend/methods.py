"""The plain functions of methods and callable objects."""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch

from .purity import is_library, operator_of
from .state import TraceState

#: Builtins that call a method, by the method's names without underscores.
CONVERSIONS: dict[Any, tuple[str, ...]] = {
    int: ("int", "index"), float: ("float", "index"), bool: ("bool", "len"), str: ("str", "repr"), abs: ("abs",), round: ("round",), len: ("len",),
    repr: ("repr",),
}  # fmt: skip
_ANSWERS = (
    "int", "float", "index", "bool", "len", "abs", "round", "str", "repr", "format", "iter", "next", "reversed", "getitem", "contains", "lt", "gt", "le",
    "ge", "hash", "divmod", "pow", "add", "radd", "missing",
)  # fmt: skip


def answers_itself(value: Any) -> bool:
    """Return whether a user's object has methods that builtins call."""
    cls = type(value)
    return not is_library(cls) and any(operator_of(value, f"__{name}__") is not None for name in _ANSWERS)


def method_of(function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the plain function of a method or a callable object, with the object as the first argument."""
    if isinstance(function, types.MethodType) and isinstance(function.__func__, types.FunctionType):
        return function.__func__, (function.__self__, *args)
    if isinstance(function, torch.nn.Module) and type(function).__call__ is torch.nn.Module.__call__:
        own = vars(function).get("forward")
        return method_of(own, args) if own is not None else (type(function).forward, (function, *args))
    made = inspect.getattr_static(type(function), "__call__", None)
    ours = (type(function).__module__ or "").split(".")[0] == "helion"
    if isinstance(made, types.FunctionType) and not (ours or isinstance(function, (types.FunctionType, type))):
        return made, (function, *args)
    return function, args


def assume_called(t: TraceState, function: Any) -> None:
    """Record guards on the method that a call of an object runs."""
    if isinstance(function, torch.nn.Module):
        assume_method(t, function, "forward")
    if not isinstance(function, (types.FunctionType, types.MethodType, type)):
        assume_method(t, function, "__call__")


def assume_method(t: TraceState, value: Any, name: str) -> None:
    """Record a guard on a user's method: in its class, or in an object that is not an argument."""
    cls = type(value)
    if is_library(cls):
        return
    source = t.world.function_sources.get(id(value), "")
    owner = value if source.startswith("_source_module") else cls
    t.world.assume("attribute", owner, name, getattr(owner, name, None))
