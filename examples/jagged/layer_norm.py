"""Layer normalization of whole segments: mean and variance are those of all elements of all rows of a segment.

The variance comes from centered values, in a loop of its own. A sum of squares less the square of a sum would lose its
digits.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def jagged_layer_norm(x: torch.Tensor, offsets: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalize each segment of `x[T, N]`; segment b ends at row `offsets[b + 1]`."""
    segments, n = offsets.size(0) - 1, hl.specialize(x.size(1))
    out = torch.empty_like(x)
    for tile_b in hl.tile(segments, block_size=1):
        begin, end = offsets[tile_b.begin], offsets[tile_b.begin + 1]
        count = torch.clamp((end - begin) * n, min=1).to(torch.float32)
        sums = hl.zeros([n], dtype=torch.float32)
        for tile in hl.tile(begin, end):
            sums += torch.sum(x[tile, :].to(torch.float32), dim=0)
        mean = torch.sum(sums, dim=0) / count
        squares = hl.zeros([n], dtype=torch.float32)
        for tile in hl.tile(begin, end):
            centered = x[tile, :].to(torch.float32) - mean
            squares += torch.sum(centered * centered, dim=0)
        factor = torch.rsqrt(torch.sum(squares, dim=0) / count + eps)
        for tile in hl.tile(begin, end):
            out[tile, :] = (x[tile, :].to(torch.float32) - mean) * factor
    return out


def reference(x: torch.Tensor, offsets: torch.Tensor, eps: float) -> torch.Tensor:
    parts = x.split(offsets.diff().tolist())
    return torch.cat([torch.nn.functional.layer_norm(p, p.shape, eps=eps) if len(p) else p for p in parts])


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([101, 31], device=DEVICE) + 5
    offsets = torch.tensor([0, 13, 13, 60, 61, 101], device=DEVICE)
    return [
        ("fp32", jagged_layer_norm, (x, offsets, 1e-5)),
        ("bf16, int32", jagged_layer_norm, (x.bfloat16(), offsets.int(), 1e-5)),
        ("one segment, fp16", jagged_layer_norm, (x.half(), offsets[[0, -1]], 1e-3)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
