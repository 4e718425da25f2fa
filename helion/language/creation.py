"""Device values made from nothing. Sizes are tiles, block sizes and compile-time constants."""

from __future__ import annotations

from typing import Any

import torch

from ._registry import declare


@declare("device")
def zeros(shape: list[Any], dtype: torch.dtype = torch.float32, device: Any = None) -> Any:
    """A value of zeros. Raises ``exc.ShapeSpecializingAllocation`` when a size is not known at compile time."""


@declare("device")
def full(shape: list[Any], value: Any, dtype: torch.dtype = torch.float32, device: Any = None) -> Any:
    """A value filled with a number or a scalar device value."""


@declare("device")
def arange(*bounds: Any, dtype: torch.dtype | None = None, device: Any = None, step: int = 1) -> Any:
    """Integers, with the arguments of ``torch.arange``: constants, or one block size. The dtype defaults to the index dtype."""


@declare("device")
def subscript(tensor: Any, index: list[Any]) -> Any:
    """``tensor[index]`` of a device value, where the index holds only ``:``, ``...`` and None."""
