"""Matmul reduced to the log-sum-exp of each row, for rows of any width: the loss of a large vocabulary.

The result of the matmul never reaches memory. Each tile of columns raises the row's maximum and rescales the running
sum.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def matmul_logsumexp_tiled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute `logsumexp(x[M, K] @ y[K, N])` over the last dimension, accumulated in fp32."""
    m, k = x.size()
    assert k == y.size(0), f"cannot multiply: x has {k} columns, y has {y.size(0)} rows"
    n = y.size(1)
    out = torch.empty([m], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m in hl.tile(m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            raised = torch.maximum(highest, torch.amax(acc, dim=-1))
            partial = torch.sum(torch.exp(acc - raised[:, None]), dim=-1)
            total = total * torch.exp(highest - raised) + partial
            highest = raised
        out[tile_m] = highest + torch.log(total)
    return out


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x @ y, dim=-1)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    # Every logit is well below 0, the value of a padding lane: an unmasked one would win each maximum.
    x = torch.rand([77, 130], device=DEVICE) * 0.4 + 0.1
    y = torch.rand([130, 300], device=DEVICE) * -0.8 - 0.1
    return [
        ("fp32", matmul_logsumexp_tiled, (x, y)),
        ("bf16", matmul_logsumexp_tiled, (x.bfloat16(), y.bfloat16())),
        ("fp16, y transposed", matmul_logsumexp_tiled, (x.half(), y.t().contiguous().t().half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
