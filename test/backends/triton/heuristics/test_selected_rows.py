"""Steps over rows that data selects as a whole, such as the neighbours of points."""

from __future__ import annotations

import math

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl


@helion.kernel
def smoothed(points: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
    """Points `[N, D]` half way to the means of their neighbours `[N, K]`."""
    n, d = points.size()
    d, k = hl.specialize(d), near.size(1)
    out = torch.empty_like(points)
    for tile in hl.tile(n):
        total = hl.zeros([tile, d])
        for j in range(k):
            total += points[near[tile, j], :].to(torch.float32)
        out[tile, :] = (0.5 * points[tile, :].to(torch.float32) + 0.5 * total / k).to(points.dtype)
    return out


@pytest.mark.parametrize(
    ("dimensions", "dtype"), [(16, torch.float32), (64, torch.bfloat16), (100, torch.float32), (3, torch.float32)]
)
def test_elements_of_whole_rows_count(dimensions: int, dtype: torch.dtype) -> None:
    args = tensor(200000, dimensions, dtype=dtype), tensor(200000, 24, dtype=torch.int32)
    bound = smoothed.bind(args, target="h200")
    config = bound.default_config()
    assert bound.seeds[0].heuristic == "TritonRecurrenceHeuristic" and config == bound.seeds[0].config
    row = 1 << (dimensions - 1).bit_length()
    elements = math.prod(config["block_sizes"]) * row
    assert elements == 1024 and config["num_warps"] == 4


@pytest.mark.parametrize("dimensions", [1, 3, 16, 24])
def test_means_of_selected_rows_are_right(dimensions: int) -> None:
    points, near = torch.randn(77, dimensions), torch.randint(0, 77, (77, 5)).to(torch.int32)
    expected = 0.5 * points + 0.5 * points[near.long()].mean(1)
    torch.testing.assert_close(smoothed(points, near), expected)
    bound = smoothed.bind((points, near))
    config = helion.Config(block_sizes=[16], num_warps=4)
    torch.testing.assert_close(bound.compile_config(config)(points, near), expected)
