"""Seeds that a sweep on an H200 chose: what runs there first, and that other GPUs keep the published choices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import tensor
from sample_kernels import product_of_bytes

import helion
import helion.language as hl
from benchmarks import general as products
from benchmarks.unseen import products as scaled_products
from benchmarks.unseen.rows import row_running_sum
from helion._testing import EXAMPLES_DIR, import_path
from helion.autotuner.default import choose_default
from helion.hardware import known_targets

BF16, FP32 = torch.bfloat16, torch.float32


def bound(example: str, *args: Any, name: str | None = None, gpu: str = "h200") -> Any:
    return getattr(import_path(EXAMPLES_DIR / f"{example}.py"), name or example).bind(args, target=gpu)


def first_of(kernel: Any) -> Any:
    """The first seed, which is predicted to fit without spilling. test/seeds/seeds.tsv has such seeds in full, and
    benchmarks/sweep.py how near to the best they are."""
    seed = kernel.seeds[0]
    assert seed.predicted.fits and seed.predicted.spill_risk == 0.0
    return seed


def default_of_one(kernel: Any) -> Any:
    """The default of the seeds that compute products where they are used."""
    analysis = kernel._analysis
    kept = tuple(seed for seed in kernel.seeds if seed.config["unfuse_matmul"] is None)
    report = replace(analysis.seeds, seeds=kept, competing=())
    return choose_default(
        report,
        analysis.space,
        analysis.predict,
        lambda config: analysis.backend.with_max_registers(config, kernel.target),
    )


@pytest.mark.parametrize(("lead", "is_seed"), [(0.98, True), (0.95, False)])
def test_the_conservative_config_needs_a_lead_that_predictions_can_tell(lead: float, is_seed: bool) -> None:
    """Measured on an H200: rows of 8192 floats summed as they come take 69 µs whole, 72 in chunks of 4096."""
    kernel = row_running_sum.bind((tensor(4096, 8192, dtype=FP32),), target="h200")
    analysis, seed = kernel._analysis, kernel.seeds[0]
    report = replace(analysis.seeds, seeds=(seed,), promoted=(), competing=())
    other = replace(seed.predicted, time_us=lead * seed.predicted.time_us)
    found = choose_default(report, analysis.space, lambda config: other, dict)
    assert found == (seed.config if is_seed else analysis.space.conservative())


@pytest.mark.parametrize(
    ("example", "args"),
    [
        ("softmax", (tensor(131072, 1000),)),
        ("softmax", (tensor(131072, 1000, dtype=FP32),)),
        ("softmax", (tensor(32768, 4096),)),
        ("softmax", (tensor(2048, 131072),)),
        ("layer_norm", (tensor(4096, 32768, dtype=FP32), tensor(32768), tensor(32768))),
        ("layer_norm", (tensor(4096, 32768), tensor(32768), tensor(32768))),
        ("cross_entropy", (tensor(32768, 4096), tensor(32768, dtype=torch.int64))),
        ("cross_entropy", (tensor(2048, 131072), tensor(2048, dtype=torch.int64))),
        ("jsd", (tensor(16384, 8192),) * 2),
        ("welford", (tensor(32768, 4096), tensor(4096), tensor(4096))),
    ],
)
def test_rows_are_streamed(example: str, args: Any) -> None:
    """A few rows a program, and no pipeline: there is one pass over memory, or the row comes from the cache."""
    seed = first_of(bound(example, *args))
    assert seed.heuristic == "TritonStreamingReductionHeuristic"
    assert seed.config["block_sizes"][0] <= 2 and seed.config["num_stages"] == 1


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("example", ["softmax", "layer_norm"])
def test_a_thread_holds_8_bytes_to_32_registers_of_a_row(example: str, dtype: torch.dtype) -> None:
    rows = []
    for length in (1024, 2048, 4096, 8192, 16384, 32768):
        more = (tensor(length, dtype=dtype),) * 2 if example == "layer_norm" else ()
        config = first_of(bound(example, tensor(2**27 // length, length, dtype=dtype), *more)).config
        held = config["block_sizes"][0] * (config["reduction_loops"][0] or length) * dtype.itemsize
        assert 8 <= held / (32 * config["num_warps"]) <= 4 * 32
        rows.append(config["block_sizes"][0])
    assert rows == sorted(rows, reverse=True)


@pytest.mark.parametrize(("m", "length", "warps"), [(64, 1000, 4), (16, 4096, 8), (64, 256, 1)])
def test_the_warps_of_few_rows_hide_their_latency(m: int, length: int, warps: int) -> None:
    assert first_of(bound("softmax", tensor(m, length))).config["num_warps"] == warps


def test_narrow_rows_with_several_reductions_have_more_warps() -> None:
    for length, warps in ((128, 4), (64, 2), (1000, 1)):
        labels = tensor(131072, dtype=torch.int64)
        config = first_of(bound("cross_entropy", tensor(131072, length), labels)).config
        assert config["num_warps"] == warps


@pytest.mark.parametrize("name", ["softmax", "rms_norm"])
def test_narrow_rows_that_begin_anywhere_stay_in_one_warp(name: str) -> None:
    """Four warps would share each row: its lanes have one element each."""
    each = ((33, BF16, 8), (127, BF16, 8), (127, FP32, 4), (255, BF16, 4), (257, BF16, 2), (511, FP32, 2))
    for length, dtype, rows in each:
        args = (tensor(131072, length, dtype=dtype), *[tensor(length, dtype=dtype)] * (name == "rms_norm"))
        config = first_of(bound(name, *args)).config
        assert (config["num_warps"], config["block_sizes"]) == (1, [rows])
    for length in (128, 384, 512):
        assert first_of(bound("softmax", tensor(131072, length))).config["num_warps"] == 4


def edge_dots(x: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    out = torch.empty([sources.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(sources.size(0)):
        out[tile] = (x[sources[tile], :].to(torch.float32) * x[targets[tile], :].to(torch.float32)).sum(-1)
    return out


def test_rows_that_data_selects_and_many_bytes_stay_in_the_cache() -> None:
    """Measurement ``evicted_first``: other programs select the same rows; many bytes leave nothing else in the cache."""
    args = (tensor(20000, 128, dtype=BF16), tensor(262144, dtype=torch.int64), tensor(262144, dtype=torch.int64))
    assert "first" not in first_of(helion.kernel(edge_dots).bind(args, target="h200")).config["load_eviction_policies"]
    for rows, length, first in ((4096, 1024, True), (4096, 50257, True), (8192, 50257, False), (8192, 50256, False)):
        config = first_of(bound("long_sum", tensor(rows, length))).config
        assert ("first" in config["load_eviction_policies"]) == first


def test_rows_are_streamed_on_every_gpu() -> None:
    for name in known_targets():
        assert first_of(bound("softmax", tensor(4096, 1024), gpu=name)).heuristic == "TritonStreamingReductionHeuristic"


def test_programs_that_sum_up_many_rows_are_declined() -> None:
    kernel = bound("rms_norm_backward", tensor(65536, 1024), tensor(65536, 1024), tensor(1024))
    assert all(seed.heuristic != "TritonStreamingReductionHeuristic" for seed in kernel.seeds)


@pytest.mark.parametrize(
    ("args", "heuristic"),
    [
        ((tensor(4096, 4096, dtype=FP32), tensor(4096, 4096, dtype=FP32)), "TritonRewrittenMatmulHeuristic"),
        ((tensor(4097, 1000), tensor(1000, 4097)), "TritonRewrittenMatmulHeuristic"),
        ((tensor(4096, 4096), tensor(4096, 4096)), "TritonMatmulHeuristic"),
        ((tensor(2048, 2048), tensor(2048, 2048)), "TritonMatmulHeuristic"),
    ],
)
def test_products_are_pipelined_in_large_tiles(args: Any, heuristic: str) -> None:
    seed = first_of(bound("matmul", *args))
    m, n, _ = seed.config["block_sizes"]
    assert seed.heuristic == heuristic
    assert m * n >= 128 * 64 and seed.config["num_stages"] >= 3


def test_descriptors_store_what_fits_beside_the_operands() -> None:
    def linear(m: int, k: int, n: int, dtype: torch.dtype) -> Any:
        return (
            products.linear.bind((tensor(m, k, dtype=dtype), tensor(n, k, dtype=dtype)), target="h200").seeds[0].config
        )

    half, single = linear(4096, 4096, 4096, BF16), linear(4096, 4096, 4096, FP32)
    assert half["pid_type"] == "persistent_interleaved" and set(half["indexing"]) == {"tensor_descriptor"}
    assert half["num_stages"] == 3
    assert single["pid_type"] == "flat" and single["num_stages"] == 4
    assert single["indexing"] == ["tensor_descriptor", "tensor_descriptor", "pointer"]


def test_persistent_tiles_take_the_stages_that_fit() -> None:
    @helion.kernel
    def with_gelu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
        for tile_m, tile_n in hl.tile(out.size()):
            acc = hl.zeros([tile_m, tile_n])
            for tile_k in hl.tile(x.size(1)):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = torch.nn.functional.gelu(acc).to(x.dtype)
        return out

    args = tensor(4096, 4096), tensor(4096, 11008)
    small, large = with_gelu.bind(args, target="h200"), bound("matmul", *args)
    for kernel, sides, stages in ((small, [128, 128], 4), (large, [128, 256], 3)):
        config = kernel.seeds[0].config
        assert config["pid_type"] == "persistent_interleaved"
        assert (config["block_sizes"][:2], config["num_stages"]) == (sides, stages)
        assert kernel.seeds[0].predicted.fits


def test_persistent_tiles_with_partial_sums_have_a_longer_k() -> None:
    x = tensor(8192, 8192, dtype=torch.float8_e4m3fn)
    scale = tensor(8192, dtype=FP32)
    config = scaled_products.rowwise_fp8.bind((x, x, scale, scale), target="h200").seeds[0].config
    assert config["pid_type"] == "persistent_interleaved"
    assert (config["block_sizes"], config["num_stages"]) == ([128, 128, 256], 3)


def test_integers_that_must_be_transposed_have_tall_tiles() -> None:
    x, kernel = tensor(4096, 4096, dtype=torch.int8), helion.kernel(product_of_bytes)
    assert kernel.bind((x, x), target="h200").seeds[0].config["block_sizes"][:2] == [256, 128]
    assert kernel.bind((x, x.t()), target="h200").seeds[0].config["block_sizes"][:1] == [128]


def test_products_of_fp32_that_both_run_along_k_take_the_asynchronous_unit() -> None:
    weights = tensor(4096, 4096, dtype=FP32).T
    assert bound("matmul", tensor(4096, 4096, dtype=FP32), weights).seeds[0].config["num_warps"] == 8


def test_a_short_k_takes_a_persistent_grid_with_descriptors() -> None:
    kernel = bound("matmul", tensor(131072, 512), tensor(512, 512))
    config = kernel.seeds[0].config
    assert config["pid_type"] == "persistent_interleaved" and set(config["indexing"]) == {"tensor_descriptor"}
    assert kernel.seeds[1].config["pid_type"] == "flat"
    assert "make_tensor_descriptor" in kernel.to_triton_code(config)
    few = bound("matmul", tensor(2048, 512), tensor(512, 512))
    assert all(seed.config["pid_type"] == "flat" for seed in few.seeds)


@pytest.mark.parametrize(
    ("m", "k", "n", "dtype"),
    [
        (131072, 512, 512, BF16),
        (131072, 512, 512, FP32),
        (512, 512, 512, BF16),
        (1024, 1024, 1024, BF16),
        (1024, 1024, 1024, FP32),
    ],
)
def test_whole_rows_behind_a_product(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    """The sums of the rows of a tile stay in registers; few rows give fewer rows a tile, so that SMs are busy."""
    kernel = bound("matmul_rms_norm", tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), tensor(n, dtype=dtype))
    assert kernel.seeds[0].heuristic == "TritonMatmulReductionEpilogueHeuristic"
    default = default_of_one(kernel)
    rows = default["block_sizes"][0]
    assert default["num_stages"] == 3 and rows * n <= kernel.target.registers_per_sm and m // rows >= 32
    (seed,) = (seed for seed in kernel.seeds if seed.config == default)
    assert seed.predicted.fits


@pytest.mark.parametrize(
    ("m", "k", "n", "dtype"),
    [
        (131072, 512, 4096, BF16),
        (131072, 8192, 2048, BF16),
        (1024, 1024, 1024, BF16),
        (131072, 512, 2048, FP32),
        (2048, 2048, 2048, FP32),
    ],
)
def test_tiled_rows_behind_a_product(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    args = tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), tensor(n, dtype=dtype)
    seed = first_of(bound("matmul_rms_norm_tiled", *args))
    rows, columns, _, applied = seed.config["block_sizes"]
    assert seed.heuristic == "TritonMatmulTiledReductionEpilogueHeuristic"
    assert columns >= applied and seed.config["num_stages"] == 4 and m // rows >= 32


@helion.kernel
def scores_below(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    batch, length, features = q.size()
    features = hl.specialize(features)
    out = torch.empty([batch, length], dtype=torch.float32, device=q.device)
    for tile_b, tile_i in hl.tile([batch, length]):
        total = hl.zeros([tile_b, tile_i], dtype=torch.float32)
        for tile_j in hl.tile(length):
            scores = torch.bmm(q[tile_b, tile_i, :], k[tile_b, tile_j, :].transpose(1, 2))
            total = total + torch.exp(scores * 0.1).sum(-1)
        out[tile_b, tile_i] = total
    return out


@pytest.mark.parametrize("gpu", known_targets())
def test_products_over_a_whole_dimension_have_seeds(gpu: str) -> None:
    kernel = scores_below.bind((tensor(2, 190, 64), tensor(2, 190, 64)), target=gpu)
    assert kernel.seeds and kernel.default_config()


def test_neighbouring_programs_run_along_the_contiguous_axis() -> None:
    apart = tensor(8192, 8200)[:, :8192]
    for name in known_targets():
        config = bound("add", apart, apart, gpu=name).seeds[0].config
        assert (config["loop_orders"], config["flatten_loops"]) == ([[1, 0]], [False])
        run = bound("add", tensor(8191, 4097), tensor(8191, 4097), gpu=name).seeds[0].config
        assert (run["loop_orders"], run["flatten_loops"]) == ([[0, 1]], [True])
    turned = bound("add", tensor(8192, 8192).T, tensor(8192, 8192).T).seeds[0].config
    assert turned["loop_orders"] == [[0, 1]]
    one = bound("add", tensor(2**26), tensor(2**26)).seeds[0].config
    assert one["loop_orders"] == []


def test_descriptors_are_not_used_for_what_a_kernel_writes_and_reads() -> None:
    kernel = bound("matmul_rms_norm_tiled", tensor(4096, 512), tensor(512, 4096), tensor(4096))
    code = kernel.to_triton_code({**kernel.seeds[0].config, "indexing": "tensor_descriptor"})
    assert "x_desc = " in code and "out_desc" not in code


def test_a_config_that_a_promoting_heuristic_also_proposes_becomes_the_default() -> None:
    kernel = bound("matmul_rms_norm", tensor(1024, 1024), tensor(1024, 1024), tensor(1024))
    (seed,) = (seed for seed in kernel.seeds if seed.config == default_of_one(kernel))
    assert seed.heuristic == "TritonMatmulReductionEpilogueHeuristic" and seed is not kernel.seeds[0]


def test_of_configs_that_all_spill_the_one_that_spills_less_is_the_default() -> None:
    kernel = bound("matmul_rms_norm", tensor(131072, 512), tensor(512, 4096), tensor(4096))
    assert default_of_one(kernel) == kernel.seeds[0].config != kernel.conservative_config()


def test_heuristics_can_be_left_out() -> None:
    plain = helion.kernel(import_path(EXAMPLES_DIR / "softmax.py").softmax.fn, disable_autotuner_heuristics=True)
    kernel = plain.bind((tensor(4096, 1024),), target="h200")
    assert kernel.default_config() == kernel.conservative_config()
