"""First configs of kernels of benchmarks/workloads, one for each kind that has a rule of its own."""

from __future__ import annotations

import math

import pytest
import torch
from harness import tensor
from unseen_fields import sparse_rows_times_vector

import helion
import helion.language as hl
from benchmarks.cells import workload_cells
from benchmarks.mechanisms import dropped_residual, packed_pixels, rotated_pairs, sample_energies, shuffled_pixels

#: The first cell of each kernel, and its tiles on an H200.
TILES = {
    "padded_transpose": [1, 128, 128],  # a load of fewer elements than there are to store counts as well
    "causal_convolution": [1, 2048],  # a batch that programs share drags nothing along
    "depthwise_nhwc": [8, 128],  # four rows a thread, which share its weights
    "bilinear_samples": [8, 256],  # rows of a thread, whose weights all threads compute
    "gathered_pages": [16],  # a run of pages is no run of memory
    "segment_softmax": [32, 32],  # loops one behind the other, of 32 edges on average
    "neighbour_sums": [128, 16],  # the edges say how long a loop is, not what they gather from
    "batch_norm_columns": [64, 256, 256],  # shared by programs, also where the result is applied
    "smoothed_loss_and_gradient": [1, 16384, 16384],
    "few_tokens": [64, 256],  # long lines of the weights
}


#: The first cell of kernels whose loops from and to where data says reduce their tiles, of one whose rows share weights,
#: and of one with ten dependent reductions: their warps on an H200.
WARPS = {"segment_softmax": 1, "neighbour_sums": 1, "depthwise_nhwc": 1, "routed_gates": 4}


@pytest.mark.parametrize("kernel", WARPS)
def test_warps(kernel: str) -> None:
    cell = next(cell for cell in workload_cells() if cell.kernel == kernel)
    assert cell.function.bind(cell.args, target="h200").default_config()["num_warps"] == WARPS[kernel]


@helion.kernel(static_shapes=True)
def _segment_sums(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    out = torch.empty([starts.size(0) - 1, x.size(1)], dtype=torch.float32, device=x.device)
    for segment, columns in hl.tile(out.size(), block_size=[1, None]):
        acc = hl.zeros([columns], dtype=torch.float32)
        for rows in hl.tile(starts[segment.begin], starts[segment.begin + 1]):
            acc = acc + x[rows, columns].to(torch.float32).sum(0)
        out[segment.begin, columns] = acc
    return out


@pytest.mark.parametrize(("segments", "warps"), [(100_000, 1), (4000, 1), (1000, 4), (64, 4)])
def test_few_programs_have_more_warps(segments: int, warps: int) -> None:
    args = tensor(1_000_000, 128), tensor(segments + 1, dtype=torch.int32)
    seed = _segment_sums.bind(args, target="h200").seeds[0]
    assert seed.heuristic == "TritonScatterHeuristic" and seed.config["num_warps"] == warps


@pytest.mark.parametrize("kernel", TILES)
def test_tiles(kernel: str) -> None:
    cell = next(cell for cell in workload_cells() if cell.kernel == kernel)
    bound = cell.function.bind(cell.args, target="h200")
    assert bound.default_config()["block_sizes"] == TILES[kernel]


def test_programs_that_run_together_select_from_one_image() -> None:
    cell = next(cell for cell in workload_cells() if cell.kernel == "bilinear_samples")
    for gpu in ("h100", "h200"):
        order = cell.function.bind(cell.args, target=gpu).default_config()["loop_orders"]
        assert order == [[2, 1, 0]]  # points before images


#: Tiles and warps of other cells.
LAUNCHES = {
    ("biased_gelu_gradients", "10000 by 768"): ([64, 256, 8], 2),  # 128 threads would leave a quarter of the lanes idle
    ("layer_norm_to_int8", "65536 by 1000"): ([2], 2),  # a warp a row, where three reductions wait for each other
    ("int8_vector", "4096 by 11008"): ([1, 4096], 4),  # 11008 bytes fill 16384 lanes by two thirds
    ("buckets", "33554432 by 31"): ([1024], 4),  # a sum in a thread
}


@pytest.mark.parametrize(("kernel", "case"), LAUNCHES)
def test_launches(kernel: str, case: str) -> None:
    cell = next(cell for cell in workload_cells() if (cell.kernel, cell.case) == (kernel, case))
    config = cell.function.bind(cell.args, target="h200").default_config()
    assert (config["block_sizes"], config["num_warps"]) == LAUNCHES[kernel, case]


@pytest.mark.parametrize("gpu", ("sm_90", "h100", "h200"))
@pytest.mark.parametrize("rows", (64, 131))
def test_rows_with_an_sm_each_have_wide_programs(gpu: str, rows: int) -> None:
    bound = sample_energies.bind((tensor(rows, 150528),), target=gpu)
    seed, narrow = bound.seeds[:2]
    assert seed.heuristic == "TritonStreamingReductionHeuristic" and seed.config == bound.default_config()
    assert seed.config["num_warps"] >= 16 and narrow.config["num_warps"] == 4
    assert seed.predicted.time_us <= 0.8 * narrow.predicted.time_us and not seed.predicted.spill_risk
    many = sample_energies.bind((tensor(4096, 150528),), target=gpu)
    assert many.default_config()["num_warps"] == 4


@pytest.mark.parametrize("gpu", ("h100", "h200"))
def test_a_few_rows_are_split_where_the_launch_of_a_second_kernel_pays(gpu: str) -> None:
    bound = sample_energies.bind((tensor(8, 150528),), target=gpu)
    seed, whole = bound.seeds[:2]
    assert seed.heuristic == whole.heuristic == "TritonSplitReductionHeuristic"
    assert seed.config["split_k"] >= 8 and whole.config["split_k"] == 1 and whole.config["num_warps"] >= 16
    assert sample_energies.bind((tensor(8, 10000),), target=gpu).default_config()["split_k"] == 1


@pytest.mark.parametrize("gpu", ("sm_80", "h100", "gfx942"))
@pytest.mark.parametrize(("heads", "width"), ((32, 128), (40, 64)))
def test_pairs_of_columns_fill_vectors(gpu: str, heads: int, width: int) -> None:
    angles = tensor(4096, width // 2, dtype=torch.float32)
    bound = rotated_pairs.bind((tensor(4096, heads, width), angles, angles), target=gpu)
    config = bound.default_config()
    threads = config["num_warps"] * bound.target.warp_size
    assert config["block_sizes"][0] * config["block_sizes"][1] * width == 8 * threads  # 16 bytes of each thread


@pytest.mark.parametrize(("gpu", "threads"), (("sm_80", 64), ("h200", 64), ("gfx942", 64)))
def test_threads_draw_enough_random_numbers_for_their_keys(gpu: str, threads: int) -> None:
    x, bias = tensor(16384, 4096), tensor(4096)
    bound = dropped_residual.bind((x, bias, x, 0.1, 1234), target=gpu)
    config = bound.default_config()
    assert config["block_sizes"] == [1, 1024] and config["num_warps"] * bound.target.warp_size == threads


@pytest.mark.parametrize("gpu", ["sm_80", "h200", "sm_100"])
@pytest.mark.parametrize("image", [(8, 64, 180, 320), (64, 64, 32, 32)])
def test_permuted_tiles_have_few_rows(gpu: str, image: tuple[int, int, int, int]) -> None:
    b, c, h, w = image
    for kernel, shape in ((shuffled_pixels, (b, 4 * c, h, w)), (packed_pixels, (b, c, 2 * h, 2 * w))):
        bound = kernel.bind((tensor(*shape, dtype=torch.bfloat16), 2), target=gpu)
        seed, other = bound.seeds[:2]
        assert seed.heuristic == other.heuristic == "TritonPointwiseHeuristic" and seed.config == bound.default_config()
        channels, rows, run = seed.config["block_sizes"]
        assert channels * rows <= 4 and run >= 32
        assert seed.predicted.time_us <= other.predicted.time_us and not seed.predicted.spill_risk
        assert seed.config["loop_orders"] == [[3, 2, 1, 0]]


def test_plain_transposes_keep_their_tiles() -> None:
    @helion.kernel()
    def transposed(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(1), x.size(0)], dtype=x.dtype, device=x.device)
        for rows, columns in hl.tile(x.size()):
            out[columns, rows] = x[rows, columns].T
        return out

    seed = transposed.bind((tensor(4096, 4096, dtype=torch.bfloat16),), target="h200").seeds[0]
    rows, columns = seed.config["block_sizes"]
    assert rows == columns >= 64


@pytest.mark.parametrize(("rows", "entries", "sizes"), [(100_000, 6_400_000, [2, 64]), (100_000, 3_000_000, [4, 32])])
def test_loops_that_end_at_the_longest_row_have_few_rows(rows: int, entries: int, sizes: list[int]) -> None:
    """A row that is shorter waits (measurement ``longest_rows``)."""
    numbers = tensor(rows + 1, dtype=torch.int64), tensor(entries, dtype=torch.int64)
    args = (*numbers, tensor(entries, dtype=torch.float32), tensor(rows, dtype=torch.float32))
    seed = sparse_rows_times_vector.bind(args, target="h200").seeds[0]
    assert seed.config["block_sizes"] == sizes and seed.config["num_warps"] == 1


@helion.kernel
def _packed_softmax(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(values)
    for tile in hl.tile(offsets.size(0) - 1):
        start = offsets[tile]
        length = offsets[tile.index + 1] - start
        total = hl.zeros([tile])
        for part in hl.jagged_tile(length):
            total += torch.exp(values[start[:, None] + part.index[None, :]]).sum(1)
        for part in hl.jagged_tile(length):
            at = start[:, None] + part.index[None, :]
            out[at] = torch.exp(values[at]) / total[:, None]
    return out


def test_two_loops_over_packed_rows_have_two_of_them() -> None:
    """Measurement ``packed_rows``."""
    args = tensor(65536 * 150, dtype=torch.float32), tensor(65537, dtype=torch.int64)
    seed = _packed_softmax.bind(args, target="h200").seeds[0]
    assert seed.config["block_sizes"] == [2, 128, 128] and seed.config["num_warps"] == 1


@helion.kernel
def _pooled(values: torch.Tensor, scores: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = torch.empty([offsets.size(0) - 1, values.size(1)], dtype=values.dtype, device=values.device)
    for row, columns in hl.tile(out.size(), block_size=[1, None]):
        top = hl.full([], float("-inf"), dtype=torch.float32)
        total = hl.zeros([], dtype=torch.float32)
        acc = hl.zeros([columns], dtype=torch.float32)
        for tile in hl.tile(offsets[row.begin], offsets[row.begin + 1]):
            s = scores[tile].to(torch.float32)
            new = torch.maximum(top, torch.amax(s, 0))
            e, old = torch.exp(s - new), torch.exp(top - new)
            total = total * old + e.sum(0)
            acc = acc * old + (e[:, None] * values[tile, columns].to(torch.float32)).sum(0)
            top = new
        out[row, columns] = (acc / total)[None, :].to(values.dtype)
    return out


@pytest.mark.parametrize("rows", [131_000, 513])
def test_few_warps_reduce_the_steps_of_loops_between_bounds_from_data(rows: int) -> None:
    args = tensor(rows, 256), tensor(rows), tensor(513, dtype=torch.int64)
    seed = _pooled.bind(args, target="h200").seeds[0].config
    threads, elements = 32 * seed["num_warps"], math.prod(seed["block_sizes"])
    assert seed["num_warps"] <= 2 and elements <= 32 * threads
    assert rows < 1000 or (seed["block_sizes"], seed["num_warps"]) == ([32, 32], 1), "measurement reducing_warps"
