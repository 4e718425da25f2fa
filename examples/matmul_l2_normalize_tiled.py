"""Matmul whose rows are scaled to length 1, for rows too wide for registers: a projection to long embeddings.

The first loop over N sums the squares and stores its unscaled tiles to the output. The second loop reads them again,
from the L2 cache, and scales them.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def matmul_l2_normalize_tiled(x: torch.Tensor, y: torch.Tensor, eps: float = 1e-12) -> torch.Tensor:
    """Compute `normalize(x[M, K] @ y[K, N])` over the last dimension; the squares are summed in fp32."""
    m, k = x.size()
    assert k == y.size(0), f"cannot multiply: x has {k} columns, y has {y.size(0)} rows"
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m in hl.tile(m):
        squares = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            squares = squares + torch.sum(acc * acc, dim=-1)
            out[tile_m, tile_n] = acc
        scale = 1 / torch.clamp(torch.sqrt(squares), min=eps)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = out[tile_m, tile_n].to(torch.float32) * scale[:, None]
    return out


def reference(x: torch.Tensor, y: torch.Tensor, eps: float = 1e-12) -> torch.Tensor:
    return torch.nn.functional.normalize(x @ y, dim=-1, eps=eps)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([77, 130], device=DEVICE) + 0.5
    x[3] = 0
    y = torch.randn([130, 300], device=DEVICE) + 0.25
    return [
        ("fp32", matmul_l2_normalize_tiled, (x, y)),
        ("bf16", matmul_l2_normalize_tiled, (x.bfloat16(), y.bfloat16())),
        ("fp16, y transposed", matmul_l2_normalize_tiled, (x.half(), y.t().contiguous().t().half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
