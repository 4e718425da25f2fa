"""Tiles of taps in one loop, of rows that are loaded and of rows that the loop computes."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from helion.hardware import WARP_ROWS

BF16 = torch.bfloat16


def _taps(x, g, w, gated):
    b, t, channels = x.size()
    gated = hl.specialize(gated)
    out = torch.empty([b, t, w.size(2)], dtype=x.dtype, device=x.device)
    for tile_b, rows, columns in hl.tile([b, t, w.size(2)], block_size=[1, None, None]):
        acc = hl.zeros([rows, columns])
        for tap in hl.static_range(4):
            at = rows.index + tap - 3
            inside = at >= 0
            for inner in hl.tile(channels):
                v = hl.load(x, [tile_b.begin, at, inner], extra_mask=inside[:, None])
                if gated:
                    gate = hl.load(g, [tile_b.begin, at, inner], extra_mask=inside[:, None])
                    v = (v.to(torch.float32) * torch.sigmoid(gate.to(torch.float32))).to(x.dtype)
                acc = hl.dot(v, w[tap, inner, columns], acc=acc)
        out[tile_b.begin, rows, columns] = acc.to(x.dtype)
    return out


def _chosen_taps(x, filters, w):
    b, t, channels = x.size()
    out = torch.empty([b, t, w.size(3)], dtype=x.dtype, device=x.device)
    for tile_b, rows, columns in hl.tile([b, t, w.size(3)], block_size=[1, None, None]):
        chosen = filters[tile_b.begin]
        acc = hl.zeros([rows, columns])
        for tap in hl.static_range(4):
            at = rows.index + tap - 3
            inside = at >= 0
            for inner in hl.tile(channels):
                v = hl.load(x, [tile_b.begin, at, inner], extra_mask=inside[:, None])
                acc = hl.dot(v, w[chosen, tap, inner, columns], acc=acc)
        out[tile_b.begin, rows, columns] = acc.to(x.dtype)
    return out


TAPS = helion.kernel(_taps)
#: Taps that each sequence chooses, so that sequences are not joined.
CHOSEN_TAPS = helion.kernel(_chosen_taps)


def _bound(rows: int, columns: int, gated: bool, gpu: str, batch: int = 8):
    x = tensor(batch, rows, 512, dtype=BF16)
    return TAPS.bind((x, x, tensor(4, 512, columns, dtype=BF16), gated), target=gpu)


@pytest.mark.parametrize(
    ("columns", "gated", "tile", "warps"),
    [(512, False, [128, 256], 8), (320, False, [128, 128], 8), (512, True, [128, 256], 8), (128, True, [128, 128], 4)],
)
def test_programs_that_compute_rows_have_all_columns_or_four_warps(
    columns: int, gated: bool, tile: list[int], warps: int
) -> None:
    bound = _bound(4096, columns, gated, "h200")
    config = bound.default_config()
    assert config["fuse_loops"] and config["block_sizes"][:2] == tile and config["num_warps"] == warps
    assert bound.resources(config).spill_bytes == 0


@pytest.mark.parametrize("gpu", ["h200", "a100", "mi300x"])
@pytest.mark.parametrize("rows", [32, 64, 4096])
def test_each_warp_of_more_than_four_has_rows_of_its_own(rows: int, gpu: str) -> None:
    config = _bound(rows, 512, False, gpu).default_config()
    assert config["fuse_loops"] and config["num_warps"] <= max(4, config["block_sizes"][0] // WARP_ROWS)


@pytest.mark.parametrize("gpu", ["a100", "mi300x"])
def test_rows_are_computed_in_tiles_of_the_rule_where_nothing_was_timed(gpu: str) -> None:
    computed, loaded = (_bound(4096, 512, gated, gpu).default_config() for gated in (True, False))
    assert computed["block_sizes"][1] <= 128 and loaded["block_sizes"][1] <= 128


@pytest.mark.parametrize("gated", [False, True])
def test_taps_are_right_in_one_loop(gated: bool) -> None:
    x, g = torch.randn(2, 63, 64), torch.randn(2, 63, 64)
    w = torch.randn(4, 64, 48)
    v = x * torch.sigmoid(g) if gated else x
    want = torch.nn.functional.conv1d(torch.nn.functional.pad(v.transpose(1, 2), (3, 0)), w.permute(2, 1, 0))
    torch.testing.assert_close(TAPS(x, g, w, gated), want.transpose(1, 2), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [(32, 512, [32, 256]), (28, 256, [32, 256]), (16, 128, [16, 128]), (64, 512, [64, 128])],
)
def test_rows_that_the_asynchronous_unit_does_not_take_have_wide_tiles(
    rows: int, columns: int, tile: list[int]
) -> None:
    filters, w = tensor(2048, dtype=torch.int32), tensor(8, 4, 512, columns, dtype=BF16)
    bound = CHOSEN_TAPS.bind((tensor(2048, rows, 512, dtype=BF16), filters, w), target="h200")
    config = bound.default_config()
    assert config["fuse_loops"] and config["block_sizes"][:2] == tile and config["num_warps"] == 4
    assert bound.resources(config).spill_bytes == 0


@pytest.mark.parametrize(("rows", "columns", "wide"), [(32, 512, 256), (28, 256, 256), (16, 128, 128)])
def test_short_rows_of_all_sequences_have_the_tiles_of_long_ones(rows: int, columns: int, wide: int) -> None:
    bound = _bound(rows, columns, False, "h200", batch=2048)
    config = bound.default_config()
    assert config["fuse_loops"] and config["block_sizes"][:2] == [128, wide] and config["num_warps"] == 8
    assert bound.resources(config).spill_bytes == 0


def _convolved(x, w):
    """3 by 3 taps in loops, with a line of pixels in each program."""
    b, hp, wp, channels = x.size()
    h, wide, columns = hp - 2, wp - 2, w.size(3)
    out = torch.empty([b, h, wide, columns], dtype=x.dtype, device=x.device)
    for tb, th, tw, td in hl.tile([b, h, wide, columns], block_size=[1, 1, None, None]):
        acc = hl.zeros([tw, td])
        for i, j in hl.grid([3, 3]):
            for tc in hl.tile(channels):
                acc = hl.dot(x[tb.begin, th.begin + i, tw.index + j, tc], w[i, j, tc, td], acc=acc)
        out[tb.begin, th.begin, tw, td] = acc.to(x.dtype)
    return out


def _pictures(batch: int, side: int, channels: int, columns: int, gpu: str = "h200"):
    x, w = tensor(batch, side + 2, side + 2, channels, dtype=BF16), tensor(3, 3, channels, columns, dtype=BF16)
    return helion.kernel(_convolved).bind((x, w), target=gpu)


@pytest.mark.parametrize(
    ("batch", "side", "channels", "columns", "tile", "warps"),
    [(32, 56, 64, 64, [128, 64, 64], 4), (32, 56, 128, 128, [128, 128, 64], 8), (8, 128, 96, 192, [128, 256, 32], 8)],
)
def test_taps_in_loops_have_the_tiles_of_unrolled_ones(
    batch: int, side: int, channels: int, columns: int, tile: list[int], warps: int
) -> None:
    bound = _pictures(batch, side, channels, columns)
    config = bound.default_config()
    assert config["fuse_loops"] and config["block_sizes"] == tile and config["num_warps"] == warps
    assert bound.resources(config).spill_bytes == 0


@pytest.mark.parametrize(("batch", "order"), [(8, [0, 1]), (16, [1, 0])])
def test_columns_of_rows_that_exceed_the_cache_follow_each_other(batch: int, order: list[int]) -> None:
    config = _pictures(batch, 64, 320, 320).default_config()
    assert config["fuse_loops"] and config["loop_orders"][0] == order


def _gradient(x, g):
    """The gradient of a projection: products over the pixels of all pictures."""
    pictures, pixels, channels = x.size()
    out = torch.empty([channels, g.size(2)], device=x.device)
    for tc, td in hl.tile([channels, g.size(2)]):
        acc = hl.zeros([tc, td])
        for picture in hl.grid(pictures):
            for tp in hl.tile(pixels):
                acc = hl.dot(x[picture, tp, tc].T, g[picture, tp, td], acc=acc)
        out[tc, td] = acc
    return out


def test_few_tiles_share_their_loops_rather_than_fuse_them() -> None:
    x = tensor(32, 768, 512, dtype=BF16)
    bound = helion.kernel(_gradient).bind((x, x), target="h200")
    assert bound.facts.fusible_axes
    first, second, *_ = bound.seeds
    assert first.config["split_k"] > 1 and not first.config["fuse_loops"]
    assert second.config["fuse_loops"] and first.predicted.time_us <= 0.8 * second.predicted.time_us


@pytest.mark.parametrize(("columns", "tile"), [(512, [128, 256]), (256, [128, 128]), (320, [128, 128])])
def test_many_tiles_have_twice_the_columns(columns: int, tile: list[int]) -> None:
    bound = _pictures(32, 28, 128, columns)
    config = bound.default_config()
    assert config["fuse_loops"] and config["block_sizes"][:2] == tile and config["num_warps"] == 8
    assert bound.resources(config).spill_bytes == 0
