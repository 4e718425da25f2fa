"""Batched matmul: three parallel dimensions and one sequential.

`torch.baddbmm` on tiles is a three-dimensional dot; the compiler keeps the batch tile at one matrix per program.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute `a[B, M, K] @ b[B, K, N]`, accumulated in fp32."""
    batch, m, k = a.size()
    batch2, k2, n = b.size()
    assert batch == batch2, f"cannot multiply: {batch} and {batch2} matrices"
    assert k == k2, f"cannot multiply: a has {k} columns, b has {k2} rows"
    out = torch.empty([batch, m, n], dtype=torch.promote_types(a.dtype, b.dtype), device=a.device)
    for tile_b, tile_m, tile_n in hl.tile([batch, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, a[tile_b, tile_m, tile_k], b[tile_b, tile_k, tile_n])
        out[tile_b, tile_m, tile_n] = acc
    return out


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a, b)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    a = torch.randn([3, 45, 77], device=DEVICE) + 0.5
    b = torch.randn([3, 77, 63], device=DEVICE) - 0.25
    return [
        ("fp32", bmm, (a, b)),
        ("bf16", bmm, (a.bfloat16(), b.bfloat16())),
        ("fp16, a transposed", bmm, (a.half().transpose(1, 2), b[:, :45].half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
