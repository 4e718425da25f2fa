"""Tiles of filters whose rows share loads."""

from __future__ import annotations

import math

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted.filters import census, unsharp
from benchmarks.unfitted.images import diffuse, morphology
from benchmarks.workloads.rows import max_pool_nhwc


def columns_filtered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) - 4, x.size(1)], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile(out.size()):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for tap in hl.static_range(5):
            acc = acc + x[rows.index + tap, columns].to(torch.float32) * w[tap]
        out[rows, columns] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize("gpu", ["h100", "h200", "a100"])
def test_rows_of_windows_share_threads(gpu: str) -> None:
    weights = tensor(5, dtype=torch.float32)
    seed = helion.kernel(columns_filtered).bind((tensor(4100, 4096), weights), target=gpu).seeds[0]
    rows, columns = seed.config["block_sizes"]
    assert "rows of a window share loads" in seed.reason
    assert rows in (4, 8, 16) and columns >= 32 * seed.config["num_warps"]
    narrow = helion.kernel(columns_filtered).bind((tensor(4100, 8), weights), target=gpu).seeds[0]
    assert "share loads" not in narrow.reason, "no warp has an element of each row"


def test_rows_that_begin_anywhere_stay_one_run() -> None:
    """Measurement ``unrolled_rows``: a wave equation of 2049 x 3001 in fp32 takes 31 us as one run, 45 in eight rows."""

    def stepped(x: torch.Tensor) -> torch.Tensor:
        h, n = x.size()
        out = torch.empty_like(x)
        for rows, columns in hl.tile([h, n]):
            y, at = rows.index, columns.index
            up = hl.load(x, [y - 1, at], extra_mask=(y > 0)[:, None])
            down = hl.load(x, [y + 1, at], extra_mask=(y < h - 1)[:, None])
            left = hl.load(x, [y, at - 1], extra_mask=(at > 0)[None, :])
            out[rows, columns] = up + down + left - x[rows, columns]
        return out

    for columns, flat in ((3001, [True]), (3072, [False])):
        seed = helion.kernel(stepped).bind((tensor(2048, columns, dtype=torch.float32),), target="h200").seeds[0]
        assert seed.config["flatten_loops"] == flat


def test_rows_that_share_loads_win_where_memory_limits_all() -> None:
    """Measurement ``unrolled_rows``: the Laplacian takes 134 us in rows that share loads and 154 in others."""

    def laplacian(x: torch.Tensor) -> torch.Tensor:
        h, n = x.size()
        out = torch.empty_like(x)
        for rows, columns in hl.tile([h, n]):
            y, at = rows.index, columns.index
            up = hl.load(x, [y - 1, at], extra_mask=(y > 0)[:, None])
            down = hl.load(x, [y + 1, at], extra_mask=(y < h - 1)[:, None])
            left = hl.load(x, [y, at - 1], extra_mask=(at > 0)[None, :])
            right = hl.load(x, [y, at + 1], extra_mask=(at < n - 1)[None, :])
            out[rows, columns] = up + down + left + right - 4.0 * x[rows, columns]
        return out

    seed = helion.kernel(laplacian).bind((tensor(8192, 8192, dtype=torch.float32),), target="h200").seeds[0]
    assert "rows of a window share loads" in seed.reason


def test_rows_that_share_loads_stay_as_they_are() -> None:
    """Measurement ``unrolled_rows``: maxima of 8 x 55 x 57 x 192 take 12.0 us in tiles of 4 x 256, 12.9 of 4 x 128."""
    seed = max_pool_nhwc.bind((tensor(8, 55, 57, 192, dtype=torch.float32),), target="h200").seeds[0]
    assert seed.config["block_sizes"] == [4, 256] and seed.config["num_warps"] == 4


def elements(bound: helion.BoundKernel) -> int:
    """Return the elements of a thread, without those of whole dimensions."""
    config = bound.seeds[0].config
    return math.prod(config["block_sizes"]) // (32 * config["num_warps"])


@pytest.mark.parametrize("gpu", ["h100", "h200", "a100"])
def test_taps_along_contiguous_memory_load_few_elements_of_a_thread(gpu: str) -> None:
    few = morphology.bind((tensor(16, 1080, 1920, dtype=torch.uint8),), target=gpu)
    many = census.bind((tensor(8, 1080, 1920, dtype=torch.float32),), target=gpu)
    assert elements(few) <= 8 < elements(many) <= 16


def test_registers_hold_the_loads_of_two_tensors() -> None:
    grid = tensor(256, 256, 256, dtype=torch.float32)
    bound = diffuse.bind((grid, grid, 0.1), target="h200")
    assert "windows along three axes" in bound.seeds[0].reason and elements(bound) == 16


def test_whole_dimensions_count_as_elements_of_a_thread() -> None:
    bound = unsharp.bind((tensor(16, 720, 1280, 3, dtype=torch.uint8), 0.5), target="h200")
    assert "reach neighbours" in bound.seeds[0].reason and 4 * elements(bound) <= 16


def overlaps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty([a.size(0), b.size(0)], dtype=torch.float32, device=a.device)
    for i, j in hl.tile(out.size()):
        left = torch.maximum(a[i, 0][:, None], b[j, 0][None, :])
        top = torch.maximum(a[i, 1][:, None], b[j, 1][None, :])
        right = torch.minimum(a[i, 2][:, None], b[j, 2][None, :])
        bottom = torch.minimum(a[i, 3][:, None], b[j, 3][None, :])
        both = torch.relu(right - left) * torch.relu(bottom - top)
        own = ((a[i, 2] - a[i, 0]) * (a[i, 3] - a[i, 1]))[:, None]
        other = ((b[j, 2] - b[j, 0]) * (b[j, 3] - b[j, 1]))[None, :]
        out[i, j] = both / (own + other - both)
    return out


def test_pairs_have_more_elements_of_a_thread_than_windows() -> None:
    boxes = tensor(8192, 4, dtype=torch.float32)
    bound = helion.kernel(overlaps, backend="triton").bind((boxes, boxes), target="h200")
    rows, columns = bound.seeds[0].config["block_sizes"]
    assert rows >= 16 and rows * columns == 64 * 32 * bound.seeds[0].config["num_warps"]
    assert bound.resources(bound.seeds[0].config).spill_bytes == 0
