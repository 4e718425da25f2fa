"""Sums of consecutive rows that carry the same segment number, as after sorting the edges of a graph.

One kernel adds every row atomically. The other first adds within its tile, by a scan over pairs of value and segment,
and needs only one atomic per segment and tile.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


def add_within_segment(
    left: torch.Tensor, left_segment: torch.Tensor, right: torch.Tensor, right_segment: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Combine two neighbouring runs; associative because segment numbers are sorted."""
    return torch.where(left_segment == right_segment, left + right, right), right_segment


@helion.kernel()
def segment_sum_atomic(x: torch.Tensor, segments: torch.Tensor, count: int) -> torch.Tensor:
    """Compute fp32 `out[s]`, the sum of the rows of `x[M, N]` with `segments[M] == s`, for s from 0 to `count` - 1."""
    m, n = x.size()
    out = torch.zeros([count, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        hl.atomic_add(out, [segments[tile_m], tile_n], x[tile_m, tile_n].to(torch.float32))
    return out


@helion.kernel()
def segment_sum_scan(x: torch.Tensor, segments: torch.Tensor, count: int) -> torch.Tensor:
    """Compute the same for segments that do not decrease."""
    m, n = x.size()
    out = torch.zeros([count, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        values = x[tile_m, tile_n].to(torch.float32)
        segment = segments[tile_m]
        following = hl.load(segments, [tile_m.index + 1], extra_mask=tile_m.index + 1 < m)
        # The last row of a segment, or of the tile, holds the sum of that segment's rows up to there.
        last = (segment != following) | (tile_m.index + 1 == tile_m.end)
        sums, _ = hl.associative_scan(add_within_segment, (values, segment[:, None].expand_as(values)), dim=0)
        hl.atomic_add(out, [segment, tile_n], torch.where(last[:, None], sums, 0.0))
    return out


def reference(x: torch.Tensor, segments: torch.Tensor, count: int) -> torch.Tensor:
    return x.new_zeros([count, x.size(1)]).index_add(0, segments, x)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([101, 31], device=DEVICE) + 0.5
    segments = torch.randint(0, 13, [101], dtype=torch.int32, device=DEVICE).sort().values
    return [
        ("atomic, fp32", segment_sum_atomic, (x, segments, 13)),
        ("atomic, bf16, int64", segment_sum_atomic, (x.bfloat16(), segments.long(), 15)),
        ("scan, fp32", segment_sum_scan, (x, segments, 13)),
        ("scan, fp16, one segment", segment_sum_scan, (x.half(), segments * 0, 1)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
