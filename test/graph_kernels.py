"""Kernels that two processes look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import helion
import helion.language as hl


@helion.kernel(static_shapes=False)
def add(x: torch.Tensor, number: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + number
    return out


@helion.kernel(static_shapes=False)
def apply(x: torch.Tensor, fn: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = fn(x[tile])
    return out
