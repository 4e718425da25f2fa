"""Joining and splitting the last dimension of device values."""

from __future__ import annotations

from typing import Any

from ._registry import declare


@declare("device")
def split(tensor: Any) -> tuple[Any, Any]:
    """The two halves ``tensor[..., 0]`` and ``tensor[..., 1]`` of a last dimension of 2."""


@declare("device")
def join(tensor0: Any, tensor1: Any) -> Any:
    """Two values, broadcast together, as one with a new last dimension of 2."""
