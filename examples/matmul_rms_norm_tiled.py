"""Matmul followed by root-mean-square normalization of its rows, for rows too wide for registers.

Each program loops over its rows' columns twice. The first loop multiplies a tile, adds its squares to the row's and
stores the tile to the output. The second loop reads it from the L2 cache and scales it.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def matmul_rms_norm_tiled(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Compute `rms_norm(x[M, K] @ y[K, N], weight[N])`; the squares are summed in fp32, before the result is rounded."""
    m, k = x.size()
    assert k == y.size(0), f"cannot multiply: x has {k} columns, y has {y.size(0)} rows"
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m in hl.tile(m):
        squares = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            squares = squares + torch.sum(acc * acc, dim=-1)
            out[tile_m, tile_n] = acc
        scale = torch.rsqrt(squares / n + eps)
        for tile_n in hl.tile(n):
            row = out[tile_m, tile_n].to(torch.float32) * scale[:, None]
            out[tile_m, tile_n] = row * weight[tile_n].to(torch.float32)
    return out


def reference(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x @ y, [y.size(1)], weight, eps)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([77, 130], device=DEVICE) + 0.5
    y = torch.randn([130, 300], device=DEVICE) + 0.25
    weight = torch.randn([300], device=DEVICE) + 1
    return [
        ("fp32", matmul_rms_norm_tiled, (x, y, weight)),
        ("bf16", matmul_rms_norm_tiled, (x.bfloat16(), y.bfloat16(), weight.bfloat16())),
        ("fp16, y transposed", matmul_rms_norm_tiled, (x.half(), y.t().contiguous().t().half(), weight.half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
