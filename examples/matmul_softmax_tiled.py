"""Matmul followed by a softmax of its rows, for rows of any width: a classifier of many classes.

The first loop over N stores each tile's exponentials, relative to the running maximum, to the output. It stores that
maximum to a tensor of its own. The second loop corrects the output by a factor per row and tile. The exponentials are
at most 1 and rounded relative to their own size. Rounded logits far from 0 would lose significant digits.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def matmul_softmax_tiled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute `softmax(x[M, K] @ y[K, N])` over the last dimension, accumulated in fp32."""
    m, k = x.size()
    assert k == y.size(0), f"cannot multiply: x has {k} columns, y has {y.size(0)} rows"
    n = y.size(1)
    block_n = hl.register_block_size(n)
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    tops = torch.empty([helion.cdiv(n, block_n), m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block_n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            raised = torch.maximum(highest, torch.amax(acc, dim=-1))
            shifted = torch.exp(acc - raised[:, None])
            total = total * torch.exp(highest - raised) + torch.sum(shifted, dim=-1)
            highest = raised
            out[tile_m, tile_n] = shifted
            tops[tile_n.id, tile_m] = raised
        for tile_n in hl.tile(n, block_size=block_n):
            factor = torch.exp(tops[tile_n.id, tile_m] - highest) / total
            out[tile_m, tile_n] = out[tile_m, tile_n].to(torch.float32) * factor[:, None]
    return out


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ y, dim=-1)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    # Every logit is well below 0, the value of a padding lane: an unmasked one would win each maximum.
    x = torch.rand([77, 130], device=DEVICE) * 0.4 + 0.1
    y = torch.rand([130, 300], device=DEVICE) * -0.8 - 0.1
    rising = y * torch.linspace(1.5, 0.5, 300, device=DEVICE)  # every tile raises the maximum
    return [
        ("fp32", matmul_softmax_tiled, (x, y)),
        ("bf16, rising", matmul_softmax_tiled, (x.bfloat16(), rising.bfloat16())),
        ("fp16, y transposed", matmul_softmax_tiled, (x.half(), y.t().contiguous().t().half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
