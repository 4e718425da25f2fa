"""Sum of long rows with an explicit loop over the row.

There are two ways to accumulate in an inner tile loop. One number per row is reduced at every step. One partial sum
per column of the tile is reduced once after the loop (fewer cross-lane operations, more registers).
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def long_sum(x: torch.Tensor) -> torch.Tensor:
    """Compute `x[M, N].sum(-1)`, reducing each tile as it is loaded."""
    m, n = x.size()
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc += x[tile_m, tile_n].to(torch.float32).sum(-1)
        out[tile_m] = acc
    return out


@helion.kernel()
def long_sum_wide(x: torch.Tensor) -> torch.Tensor:
    """Compute the same with a two-dimensional accumulator and a single reduction at the end."""
    m, n = x.size()
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    block_n = hl.register_block_size(n)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, block_n], dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block_n):
            acc += x[tile_m, tile_n].to(torch.float32)
        out[tile_m] = acc.sum(-1)
    return out


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([5, 10001], device=DEVICE) + 0.25
    return [
        ("fp32", long_sum, (x,)),
        ("bf16", long_sum, (x.bfloat16(),)),
        ("wide accumulator, fp32", long_sum_wide, (x,)),
        ("wide accumulator, fp16, 1000 columns", long_sum_wide, (x[:, :1000].half(),)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
