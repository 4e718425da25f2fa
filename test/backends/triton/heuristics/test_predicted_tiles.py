"""Tiles of kernels that no other rule knows, and of products whose loads elements along three axes share."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion.autotuner.proposal import Declined
from helion.backends.triton.heuristics.families.predicted_tiles import TritonPredictedTilesHeuristic
from helion.backends.triton.heuristics.predicted_time import proposal_us
from helion.hardware import target

GPU = target("h200")


@helion.kernel
def two_nearest(points: torch.Tensor, centers: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of the nearest of `centers` to each point, and by how much the second is farther."""
    n, m, c = points.size(0), centers.size(0), values.size(1)
    out = torch.empty([n, c], dtype=values.dtype, device=points.device)
    gap = torch.empty([n], dtype=torch.float32, device=points.device)
    for tile in hl.tile(n):
        x, y = points[tile, 0], points[tile, 1]
        first = hl.full([tile], 1e30, dtype=torch.float32)
        second = hl.full([tile], 1e30, dtype=torch.float32)
        place = hl.zeros([tile], dtype=torch.int32)
        for j in range(m):
            dx, dy = x - centers[j, 0], y - centers[j, 1]
            d = dx * dx + dy * dy
            second = torch.where(d < first, first, torch.minimum(d, second))
            place = torch.where(d < first, j, place)
            first = torch.minimum(d, first)
        gap[tile] = second - first
        for part in hl.tile(c):
            out[tile, part] = values[place, part]
    return out, gap


def test_steps_lead_to_tiles_that_fill_their_warps() -> None:
    points, centers = tensor(262144, 2, dtype=torch.float32), tensor(256, 2, dtype=torch.float32)
    bound = two_nearest.bind((points, centers, tensor(256, 64)), target="h200")
    config, first = bound.default_config(), bound.seeds[0]
    assert first.heuristic == "TritonPredictedTilesHeuristic" and config == first.config
    assert config["block_sizes"][0] >= 32 * config["num_warps"]


def test_default_of_three_nearest_fills_its_warps() -> None:
    """A tile of 32 in 4 warps took 299 us on an H200, 128 x 16 in 4 warps 93."""
    cell = CELLS["three_nearest"]
    config = cell.kernel.bind(cell.arguments("meta", False), target="h200").default_config()
    assert config["block_sizes"] == [128, 16] and config["num_warps"] == 4


def test_tiles_that_gain_little_and_other_kernels_have_none() -> None:
    rule = TritonPredictedTilesHeuristic()
    cell = CELLS["escape_times"]
    facts = cell.kernel.bind(cell.arguments("meta", False), target="h200")._analysis.facts
    assert isinstance(rule.propose(facts, GPU), Declined)
    for name in ("csr_matvec", "complex_matmul", "dual_softmax"):
        cell = CELLS[name]
        facts = cell.kernel.bind(cell.arguments("meta", False), target="h200")._analysis.facts
        assert isinstance(rule.propose(facts, GPU), Declined)


@pytest.mark.parametrize(("n", "c"), [(63, 1), (1000, 37)])
def test_results_are_right_in_found_tiles(n: int, c: int) -> None:
    points, centers, values = torch.rand(n, 2), torch.rand(13, 2), torch.randn(13, c)
    squares = ((points[:, None] - centers) ** 2).sum(-1)
    near, place = squares.topk(2, largest=False)
    bound = two_nearest.bind((points, centers, values))
    for sizes, warps in (([64, 16], 1), ([128, 32], 4), ([32, 32], 4)):
        out, gap = bound.compile_config(helion.Config(block_sizes=sizes, num_warps=warps))(points, centers, values)
        assert torch.equal(out, values[place[:, 0]])
        torch.testing.assert_close(gap, near[:, 1] - near[:, 0])


@helion.kernel
def mode_products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """`bim,iom->bom`."""
    b, c, m = x.size()
    d = w.size(1)
    out = torch.empty([b, d, m], dtype=torch.float32, device=x.device)
    for tile_b, tile_d, tile_m in hl.tile([b, d, m]):
        acc = hl.zeros([tile_b, tile_d, tile_m], dtype=torch.float32)
        for i in range(c):
            acc += x[tile_b, i, tile_m][:, None, :] * w[i, tile_d, tile_m][None, :, :]
        out[tile_b, tile_d, tile_m] = acc
    return out


def test_rows_of_a_batch_share_weights() -> None:
    """8 x 32 x 32 of spectral_conv with prefetched loads takes 60 us on an H200, without 156, and 1 x 64 x 32 179."""
    given = tensor(16, 128, 2048, dtype=torch.float32), tensor(128, 64, 2048, dtype=torch.float32)
    bound = mode_products.bind(given, target="h200")
    first, plain, *_ = bound.seeds
    assert bound.default_config() == first.config and first.config["block_sizes"] == [8, 32, 32]
    assert first.config["prefetch_distance"] == 1 and first.config["num_warps"] == 8
    assert first.predicted.time_us < 0.5 * plain.predicted.time_us
    one = mode_products.bind((tensor(1, 128, 2048, dtype=torch.float32), given[1]), target="h200").default_config()
    assert one["block_sizes"][0] == 1
    x, w = torch.randn(3, 5, 37), torch.randn(5, 7, 37)
    found = mode_products.bind((x, w)).compile_config(helion.Config(block_sizes=[4, 8, 32]))(x, w)
    torch.testing.assert_close(found, torch.einsum("bim,iom->bom", x, w))


def test_values_of_a_loop_without_larger_tiles_are_spread_over_all_threads() -> None:
    """The columns of a tile after the loop do not repeat the points of the loop."""
    points, centers = tensor(262144, 2, dtype=torch.float32), tensor(256, 2, dtype=torch.float32)
    bound = two_nearest.bind((points, centers, tensor(256, 64)), target="h200")
    facts, seed = bound._analysis.facts, TritonPredictedTilesHeuristic().propose(bound._analysis.facts, GPU)
    assert not isinstance(seed, Declined)
    rows, columns = (axis.block_id for axis in facts.tunable_axes)
    narrow, wide = (
        proposal_us(facts, replace(seed[0], block_sizes={rows: 128, columns: size}, num_warps=4), GPU)
        for size in (16, 32)
    )
    assert wide < 1.2 * narrow


@helion.kernel
def running_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(), dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.cumsum(x[tile, :].to(torch.float32), 1)
    return out


def test_cheap_scans_of_rows_of_odd_length_stay_whole() -> None:
    """Measured on an H200: 68 us whole in 4 warps, 91 in chunks of 512 of one warp, 162 in chunks of 64."""
    for n in (4097, 4096):
        bound = running_sums.bind((tensor(8192, n),), target="h200")
        assert bound.default_config()["reduction_loops"] == [None] and bound.default_config()["num_warps"] == 4
    x = torch.randn(5, 1001)
    for chunk in (None, 32, 512):
        config = helion.Config(block_sizes=[1], reduction_loops=[chunk], num_warps=1, num_stages=1)
        torch.testing.assert_close(helion.kernel(running_sums.fn, config=config)(x), x.cumsum(1))


def test_code_of_a_scan_fits_in_the_instruction_cache() -> None:
    """Measured on an H200: 2625 us in chunks of 4096 in 4 warps, 319 in chunks of 128 in one."""
    cell = CELLS["running_log_sums"]
    config = cell.kernel.bind(cell.arguments("meta", False), target="h200").default_config()
    assert config["num_warps"] == 1 and config["reduction_loops"] == [128]


def test_aligned_rows_of_a_scan_keep_their_tiles() -> None:
    cell = CELLS["resetting_sums"]
    config = cell.kernel.bind(cell.arguments("meta", False), target="h200").default_config()
    assert config["reduction_loops"] == [None] and config["num_warps"] == 4
