"""Reductions and scans with a function of the user's, and cumulative sums and products.

A combine function takes two values, or for a tuple of n tensors two tuples or 2n values, and must be associative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._registry import declare


@declare("device")
def reduce(
    combine_fn: Callable[..., Any], input_tensor: Any, dim: int | None = None, other: Any = 0, keep_dims: bool = False
) -> Any:
    """Combine all values along ``dim`` (all dimensions when None). Lanes out of range count as ``other``."""


@declare("device")
def associative_scan(combine_fn: Callable[..., Any], input_tensor: Any, dim: int, reverse: bool = False) -> Any:
    """Combine each value along ``dim`` with all before it (behind it when ``reverse``)."""


@declare("device")
def cumsum(input_tensor: Any, dim: int, reverse: bool = False) -> Any:
    """Sums of each value along ``dim`` and all before it."""


@declare("device")
def cumprod(input_tensor: Any, dim: int, reverse: bool = False) -> Any:
    """Products of each value along ``dim`` and all before it."""
