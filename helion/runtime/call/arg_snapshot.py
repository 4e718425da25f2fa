"""Arguments kept for later without keeping their memory."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..._support.nested import map_nested
from ..._support.records import dataclass


def snapshot(value: Any) -> Any:
    """Replace every tensor in a value by a ``TensorSnapshot``."""
    return map_nested(value, torch.Tensor, _snapshot_of)


def restore(value: Any) -> Any:
    """Restore the value of a snapshot. A tensor that no longer exists becomes one without data, on the ``meta`` device."""
    return map_nested(value, TensorSnapshot, TensorSnapshot.tensor)


def describe(value: Any) -> str:
    """Describe a snapshot in a few words: ``float32[64, 128]``, with strides if it is not contiguous."""
    if isinstance(value, (tuple, list)) and type(value) is not torch.Size:
        inside = ", ".join(map(describe, value))
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {describe(item)}' for key, item in value.items())}}}"
    if not isinstance(value, TensorSnapshot):
        text = getattr(value, "__qualname__", None) or repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.size)}"
    return text if value.tensor().is_contiguous() else f"{text}@{value.stride}"


@dataclass(frozen=True, slots=True, eq=False)
class TensorSnapshot:
    reference: weakref.ref[torch.Tensor]
    dtype: torch.dtype
    size: tuple[Any, ...]
    stride: tuple[Any, ...]

    def tensor(self) -> torch.Tensor:
        found = self.reference()
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta") if found is None else found


def _snapshot_of(tensor: torch.Tensor) -> TensorSnapshot:
    return TensorSnapshot(weakref.ref(tensor), tensor.dtype, tuple(tensor.shape), tensor.stride())
