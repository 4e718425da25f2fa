"""What a compiled kernel depends on: dtypes, shapes, strides, constants and the target."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import torch

from .._shapes import static_dims
from ..language.constants import ConstExpr


class Keys:
    """Makes the keys of one call's arguments. With dynamic shapes a size or stride counts by its class: 0 and 1 as they
    are, others by which earlier ones they equal."""

    def __init__(self, static: bool, baked: bool = False) -> None:
        self._static = static
        self._baked = baked
        self._seen: dict[int, int] = {}

    def of(self, value: Any, constant: bool = False) -> Hashable:
        """The part of an argument that compiled code depends on. Raises TypeError for a kind that kernels do not take."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, ConstExpr):
            return ("constexpr", self.of(value.value, True))
        if constant or value is None or isinstance(value, (str, torch.dtype, torch.device, torch.Size)):
            return (type(value), value)
        if isinstance(value, (bool, int, float)):
            # numbers are passed at run time; integers beyond 32 bits have code of their own
            return (type(value), value) if self._baked else (type(value), -(2**31) <= value < 2**31)
        if isinstance(value, (tuple, list)):
            return (type(value), *map(self.of, value))
        if isinstance(value, dict):
            return (dict, *((k, self.of(v)) for k, v in value.items()))
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, _BUILTIN_FUNCTIONS):
            return value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return (type(value), *(self.of(getattr(value, f.name)) for f in dataclasses.fields(value)))
        raise TypeError(
            f"a kernel argument of type {type(value).__name__} is not supported; pass tensors, numbers, strings, dtypes, functions, or tuples, lists, dicts and dataclasses of them"
        )

    def tensor(self, value: torch.Tensor) -> Hashable:
        if self._static:
            return (value.dtype, tuple(value.shape), tuple(value.stride()), value.device.type)
        fixed = static_dims(value)
        shape = tuple(self.extent(int(size), i in fixed) for i, size in enumerate(value.shape))
        strides = tuple(self.extent(int(stride), i in fixed) for i, stride in enumerate(value.stride()))
        return (value.dtype, shape, strides, value.device.type, needs_int64(value))

    def extent(self, value: int, fixed: bool) -> Hashable:
        if fixed or value in (0, 1):
            return ("is", value)
        return self._seen.setdefault(value, len(self._seen))

    def function(self, fn: types.FunctionType) -> Hashable:
        """A function by its code and all it closes over: numbers by value, tensors by type and shape."""
        static = Keys(static=True, baked=True)
        cells: list[Hashable] = []
        for cell in fn.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                cells.append(None)
                continue
            cells.append(static.of(content))
        defaults = tuple(map(static.of, fn.__defaults__ or ()))
        keywords = tuple((name, static.of(v)) for name, v in (fn.__kwdefaults__ or {}).items())
        return (fn.__code__, tuple(cells), defaults, keywords)


_BUILTIN_FUNCTIONS = (types.BuiltinFunctionType, type(torch.Tensor.exp), type(torch.Tensor.__add__))


def needs_int64(tensor: torch.Tensor) -> bool:
    """Whether offsets into the tensor can exceed what int32 holds."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(last >= 2**31)


def aliasing(values: tuple[Any, ...]) -> Hashable:
    """Which tensors among the arguments, and those their functions close over, share memory: positions of the first one
    with the same storage."""
    tensors = list(_reachable(values))
    if len(tensors) < 2:
        return None
    first: dict[int, int] = {}
    groups = tuple(first.setdefault(_storage(t), at) for at, t in enumerate(tensors))
    return None if len(first) == len(tensors) else groups


def _reachable(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _reachable(value)
        elif isinstance(value, dict):
            yield from _reachable(value.values())
        elif isinstance(value, types.FunctionType):
            cells = (cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType())
            yield from _reachable((*cells, *(value.__defaults__ or ())))


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
        if isinstance(step, tuple):
            kind, dim = step
            value = value.shape[dim] if kind == "size" else value.stride(dim)
        elif isinstance(step, str) and not isinstance(value, dict):
            value = getattr(value, step)
        else:
            value = value[step]
    return value
