"""Tiles of kernels whose computed subscripts reach neighbours."""

from __future__ import annotations

import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion.backends.triton.heuristics.near_gathers import is_near


def blurred(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Nine taps along rows that are clamped."""
    b, h, n = x.size()
    out = torch.empty_like(x)
    for image, y, columns in hl.tile([b, h, n], block_size=[1, None, None]):
        acc = hl.zeros([y, columns], dtype=torch.float32)
        for tap in hl.static_range(9):
            at = torch.clamp(columns.index + (tap - 4), 0, n - 1)
            acc += x[image.begin, y, at].to(torch.float32) * w[tap]
        out[image.begin, y, columns] = acc.to(x.dtype)
    return out


def looked_up(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for y, columns in hl.tile(x.size()):
        out[y, columns] = x[y, at[columns]]
    return out


def test_windows_with_clamps_have_many_elements_of_few_warps() -> None:
    """Measurement ``near_gathers``: 8 x 64 in one warp takes 94 us, one run 106."""
    bound = helion.kernel(blurred).bind((tensor(16, 1080, 1920), tensor(9, dtype=torch.float32)), target="h200")
    first = bound.seeds[0]
    assert is_near(bound.facts) and "reach neighbours" in first.reason
    rows, columns = first.config["block_sizes"]
    assert first.config["num_warps"] == 1 and rows * columns in (256, 512) and columns >= 64
    assert first.config["flatten_loops"] == [False]


def sharpened(x: torch.Tensor) -> torch.Tensor:
    """Differences from 3 x 3 means of the channels of pixels, which are whole."""
    n, h, w, _ = x.size()
    out = torch.empty_like(x)
    for image, y, columns in hl.tile([n, h, w]):
        here = x[image, y, columns, :].to(torch.float32)
        mean = torch.zeros_like(here)
        for i in hl.static_range(3):
            for j in hl.static_range(3):
                rows = torch.clamp(y.index + (i - 1), 0, h - 1)
                at = torch.clamp(columns.index + (j - 1), 0, w - 1)
                mean += x[image, rows, at, :].to(torch.float32) / 9
        out[image, y, columns, :] = torch.clamp(here + 0.5 * (here - mean), 0, 255).to(torch.uint8)
    return out


def test_tiles_that_may_spill_are_followed_by_the_same_with_more_warps() -> None:
    """The compiled seeds say which one runs: the first one spills, and predicted registers do not show it."""
    bound = helion.kernel(sharpened).bind((tensor(16, 720, 1280, 3, dtype=torch.uint8),), target="h200")
    first, second = bound.seeds[:2]
    assert "reach neighbours" in first.reason and second.config["block_sizes"] == first.config["block_sizes"]
    assert second.config["num_warps"] == 2 * first.config["num_warps"]
    assert not bound.resources(second.config).spill_bytes
    x = torch.randint(0, 256, [2, 13, 21, 3], dtype=torch.uint8)
    padded = torch.nn.functional.pad(x.permute(0, 3, 1, 2).float(), [1, 1, 1, 1], mode="replicate")
    mean = torch.nn.functional.avg_pool2d(padded, 3, 1).permute(0, 2, 3, 1)
    wanted = torch.clamp(x.float() + 0.5 * (x.float() - mean), 0, 255)
    assert ((helion.kernel(sharpened)(x).float() - wanted).abs() <= 1).all()


def test_indices_that_are_loaded_may_be_anywhere() -> None:
    at = tensor(4096, dtype=torch.int32)
    bound = helion.kernel(looked_up).bind((tensor(4096, 4096), at), target="h200")
    assert not is_near(bound.facts) and "reach neighbours" not in bound.seeds[0].reason


def test_a_program_gathers_the_whole_row_that_shares_lines() -> None:
    @helion.kernel
    def taken(x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        m, n = x.size()
        flat, out = x.view(-1), torch.empty_like(columns, dtype=x.dtype)
        for tile_m, tile_k in hl.tile([m, columns.size(1)]):
            out[tile_m, tile_k] = flat[tile_m.index[:, None] * n + columns[tile_m, tile_k]]
        return out

    def tile(n: int, k: int) -> list[int]:
        x = torch.empty(8192, n, dtype=torch.bfloat16, device="meta")
        return taken.bind((x, torch.empty(8192, k, dtype=torch.int64, device="meta")), target="h200").default_config()[
            "block_sizes"
        ]

    assert tile(4096, 1024) == [1, 1024] and tile(4096, 1000) == [1, 1024]
    assert tile(4096, 8192)[1] < 1024, "too long a row for one program"
    assert tile(8, 1024)[1] < 1024, "L1 holds the tensor"


def test_rows_that_data_selects_leave_few_elements_in_a_thread() -> None:
    @helion.kernel
    def near(values: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
        n, _ = neighbours.size()
        out = torch.empty([n], dtype=torch.float32, device=values.device)
        for tile in hl.tile(n):
            out[tile] = values[neighbours[tile, :]].sum(-1)
        return out

    args = (torch.empty(200_000, device="meta"), torch.empty(200_000, 48, dtype=torch.int64, device="meta"))
    seed = near.bind(args, target="h200").seeds[0]
    assert seed.config["block_sizes"][0] * 64 <= 8 * 32 * seed.config["num_warps"]


def test_rows_that_data_selects_as_a_whole_are_as_many_as_others() -> None:
    """Measurement ``selected_rows``: 16 groups of 128 take 34.9 us, 8 of them 47.5."""

    def amounts(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        blocks = x.view(-1, 16, 128)
        out = torch.empty([source.size(0), 16, 128], dtype=x.dtype, device=x.device)
        for rows, group in hl.tile([source.size(0), 16]):
            values = blocks[source[rows], group, :].to(torch.float32)
            out[rows, group, :] = values / values.abs().amax(-1)[:, :, None]
        return out

    def unmoved(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        blocks = x.view(-1, 16, 128)
        out = torch.empty([source.size(0), 16, 128], dtype=x.dtype, device=x.device)
        for rows, group in hl.tile([source.size(0), 16]):
            values = blocks[rows, group, :].to(torch.float32)
            out[rows, group, :] = values / values.abs().amax(-1)[:, :, None]
        return out

    args = (tensor(32768, 2048), tensor(32768, dtype=torch.int64))
    selected, others = (helion.kernel(fn).bind(args, target="h200").default_config() for fn in (amounts, unmoved))
    assert selected["block_sizes"] == others["block_sizes"] and selected["num_warps"] == others["num_warps"]


def test_a_thread_loads_few_elements_of_many_taps() -> None:
    """16 taps of 16 elements are loads that the assembler spills (measurement ``taps_in_flight``)."""
    cell = CELLS["bicubic_enlarge"]
    bound = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target="h200")
    config = bound.default_config()
    assert (config["block_sizes"], config["num_warps"]) == ([1, 4, 64], 1)
    assert not bound.resources(config).spill_bytes
