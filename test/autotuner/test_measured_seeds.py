"""Seeds that a sweep on an H200 chose: what runs there first, and that other GPUs keep the published choices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from benchmarks import general as products
from helion._testing import EXAMPLES_DIR, import_path
from helion.hardware import known_targets, target

BF16, FP32 = torch.bfloat16, torch.float32


def tensor(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def bound(example: str, *args: Any, name: str | None = None, gpu: str = "h200") -> Any:
    return getattr(import_path(EXAMPLES_DIR / f"{example}.py"), name or example).bind(args, target=gpu)


def first(kernel: Any) -> tuple[str, list[int], list[int | None], int, int]:
    seed = kernel.seeds[0]
    config = seed.config
    return (
        seed.heuristic.removeprefix("Triton").removesuffix("Heuristic"),
        config["block_sizes"],
        config["reduction_loops"],
        config["num_warps"],
        config["num_stages"],
    )


@pytest.mark.parametrize(
    ("example", "args", "sizes", "loops", "warps"),
    [
        ("softmax", (tensor(131072, 1000),), [2], [None], 4),
        ("softmax", (tensor(131072, 1000, dtype=FP32),), [1], [None], 4),
        ("softmax", (tensor(32768, 4096),), [1], [None], 8),
        ("softmax", (tensor(2048, 131072),), [1], [16384], 32),
        ("layer_norm", (tensor(4096, 32768, dtype=FP32), tensor(32768), tensor(32768)), [1], [None], 32),
        ("layer_norm", (tensor(4096, 32768), tensor(32768), tensor(32768)), [1], [4096], 32),
        ("cross_entropy", (tensor(32768, 4096), tensor(32768, dtype=torch.int64)), [1], [None], 2),
        ("cross_entropy", (tensor(2048, 131072), tensor(2048, dtype=torch.int64)), [1], [2048], 16),
        ("jsd", (tensor(16384, 8192),) * 2, [1, 2048], [], 4),
        ("welford", (tensor(32768, 4096), tensor(4096), tensor(4096)), [1, 4096, 4096], [], 8),
    ],
)
def test_rows(example: str, args: Any, sizes: list[int], loops: list[int | None], warps: int) -> None:
    assert first(bound(example, *args)) == ("StreamingReduction", sizes, loops, warps, 1)


def test_rows_of_other_gpus_stay_with_what_is_published_for_them() -> None:
    for name in known_targets():
        if name not in ("h200", target("h200").name):
            report = dict(bound("softmax", tensor(4096, 1024), gpu=name).declined)
            assert "measured for H200" in report["TritonStreamingReductionHeuristic"]


def test_programs_that_sum_up_many_rows_are_declined() -> None:
    kernel = bound("rms_norm_backward", tensor(65536, 1024), tensor(65536, 1024), tensor(1024))
    assert all(seed.heuristic != "TritonStreamingReductionHeuristic" for seed in kernel.seeds)


@pytest.mark.parametrize(
    ("args", "sizes", "warps", "stages"),
    [
        ((tensor(4096, 4096, dtype=FP32), tensor(4096, 4096, dtype=FP32)), [128, 64, 32], 2, 3),
        ((tensor(4097, 1000), tensor(1000, 4097)), [128, 128, 64], 8, 6),
        ((tensor(4096, 4096), tensor(4096, 4096)), [128, 256, 64], 8, 3),
        ((tensor(2048, 2048), tensor(2048, 2048)), [128, 256, 64], 8, 4),
    ],
)
def test_products(args: Any, sizes: list[int], warps: int, stages: int) -> None:
    assert first(bound("matmul", *args)) == ("Matmul", sizes, [], warps, stages)


def test_descriptors_are_for_operands_of_two_bytes_that_fit() -> None:
    def linear(m: int, k: int, n: int, dtype: torch.dtype) -> Any:
        return (
            products.linear.bind((tensor(m, k, dtype=dtype), tensor(n, k, dtype=dtype)), target="h200").seeds[0].config
        )

    half, single = linear(4096, 4096, 4096, BF16), linear(4096, 4096, 4096, FP32)
    assert half["pid_type"] == "persistent_interleaved" and set(half["indexing"]) == {"tensor_descriptor"}
    assert half["num_stages"] == 3
    assert single["pid_type"] == "flat" and set(single["indexing"]) == {"pointer"} and single["num_stages"] == 4


@helion.kernel
def product_of_bytes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.int32, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.int32)
        for tile_k in hl.tile(x.size(1)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def test_integers_that_must_be_turned_have_tall_tiles() -> None:
    x = tensor(4096, 4096, dtype=torch.int8)
    assert product_of_bytes.bind((x, x), target="h200").seeds[0].config["block_sizes"][:2] == [256, 128]
    assert product_of_bytes.bind((x, x.t()), target="h200").seeds[0].config["block_sizes"][:1] == [128]


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
    ("m", "k", "n", "dtype", "sizes", "warps"),
    [
        (131072, 512, 512, BF16, [64, 64], 8),
        (131072, 512, 512, FP32, [32, 16], 4),
        (512, 512, 512, BF16, [16, 64], 4),
        (1024, 1024, 1024, BF16, [16, 32], 8),
        (1024, 1024, 1024, FP32, [16, 16], 4),
    ],
)
def test_whole_rows_behind_a_product(m: int, k: int, n: int, dtype: torch.dtype, sizes: list[int], warps: int) -> None:
    kernel = bound("matmul_rms_norm", tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), tensor(n, dtype=dtype))
    assert kernel.seeds[0].heuristic == "TritonMatmulReductionEpilogueHeuristic"
    default = kernel.default_config()
    assert (default["block_sizes"], default["num_warps"], default["num_stages"]) == (sizes, warps, 3)


@pytest.mark.parametrize(
    ("m", "k", "n", "dtype", "sizes", "warps"),
    [
        (131072, 512, 4096, BF16, [64, 256, 32, 256], 4),
        (131072, 8192, 2048, BF16, [128, 256, 64, 256], 8),
        (1024, 1024, 1024, BF16, [16, 512, 64, 256], 4),
        (131072, 512, 2048, FP32, [64, 64, 32, 64], 2),
        (2048, 2048, 2048, FP32, [32, 128, 32, 128], 4),
    ],
)
def test_tiled_rows_behind_a_product(m: int, k: int, n: int, dtype: torch.dtype, sizes: list[int], warps: int) -> None:
    args = tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), tensor(n, dtype=dtype)
    assert first(bound("matmul_rms_norm_tiled", *args)) == (
        "MatmulTiledReductionEpilogue",
        sizes,
        [],
        warps,
        4,
    )


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
    for name in known_targets():
        config = bound("add", tensor(8192, 8192), tensor(8192, 8192), gpu=name).seeds[0].config
        assert config["loop_orders"] == [[1, 0]]
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
    (seed,) = (seed for seed in kernel.seeds if seed.config == kernel.default_config())
    assert seed.heuristic == "TritonMatmulReductionEpilogueHeuristic" and seed is not kernel.seeds[0]


def test_of_configs_that_all_spill_the_one_that_spills_less_is_the_default() -> None:
    kernel = bound("matmul_rms_norm", tensor(131072, 512), tensor(512, 4096), tensor(4096))
    assert kernel.default_config() == kernel.seeds[0].config != kernel.conservative_config()


def test_heuristics_can_be_left_out() -> None:
    plain = helion.kernel(import_path(EXAMPLES_DIR / "softmax.py").softmax.fn, disable_autotuner_heuristics=True)
    kernel = plain.bind((tensor(4096, 1024),), target="h200")
    assert kernel.default_config() == kernel.conservative_config()
