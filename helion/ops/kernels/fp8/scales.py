"""Scales of matrices in fp8, and the checks of their formats.

A scale belongs to a row, to a group of consecutive columns of a row, or to a square block. The largest magnitude of
these becomes the largest number of the format.
"""

from __future__ import annotations

import torch

from ..._operators import check

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def scaled(values: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide the last dimension by a scale, so that its largest magnitude is `largest`; return results and scales."""
    highest = torch.amax(torch.abs(values), dim=-1)
    scale = torch.where(highest > 0, highest / largest, 1.0)
    return values / scale.unsqueeze(-1), scale


def largest_of(dtype: torch.dtype) -> float:
    """Return the largest number of a format."""
    return torch.finfo(dtype).max


def fake_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return empty values like `x`, and empty scales of its rows."""
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape[:-1], dtype=torch.float32)


def check_format(op: str, dtype: torch.dtype) -> None:
    check(op, "dtype", dtype in FP8, "torch.float8_e4m3fn or torch.float8_e5m2", dtype)


def check_group(op: str, group: int | None, columns: int) -> None:
    divides = group is None or (group > 0 and columns % group == 0)
    check(op, "group", divides, f"None, or a divisor of the {columns} columns", group)


def check_block(op: str, block: int) -> None:
    check(op, "block", block >= 16 and block & (block - 1) == 0, "a power of two, at least 16", block)
