"""Matmul whose K is split between programs, without atomics: partial products, a barrier, and their sum.

`hl.barrier` makes the loops before and after it kernels of their own. The order of the sum is fixed, so that results are
the same in every run.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def matmul_in_parts(x: torch.Tensor, y: torch.Tensor, parts: hl.constexpr) -> torch.Tensor:
    """Compute `x[M, K] @ y[K, N]` from the products of `parts` parts of K."""
    m, k = x.size()
    n = y.size(1)
    step = helion.cdiv(k, parts)
    partial = torch.empty([parts, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_p, tile_m, tile_n in hl.tile([parts, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(tile_p.begin * step, min(tile_p.begin * step + step, k)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        partial[tile_p.begin, tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.sum(partial[:, tile_m, tile_n], dim=0)
    return out


def reference(x: torch.Tensor, y: torch.Tensor, parts: int) -> torch.Tensor:
    return x @ y


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x, y = torch.randn([33, 300], device=DEVICE) + 0.2, torch.randn([300, 45], device=DEVICE)
    return [
        ("four parts, fp32", matmul_in_parts, (x, y, 4)),
        ("seven parts, bf16", matmul_in_parts, (x.bfloat16(), y.bfloat16(), 7)),
        ("one part, fp16", matmul_in_parts, (x.half(), y.half(), 1)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
