"""Random numbers that depend on the seed and on the element's place in the whole tensor, never on tile sizes."""

from __future__ import annotations

from typing import Any

from ._registry import declare


@declare("device")
def rand(shape: list[Any], seed: Any, device: Any = None) -> Any:
    """fp32 numbers in [0, 1). ``seed`` is an integer or a scalar. Philox, as ``triton.language.rand``."""


@declare("device")
def randint(shape: list[Any], low: int, high: int, seed: Any, device: Any = None) -> Any:
    """int32 numbers in [low, high)."""
