"""Matmul whose rows are scaled to length 1, in one kernel: a projection to embeddings.

The length of a row is a reduction over the accumulator. As in `torch.nn.functional.normalize`, it is at least `eps`,
so that a row of zeros stays zero.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def matmul_l2_normalize(x: torch.Tensor, y: torch.Tensor, eps: float = 1e-12) -> torch.Tensor:
    """Compute `normalize(x[M, K] @ y[K, N])` over the last dimension, accumulated and scaled in fp32."""
    m, k = x.size()
    assert k == y.size(0), f"cannot multiply: x has {k} columns, y has {y.size(0)} rows"
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        length = torch.sqrt(torch.sum(acc * acc, dim=-1, keepdim=True))
        out[tile_m, :] = acc / torch.clamp(length, min=eps)
    return out


def reference(x: torch.Tensor, y: torch.Tensor, eps: float = 1e-12) -> torch.Tensor:
    return torch.nn.functional.normalize(x @ y, dim=-1, eps=eps)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([77, 130], device=DEVICE) + 0.5
    x[3] = 0
    y = torch.randn([130, 63], device=DEVICE) + 0.25
    return [
        ("fp32", matmul_l2_normalize, (x, y)),
        ("bf16", matmul_l2_normalize, (x.bfloat16(), y.bfloat16())),
        ("fp16, y transposed", matmul_l2_normalize, (x.half(), y.t().contiguous().t().half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
