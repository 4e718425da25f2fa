"""Products in a row with too few rows for their warps: not made by unrolling, and run by fewer warps where written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion
import helion.language as hl


def tensor(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.float16, device="meta")


@helion.kernel
def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel
def written_out(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.dot(x[tile_m, 0:32], y[0:32, tile_n])
        acc = hl.dot(x[tile_m, 32:64], y[32:64, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def code(kernel: helion.Kernel, gpu: str, **config: Any) -> str:
    return kernel.bind((tensor(256, 64), tensor(64, 256)), target=gpu).to_triton_code(config)


@pytest.mark.parametrize(
    ("gpu", "rows", "warps", "unrolled"),
    [
        ("sm_90", 64, 4, True), ("sm_90", 64, 8, False), ("sm_90", 128, 8, True), ("sm_90", 128, 16, False),
        ("h200", 64, 16, False), ("sm_80", 64, 16, True), ("sm_100", 64, 16, True),
    ],
)  # fmt: skip
def test_a_loop_is_unrolled_where_its_products_have_rows_for_every_warp(
    gpu: str, rows: int, warps: int, unrolled: bool
) -> None:
    text = code(product, gpu, block_sizes=[rows, 64, 16], range_unroll_factors=[0, 2], num_warps=warps)
    assert ("loop_unroll_factor=2" in text) == unrolled


@pytest.mark.parametrize(("gpu", "rows", "warps"), [("sm_90", 64, 4), ("sm_90", 128, 8), ("sm_80", 64, 16)])
def test_products_written_out_in_a_row_run_on_fewer_warps(gpu: str, rows: int, warps: int) -> None:
    assert f"num_warps={warps}," in code(written_out, gpu, block_sizes=[rows, 64], num_warps=16)


def test_unrolled_or_not_the_result_is_that_of_eager() -> None:
    x, y = torch.randn(70, 64).half(), torch.randn(64, 33).half()
    for unroll in (0, 3):
        bound = product.bind((x, y))
        config = {"block_sizes": [64, 64, 16], "range_unroll_factors": [0, unroll], "num_warps": 16}
        torch.testing.assert_close(bound.compile_config(config)(x, y), x.float() @ y.float(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(written_out(x, y), x.float() @ y.float(), rtol=1e-3, atol=1e-3)
