"""Loads and stores with more options than ``x[tile]`` and ``out[tile] = v``."""

from __future__ import annotations

from typing import Any

import torch

from .. import exc
from . import _reference_access as access
from ._registry import declare, reference


@declare("device")
def load(tensor: Any, index: list[Any], extra_mask: Any = None, eviction_policy: str | None = None) -> Any:
    """Load ``tensor[index]``; lanes of tiles that are out of range, and those where ``extra_mask`` is false, read 0.

    Nothing else is masked: numbers and index tensors must be in range; what lies beyond is read as it is, or reported where
    the kernel is ``checked`` or runs eagerly (``exc.IndexOutOfRange``). A negative integer, a constant or an argument,
    counts from the end; what is loaded or computed on the device does not.

    ``eviction_policy`` is ``""``, ``"evict_first"`` or ``"evict_last"`` and overrides the config.
    """


@declare("device")
def store(tensor: Any, index: list[Any], value: Any, extra_mask: Any = None) -> None:
    """Store ``value`` (cast to the tensor's dtype, broadcast) at ``tensor[index]`` where ``extra_mask`` is true. Lanes of tiles
    that are out of range are not stored; for other indices see ``hl.load``."""


# --- eager references ---------------------------------------------------------------------------------------------------


def _tensor(tensor: Any, name: str) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise exc.TypeInferenceError(f"{name} works on host tensors, got a {type(tensor).__name__}.")
    return tensor


@reference(load)
def _load(tensor: Any, index: Any, extra_mask: Any = None, eviction_policy: str | None = None) -> torch.Tensor:
    if eviction_policy not in (None, "", "evict_first", "evict_last"):
        raise exc.InvalidAPIUsage(
            f"eviction_policy must be '', 'evict_first' or 'evict_last', got {eviction_policy!r}."
        )
    return access.load(_tensor(tensor, "hl.load"), index, extra_mask)


@reference(store, "once")
def _store(tensor: Any, index: Any, value: Any, extra_mask: Any = None) -> None:
    access.store(_tensor(tensor, "hl.store"), index, value, extra_mask)
