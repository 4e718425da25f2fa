"""What a compiled kernel depends on: dtypes, shapes, strides, constants and the target."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Hashable
from typing import Any

import torch

from ..language.constants import ConstExpr


def key_of(value: Any, constant: bool = False) -> Hashable:
    """The part of an argument that compiled code depends on. Raises TypeError for a kind that kernels do not take."""
    if isinstance(value, torch.Tensor):
        # Size and stride compare as tuples of ints; fake tensors give the same
        return (value.dtype, tuple(value.shape), tuple(value.stride()), value.device.type)
    if isinstance(value, ConstExpr):
        return ("constexpr", key_of(value.value, True))
    if constant or value is None or isinstance(value, (str, torch.dtype, torch.device)):
        return (type(value), value)
    if isinstance(value, (bool, int, float)):
        return ("number", type(value))
    if isinstance(value, (tuple, list)):
        return (type(value), *map(key_of, value))
    if isinstance(value, dict):
        return (dict, *((k, key_of(v)) for k, v in value.items()))
    if isinstance(value, types.FunctionType):
        return function_key(value)
    if isinstance(value, types.BuiltinFunctionType) or type(value).__name__ in (
        "method_descriptor",
        "builtin_function_or_method",
    ):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value), *(key_of(getattr(value, f.name)) for f in dataclasses.fields(value)))
    raise TypeError(
        f"a kernel argument of type {type(value).__name__} is not supported; pass tensors, numbers, strings, dtypes, functions, or tuples, lists and dicts of them"
    )


def function_key(fn: types.FunctionType) -> Hashable:
    """A function by its code and what it closes over: numbers by value, tensors by type."""
    cells: list[Hashable] = []
    for cell in fn.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            cells.append(None)
            continue
        cells.append(key_of(content, constant=isinstance(content, (bool, int, float))))
    defaults = tuple(key_of(d, constant=isinstance(d, (bool, int, float))) for d in fn.__defaults__ or ())
    return (fn.__code__, tuple(cells), defaults)


def aliasing(values: tuple[Any, ...]) -> Hashable:
    """Which tensor arguments share memory: positions of the first tensor with the same storage."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if len(tensors) < 2:
        return None
    first: dict[int, int] = {}
    groups = tuple(first.setdefault(_storage(t), at) for at, t in enumerate(tensors))
    return None if len(first) == len(tensors) else groups


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # wrapper subclasses may have no storage
        return id(tensor)


def pick(values: tuple[Any, ...], origin: tuple[Any, ...]) -> Any:
    """The number that ``origin``, a path ``("arg", position, ...)``, leads to."""
    _, at, *rest = origin
    value = values[at]
    for step in rest:
        value = value[step]
    return value
