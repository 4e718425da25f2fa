"""Matmul of a batch of matrices with one shared matrix.

The second operand has no batch dimension. One kernel expands it to a three-dimensional dot without a copy. The other
folds the batch into the rows, which fills the tiles better when the matrices are small.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def broadcast_matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute `x[B, M, K] @ y[K, N]`, accumulated in fp32."""
    batch, m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    out = torch.empty([batch, m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([batch, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            shared = y[tile_k, tile_n][None, :, :].expand(tile_b.block_size, -1, -1)
            acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], shared)
        out[tile_b, tile_m, tile_n] = acc
    return out


@helion.kernel()
def broadcast_matmul_folded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute the same as one matmul with `B * M` rows."""
    batch, m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    rows = x.reshape(batch * m, k)
    out = torch.empty([batch * m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m, tile_n in hl.tile([batch * m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, rows[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out.view(batch, m, n)


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([3, 19, 77], device=DEVICE) + 0.5
    y = torch.randn([77, 33], device=DEVICE) - 0.25
    return [
        ("fp32", broadcast_matmul, (x, y)),
        ("bf16", broadcast_matmul, (x.bfloat16(), y.bfloat16())),
        ("folded, fp32", broadcast_matmul_folded, (x, y)),
        ("folded, fp16, y transposed", broadcast_matmul_folded, (x.half(), y.half().t().contiguous().t())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
