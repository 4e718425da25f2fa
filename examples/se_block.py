"""Gating of each row by a linear layer and a sigmoid of itself.

The matmul, the sigmoid and the scaling share one kernel: the gate never reaches memory.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def se_block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Compute `2 x * sigmoid(x @ weight)` of `x[M, N]` and `weight[N, N]`, accumulated in fp32; a zero weight gives
    `x`."""
    m, n = x.size()
    assert weight.size(0) == n and weight.size(1) == n, f"weight must be {n} by {n}"
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(n):
            acc = torch.addmm(acc, x[tile_m, tile_k], weight[tile_k, tile_n])
        out[tile_m, tile_n] = 2 * x[tile_m, tile_n].to(torch.float32) * torch.sigmoid(acc)
    return out


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return 2 * x * torch.sigmoid(x @ weight)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([45, 77], device=DEVICE) + 0.5
    weight = torch.randn([77, 77], device=DEVICE) * 0.1
    return [
        ("fp32", se_block, (x, weight)),
        ("bf16", se_block, (x.bfloat16(), weight.bfloat16())),
        ("fp16, weight transposed", se_block, (x.half(), weight.half().t())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
