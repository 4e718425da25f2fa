"""What a compiled kernel assumes about the world outside its arguments: globals, and what was read through them."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, Literal

import torch

#: Values that are compiled in when they are read.
PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_MISSING = object()


def tensor_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What code depends on of a captured tensor."""
    return (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.device.type)


@dataclass(frozen=True)
class Guard:
    """``owner[key]`` (of a namespace or a container) or ``owner.key`` still is what it was: equal for plain values, of
    the same type and shape for tensors, the same object otherwise."""

    kind: Literal["item", "attribute"]
    owner: Any
    key: Any
    value: Any

    def holds(self) -> bool:
        """Whether the world is as it was."""
        try:
            now = self.owner[self.key] if self.kind == "item" else getattr(self.owner, self.key)
        except (KeyError, IndexError, AttributeError):
            return False
        if isinstance(now, torch.Tensor):
            return tensor_key(now) == self.value
        return now is self.value or (isinstance(now, PLAIN) and type(now) is type(self.value) and now == self.value)


def guard(kind: Literal["item", "attribute"], owner: Any, key: Any, value: Any) -> Guard | None:
    """The assumption that reading ``value`` makes, or None for what does not change: modules, and what torch holds."""
    if isinstance(value, types.ModuleType) or (
        isinstance(owner, type(torch)) and owner.__name__.split(".")[0] == "torch"
    ):
        return None
    return Guard(kind, owner, key, tensor_key(value) if isinstance(value, torch.Tensor) else value)
