"""Sums and means of the rows of segments that differ in length, which lie one after the other in memory.

Segment b has the rows from `offsets[b]` to `offsets[b + 1]`. A program takes a segment and a tile of columns, and loops
between bounds that it loads: nothing is padded.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def jagged_sum(x: torch.Tensor, offsets: torch.Tensor, mean: bool) -> torch.Tensor:
    """Compute the sums `[B, N]` of the rows of each segment of `x[T, N]`, or their means; 0 for an empty segment."""
    segments, n = offsets.size(0) - 1, x.size(1)
    out = torch.empty([segments, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_n in hl.tile([segments, n], block_size=[1, None]):
        begin, end = offsets[tile_b.begin], offsets[tile_b.begin + 1]
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile in hl.tile(begin, end):
            total += torch.sum(x[tile, tile_n].to(torch.float32), dim=0)
        if mean:
            total = total / torch.clamp(end - begin, min=1).to(torch.float32)
        out[tile_b.begin, tile_n] = total
    return out


def reference(x: torch.Tensor, offsets: torch.Tensor, mean: bool) -> torch.Tensor:
    parts = x.split(offsets.diff().tolist())
    return torch.stack([part.sum(0) / (max(len(part), 1) if mean else 1) for part in parts])


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([101, 31], device=DEVICE) + 0.5
    offsets = torch.tensor([0, 13, 13, 60, 61, 101], device=DEVICE)
    return [
        ("sum, fp32", jagged_sum, (x, offsets, False)),
        ("mean, bf16", jagged_sum, (x.bfloat16(), offsets.int(), True)),
        ("mean, one segment", jagged_sum, (x, offsets[[0, -1]], True)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
