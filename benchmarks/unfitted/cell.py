"""A kernel as a user wrote it, with inputs, a reference and what torch.compile gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import helion

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class UserKernel:
    """``arguments`` are made on a device, in small odd sizes or in those that are timed. ``reference`` computes the
    results in eager PyTorch. ``baseline`` is what torch.compile gets: that, or how a user would write it for a GPU."""

    kernel: helion.Kernel
    arguments: Callable[[str, bool], Arguments]
    reference: Callable[..., Any]
    baseline: Callable[..., Any]


class Cells(dict[str, UserKernel]):
    """The kernels of a module by name."""

    def add(
        self,
        kernel: helion.Kernel,
        arguments: Callable[[str, bool], Arguments],
        reference: Callable[..., Any],
        baseline: Callable[..., Any] | None = None,
    ) -> None:
        self[kernel.name] = UserKernel(kernel, arguments, reference, baseline or reference)


def normal(device: str, *shape: int, dtype: torch.dtype = FP32, scale: float = 1.0) -> torch.Tensor:
    """Return normal numbers times ``scale``."""
    return (torch.randn(shape, device=device) * scale).to(dtype)


def offsets_of(rows: int, low: int, high: int) -> torch.Tensor:
    """Return where sequences of ``low`` to ``high - 1`` elements begin, and the end of the last: int64 `[rows + 1]`."""
    offsets = torch.zeros([rows + 1], dtype=torch.int64)
    offsets[1:] = torch.randint(low, high, [rows]).cumsum(0)
    return offsets


def high(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` in at least fp32."""
    return x.to(torch.promote_types(x.dtype, FP32))
