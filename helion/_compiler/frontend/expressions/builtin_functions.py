"""Python's builtin functions on abstract values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .... import exc
from ...._shapes import Expr, hint_of
from .. import host_tensors
from ..runtime_values import is_runtime
from ..values import DeviceValue, HostTensorValue

if TYPE_CHECKING:
    from ..tracer import Tracer
    from .operators import Expressions


def _reduce_pairs(name: str) -> Callable[..., Any]:
    def call(e: Expressions, *args: Any) -> Any:
        items = list(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else list(args)
        if len(items) == 1 and not isinstance(args[0], (tuple, list)):
            python = name.removesuffix("imum")
            raise exc.TypeInferenceError(f"{python}() takes at least two values; use torch.a{python} to reduce a tile.")
        if not e.t.on_device:
            pick: Callable[..., Any] = max if name == "maximum" else min
            kinds = {item.kind if isinstance(item, Expr) else type(item) for item in items}
            if any(is_runtime(e.t, item) for item in items):
                if len(kinds) > 1:
                    return e.unknown(pick, ())
                return functools.reduce(
                    lambda a, b: Expr(name.removesuffix("imum"), (a, b), pick(hint_of(a), hint_of(b))), items
                )
            return pick(e.t.specialize(item) if isinstance(item, Expr) else item for item in items)
        result = items[0]
        for item in items[1:]:
            result = e.t.pointwise(name, result, item)
        return result

    return call


def _convert(dtype: torch.dtype, fallback: type) -> Callable[..., Any]:
    def call(e: Expressions, value: Any) -> Any:
        if isinstance(value, DeviceValue):
            if value.dims:
                raise exc.TypeInferenceError(f"{fallback.__name__}() takes a scalar, got {value!r}.")
            return e.t.cast(value, dtype)
        if e.t.on_device:
            return e.t.cast(e.t.number(value), dtype)
        if isinstance(value, HostTensorValue):
            if not (isinstance(value.numel(), int) and value.numel() == 1):
                raise exc.TypeInferenceError(f"{fallback.__name__}() takes a tensor with one element, got {value!r}.")
            return host_tensors.item(e.t, dtype)
        if value.kind is fallback:
            return value
        if is_runtime(e.t, value):
            return host_tensors.number(e.t, fallback(value.hint))
        return fallback(e.t.specialize(value))

    return call


def is_builtin_argument(t: Tracer, function: Any, args: tuple[Any, ...]) -> bool:
    """Whether one of ``args`` is an abstract value that a builtin function needs a rule for."""
    if function in (min, max) and len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = tuple(args[0])
    numbers = (int, float, bool)
    return any(
        isinstance(a, (DeviceValue, Expr))
        or (isinstance(a, HostTensorValue) and not t.on_device and function in numbers)
        for a in args
    )


def _len(e: Expressions, value: Any) -> Any:
    return value.shape[0]


def _abs(e: Expressions, value: Any) -> Any:
    if e.t.on_device:
        return e.t.pointwise("abs", value)
    return abs(value)


BUILTINS: dict[Any, Callable[..., Any]] = {
    max: _reduce_pairs("maximum"),
    min: _reduce_pairs("minimum"),
    int: _convert(torch.int32, int),
    float: _convert(torch.float32, float),
    bool: _convert(torch.bool, bool),
    len: _len,
    abs: _abs,
}
