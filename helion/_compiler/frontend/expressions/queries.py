"""Questions about what a value is, answered for what an abstract value stands for."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .... import exc
from ...._shapes import Expr, NeedsValue
from ..purity import operator_of
from ..runtime_values import SAMPLES, Opaque, is_runtime
from ..values import DeviceValue, HostTensorValue, Shape, Tile

if TYPE_CHECKING:
    from .operators import Expressions

#: Attributes of abstract values that the objects they stand for do not have, or have as methods.
_INTERNAL = {
    HostTensorValue: frozenset(("tracer", "strides", "storage", "source", "aligned", "made", "python_type")),
    DeviceValue: frozenset(("tracer", "value", "number", "dims")),
    Expr: frozenset(("op", "args", "hint", "key", "kind", "leaves", "evaluate", "combine", "render")),
}


def type_of(value: Any) -> type:
    """The class of what an abstract value stands for."""
    if isinstance(value, Expr):
        return value.kind
    if isinstance(value, HostTensorValue):
        return value.python_type
    if isinstance(value, DeviceValue):
        return torch.Tensor
    if isinstance(value, Opaque):
        raise value.error
    return torch.Size if isinstance(value, Shape) else type(value)


def _legacy_name(value: HostTensorValue | DeviceValue) -> str:
    """What ``Tensor.type()`` gives, which classes such as torch.FloatTensor are compared with."""
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
        if cls is torch.nn.Parameter:  # its class looks at the object
            return isinstance(torch.nn.Parameter(torch.empty(0), requires_grad=False), classes)
        return isinstance(torch.empty(0, device="meta"), classes) if cls is torch.Tensor else issubclass(cls, classes)
    return isinstance(value, classes)


def _isinstance(e: Expressions, value: Any, classes: Any) -> Any:
    if isinstance(value, Opaque):
        return e.runtime_number(bool)
    return _is_instance(value, classes)


def _type(e: Expressions, value: Any, *more: Any) -> Any:
    if more:
        return e.unknown(type, (value, *more))
    return value if isinstance(value, Opaque) else type_of(value)


def _id(e: Expressions, value: Any) -> Any:
    return e.runtime_number(int, wide=True)


def _callable(e: Expressions, value: Any) -> Any:
    if isinstance(value, Opaque):
        return e.runtime_number(bool)
    return False if isinstance(value, (Expr, HostTensorValue, DeviceValue)) else callable(value)


def _hasattr(e: Expressions, value: Any, name: str) -> Any:
    if isinstance(value, Opaque):
        return e.runtime_number(bool)
    if isinstance(value, (HostTensorValue, DeviceValue)):
        return True if hasattr(type_of(value), name) else e.runtime_number(bool)
    try:
        e.attribute(value, name)
    except AttributeError:
        return False
    return True


def _getattr(e: Expressions, value: Any, name: str, *default: Any) -> Any:
    if isinstance(value, (HostTensorValue, DeviceValue)) and not hasattr(type_of(value), name):
        return e.unknown(getattr, (value, name))
    try:
        return e.attribute(value, name)
    except AttributeError:
        if default:
            return default[0]
        raise


def _hash(e: Expressions, value: Any) -> Any:
    return e.runtime_number(int, wide=True)


def _len(e: Expressions, value: Any) -> Any:
    if isinstance(value, Opaque):
        return e.runtime_number(int)
    if isinstance(value, HostTensorValue):
        return value.shape[0]
    return e.runtime_number(int) if operator_of(value, "__len__") else e.call_pure(len, (value,), {})


#: Builtin functions about the nature of a value.
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


def attribute_of_number(e: Expressions, value: Expr, name: str) -> Any:
    """An attribute of the number that a symbolic one stands for."""
    if name == "__class__":
        return value.kind
    if not hasattr(value.kind, name):
        raise AttributeError(f"'{value.kind.__name__}' object has no attribute {name!r}")
    found = getattr(value.kind, name)
    if not callable(found):
        if is_runtime(e.t, value):
            return e.runtime_number(type(getattr(value.hint, name)))
        return getattr(e.t.specialize(value), name)
    method = getattr(value.hint, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return e.number_method(
            value, name, type(method(*args, **kwargs)) if not args and not kwargs else None, args, kwargs
        )

    return call


def attribute_of_tensor(value: HostTensorValue | DeviceValue, name: str) -> Any:
    """An attribute of a tensor, kept apart from those of the value that stands for it."""
    if name == "__class__":
        return type_of(value)
    if name in _INTERNAL[type(value)]:
        method = getattr(torch.Tensor, name, None)
        if method is None:
            raise AttributeError(f"'Tensor' object has no attribute {name!r}")
        return lambda *args, **kwargs: value.tracer.torch_call(method, (value, *args), kwargs)
    return getattr(value, name)


def is_same(e: Expressions, left: Any, right: Any) -> Any:
    """``left is right``."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Opaque):
            return e.runtime_number(bool)
        if isinstance(one, Expr):
            if other is None or isinstance(other, (str, Tile, HostTensorValue, DeviceValue)):
                return False
            if not isinstance(other, (bool, int, float, Expr)):
                return False
            if one.kind is not type_of(other):
                return False
            if one.kind is not bool or is_runtime(e.t, one) or is_runtime(e.t, other):
                return e.runtime_number(bool)  # integers are one object or two
            return e.t.specialize(one) is (e.t.specialize(other) if isinstance(other, Expr) else other)
    if isinstance(left, HostTensorValue) and isinstance(right, HostTensorValue):
        # a view of a tensor may be that tensor
        return e.runtime_number(bool) if e.walker.may_share(left, right) else False
    return left is right


def contains(e: Expressions, item: Any, container: Any) -> Any:
    """``item in container``."""
    if isinstance(container, Opaque) or isinstance(item, Opaque):
        return e.runtime_number(bool)
    if isinstance(container, HostTensorValue):
        raise exc.TypeInferenceError(
            "Whether a number is in a tensor is known at run time only; write `bool((x == n).any())`."
        )
    if is_runtime(e.t, item) or operator_of(container, "__contains__") or operator_of(container, "__getitem__"):
        return e.runtime_number(bool)
    try:
        return item in container
    except NeedsValue:
        settled = e.settled((item, container))
        return e.runtime_number(bool) if settled is None else settled[0] in settled[1]


__all__ = ["QUERIES", "SAMPLES", "attribute_of_number", "attribute_of_tensor", "contains", "is_same", "type_of"]
