"""Predicted time: what a launch asks of each unit, and that times move as they do on a GPU."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import sample_kernels
import torch
from costs import calls
from harness import tensor

import helion
import helion.language as hl
from benchmarks.general import column_sum, group_norm
from benchmarks.holdout import cast_both_ways, hinge_margin, masked_token_mean, power_mean
from benchmarks.mechanisms import counted_values, one_hot_counts, packed_pixels, shuffled_channels, shuffled_pixels
from benchmarks.unfitted import CELLS
from benchmarks.unfitted.series import fir
from benchmarks.unseen.attention import flash_forward
from benchmarks.unseen.products import manhattan
from benchmarks.unseen.rows import embedding_mean, row_running_sum, selective_scan
from benchmarks.workloads.gathers import bilinear_samples, unpacked_weights
from benchmarks.workloads.products import block_sparse_product, gated_state_scan, lower_triangle_product
from benchmarks.workloads.rows import wave_step
from helion.autotuner.proposal import Predicted
from helion.backends.triton.heuristics.predicted_time import proposal_timing
from helion.backends.triton.proposal import TritonProposal
from helion.backends.triton.resources.time import parameters
from helion.backends.triton.resources.time.demand import demands
from helion.backends.triton.resources.time.launch import launch_of
from helion.backends.triton.resources.time.model import parts
from helion.backends.triton.resources.time.predict import timing
from helion.backends.triton.resources.time.record import Demand
from helion.hardware import known_targets, target

BF16 = torch.bfloat16
H200 = target("h200")
matmul, row_sum, softmax = map(helion.kernel, (sample_kernels.matmul, sample_kernels.row_sum, sample_kernels.softmax))


@helion.kernel()
def squares(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * x[tile]
    return out


def product(m: int = 4096, k: int = 4096, n: int = 4096, dtype: torch.dtype = BF16) -> helion.BoundKernel:
    return matmul.bind((tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype)), target=H200)


def predicted(bound: helion.BoundKernel, **config: object) -> Predicted:
    return bound._analysis.predict(bound.config_spec.normalize(config))


def units(bound: helion.BoundKernel, **config: object) -> dict[str, float]:
    return dict(predicted(bound, **config).units)


def demand(bound: helion.BoundKernel, **config: object) -> Demand:
    full = bound.config_spec.normalize(config)
    analysis = bound._analysis
    (found,) = demands(analysis.facts, launch_of(bound.config_spec.decode(full)), analysis.predict(full), H200)
    return found


TILES = {"block_sizes": [128, 256, 64], "num_warps": 8, "num_stages": 3}


def test_a_copy_of_a_large_tensor_takes_what_its_bytes_take() -> None:
    bound = squares.bind((tensor(8192, 8192, dtype=BF16),), target=H200)
    found = predicted(bound, block_sizes=[1, 2048], num_warps=4)
    bytes_us = 2 * 2 * 8192 * 8192 / (H200.bandwidth_gb_per_s * 1e3)
    assert bytes_us < found.time_us < 1.4 * bytes_us
    assert max(found.units, key=lambda unit: unit[1])[0] == "memory"


@pytest.mark.parametrize("n", (1, 63, 1000, 4097))
def test_demands_count_true_elements_and_padded_work(n: int) -> None:
    bound = row_sum.bind((tensor(1000, n, dtype=BF16),), target=H200)
    found = demand(bound, block_sizes=[1], reduction_loops=[None] * bool(bound.config_spec.rollable), num_warps=4)
    assert found.programs == 1000
    assert found.straight_bytes == pytest.approx(2 * n + 2)
    assert found.sector_bytes % 32 == 0 and found.straight_bytes <= found.sector_bytes


def test_a_product_is_bound_by_its_matrix_units_and_chain() -> None:
    found = predicted(product(), **TILES)
    sheet_us = 2 * 4096**3 / (H200.matrix_tflops_for("bfloat16") * 1e6)
    assert sheet_us < found.time_us < 2 * sheet_us


def test_tiny_tiles_of_a_product_read_more_through_the_cache() -> None:
    small, large = units(product(), block_sizes=[32, 32, 64], num_warps=4, num_stages=3), units(product(), **TILES)
    assert small["L2 cache"] > 4 * large["L2 cache"]


def test_grouped_programs_read_less_from_memory() -> None:
    shape = (16384, 16384, 16384)
    plain = demand(product(*shape), **TILES, l2_groupings=[1])
    grouped = demand(product(*shape), **TILES, l2_groupings=[16])
    assert grouped.new_bytes < 0.6 * plain.new_bytes


def test_stages_hide_the_wait_for_operands() -> None:
    one, three = (predicted(product(), **{**TILES, "num_stages": stages}) for stages in (1, 3))
    assert one.time_us > 1.2 * three.time_us


def test_an_accumulator_that_does_not_fit_is_stored_and_loaded_for_each_product() -> None:
    four, eight = (predicted(product(), **{**TILES, "num_warps": warps}) for warps in (4, 8))
    assert four.time_us > 1.5 * eight.time_us
    assert dict(four.units)["spilled registers"] > dict(eight.units)["spilled registers"] == 0


def test_a_limit_of_registers_spills_what_it_leaves_no_room_for() -> None:
    persistent = {"pid_type": "persistent_interleaved"}
    free, limited = (predicted(product(), **TILES, **persistent, maxnreg=limit) for limit in (None, 64))
    assert (free.register_limit, limited.register_limit) == (255, 64)
    assert limited.time_us > 1.5 * free.time_us and limited.spill_risk > free.spill_risk
    rows = row_sum.bind((tensor(4096, 8192, dtype=torch.float32),), target=H200)
    wide, narrow = (predicted(rows, block_sizes=[4], **persistent, maxnreg=limit) for limit in (None, 64))
    assert narrow.occupancy_blocks > wide.occupancy_blocks and narrow.waves < wide.waves


def test_loads_through_pointers_are_not_prefetched_across_tiles() -> None:
    """Measured on an H200: 497 µs where it takes 183 µs without (nvidia-h200-sweeps.tsv)."""
    persistent = {**TILES, "pid_type": "persistent_interleaved"}
    apart = predicted(product(), **persistent, range_flattens=[None, None])
    fused = predicted(product(), **persistent, range_flattens=[True, None])
    boxed = predicted(product(), **persistent, range_flattens=[True, None], indexing="tensor_descriptor")
    assert fused.time_us > 1.5 * apart.time_us
    assert boxed.time_us < apart.time_us * 1.02


def test_memory_is_asked_for_no_less_than_nothing() -> None:
    bound = product(64, 4096, 64)
    policies = ["last"] * len(bound.config_spec.default_config()["load_eviction_policies"])
    found = predicted(bound, block_sizes=[16, 16, 16], num_warps=4, load_eviction_policies=policies)
    assert min(us for _, us in found.units) >= 0 and found.time_us > 0


def test_rows_read_twice_come_from_memory_where_the_cache_has_lost_them() -> None:
    few, many = (tensor(rows, columns, dtype=torch.float32) for rows, columns in ((16384, 8192), (2048, 131072)))
    chunks = {"block_sizes": [1], "reduction_loops": [2048], "num_warps": 16}
    short, long = (units(softmax.bind((x,), target=H200), **chunks)["memory"] for x in (few, many))
    whole = units(softmax.bind((few,), target=H200), block_sizes=[1], num_warps=16)["memory"]
    assert whole <= short < long / 2 * 1.05


def test_a_flat_index_against_the_strides_reads_every_element_from_its_own_sector() -> None:
    """Measured on an H200: 820 µs where the other order takes 85 µs (nvidia-h200-holdout.tsv)."""
    bound = squares.bind((tensor(4096, 4096, dtype=torch.float32),), target=H200)
    flat = {"block_sizes": [1, 1024], "flatten_loops": [True], "num_warps": 4}
    along, against = (demand(bound, **flat, loop_orders=[order]) for order in ([0, 1], [1, 0]))
    assert along.sector_bytes == along.asked_bytes
    assert against.sector_bytes == 8 * against.asked_bytes


@helion.kernel()
def every_second(x: torch.Tensor) -> torch.Tensor:
    part = x[:, ::2]
    out = torch.empty_like(part)
    for tile in hl.tile(part.size()):
        out[tile] = part[tile]
    return out


def test_neighbours_at_small_steps_share_sectors() -> None:
    wide, narrow = (
        demand(every_second.bind((tensor(512, 2048, dtype=dtype),), target=H200), block_sizes=[1, 1024])
        for dtype in (torch.float64, torch.bfloat16)
    )
    assert wide.sector_bytes == 1024 * (16 + 8) and narrow.sector_bytes == 1024 * (4 + 2)


def test_sectors_that_stores_fill_in_parts_are_counted() -> None:
    bound = cast_both_ways.bind((tensor(1024, 1024, dtype=torch.float32),), target=H200)
    row, square = (demand(bound, block_sizes=sizes, num_warps=4) for sizes in ([1, 1024], [32, 32]))
    assert row.written_bytes == 1024 * (32 - 2)  # one element of each row of the transposed tensor
    assert square.written_bytes == 0


def test_rows_that_a_tile_has_whole_are_one_run() -> None:
    images = tensor(2, 256, 180, 320), tensor(2, 64, 360, 640)
    for kernel, image in zip((shuffled_pixels, packed_pixels), images, strict=True):
        bound = kernel.bind((image, 2), target=H200)
        wide = demand(bound, block_sizes=[1, 2, 512], num_warps=4)
        assert wide.sector_bytes == wide.asked_bytes and wide.written_bytes == 0
        narrow = demand(bound, block_sizes=[1, 16, 8], num_warps=4)
        assert narrow.sector_bytes > narrow.asked_bytes, "half of a sector of each row that is accessed alone"
    channels = demand(shuffled_channels.bind((tensor(1, 8, 8, 512), 4), target=H200), block_sizes=[4, 32], num_warps=4)
    assert channels.sector_bytes == channels.asked_bytes


def test_rows_that_a_tile_has_in_parts_are_a_run_each() -> None:
    bound = squares.bind((tensor(4096, 24),), target=H200)
    whole, parts_of_rows = (demand(bound, block_sizes=[64, size], num_warps=4) for size in (32, 8))
    assert whole.sector_bytes == whole.asked_bytes
    assert parts_of_rows.sector_bytes == 2 * parts_of_rows.asked_bytes, "16 bytes of each sector"


def test_rows_of_a_permuted_tile_meet_in_shared_memory() -> None:
    bound = shuffled_pixels.bind((tensor(8, 256, 180, 320, dtype=BF16), 2), target=H200)
    tiles = ([1, 1, 512], [1, 2, 256], [1, 4, 128], [1, 8, 64], [4, 4, 64])
    found = [demand(bound, block_sizes=sizes, num_warps=4) for sizes in tiles]
    moved = 2 * 512 * 4 * 2  # in and out: 512 lanes of four pixels of two bytes
    assert [each.conflicting_bytes for each in found] == [moved * rows for rows in (2, 4, 8, 16, 2 * 32)]
    times = [predicted(bound, block_sizes=sizes, num_warps=4).time_us for sizes in tiles]
    assert times == sorted(times) and times[-1] > 3 * times[0]
    plain = demand(squares.bind((tensor(64, 64),), target=H200), block_sizes=[32, 32], num_warps=4)
    assert plain.conflicting_bytes == 0


def test_adjacent_lines_of_atomics_meet_in_one_slice_of_the_cache() -> None:
    ids = tensor(1 << 19, dtype=torch.int32)

    def line_atomics(bins: int, warps: int) -> float:
        return demand(one_hot_counts.bind((ids, bins), target=H200), block_sizes=[64], num_warps=warps).line_atomics

    assert line_atomics(64, 8) == line_atomics(128, 8) == 1
    assert line_atomics(256, 8) == line_atomics(512, 16) == 2
    assert line_atomics(256, 4) == 4, "each thread has two neighbours"


@helion.kernel()
def accumulated(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size()):
        hl.atomic_add(out, tile, x[tile])
    return out


def test_memory_adds_pairs_of_16_bits_and_no_single_ones() -> None:
    def lane_atomics(columns: int, dtype: torch.dtype) -> float:
        bound = accumulated.bind((tensor(64, columns, dtype=dtype), tensor(64, columns, dtype=dtype)), target=H200)
        return demand(bound, block_sizes=[32, 64], num_warps=4).lane_atomics

    assert lane_atomics(127, BF16) == 32 * 64 / 32
    assert lane_atomics(128, BF16) == lane_atomics(127, torch.float32) == 0


def test_a_vector_of_floats_is_one_atomic() -> None:
    def found(dtype: torch.dtype, columns: int, on: str = "h200") -> Demand:
        bound = accumulated.bind((tensor(64, columns, dtype=dtype), tensor(64, columns, dtype=dtype)), target=on)
        return demand(bound, block_sizes=[1, 512], num_warps=4)

    integers, floats, odd = found(torch.int32, 512), found(torch.float32, 512), found(torch.float32, 511)
    assert integers.line_atomics == pytest.approx(16 / 3 * floats.line_atomics)  # four, in the time of 3/4 of one
    assert integers.accesses > floats.accesses and odd.line_atomics > 5 * floats.line_atomics
    assert not target("a100").has("vector_atomics") and H200.has("vector_atomics")


def test_each_slice_of_the_cache_serves_its_lines_of_atomics() -> None:
    def found(rows: int, columns: int, *tile: int) -> float:
        args = tensor(rows, columns, dtype=torch.float32), tensor(rows, columns, dtype=torch.float32)
        return demand(accumulated.bind(args, target=H200), block_sizes=[*tile], num_warps=4).line_atomics

    many = found(8192, 1024, 8, 128)  # a program has 32 of all lines
    assert many == pytest.approx(32 * 0.75 * 0.8 / H200.l2_slices)
    narrow = found(8192, 1024, 128, 2)
    assert narrow == pytest.approx(many * 4 / 3), "a part of a sector takes as long as a sector"


def test_taps_of_a_window_are_in_the_l1_cache() -> None:
    bound = fir.bind((tensor(256, 48000, dtype=torch.float32), tensor(33, dtype=torch.float32)), target=H200)
    near, far = (demand(bound, block_sizes=sizes, num_warps=8) for sizes in ([8, 128], [128, 512]))
    assert near.asked_bytes == 2 * 8 * 128 * 4 + 33 * 4
    assert far.asked_bytes == 34 * 128 * 512 * 4 * (48000 / 512 / 94) + 33 * 4, "tiles that L1 has no room for"


def test_gathered_rows_are_runs() -> None:
    table, ids = tensor(50000, 256, dtype=BF16), tensor(4096, 32, dtype=torch.int64)
    found = demand(embedding_mean.bind((table, ids), target=H200), block_sizes=[8, 256], num_warps=4)
    assert found.sector_bytes < 1.3 * found.asked_bytes


def test_selected_rows_stay_cached_where_programs_share_the_part_that_they_select_from() -> None:
    images, points = (tensor(*sizes, dtype=torch.float32) for sizes in ((8, 128, 128, 256), (8, 16384, 2)))
    bound = bilinear_samples.bind((images, points), target=H200)
    tile = {"block_sizes": [8, 256], "num_warps": 4}
    once = (8 * 128 * 128 * 256 + 8 * 16384 * 256) * 4 / (H200.bandwidth_gb_per_s * 1e3)
    of_one = units(bound, **tile, loop_orders=[[2, 1, 0]])["memory"]
    of_all = units(bound, **tile)["memory"]
    assert once < of_one < 1.3 * once and of_all > 1.7 * of_one
    apart = units(bound, **tile, loop_orders=[[2, 1, 0]], pid_type="persistent_blocked")["memory"]
    assert apart > 1.5 * of_one  # programs with blocks of tiles are in all images


def test_neighbours_whose_quotients_are_equal_share_an_element() -> None:
    packed, scales = tensor(4096, 2048, dtype=torch.uint8), tensor(4096, 32, dtype=BF16)
    bound = unpacked_weights.bind((packed, scales, scales), target=H200)
    found = demand(bound, block_sizes=[2, 1024])
    assert found.asked_bytes == 2 * (1024 + 2 * 1024 // 64 * 2 + 2 * 1024 * 2)
    assert found.sector_bytes == 2 * (1024 + 2 * 1024 // 64 * 32 + 2 * 1024 * 2)
    whole, half = (demand(bound, block_sizes=[1, size]) for size in (64, 32))
    assert whole.asked_bytes - 64 - 64 * 4 == half.asked_bytes - 32 - 32 * 4  # each reads an element of both


def test_loops_over_single_positions_between_bounds_are_as_long_as_their_share() -> None:
    blocks, x = tensor(512, 64, 64, dtype=BF16), tensor(4096, 4096, dtype=BF16)
    columns, starts = (tensor(size, dtype=torch.int64) for size in (512, 65))
    bound = block_sparse_product.bind((blocks, columns, starts, x), target=H200)
    found = demand(bound, block_sizes=[256])
    assert found.iterations == found.products == 512 // 64


def test_taps_of_one_tile_come_from_memory_once() -> None:
    bound = wave_step.bind((tensor(8192, 8192),) * 3, target=H200)
    once = 4 * 2 * 8192 * 8192 / (H200.bandwidth_gb_per_s * 1e3)
    for warps in (1, 4, 16):
        assert units(bound, block_sizes=[4, 512], num_warps=warps)["memory"] < 1.3 * once


def test_shifted_tiles_are_in_the_cache_of_the_sm_unless_a_load_passes_it_by() -> None:
    """Measured on an H100: 212 µs, and 395 µs with a tap past that cache (nvidia-h100-samples.tsv)."""
    bound = wave_step.bind(tuple(tensor(8192, 8192) for _ in range(3)), target=H200)
    found = demand(bound, block_sizes=[4, 512], num_warps=4)
    slots = [fact.slot for fact in bound._analysis.facts.memory_ops if fact.kind == "load"]
    passed = demand(bound, block_sizes=[4, 512], num_warps=4, load_cache_modifiers=[".cg" for _ in slots])
    assert found.shifted_bytes == 4 * 4 * 512 * 2 and passed.shifted_bytes == 0


def test_an_element_of_each_row_brings_no_row() -> None:
    """Measured on an H100: 66 µs, and 48 µs predicted where a gather had counted as the whole tensor."""
    labels = tensor(8192, dtype=torch.int64)
    bound = hinge_margin.bind((tensor(8192, 10000, dtype=BF16), labels), target=H200)
    whole = 2 * 8192 * 10000 / (H200.bandwidth_gb_per_s * 1e3)
    assert units(bound, block_sizes=[1], num_warps=4)["memory"] > whole


@helion.kernel()
def gated(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size(0), x.size(1) // 2
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = x[tile_m, tile_n] * x[tile_m, tile_n.index + n]
    return out


def test_parts_of_a_tensor_come_from_memory_each() -> None:
    bound = gated.bind((tensor(8192, 8192, dtype=BF16),), target=H200)
    found = demand(bound, block_sizes=[1, 1024], num_warps=4)
    assert found.new_bytes == 3 * 1024 * 2 and found.again_bytes == found.shifted_bytes == 0


def test_a_loop_waits_for_each_box() -> None:
    """Measurement ``boxed_loops``."""
    bound = power_mean.bind((tensor(64, 512, 784, dtype=BF16),), target=H200)
    tiles = {"block_sizes": [4, 1], "num_warps": 8, "reduction_loops": [32]}
    boxes = {**tiles, "indexing": ["tensor_descriptor", "pointer"]}
    found = demand(bound, **boxes)
    assert found.boxed_rounds == 25 and found.looped_rounds == 0 == demand(bound, **tiles).boxed_rounds
    assert predicted(bound, **boxes).time_us > 2 * predicted(bound, **tiles).time_us


def test_sectors_evicted_first_are_read_again_for_other_programs() -> None:
    """Measurement ``evicted_sectors``."""
    bound = column_sum.bind((tensor(65536, 1024, dtype=BF16),), target=H200)
    tiles = {"block_sizes": [1, 2048], "num_warps": 2}
    first = {**tiles, "load_eviction_policies": ["first"]}
    assert demand(bound, **tiles).others_bytes == demand(bound, **first).first_others_bytes == 65536 * 30
    assert predicted(bound, **first).time_us > 1.1 * predicted(bound, **tiles).time_us
    few, many = (demand(bound, block_sizes=[n, 2048]).others_bytes for n in (8, 16))
    assert few == 65536 * 16 and many == 0


@helion.kernel()
def running_extrema(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        for tile_n in hl.tile(n):
            top = torch.maximum(top, x[tile_m, tile_n].to(torch.float32).amax(-1))
        out[tile_m] = top
    return out


@helion.kernel()
def summed_extrema(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            total += x[tile_m, tile_n].to(torch.float32).amax(-1)
        out[tile_m] = total
    return out


def test_loads_wait_for_reductions_across_warps() -> None:
    x = (tensor(4096, 65536, dtype=BF16),)
    bound = summed_extrema.bind(x, target=H200)
    across, within = (demand(bound, block_sizes=[rows, 256], num_warps=4) for rows in (1, 4))
    assert across.fenced_rounds == 256 and across.looped_rounds == 0
    assert within.fenced_rounds == 0 and within.looped_rounds == 256
    late = demand(running_extrema.bind(x, target=H200), block_sizes=[1, 256], num_warps=4)
    assert late.fenced_rounds == 0 and late.looped_rounds == 256


def test_rows_that_share_loads_come_from_memory_once() -> None:
    bound = wave_step.bind(tuple(tensor(8192, 8192) for _ in range(3)), target=H200)
    alone, sharing = (demand(bound, block_sizes=[rows, 256], num_warps=4) for rows in (4, 8))
    assert sharing.asked_bytes < 1.6 * alone.asked_bytes
    for found in (alone, sharing):
        assert found.new_bytes * found.programs == 4 * 8192 * 8192 * 2


@helion.kernel()
def taps_of_channels(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m - 8, n * 9], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        out[tile_m, tile_n] = x[tile_m.index[:, None] + tile_n.index[None, :] % 9, tile_n.index[None, :] // 9]
    return out


@helion.kernel()
def repeated_channels(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m, n * 9], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n.index // 9]
    return out


@pytest.mark.parametrize(("kernel", "sharing"), [(taps_of_channels, 1), (repeated_channels, 9)])
def test_neighbours_share_an_element_where_no_other_subscript_varies(kernel: helion.Kernel, sharing: int) -> None:
    bound = kernel.bind((tensor(4096, 256),), target=H200)
    found = demand(bound, block_sizes=[1, 256], num_warps=4)
    assert found.asked_bytes == pytest.approx(256 * 2 / sharing + 256 * 2)


@helion.kernel()
def scaled_rows(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] * torch.exp(scale[tile_n])[None, :]
    return out


def test_each_row_of_threads_computes_its_own_row_of_a_part() -> None:
    """Measurement ``held_rows``."""
    bound = scaled_rows.bind((tensor(8192, 8192, dtype=BF16), tensor(8192, dtype=BF16)), target=H200)
    # 16 threads along a row of 128 have eight elements each, however many rows of threads there are
    few, many = (demand(bound, block_sizes=[8, 128], num_warps=warps) for warps in (1, 4))
    assert few.special == 8 and many.special == 4 * few.special
    whole = demand(bound, block_sizes=[1, 1024], num_warps=4)
    assert whole.special == 1024 / 32


def test_operations_have_a_step_of_each_warp() -> None:
    bound = squares.bind((tensor(8192, 8192, dtype=BF16),), target=H200)
    few, many = (demand(bound, block_sizes=[1, 1024], num_warps=warps) for warps in (1, 32))
    assert many.steps == 32 * few.steps > 0
    assert many.straight_issue == pytest.approx(few.straight_issue)


def test_scans_take_instructions_for_each_step() -> None:
    bound = row_running_sum.bind((tensor(4096, 8192, dtype=torch.float32),), target=H200)
    found = demand(bound, block_sizes=[1], reduction_loops=[None])
    # 16 runs of 4 of each thread: 48 additions inside, 5 lane steps and 4 warps for each, 64 for what precedes
    assert found.straight_issue >= 4 * (48 + 16 * (5 + 4) + 64) and found.barriers == 2


def test_parts_of_results_of_a_reduction_meet_in_banks() -> None:
    """Measured on an H200 with a reduction in each step: 316 µs with 32 warps, 28 µs with 4 (nvidia-h200-holdout.tsv)."""
    x, mask = tensor(64, 512, 1024, dtype=BF16), tensor(64, 512, dtype=torch.int32)
    bound = masked_token_mean.bind((x, mask), target=H200)
    many, few = (
        demand(bound, block_sizes=tile, num_warps=warps) for tile, warps in (([4, 64, 32], 32), ([2, 64, 128], 4))
    )
    # a thread has eight results, whose parts of all warps are adjacent: a warp's lanes are in one bank
    assert many.exchanged_bytes == 8 * 32 * 32 * 2 * 128
    # the sums of weights are one result of a thread, which no other lane's bank meets
    assert few.exchanged_bytes == (8 * 16 + 1) * 4 * 2 * 128
    facts = bound._analysis.facts
    inside = [dataclasses.replace(fact, after=None) for fact in facts.reductions]
    vars(bound._analysis)["facts"] = dataclasses.replace(facts, reductions=tuple(inside), late_reductions=())
    assert demand(bound, block_sizes=[4, 64, 32], num_warps=32).exchanged_bytes == 16 * many.exchanged_bytes
    assert predicted(bound, block_sizes=[4, 64, 32], num_warps=32).time_us > 150
    assert predicted(bound, block_sizes=[2, 64, 128], num_warps=4).time_us < 40


def test_lanes_that_share_a_row_meet_in_no_bank() -> None:
    bound = row_sum.bind((tensor(4096, 4096, dtype=BF16),), target=H200)
    found = demand(bound, block_sizes=[4], reduction_loops=[None], num_warps=8)
    assert found.exchanges == 4 and found.exchanged_bytes == 4 * 8 * 2 * 128


def test_a_reduction_of_several_axes_reduces_the_last_one_first() -> None:
    bound = group_norm.bind((tensor(64, 32, 8, 1024, dtype=BF16),), target=H200)
    inner, outer = sorted(bound._analysis.facts.reductions, key=lambda fact: len(fact.gone))
    assert outer.gone == {inner.axis} and not inner.gone
    found = demand(bound, num_warps=2)
    # two sums over rows that both warps share, and none over the eight channels of a thread
    assert found.exchanges == 2 * 8 and found.barriers == 2


@helion.kernel(static_shapes=True)
def plane_sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of the rows and of the columns of planes."""
    n, h, w = x.size()
    rows = torch.empty([n, h], dtype=torch.float32, device=x.device)
    columns = torch.empty([n, w], dtype=torch.float32, device=x.device)
    for tile in hl.tile(n):
        plane = x[tile, :, :].to(torch.float32)
        rows[tile, :] = plane.sum(2)
        columns[tile, :] = plane.sum(1)
    return rows, columns


@pytest.mark.parametrize("columns", [64, 128])
def test_both_reductions_of_a_plane_count(columns: int) -> None:
    """Measured on an H200 for 8192 planes of 56 x 56: 43 us in tiles of four and 4 warps, 21 us of one and 1 warp."""
    bound = plane_sums.bind((tensor(8192, 64, columns, dtype=BF16),), target=H200)
    several, one = (demand(bound, block_sizes=[n], num_warps=n) for n in (4, 1))
    # sums over the other rows of a plane need all warps, those along a row do not
    assert several.barriers == 1 and several.exchanged_bytes > 0
    assert one.barriers == one.exchanged_bytes == 0 and one.shuffles > 0


@helion.kernel(static_shapes=True)
def four_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums of rows and of three more functions of their elements."""
    out = torch.empty([4, x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        for power in hl.static_range(4):
            out[power, tile] = (row * row + power).sum(1)
    return out


def test_reductions_of_one_name_count_each() -> None:
    bound = four_sums.bind((tensor(4096, 512, dtype=BF16),), target=H200)
    found = demand(bound, block_sizes=[1], num_warps=2, reduction_loops=[None])
    assert found.barriers == 4
    # each of the four stores has elements of its own
    assert found.new_bytes == pytest.approx(512 * 2 + 4 * 4)


def test_threads_lie_along_the_longer_of_two_tiles_with_adjacent_elements() -> None:
    """Measured on an H200: 2647 us in 64 lags by 64 samples, 310 in 256 by 4 (measurement ``gathers_alone``)."""
    cell = CELLS["pitch_differences"]
    bound = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target=H200)
    square, long = (predicted(bound, block_sizes=[*tile, 1, 8], num_warps=4).time_us for tile in ((64, 64), (256, 4)))
    assert square > 4 * long


def test_threads_of_a_computed_tile_have_neighbours() -> None:
    """Measured on an H200: 692 µs, and 192 µs with tiles of 128 x 128 x 1 (nvidia-h200-recent-samples.tsv)."""
    x = tensor(4096, 64, dtype=torch.float32)
    bound = manhattan.bind((x, tensor(4096, 64, dtype=torch.float32)), target=H200)
    wide, thin = ({"block_sizes": tile, "num_warps": 4} for tile in ([32, 32, 8], [128, 128, 1]))
    assert demand(bound, **wide).shuffles == 8 * 64 * 3 and demand(bound, **thin).shuffles == 0
    assert predicted(bound, **thin).time_us < predicted(bound, **wide).time_us


def test_tiles_too_narrow_to_copy_wait_in_each_step() -> None:
    """Measured on an H200: 126 µs with 32 columns, 23 µs with 64 (nvidia-h200-recent-samples.tsv)."""
    bound = selective_scan.bind(
        tuple(tensor(*size, dtype=BF16) for size in ((8, 256, 4096), (4096,), (8, 256, 4096))), target=H200
    )
    narrow, enough = (demand(bound, block_sizes=[n], range_num_stages=[0, 8], num_warps=1) for n in (32, 64))
    assert narrow.stored_rounds == 256 and enough.pipelined_rounds == pytest.approx(256 / 7)
    carried = demand(bound, block_sizes=[32], num_warps=1, prefetch_distance=4)
    assert carried.stored_rounds == 0 and carried.pipelined_rounds == pytest.approx(256 / 4)


def test_loads_that_fly_during_a_step_add_no_time() -> None:
    """Measured on an H200: 141 µs with eight steps ahead, 559 µs with 4 columns and none (nvidia-h200-recent-samples.tsv)."""
    keys, values = (tensor(64, 512, 64, dtype=BF16) for _ in range(2))
    bound = gated_state_scan.bind((keys, keys, values, keys), target=H200)
    ahead = predicted(bound, block_sizes=[8], num_warps=1, prefetch_distance=8, range_unroll_factors=[0, 4])
    assert predicted(bound, block_sizes=[4], num_warps=1).time_us > 2 * ahead.time_us


def test_each_element_of_a_column_is_in_a_line_of_its_own() -> None:
    bound = squares.bind((tensor(8192, 8192, dtype=BF16),), target=H200)
    column, row = (demand(bound, block_sizes=tile, num_warps=4) for tile in ([1024, 1], [1, 1024]))
    assert column.lines == 3 * 1024 and row.lines == 3 * 1024 * 2 / 128


def test_products_that_are_operands_change_warps_where_rows_are_few() -> None:
    """Measured on an H200: 5900 µs with 8 warps over 64 rows, 3250 µs over 128 (nvidia-h200-samples.tsv)."""
    bound = flash_forward.bind(tuple(tensor(4, 32, 4096, 128, dtype=BF16) for _ in range(3)), target=H200)
    few, enough = (demand(bound, block_sizes=[1, rows, 128], num_warps=8) for rows in (64, 128))
    assert few.turned_bytes == 32 * 64 * 128 * 2 and enough.turned_bytes == 0
    assert few.exchanges > enough.exchanges == 0


def test_warps_repeat_scores_of_fewer_rows_than_they_have() -> None:
    bound = flash_forward.bind(tuple(tensor(4, 32, 4096, 128, dtype=BF16) for _ in range(3)), target=H200)
    few, enough = (demand(bound, block_sizes=[1, rows, 128], num_warps=8) for rows in (64, 128))
    # of two matmuls of equal size, the one of the scores is computed twice
    assert 2 * few.matrix_us == pytest.approx(1.5 * enough.matrix_us)
    assert 2 * few.looped_issue > 1.5 * enough.looped_issue


def test_an_operand_is_converted_once_for_all_rows_of_a_tile() -> None:
    bound = product(dtype=torch.float32)
    short, tall = (demand(bound, block_sizes=[rows, 64, 32], num_warps=4) for rows in (64, 256))
    assert short.converted_us == pytest.approx(tall.converted_us) and tall.matrix_us == 4 * short.matrix_us


def test_programs_that_go_on_to_other_tiles_begin_once() -> None:
    x = tensor(131072, 64, dtype=BF16)
    bound = row_sum.bind((x,), target=H200)
    flat = units(bound, block_sizes=[8], num_warps=4)
    persistent = units(bound, block_sizes=[8], num_warps=4, pid_type="persistent_interleaved", num_sm_multiplier=16)
    assert persistent["starting programs"] < flat["starting programs"]


def test_few_programs_leave_sms_idle() -> None:
    few = product(256, 8192, 256)
    large, small = (
        predicted(few, block_sizes=sizes, num_warps=4, num_stages=4) for sizes in ([128, 128, 64], [32, 64, 64])
    )
    assert small.time_us < large.time_us


def test_few_programs_read_the_cache_over_few_ports() -> None:
    """Programs on half of the SMs take as long as those on all, for half of the bytes."""
    rows = [
        units(squares.bind((tensor(n * H200.num_sms // 2, 4096),), target=H200), block_sizes=[1, 4096])
        for n in (1, 2, 4)
    ]
    half, one, two = (each["L2 cache"] for each in rows)
    assert half == pytest.approx(one) and two == pytest.approx(2 * one)


def test_atomics_wait_for_each_other_at_few_addresses() -> None:
    many, few = (
        units(one_hot_counts.bind((tensor(1 << 19, dtype=torch.int32), 256), target=H200), block_sizes=[size])
        for size in (8, 64)
    )
    assert many["atomics"] == pytest.approx(8 * few["atomics"]) and max(many, key=many.__getitem__) == "atomics"
    ids = tensor(1 << 24, dtype=torch.int32)
    hot, cold = (
        predicted(
            helion.kernel(counted_values.fn).bind((ids, bins), target=H200), block_sizes=[256], num_warps=4
        ).time_us
        for bins in (256, 65536)
    )
    assert hot > 10 * cold  # a GPU: one fourth of 17292 us, and 201 us (measurement ``meeting_atomics``)
    counted = predicted(helion.kernel(counted_values.fn).bind((ids, 256), target=H200), block_sizes=[8192], num_warps=8)
    assert counted.time_us < 0.05 * hot  # one fourth of 213 us (benchmarks/results/histograms.jsonl)


def test_a_launch_ends_after_its_longest_program() -> None:
    """All programs run at once: those of the last rows take twice the mean, and a persistent one has rows of all kinds."""
    args = torch.empty(2000, 2000, device="meta"), torch.empty(2000, 1000, device="meta")
    bound = lower_triangle_product.bind(args, target="h200")
    given: dict[str, object] = {"block_sizes": [128, 64, 32], "num_warps": 2, "num_stages": 3}
    latency = units(bound, **given)["latency"]
    assert 1.9 < demand(bound, **given).longest < 2.1 and predicted(bound, **given).time_us > 1.9 * latency
    given |= {"pid_type": "persistent_interleaved"}
    assert demand(bound, **given).longest == 1


def test_programs_cost_their_start() -> None:
    x = tensor(131072, 64, dtype=BF16)
    one, many = (
        predicted(row_sum.bind((x,), target=H200), block_sizes=[rows], num_warps=warps)
        for rows, warps in ((1, 8), (32, 4))
    )
    assert one.time_us > 2 * many.time_us
    assert max(one.units, key=lambda unit: unit[1])[0] in ("starting programs", "latency")


@pytest.mark.parametrize("name", known_targets())
@pytest.mark.parametrize("dtype", (BF16, torch.float32))
def test_every_target_has_finite_times(name: str, dtype: torch.dtype) -> None:
    for bound in (
        matmul.bind((tensor(300, 1000, dtype=dtype), tensor(1000, 63, dtype=dtype)), target=name),
        softmax.bind((tensor(1, 4097, dtype=dtype),), target=name),
    ):
        for config in (bound.default_config(), bound._analysis.space.conservative()):
            found = bound._analysis.predict(config)
            assert 0 < found.time_us < 1e4 and all(0 <= us < 1e5 for _, us in found.units)


def test_numbers_and_arrays_have_one_formula() -> None:
    rows = [demand(product(m), **{**TILES, "num_warps": warps}) for m in (64, 1000, 4097) for warps in (4, 8)]
    fitted = parameters.fitted().products
    together = parts(Demand(*np.array(rows, dtype=float).T), fitted, H200, np)
    for at, row in enumerate(rows):
        for alone, array in zip(parts(row, fitted, H200), together, strict=True):
            assert alone == pytest.approx(array[at])


def test_parameters_are_data_that_names_where_they_come_from() -> None:
    text = parameters.FITTED.read_text()
    found = parameters.read(text)
    assert parameters.write(found) == text
    assert found.device and found.date and found.versions
    data = json.loads(text)
    del data["products"]["launch_us"]
    with pytest.raises(TypeError, match="launch_us"):
        parameters.read(json.dumps(data))
    data["products"]["launch_us"] = data["products"]["lunch_us"] = 1.0
    with pytest.raises(TypeError, match="lunch_us"):
        parameters.read(json.dumps(data))
    for each in (found.products, found.others):
        assert all(value > 0 for value in dataclasses.astuple(each))


def test_a_prediction_costs_little() -> None:
    bound = product()
    full = bound.config_spec.normalize(TILES)
    decisions, taken, facts = bound.config_spec.decode(full), bound._analysis.predict(full), bound._analysis.facts
    assert calls(lambda: timing(facts, launch_of(decisions), taken, H200)) <= 650


def test_equal_launches_are_timed_once() -> None:
    bound = product()
    facts, spec = bound._analysis.facts, bound.config_spec
    sizes = {axis.block_id: 64 for axis in facts.tunable_axes}
    proposal = TritonProposal(reason="", block_sizes=sizes, num_warps=4, num_stages=3)
    one = proposal_timing(facts, proposal, H200)
    for same in ({}, {"loop_orders": {0: (0, 1)}}, {"l2_groupings": {0: 1}}):
        assert proposal_timing(facts, dataclasses.replace(proposal, **same), H200) is one
    for other in ({"loop_orders": {0: (1, 0)}}, {"l2_groupings": {0: 8}}, {"num_warps": 8}):
        assert proposal_timing(facts, dataclasses.replace(proposal, **other), H200) is not one
    plain, ordered = (
        launch_of(spec.decode(spec.normalize({**TILES, **each}))) for each in ({}, {"loop_orders": [[0, 1]]})
    )
    assert plain == ordered and plain.orders == plain.groupings == {}
    assert launch_of(spec.decode(spec.normalize({**TILES, "l2_groupings": [8]}))).groupings == {0: 8}


@helion.kernel
def looked_up(x: torch.Tensor, codes: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    out = torch.empty([m, codes.size(1)], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile(out.size()):
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(k // 2, block_size=32):
            w = book[codes[inner, columns].to(torch.int32)]
            both = hl.join(w, -w).permute(0, 2, 1).reshape(64, columns)
            acc = hl.dot(x[rows, inner.begin * 2 + hl.arange(64)], both.to(x.dtype), acc=acc)
        out[rows, columns] = acc
    return out


def test_lookups_in_small_tables_read_shared_memory() -> None:
    def found(size: int, stages: int) -> Demand:
        args = tensor(32, 4096, dtype=BF16), tensor(2048, 4096, dtype=torch.uint8), tensor(size, dtype=torch.float32)
        return demand(looked_up.bind(args, target=H200), block_sizes=[32, 64], num_warps=4, num_stages=stages)

    looked = 64 * 32 * 64  # steps, codes of each
    small, large, waiting = found(16, 3), found(512, 3), found(16, 1)
    assert large.asked_bytes - small.asked_bytes == waiting.asked_bytes - small.asked_bytes == 4 * looked
    assert large.sector_bytes - small.sector_bytes == 32 * looked


def test_a_computed_subscript_of_an_operand_is_a_run() -> None:
    """32 rows of 64 elements a step, and 32 x 64 codes: all sectors are whole."""
    args = tensor(32, 4096, dtype=BF16), tensor(2048, 4096, dtype=torch.uint8), tensor(16, dtype=torch.float32)
    found = demand(looked_up.bind(args, target=H200), block_sizes=[32, 64], num_warps=4, num_stages=3)
    assert found.sector_bytes == found.asked_bytes == 64 * 32 * 64 * (2 + 1) + 32 * 64 * 4


def test_rows_of_more_than_half_of_the_cache_are_read_again() -> None:
    """34 MB of 60 MiB: programs of all rows read them in each wave."""
    plain, grouped = (demand(product(8192, 2048, 2048), **TILES, l2_groupings=[group]) for group in (1, 8))
    assert grouped.new_bytes < plain.new_bytes
    fewer = [demand(product(4096, 2048, 2048), **TILES, l2_groupings=[group]) for group in (1, 8)]
    assert fewer[0].new_bytes == fewer[1].new_bytes


@helion.kernel
def one_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].to(torch.float32).sum(-1)
    return out


@helion.kernel
def two_sums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    left = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    right = torch.empty([y.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        left[tile] = x[tile, :].to(torch.float32).sum(-1)
    for tile in hl.tile(y.size(0)):
        right[tile] = y[tile, :].to(torch.float32).sum(-1)
    return left, right


@helion.kernel
def sums_of_sums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    left = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    right = torch.empty([y.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        left[tile] = x[tile, :].to(torch.float32).sum(-1)
    hl.barrier()
    for tile in hl.tile(y.size(0)):
        right[tile] = y[tile, :].to(torch.float32).sum(-1) + left[tile]
    return left, right


def test_grid_loops_without_a_barrier_run_beside_each_other() -> None:
    """Programs of both leave SMs idle; others take turns. Memory serves both in any case."""
    few, many = tensor(32, 8192, dtype=BF16), tensor(65536, 8192, dtype=BF16)
    config = {"num_warps": 4, "reduction_loops": [1024]}
    one = predicted(one_sum.bind((few,), target=H200), block_sizes=[1], **config)
    beside, after = (
        predicted(kernel.bind((few, few), target=H200), block_sizes=[1, 1], **config)
        for kernel in (two_sums, sums_of_sums)
    )
    assert beside.time_us == pytest.approx(one.time_us) and after.time_us > 1.5 * one.time_us
    all_of_one = predicted(one_sum.bind((many,), target=H200), block_sizes=[1], **config)
    all_of_both = predicted(two_sums.bind((many, many), target=H200), block_sizes=[1, 1], **config)
    assert 1.9 * all_of_one.time_us < all_of_both.time_us < 2 * all_of_one.time_us
    mixed = predicted(two_sums.bind((few, many), target=H200), block_sizes=[1, 1], **config)
    assert all_of_one.time_us <= mixed.time_us < all_of_one.time_us + one.time_us
