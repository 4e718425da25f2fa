"""Softmax over the last of three dimensions.

The grid tiles batch and rows together; the config may flatten both into one.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def batch_softmax(x: torch.Tensor) -> torch.Tensor:
    """Compute the softmax over the last dimension of `x[B, M, N]`, in fp32."""
    batch, m, _ = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_m in hl.tile([batch, m]):
        row = x[tile_b, tile_m, :].to(torch.float32)
        raised = torch.exp(row - torch.amax(row, dim=-1, keepdim=True))
        out[tile_b, tile_m, :] = raised / torch.sum(raised, dim=-1, keepdim=True)
    return out


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([3, 13, 301], device=DEVICE) * 2 - 5
    return [
        ("fp32", batch_softmax, (x,)),
        ("bf16, 63 columns", batch_softmax, (x[:, :, :63].bfloat16(),)),
        ("fp16, transposed", batch_softmax, (x.half().transpose(0, 1),)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
