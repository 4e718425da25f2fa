"""Matmul followed by a softmax of its rows, in one kernel: a classifier head.

The row maximum and sum are reductions over the accumulator. The compiler masks the lanes that pad N to a power of two
in both.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def matmul_softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute `softmax(x[M, K] @ y[K, N])` over the last dimension, accumulated in fp32."""
    m, k = x.size()
    assert k == y.size(0), f"cannot multiply: x has {k} columns, y has {y.size(0)} rows"
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m, :] = torch.softmax(acc, dim=-1)
    return out


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ y, dim=-1)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    # Every logit is well below 0, the value of a padding lane: an unmasked one would win each maximum.
    x = torch.rand([77, 130], device=DEVICE) * 0.4 + 0.1
    y = torch.rand([130, 63], device=DEVICE) * -0.8 - 0.1
    return [
        ("fp32", matmul_softmax, (x, y)),
        ("bf16", matmul_softmax, (x.bfloat16(), y.bfloat16())),
        ("fp16, y transposed", matmul_softmax, (x.half(), y.t().contiguous().t().half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
