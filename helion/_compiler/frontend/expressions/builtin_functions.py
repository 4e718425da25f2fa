"""Python's builtin functions on abstract values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .... import exc
from ...._shapes import Expr, NeedsValue, hint_of
from .. import ops
from ..host import tensors as host_tensors
from ..runtime_values import is_runtime
from ..torch.pointwise import beside
from ..tracer import Tracer
from ..values import DeviceValue, HostTensorValue
from ..walk.kinds import is_hashable
from ..walk.scope import Scope
from .run_time import unknown


def _reduce_pairs(name: str) -> Callable[..., Any]:
    def call(s: Scope, *args: Any) -> Any:
        items = list(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else list(args)
        if len(items) == 1 and not isinstance(args[0], (tuple, list)):
            python = name.removesuffix("imum")
            raise exc.TypeInferenceError(f"{python}() takes at least two values; use torch.a{python} to reduce a tile.")
        if not s.t.on_device:
            pick: Callable[..., Any] = max if name == "maximum" else min
            kinds = {item.kind if isinstance(item, Expr) else type(item) for item in items}
            if any(is_runtime(s.t, item) for item in items):
                if len(kinds) > 1:
                    return unknown(s, pick, ())
                return functools.reduce(
                    lambda a, b: Expr(name.removesuffix("imum"), (a, b), pick(hint_of(a), hint_of(b))), items
                )
            return pick(s.t.numbers.specialize(item) if isinstance(item, Expr) else item for item in items)
        result = items[0]
        for item in items[1:]:
            result = ops.pointwise(s.t, name, beside(s.t, result, item), beside(s.t, item, result))
        return result

    return call


def _convert(dtype: torch.dtype, fallback: type) -> Callable[..., Any]:
    def call(s: Scope, value: Any) -> Any:
        if isinstance(value, DeviceValue):
            if value.dims:
                raise exc.TypeInferenceError(f"{fallback.__name__}() takes a scalar, got {value!r}.")
            return _converted(s, value, dtype)
        if s.t.on_device:
            if fallback is bool or value.kind is fallback:
                return value if value.kind is fallback else value != 0
            return _converted(s, ops.number(s.t, value), dtype)
        if isinstance(value, HostTensorValue):
            if not (isinstance(value.numel(), int) and value.numel() == 1):
                raise exc.TypeInferenceError(f"{fallback.__name__}() takes a tensor with one element, got {value!r}.")
            return host_tensors.item(s.t, dtype)
        if value.kind is fallback:
            return value
        if is_runtime(s.t, value):
            return host_tensors.number(s.t, fallback(value.hint))
        return fallback(s.t.numbers.specialize(value))

    return call


def _converted(s: Scope, value: DeviceValue, dtype: torch.dtype) -> DeviceValue:
    """Return a number of the device as another kind; ``int`` keeps an integer's dtype, and all bits of a float."""
    if dtype == torch.int32 and value.dtype != torch.bool:
        dtype = torch.int64 if value.dtype.is_floating_point else value.dtype
    return ops.cast(s.t, value, dtype)


def _is_builtin_argument(t: Tracer, function: Any, args: tuple[Any, ...]) -> bool:
    """Return whether one of ``args`` is an abstract value that a builtin function needs a rule for."""
    if function in (min, max) and len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = tuple(args[0])
    numbers = (int, float, bool)
    return any(
        isinstance(a, (DeviceValue, Expr))
        or (isinstance(a, HostTensorValue) and t.on_device and function is len)
        or (isinstance(a, HostTensorValue) and not t.on_device and function in numbers)
        for a in args
    )


def _len(s: Scope, value: Any) -> Any:
    if isinstance(value, HostTensorValue):
        if not value.ndim:
            raise exc.TypeInferenceError("TypeError: len() of a 0-d tensor.")
        return value.shape[0]
    return value.shape[0]


def _abs(s: Scope, value: Any) -> Any:
    if s.t.on_device:
        return ops.pointwise(s.t, "abs", value)
    return abs(value)


_BUILTINS: dict[Any, Callable[..., Any]] = {
    max: _reduce_pairs("maximum"),
    min: _reduce_pairs("minimum"),
    int: _convert(torch.int32, int),
    float: _convert(torch.float32, float),
    bool: _convert(torch.bool, bool),
    len: _len,
    abs: _abs,
}


def builtin_rule(s: Scope, function: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return the rule for a builtin function of abstract values, if it has one for these arguments."""
    builtin = _BUILTINS.get(function) if is_hashable(function) else None
    if builtin is None or not _is_builtin_argument(s.t, function, args):
        return None

    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return builtin(*args, **kwargs)
        except NeedsValue:
            raise
        except TypeError as error:
            raise exc.TypeInferenceError(f"{function.__name__}: {error}.") from error

    return checked
