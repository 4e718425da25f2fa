"""Elementwise addition: the smallest kernel.

One `hl.tile` over all dimensions gives a block of indices; its sizes, their order and the launch grid come from the
config. Broadcasting and type promotion happen in host code and follow PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Add any two tensors that broadcast together."""
    x, y = torch.broadcast_tensors(x, y)
    out = torch.empty(x.size(), dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([63, 1000], device=DEVICE) + 3
    y = torch.randn([63, 1000], device=DEVICE) - 2
    return [
        ("fp32", add, (x, y)),
        ("bf16 plus a row", add, (x.bfloat16(), y[0].bfloat16())),
        ("fp16 plus fp32", add, (x.half(), y)),
        ("transposed", add, (x[:, :77].t(), y[:, :77].t())),
        ("1-d", add, (x[0, :77], y[0, :77])),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
