"""A kernel as a user wrote it, with inputs, a reference and what torch.compile gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import helion

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
E4M3 = torch.float8_e4m3fn
Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class UserKernel:
    """``arguments`` are made on a device, in small odd sizes or in those that are timed. ``reference`` computes the
    results in eager PyTorch. ``baseline`` is what torch.compile gets: that, or how a user would write it for a GPU. One
    that ``draws`` takes other random numbers than the kernel, and its results have the same norms alone."""

    kernel: helion.Kernel
    arguments: Callable[[str, bool], Arguments]
    reference: Callable[..., Any]
    baseline: Callable[..., Any]
    draws: bool = False


class Cells(dict[str, UserKernel]):
    """The kernels of a module by name."""

    def add(
        self,
        kernel: helion.Kernel,
        arguments: Callable[[str, bool], Arguments],
        reference: Callable[..., Any],
        baseline: Callable[..., Any] | None = None,
        *,
        draws: bool = False,
    ) -> None:
        self[kernel.name] = UserKernel(kernel, arguments, reference, baseline or reference, draws)


def normal(device: str, *shape: int, dtype: torch.dtype = FP32, scale: float = 1.0) -> torch.Tensor:
    """Return normal numbers times ``scale``."""
    return (torch.randn(shape, device=device) * scale).to(dtype)


def offsets_of(rows: int, low: int, high: int) -> torch.Tensor:
    """Return where sequences of ``low`` to ``high - 1`` elements begin, and the end of the last: int64 `[rows + 1]`."""
    offsets = torch.zeros([rows + 1], dtype=torch.int64)
    offsets[1:] = torch.randint(low, high, [rows]).cumsum(0)
    return offsets


def high(x: torch.Tensor) -> torch.Tensor:
    """Return floats in at least fp32, and integers as they are."""
    return x.to(torch.promote_types(x.dtype, FP32)) if x.is_floating_point() else x


def below(size: int, device: torch.device | str) -> torch.Tensor:
    """Return the lower triangle with the diagonal, as a mask."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()


def heads(
    device: str,
    small: bool,
    count: int = 3,
    *,
    shape: Sequence[int] = (4, 16, 2048, 64),
    tiny: Sequence[int] = (1, 3, 37, 32),
) -> Arguments:
    """Return ``count`` tensors of heads `[B, H, T, D]` in bf16."""
    return tuple(normal(device, *(tiny if small else shape), dtype=BF16) for _ in range(count))


def scores_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    keep: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Return attention with a bias or a mask of the scores, computed in at least fp32."""
    scores = (high(q) @ high(k).transpose(-1, -2)) * (scale or 1 / math.sqrt(q.size(-1)))
    if bias is not None:
        scores = scores + bias
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    return (torch.softmax(scores, -1) @ high(v)).to(q.dtype)
