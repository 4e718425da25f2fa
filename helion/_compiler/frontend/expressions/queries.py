"""Builtins such as ``isinstance`` and ``hasattr``, answered for the object that an abstract value represents."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import torch

from ...._shapes import Expr
from ..purity import operator_of
from ..runtime_values import Opaque
from ..values import DeviceValue, HostTensorValue, Shape, TileTuple
from ..walk.kinds import ABSTRACT, type_of
from ..walk.scope import Scope
from .attributes import attribute_of
from .pure_calls import call_pure
from .run_time import runtime_number, unknown


def _legacy_name(value: HostTensorValue | DeviceValue) -> str:
    """Return ``Tensor.type()`` of a value, which classes such as torch.FloatTensor are compared with."""
    device = value.device if isinstance(value, HostTensorValue) else value.tracer.device
    where = "" if device.type == "cpu" else f"{device.type}."
    return f"torch.{where}{torch.empty(0, dtype=value.dtype).type().split('.')[-1]}"


def _is_instance(value: Any, classes: Any) -> bool:
    if isinstance(classes, tuple):
        return any(_is_instance(value, each) for each in classes)
    if isinstance(value, Expr):
        return isinstance(value.hint, classes)
    if isinstance(value, Shape):
        return isinstance(torch.Size(), classes)
    if isinstance(value, (HostTensorValue, DeviceValue)):
        if type(classes) is type(torch.FloatTensor):
            return bool(_legacy_name(value) == f"{classes.__module__}.{classes.__name__}")
        cls = type_of(value)
        if cls is torch.nn.Parameter:  # its metaclass inspects the instance
            return isinstance(torch.nn.Parameter(torch.empty(0), requires_grad=False), classes)
        return isinstance(torch.empty(0, device="meta"), classes) if cls is torch.Tensor else issubclass(cls, classes)
    return isinstance(value, classes)


def _isinstance(s: Scope, value: Any, classes: Any) -> Any:
    if isinstance(value, Opaque):
        return runtime_number(s, bool)
    return _is_instance(value, classes)


def _type(s: Scope, value: Any, *more: Any) -> Any:
    if more:
        return unknown(s, type, (value, *more))
    return value if isinstance(value, Opaque) else type_of(value)


def _id(s: Scope, value: Any) -> Any:
    return runtime_number(s, int, wide=True)


def _callable(s: Scope, value: Any) -> Any:
    if isinstance(value, Opaque):
        return runtime_number(s, bool)
    return False if isinstance(value, (Expr, HostTensorValue, DeviceValue)) else callable(value)


def _hasattr(s: Scope, value: Any, name: str) -> Any:
    if isinstance(value, Opaque):
        return runtime_number(s, bool)
    if isinstance(value, DeviceValue):  # user attributes exist on host tensors only
        return hasattr(type_of(value), name)
    if isinstance(value, HostTensorValue):
        return True if hasattr(type_of(value), name) else runtime_number(s, bool)
    try:
        attribute_of(s, value, name)
    except AttributeError:
        _assume_absent(s, value, name)
        return False
    return True


def _getattr(s: Scope, value: Any, name: Any, *default: Any) -> Any:
    if not isinstance(name, str):
        return unknown(s, getattr, (value, name))
    if isinstance(value, HostTensorValue) and not hasattr(type_of(value), name):
        return unknown(s, getattr, (value, name))
    try:
        return attribute_of(s, value, name)
    except AttributeError:
        if not default:
            raise
        _assume_absent(s, value, name)
        return default[0]


def _assume_absent(s: Scope, value: Any, name: str) -> None:
    """Record that a user's object lacks an attribute."""
    if not isinstance(value, (*ABSTRACT, TileTuple)):
        s.t.world.assume("absent", value, name, None)


def _hash(s: Scope, value: Any) -> Any:
    return runtime_number(s, int, wide=True)


def _len(s: Scope, value: Any) -> Any:
    if isinstance(value, Opaque):
        return runtime_number(s, int)
    if isinstance(value, HostTensorValue):
        return value.shape[0]
    return runtime_number(s, int) if operator_of(value, "__len__") else call_pure(s, len, (value,), {})


#: Builtin functions that query the type or the attributes of a value.
QUERIES: dict[Any, Callable[..., Any]] = {
    isinstance: _isinstance,
    type: _type,
    id: _id,
    callable: _callable,
    hasattr: _hasattr,
    getattr: _getattr,
    len: _len,
    builtins.hash: _hash,
}
