"""What a compiled kernel depends on: dtypes, shapes, strides, constants and the target."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .._shapes import static_dims
from ..language.constants import ConstExpr


def arguments_key(values: Sequence[Any], constant_at: Sequence[bool], static: bool) -> Key:
    """What compiled code depends on of all arguments: a plain tuple. ``constant_at`` marks ``hl.constexpr`` parameters.

    Tensors and numbers of exactly those types are read directly, all else through ``Keys``, with equal results: sizes
    of other kinds of tensors may be symbols. Raises TypeError for a kind of argument that kernels do not take.
    """
    keys = Keys(static)
    parts: list[Hashable] = []
    storages: list[int] = []
    plain = True
    for value, constant in zip(values, constant_at, strict=True):
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            try:
                storages.append(value.untyped_storage()._cdata)
            except (RuntimeError, NotImplementedError):
                check_layout(value)
                plain = False
            parts.append(
                (value.dtype, value.shape, value.stride(), value.device.type) if static else keys.tensor(value)
            )
        elif constant:
            plain = plain and kind in _CONCRETE_CONSTANTS
            parts.append(keys.of(value, True))
        elif kind is int:
            parts.append((int, -(2**31) <= value < 2**31))
        elif kind is float or kind is bool:
            parts.append((kind, True))
        else:
            plain = plain and value is None
            parts.append(keys.of(value))
    if not plain:
        return (*parts, aliasing(values))
    return (*parts, None if len(set(storages)) == len(storages) else _groups(storages))


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
        if constant and isinstance(value, (tuple, list)):
            return (type(value), *(self.of(item, True) for item in value))
        if constant and isinstance(value, dict):
            return (dict, *((k, self.of(v, True)) for k, v in value.items()))
        if constant or value is None or isinstance(value, (str, torch.dtype, torch.device, torch.Size)):
            return (type(value), value)
        if isinstance(value, (bool, int, float)):
            if self._baked:
                return (type(value), value)
            # numbers are passed at run time; integers beyond 32 bits have code of their own
            return (type(value), isinstance(value, float) or -(2**31) <= value < 2**31)
        if isinstance(value, (tuple, list)):
            return (type(value), *map(self.of, value))
        if isinstance(value, dict):
            return (dict, *((k, self.of(v)) for k, v in value.items()))
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, _BUILTIN_FUNCTIONS):
            return value
        if isinstance(value, torch.fx.GraphModule):
            return (type(value).__name__, value.code)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return (type(value), *(self.of(getattr(value, f.name)) for f in dataclasses.fields(value)))
        raise TypeError(
            f"a kernel argument of type {type(value).__name__} is not supported; pass tensors, numbers, strings, dtypes, functions, or tuples, lists, dicts and dataclasses of them"
        )

    def tensor(self, value: torch.Tensor) -> Hashable:
        check_layout(value)
        if self._static:
            return (value.dtype, tuple(value.shape), tuple(value.stride()), value.device.type)
        sizes: tuple[int, ...] = value.shape
        steps: tuple[int, ...] = value.stride()
        if type(value) not in CONCRETE_TENSORS:
            sizes, steps = tuple(map(int, sizes)), tuple(map(int, steps))
        fixed = static_dims(value) if hasattr(value, "_dynamo_static_indices") else ()
        seen = self._seen
        shape = tuple([(n,) if n < 2 or i in fixed else seen.setdefault(n, len(seen)) for i, n in enumerate(sizes)])
        strides = tuple([(n,) if n < 2 or i in fixed else seen.setdefault(n, len(seen)) for i, n in enumerate(steps)])
        last = sum([(size - 1) * step for size, step in zip(sizes, steps, strict=True)])
        return (value.dtype, shape, strides, value.device.type, last >= 2**31)

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


Key = tuple[Hashable, ...]

#: Tensors whose sizes are certainly numbers; other subclasses may have symbols for them.
CONCRETE_TENSORS = (torch.Tensor, torch.nn.Parameter)
_CONCRETE_CONSTANTS = (int, float, bool, str, type(None))
_BUILTIN_FUNCTIONS = (types.BuiltinFunctionType, type(torch.Tensor.exp), type(torch.Tensor.__add__))


def any_device(key: Hashable) -> Any:
    """A key without the devices of the tensors in it."""
    if not isinstance(key, tuple):
        return key
    if len(key) > 3 and isinstance(key[0], torch.dtype):
        key = (*key[:3], *key[4:])
    return tuple(map(any_device, key))


def check_layout(tensor: torch.Tensor) -> None:
    """Raises TypeError for sparse tensors and others without strides."""
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"a kernel argument is a tensor with layout {tensor.layout}; kernels address memory by strides: pass its "
            "parts (crow_indices(), col_indices(), values() ...) or to_dense()"
        )


def aliasing(values: Sequence[Any]) -> Hashable:
    """Which tensors among the arguments, and those their functions close over, share memory: positions of the first one
    with the same storage."""
    tensors = list(tensors_in(values, closures=True))
    if len(tensors) < 2:
        return None
    storages = [_storage(t) for t in tensors]
    return None if len(set(storages)) == len(storages) else _groups(storages)


def _groups(storages: Sequence[int]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    return tuple(first.setdefault(storage, at) for at, storage in enumerate(storages))


def tensors_in(values: Iterable[Any], closures: bool = False) -> Iterator[torch.Tensor]:
    """The tensors among arguments, and in tuples, lists, dicts and dataclasses of them; with ``closures`` also those that
    functions close over or have as defaults."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value, closures)
        elif isinstance(value, dict):
            yield from tensors_in(value.values(), closures)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from tensors_in((getattr(value, f.name) for f in dataclasses.fields(value)), closures)
        elif closures and isinstance(value, types.FunctionType):
            cells = (cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType())
            yield from tensors_in((*cells, *(value.__defaults__ or ())), closures)


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
