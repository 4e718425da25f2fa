"""Split-K matmul: a long inner dimension, divided among several programs.

With few output tiles and a large K, most of a GPU would be idle. One kernel adds each program's partial to the output
with atomics, whose order is not fixed. The other stores the partials, waits for all of them and sums in order.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def split_k_atomic(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute fp32 `x[M, K] @ y[K, N]`; the block size of the third tile is the range of K of one program."""
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    out = torch.zeros([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n, span in hl.tile([m, n, k]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(span.begin, span.end):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        hl.atomic_add(out, [tile_m, tile_n], acc)
    return out


@helion.kernel()
def split_k_barrier(x: torch.Tensor, y: torch.Tensor, splits: hl.constexpr = 4) -> torch.Tensor:
    """Compute the same, deterministically, with K in `splits` ranges."""
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    span = helion.cdiv(k, splits)
    shares = torch.empty([splits, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_s, tile_m, tile_n in hl.tile([splits, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(tile_s.begin * span, min(tile_s.begin * span + span, k)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        shares[tile_s.begin, tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.sum(shares[:, tile_m, tile_n], dim=0)
    return out


def reference(x: torch.Tensor, y: torch.Tensor, splits: int = 4) -> torch.Tensor:
    return x @ y


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([33, 300], device=DEVICE) + 0.5
    y = torch.randn([300, 19], device=DEVICE) + 0.25
    return [
        ("atomic, fp32", split_k_atomic, (x, y)),
        ("atomic, bf16", split_k_atomic, (x.bfloat16(), y.bfloat16())),
        ("barrier, fp32", split_k_barrier, (x, y)),
        ("barrier, fp16, 3 splits", split_k_barrier, (x.half(), y.half(), 3)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
