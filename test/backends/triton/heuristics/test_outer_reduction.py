"""Reductions of what no tensor holds: where each place is a thread's, and which kernels are others."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion.runtime.bound import BoundKernel

RULE = "TritonOuterReductionHeuristic"


@helion.kernel()
def kernel_sums(x: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        away = x[tile][:, None].to(torch.float32) - points[:][None, :].to(torch.float32)
        out[tile] = torch.exp(-away * away).sum(-1).to(x.dtype)
    return out


@helion.kernel()
def nearest(x: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """The reduced axis is the first one."""
    out = torch.empty([x.size(0)], dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.abs(points[:][:, None] - x[tile][None, :]).argmin(0)
    return out


@helion.kernel()
def furthest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The greatest difference of each pair of rows, in a loop of the kernel's own."""
    (m, k), n = x.size(), y.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left, right = x[tile_m, tile_k].to(torch.float32), y[tile_n, tile_k].to(torch.float32)
            acc = torch.maximum(acc, torch.abs(left[:, None, :] - right[None, :, :]).amax(-1))
        out[tile_m, tile_n] = acc
    return out


@helion.kernel()
def largest_sums(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """The largest sum of each row of `x[B, K]` and each column of `steps[K, N]`."""
    out = torch.empty([x.size(0), steps.size(1)], dtype=torch.float32, device=x.device)
    for row, column in hl.tile(out.size()):
        best = hl.full([row, column], float("-inf"), dtype=torch.float32)
        for k in hl.tile(x.size(1)):
            left, right = x[row, k].to(torch.float32), steps[k, column].to(torch.float32)
            best = torch.maximum(best, (left[:, :, None] + right[None, :, :]).amax(1))
        out[row, column] = best
    return out


@helion.kernel()
def row_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].to(torch.float32).sum(-1)
    return out


@helion.kernel()
def weights(x: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Rows are stored, too."""
    out = torch.empty([x.size(0), points.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        near = torch.exp(-torch.abs(x[tile][:, None] - points[:][None, :]))
        out[tile, :] = near / near.sum(-1, keepdim=True)
    return out


def vectors(n: int, points: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(n, dtype=dtype, device="meta"), torch.empty(points, dtype=dtype, device="meta")


def bound(kernel: helion.Kernel, args: tuple[torch.Tensor, ...], target: str = "h200") -> BoundKernel:
    return kernel.bind(args, target=target)


@pytest.mark.parametrize("target", ["h200", "sm_80", "b200", "gfx942"])
@pytest.mark.parametrize("kernel", [kernel_sums, nearest])
def test_each_place_of_the_last_axis_is_a_threads(kernel: helion.Kernel, target: str) -> None:
    first = bound(kernel, vectors(1 << 23, 255), target).seeds[0]
    assert first.heuristic == RULE
    assert first.config["block_sizes"] == [1024] and first.config["reduction_loops"] == [1]


def test_tiles_are_smaller_where_there_are_few_elements() -> None:
    assert bound(kernel_sums, vectors(300_000, 255)).seeds[0].config["block_sizes"] == [512]
    assert "fewer than threads" in dict(bound(kernel_sums, vectors(100_000, 255)).declined)[RULE]


@helion.kernel()
def longest_paths(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.size(), b.size(1)
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for tile_m, tile_n in hl.tile([m, n]):
        best = hl.full([tile_m, tile_n], float("-inf"), dtype=torch.float32)
        for tile_k in hl.tile(k):
            best = torch.maximum(best, (a[tile_m, tile_k][:, :, None] + b[tile_k, tile_n][None, :, :]).amax(1))
        out[tile_m, tile_n] = best
    return out


def test_results_along_two_axes_need_a_thread_each() -> None:
    """An H200 holds more threads than there are results, but programs of 128 threads keep every SM busy."""
    first = bound(longest_paths, tuple(torch.empty(n, n, device="meta") for n in (512, 512))).seeds[0]
    assert first.heuristic == RULE and first.config["block_sizes"] == [2, 128, 1]
    few = bound(longest_paths, tuple(torch.empty(n, n, device="meta") for n in (128, 128)))
    assert "fewer than threads" in dict(few.declined)[RULE]
    a, b = torch.randn(33, 17), torch.randn(17, 40)
    torch.testing.assert_close(longest_paths(a, b), (a[:, :, None] + b[None]).amax(1))


@helion.kernel()
def log_of_products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.size(), b.size(1)
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for tile_m, tile_n in hl.tile([m, n]):
        top = hl.full([tile_m, tile_n], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            terms = a[tile_m, tile_k][:, :, None] + b[tile_k, tile_n][None, :, :]
            new = torch.maximum(top, terms.amax(1))
            total = total * torch.exp(top - new) + torch.exp(terms - new[:, None, :]).sum(1)
            top = new
        out[tile_m, tile_n] = top + torch.log(total)
    return out


def test_steps_that_rescale_a_sum_have_several_elements() -> None:
    first = bound(log_of_products, (torch.empty(256, 512, device="meta"), torch.empty(512, 512, device="meta"))).seeds[
        0
    ]
    assert first.heuristic == RULE and first.config["block_sizes"] == [1, 128, 32]
    a, b = torch.randn(19, 33), torch.randn(33, 40)
    torch.testing.assert_close(log_of_products(a, b), torch.logsumexp(a[:, :, None] + b[None], 1))


@helion.kernel()
def gaussian_sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        total = hl.zeros([tile], dtype=torch.float32)
        for other in hl.tile(y.size(0)):
            apart = x[tile, 0][:, None] - y[other, 0][None, :]
            total = total + torch.exp(-apart * apart).sum(-1)
        out[tile] = total
    return out


def test_few_results_of_a_loop_share_what_their_program_loads() -> None:
    def points(n: int) -> torch.Tensor:
        return torch.empty(n, 3, device="meta")

    first = bound(gaussian_sums, (points(8192), points(8192))).seeds[0]
    assert (first.heuristic, first.config["block_sizes"], first.config["num_warps"]) == (RULE, [8, 1024], 4)
    few = dict(bound(gaussian_sums, (points(1024), points(8192))).declined)[RULE]
    assert "1024 results are fewer than 8 for each of" in few
    short = dict(bound(gaussian_sums, (points(8192), points(500))).declined)[RULE]
    assert "500 elements no loop over one axis" in short


@helion.kernel()
def nearest_of_a_cloud(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest point of each point in the same batch, and how far it is."""
    (b, n, _), m = x.size(), y.size(1)
    least = torch.empty([b, n], dtype=torch.float32, device=x.device)
    place = torch.empty([b, n], dtype=torch.int64, device=x.device)
    for batch, tile in hl.tile([b, n], block_size=[1, None]):
        at = batch.begin
        best, where = hl.full([tile], float("inf")), hl.zeros([tile], dtype=torch.int64)
        for other in hl.tile(m):
            apart = hl.zeros([tile, other])
            for axis in hl.static_range(3):
                away = x[at, tile, axis][:, None] - y[at, other, axis][None, :]
                apart = apart + away * away
            low = apart.amin(1)
            where = torch.where(low < best, apart.argmin(1) + other.begin, where)
            best = torch.minimum(best, low)
        least[at, tile] = best
        place[at, tile] = where
    return least, place


@helion.kernel()
def attraction(p: torch.Tensor) -> torch.Tensor:
    """Three sums over all bodies: eight results by 1024 bodies have no room in registers."""
    n = p.size(1)
    out = torch.empty_like(p)
    for tile in hl.tile(n):
        ax, ay, az = hl.zeros([tile]), hl.zeros([tile]), hl.zeros([tile])
        for other in hl.tile(n):
            dx = p[0, other][None, :] - p[0, tile][:, None]
            dy = p[1, other][None, :] - p[1, tile][:, None]
            dz = p[2, other][None, :] - p[2, tile][:, None]
            near = torch.rsqrt(dx * dx + dy * dy + dz * dz + 0.01)
            force = near * near * near
            ax, ay, az = ax + (force * dx).sum(1), ay + (force * dy).sum(1), az + (force * dz).sum(1)
        out[0, tile] = ax
        out[1, tile] = ay
        out[2, tile] = az
    return out


def test_results_of_all_batches_count() -> None:
    def clouds(batches: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(batches, 4096, 3, device="meta"), torch.empty(batches, 4096, 3, device="meta")

    first = bound(nearest_of_a_cloud, clouds(8)).seeds[0]
    assert (first.heuristic, first.config["block_sizes"], first.config["num_warps"]) == (RULE, [4, 1024], 1)
    assert "4096 results are fewer" in dict(bound(nearest_of_a_cloud, clouds(1)).declined)[RULE]


def test_fewer_results_at_a_time_where_registers_are_few() -> None:
    made = bound(attraction, (torch.empty(3, 8192, device="meta"),))
    first = made.seeds[0]
    assert first.heuristic == RULE and first.config["block_sizes"] == [4, 512] and not first.predicted.spill_risk
    resources = made.resources(first.config)
    assert resources.fits and not resources.spill_bytes


def test_clouds_and_bodies_are_right() -> None:
    x, y = torch.randn(2, 41, 3), torch.randn(2, 63, 3)
    apart = ((x[:, :, None] - y[:, None]) ** 2).sum(-1)
    config = helion.Config(block_sizes=[8, 16], num_warps=4)
    least, place = helion.kernel(nearest_of_a_cloud.fn, config=config)(x, y)
    torch.testing.assert_close(least, apart.amin(-1))
    assert torch.equal(place, apart.argmin(-1))
    p = torch.randn(3, 63)
    away = (p[:, None, :] - p[:, :, None]).double()
    wanted = (away * ((away * away).sum(0) + 0.01) ** -1.5).sum(-1)
    got = helion.kernel(attraction.fn, config=helion.Config(block_sizes=[4, 16]))(p)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


def test_pairs_of_rows_have_one_row_in_a_thread_and_many_of_the_other() -> None:
    args = torch.empty(4096, 64, device="meta"), torch.empty(4096, 64, device="meta")
    first = bound(furthest, args).seeds[0]
    assert first.heuristic == RULE and first.config["block_sizes"] == [128, 128, 1]


def test_others_decline() -> None:
    rows = bound(row_sum, (torch.empty(4096, 1000, device="meta"),))
    assert "rows along axis" in dict(rows.declined)[RULE]
    stored = bound(weights, vectors(1 << 20, 255))
    assert "rows along axis" in dict(stored.declined)[RULE]
    few = torch.empty(16, 64, device="meta"), torch.empty(65536, 64, device="meta")
    assert "serve only 16 elements" in dict(bound(furthest, few).declined)[RULE]


def test_only_what_lies_in_no_row_is_walked_by_single_elements() -> None:
    assert bound(row_sum, (torch.empty(64, 1000, device="meta"),)).config_spec.normalize({"reduction_loops": [1]})[
        "reduction_loops"
    ] == [8]
    assert bound(kernel_sums, vectors(64, 255)).config_spec.normalize({"reduction_loops": [1]})["reduction_loops"] == [
        1
    ]
    assert bound(weights, vectors(64, 255)).config_spec.normalize({"reduction_loops": [1]})["reduction_loops"] == [8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "points"), [(63, 31), (1000, 255), (1, 3)])
def test_sums_and_places_are_right(n: int, points: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(n)
    x, y = ((torch.randn(size, generator=generator) + 3).to(dtype) for size in (n, points))
    config = helion.Config(block_sizes=[32], reduction_loops=[1])
    away = x[:, None].double() - y[None, :].double()
    got = helion.kernel(kernel_sums.fn, config=config)(x, y)
    torch.testing.assert_close(
        got.double(), torch.exp(-away * away).sum(-1), rtol=1e-2 if dtype != torch.float32 else 1e-5, atol=1e-5
    )
    place = helion.kernel(nearest.fn, config=config)(x.float(), y.float())
    assert torch.equal(away.float().abs().gather(1, place[:, None])[:, 0], away.float().abs().amin(1))


@pytest.mark.parametrize(("m", "n", "k"), [(63, 65, 31), (33, 129, 1)])
def test_pairs_of_rows_are_right(m: int, n: int, k: int) -> None:
    generator = torch.Generator().manual_seed(m)
    x, y = (torch.randn(rows, k, generator=generator) - 2 for rows in (m, n))
    got = helion.kernel(furthest.fn, config=helion.Config(block_sizes=[32, 64, 1]))(x, y)
    torch.testing.assert_close(got, (x[:, None, :] - y[None, :, :]).abs().amax(-1))


def test_results_that_select_elements_are_fewer() -> None:
    @helion.kernel
    def interpolated(x: torch.Tensor, points: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size()):
            at = x[tile]
            below = (points[:][None, None, :] <= at[:, :, None]).to(torch.int32).sum(-1) - 1
            left = torch.clamp(below, 0, 62)
            share = torch.clamp((at - points[left]) / (points[left + 1] - points[left]), 0.0, 1.0)
            out[tile] = values[left] + share * (values[left + 1] - values[left])
        return out

    vector = torch.empty(64, device="meta")
    seed = interpolated.bind((torch.empty(4096, 2048, device="meta"), vector, vector), target="h200").seeds[0]
    assert seed.heuristic == RULE and seed.config["block_sizes"][0] <= 16
    assert "of them at once" in seed.reason and seed.predicted.registers_per_thread <= 128


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_results_are_of_one_warp(dtype: torch.dtype) -> None:
    """Measurement ``rows_of_results``; rows of more results share what a thread loads."""
    steps = torch.empty(1024, 1024, dtype=dtype, device="meta")
    for rows, sizes, warps in ((128, [1, 64, 16], 1), (8192, None, 4)):
        x = torch.empty(rows, 1024, dtype=dtype, device="meta")
        bound = helion.kernel(largest_sums.fn, backend="triton").bind((x, steps), target="h200")
        config = bound.default_config()
        assert bound.seeds[0].heuristic == RULE and config["num_warps"] == warps
        assert config["block_sizes"] == sizes if sizes else config["block_sizes"][0] > 1
        assert bound.resources(config).spill_bytes == 0


@pytest.mark.parametrize(("dtype", "columns", "step"), [(torch.float32, 64, 4), (torch.bfloat16, 32, 8)])
def test_pairs_of_rows_load_vectors(dtype: torch.dtype, columns: int, step: int) -> None:
    """Measurement ``vectors_of_pairs``."""
    rows = tuple(torch.empty(2048, 256, dtype=dtype, device="meta") for _ in range(2))
    first = bound(furthest, rows).seeds[0]
    assert first.heuristic == RULE and first.config["num_warps"] == 4
    assert first.config["block_sizes"] == [16, columns, step]
    x, y = torch.randn(33, 17).to(dtype), torch.randn(41, 17).to(dtype)
    far = (x.float()[:, None] - y.float()).abs().amax(-1)
    torch.testing.assert_close(furthest(x, y), far)
    config = helion.Config(block_sizes=[16, columns, step], num_warps=4)
    torch.testing.assert_close(furthest.bind((x, y)).compile_config(config)(x, y), far)


def test_columns_of_the_other_side_are_loaded_one_element_at_a_time() -> None:
    """A step of several elements is one of several rows there."""
    square = tuple(torch.empty(2048, 2048, device="meta") for _ in range(2))
    assert bound(longest_paths, square).seeds[0].config["block_sizes"][2] == 1


@helion.kernel
def apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sums of absolute differences of pairs of rows, which are loaded whole."""
    out = torch.empty([x.size(0), y.size(0)], dtype=torch.float32, device=x.device)
    for i, j in hl.tile(out.size()):
        out[i, j] = (x[i, :][:, None, :] - y[j, :][None, :, :]).abs().sum(-1)
    return out


def test_pairs_of_whole_rows_load_vectors() -> None:
    """Measurement ``vectors_of_pairs``."""
    first = bound(apart, tuple(torch.empty(2048, 64, device="meta") for _ in range(2))).seeds[0]
    assert first.heuristic == RULE and first.config["block_sizes"] == [16, 64] and first.config["num_warps"] == 4
    few = bound(apart, tuple(torch.empty(256, 64, device="meta") for _ in range(2)))
    short = bound(apart, tuple(torch.empty(4096, 4, device="meta") for _ in range(2)))
    for other in (few, short):
        assert "loaded in chunks" in dict(other.declined)[RULE]
    x, y = torch.randn(33, 65), torch.randn(41, 65)
    far = (x[:, None] - y).abs().sum(-1)
    torch.testing.assert_close(apart(x, y), far)
    config = helion.Config(block_sizes=[16, 32], reduction_loops=[16], num_warps=4)
    torch.testing.assert_close(apart.bind((x, y)).compile_config(config)(x, y), far)


@helion.kernel()
def ranks(x: torch.Tensor) -> torch.Tensor:
    """The rank of each number in its row."""
    n, width = x.size()
    out = torch.empty([n, width], dtype=torch.float32, device=x.device)
    for rows, places in hl.tile([n, width]):
        own, below = x[rows, places], hl.zeros([rows, places], dtype=torch.float32)
        for others in hl.tile(width):
            below += (x[rows, others][:, None, :] < own[:, :, None]).to(torch.float32).sum(-1)
        out[rows, places] = below
    return out


def test_results_of_a_row_share_its_vectors() -> None:
    """Measurement ``results_of_a_row``."""
    first = bound(ranks, (torch.empty(8192, 256, device="meta"),)).seeds[0]
    assert first.heuristic == RULE and first.config["block_sizes"] == [1, 256, 4] and first.config["num_warps"] == 1
    few = bound(ranks, (torch.empty(1024, 256, device="meta"),)).seeds[0]
    assert "results of a row" not in few.reason
    cell = CELLS["smallest_hashes"]
    config = cell.kernel.bind(cell.arguments("meta", False), target="h200").default_config()
    assert config["block_sizes"] == [1, 128, 32] and config["num_warps"] == 1
    x = torch.randn(5, 65)
    expected = (x[:, None, :] < x[:, :, None]).sum(-1).to(torch.float32)
    torch.testing.assert_close(ranks(x), expected)
    config = helion.Config(block_sizes=[1, 128, 4], num_warps=1)
    torch.testing.assert_close(ranks.bind((x,)).compile_config(config)(x), expected)
