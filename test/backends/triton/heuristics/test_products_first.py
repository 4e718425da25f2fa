"""Products whose rows are reduced, computed by a kernel in front: where, and in which tiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.cells import row_cells, unfitted_cells
from helion._testing import EXAMPLES_DIR, import_path
from helion.backends.triton.heuristics.choose import trust
from helion.hardware import known_targets, target

BF16, FP32 = torch.bfloat16, torch.float32


def bound(example: str, m: int, k: int, n: int, dtype: torch.dtype, gpu: str = "h200") -> Any:
    args = [tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype)]
    args += [tensor(n, dtype=dtype)] * 2 if "layernorm" in example else []
    kernel = getattr(import_path(EXAMPLES_DIR / f"{example}.py"), example)
    return helion.kernel(kernel.fn, static_shapes=True, backend="triton").bind(tuple(args), target=gpu)


@pytest.mark.parametrize(
    ("example", "m", "k", "n", "dtype", "tile"),
    [
        # measured on an H200, each beside the fastest config of one kernel
        ("matmul_layernorm", 2048, 2048, 2048, FP32, [128, 128, 32]),
        ("matmul_layernorm_tiled", 2048, 2048, 2048, FP32, [128, 128, 32]),
        ("matmul_layernorm", 1024, 1024, 1024, FP32, [128, 64, 32]),
        ("matmul_softmax", 131072, 512, 2048, FP32, [128, 128, 32]),
        ("matmul_layernorm", 131072, 512, 4096, BF16, [128, 256, 64]),
        ("matmul_layernorm", 131072, 512, 512, BF16, None),
        ("matmul_layernorm_tiled", 131072, 2048, 2048, BF16, None),
        ("matmul_softmax_tiled", 131072, 2048, 2048, BF16, None),
        ("matmul_logsumexp_tiled", 131072, 3072, 2048, BF16, None),
    ],
)
def test_the_default_is_what_is_predicted_to_be_faster(
    example: str, m: int, k: int, n: int, dtype: torch.dtype, tile: list[int] | None
) -> None:
    kernel = bound(example, m, k, n, dtype)
    config = kernel.default_config()
    assert config["unfuse_matmul"] == tile
    if tile is not None and dtype == FP32:
        assert (
            config["transpose_operands" if m == 131072 else "swap_ab"]
            and config["indexing"][:2] == ["tensor_descriptor"] * 2
        )
    predicted = kernel._analysis.predict(config)
    assert predicted.fits and not predicted.spills


def test_a_short_k_is_unfused_for_less() -> None:
    """The pipeline of the fused kernel restarts for every tile of columns."""
    cell = next(cell for cell in unfitted_cells() if cell.kernel == "supervised_contrast")
    kernel = cell.function.bind(cell.args, target="h200")
    first, apart = kernel.seeds[0], next(s for s in kernel.seeds if s.heuristic == "TritonProductsFirstHeuristic")
    trusted = trust(target("h200"))
    ratio = apart.predicted.time_us / first.predicted.time_us
    assert trusted.unfused < ratio <= trusted.unfused_short and kernel.default_config() == apart.config


def test_where_nothing_was_measured_others_run_unless_they_are_far_slower() -> None:
    short = bound("matmul_layernorm", 4096, 512, 256, BF16, "sm_80")
    assert any(seed.heuristic == "TritonProductsFirstHeuristic" for seed in short.seeds)
    assert short.default_config()["unfuse_matmul"] is None
    long = bound("matmul_layernorm", 131072, 512, 4096, BF16, "sm_80")
    assert long.default_config()["unfuse_matmul"] is not None


@pytest.mark.parametrize("gpu", known_targets())
def test_both_kernels_fit_everywhere(gpu: str) -> None:
    for dtype in (BF16, FP32):
        kernel = bound("matmul_softmax_tiled", 1000, 777, 1000, dtype, gpu)
        found = [seed for seed in kernel.seeds if seed.heuristic == "TritonProductsFirstHeuristic"]
        assert len(found) == 1 and found[0].predicted.fits and not found[0].predicted.spills


@helion.kernel(static_shapes=True)
def doubled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """No row is reduced."""
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        rows = x[tile_m, :]
        for tile_n in hl.tile(y.size(1)):
            out[tile_m, tile_n] = (rows @ y[:, tile_n]) * 2
    return out


def test_what_is_left_alone_says_why() -> None:
    for kernel, why in (
        (doubled.bind((tensor(256, 64), tensor(64, 256)), target="h200"), "are not reduced"),
        (
            import_path(EXAMPLES_DIR / "matmul.py").matmul.bind((tensor(256, 64), tensor(64, 256)), target="h200"),
            "program computes one tile",
        ),
    ):
        declined = dict(kernel._analysis.seeds.declined)
        assert why in declined["TritonProductsFirstHeuristic"]


def test_each_matmul_has_a_launch_and_the_stages_of_a_matmul_alone() -> None:
    cell = next(c for c in row_cells() if c.kernel == "fused_linear_jsd_tiled" and c.dtype == "float32")
    bound = cell.function.bind(cell.args, target="h200")
    (seed,) = (seed for seed in bound.seeds if seed.heuristic == "TritonProductsFirstHeuristic")
    rows, columns, depth = seed.config["unfuse_matmul"]
    held = 4 * seed.config["matmul_num_stages"] * depth * (rows + columns)
    assert seed.predicted.fits and held <= seed.predicted.shared_bytes < 2 * held
    assert bound.to_triton_code(seed.config).count("@triton.jit\ndef _helion_fused_linear_jsd_tiled") == 3
