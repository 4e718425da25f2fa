"""Classes of abstract values, and the classes of the objects that they represent."""

from __future__ import annotations

from typing import Any

import torch

from ...._shapes import Expr
from ..runtime_values import Opaque
from ..values import DeviceValue, HostTensorValue, Shape, Tile

#: Classes that represent a tensor, a tile or a number.
ABSTRACT = (DeviceValue, HostTensorValue, Tile, Expr)


def is_hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


def any_abstract(value: Any) -> bool:
    """Return whether a value is or contains an abstract tensor, tile or number."""
    if isinstance(value, (tuple, list)):
        return any(map(any_abstract, value))
    if isinstance(value, dict):
        return any(map(any_abstract, value.values()))
    return isinstance(value, ABSTRACT)


def tensors_in(value: Any) -> list[HostTensorValue]:
    """Return the host tensors in a value."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return [value] if isinstance(value, HostTensorValue) else []


def type_of(value: Any) -> type:
    """Return the class of the object that an abstract value represents."""
    if isinstance(value, Expr):
        return value.kind
    if isinstance(value, HostTensorValue):
        return value.python_type
    if isinstance(value, DeviceValue):
        return torch.Tensor
    if isinstance(value, Opaque):
        raise value.error
    return torch.Size if isinstance(value, Shape) else type(value)
