"""Products of segments of rows with a matrix of their own each, plus a bias: a batched matmul without padding.

A program takes a segment and a tile of columns, and loops over the rows of the segment.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def jagged_dense_bmm(x: torch.Tensor, offsets: torch.Tensor, dense: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute `x[rows of b] @ dense[b] + bias[b]`, with `x[T, K]`, `dense[B, K, N]` and `bias[B, N]`."""
    batch, k, n = dense.size()
    out = torch.empty([x.size(0), n], dtype=x.dtype, device=x.device)
    for tile_b, tile_n in hl.tile([batch, n], block_size=[1, None]):
        segment = tile_b.begin
        for tile_t in hl.tile(offsets[segment], offsets[segment + 1]):
            acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_t, tile_k], dense[segment, tile_k, tile_n], acc=acc)
            out[tile_t, tile_n] = acc + bias[segment, tile_n].to(torch.float32)[None, :]
    return out


def reference(x: torch.Tensor, offsets: torch.Tensor, dense: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    parts = x.split(offsets.diff().tolist())
    return torch.cat([part @ matrix + b for part, matrix, b in zip(parts, dense, bias, strict=True)])


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([101, 48], device=DEVICE) + 0.2
    offsets = torch.tensor([0, 13, 13, 60, 61, 101], device=DEVICE)
    dense, bias = torch.randn([5, 48, 40], device=DEVICE), torch.randn([5, 40], device=DEVICE)
    half = x.bfloat16(), offsets.int(), dense.bfloat16(), bias.bfloat16()
    return [
        ("fp32", jagged_dense_bmm, (x, offsets, dense, bias)),
        ("bf16, int32", jagged_dense_bmm, half),
        ("one segment, fp16", jagged_dense_bmm, (x.half(), offsets[[0, -1]], dense[:1].half(), bias[:1].half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
