"""Loads and stores with more options than ``x[tile]`` and ``out[tile] = v``."""

from __future__ import annotations

from typing import Any

from ._registry import declare


@declare("device")
def load(tensor: Any, index: list[Any], extra_mask: Any = None, eviction_policy: str | None = None) -> Any:
    """Load ``tensor[index]``; lanes out of range, and those where ``extra_mask`` is false, read 0.

    ``eviction_policy`` is ``""``, ``"evict_first"`` or ``"evict_last"`` and overrides the config.
    """


@declare("device")
def store(tensor: Any, index: list[Any], value: Any, extra_mask: Any = None) -> None:
    """Store ``value`` (cast to the tensor's dtype, broadcast) at ``tensor[index]`` where ``extra_mask`` is true."""
