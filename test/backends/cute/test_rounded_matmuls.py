"""Matmuls that round each tile of K before they add it, as ``acc += a @ b`` does."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.shapes import shape_of_plan


def multiply(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, k = x.shape
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc += x[tile_m, tile_k] @ w[tile_k, tile_n]
        out[tile_m, tile_n] = torch.relu(acc).to(x.dtype)
    return out


def rounded_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, k = x.shape
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc += (x[tile_m, tile_k] @ w[tile_k, tile_n]).half()
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def bound_for(kernel: Any, dtype: torch.dtype = torch.bfloat16, gpu: str = "h100") -> helion.BoundKernel:
    tensors = tuple(torch.empty(1024, 1024, dtype=dtype, device="meta") for _ in range(2))
    return helion.kernel(backend="cute")(kernel).bind(tensors, target=gpu)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_close_to_fp64(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(63, 200).to(dtype), torch.randn(200, 136).to(dtype)
    wanted = torch.relu(x.double() @ w.double())
    found = helion.kernel(backend="cute")(multiply)(x, w)
    assert (found.double() - wanted).norm() < 6e-3 * wanted.norm()


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16x2"), (torch.float16, "f16x2")])
def test_each_tile_of_k_is_rounded_in_pairs(dtype: torch.dtype, name: str) -> None:
    """Round the accumulator of a K tile once, with the instruction of two numbers, before it is added in fp32."""
    bound = bound_for(multiply, dtype)
    plan = bound.plan(bound.default_config())
    assert plan.gemm.promote and plan.gemm.promote_k_tiles == 1
    assert shape_of_plan(plan).kernel(plan).source.count(f"cvt.rn.{name}.f32 p") == 1


def test_seeds_do_not_spill() -> None:
    bound = bound_for(multiply)
    assert bound.resources(bound.default_config()).spill_bytes == 0


def test_two_types_are_refused() -> None:
    with pytest.raises(exc.CuteUnsupported, match="rounded to bfloat16 and float16 before it is added"):
        bound_for(rounded_twice)


def test_tcgen05_refuses() -> None:
    with pytest.raises(exc.CuteUnsupported, match="neither promoted nor rounded before"):
        bound_for(multiply, gpu="b200")


def test_auto_takes_seeds_that_hold_both_accumulators() -> None:
    """Predict the accumulator of a K tile and the sum of all, which 256 columns of a tile have no registers for."""
    tensors = tuple(torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta") for _ in range(2))
    assert helion.kernel()(multiply).bind(tensors, target="h100").backend_on_gpu == "cute"
    bound = helion.kernel(backend="cute")(multiply).bind(tensors, target="h100")
    assert all(bound.plan(seed.config).gemm.tile[1] <= 128 for seed in bound.seeds)


@helion.kernel(backend="cute")
def softmax_of_rounded(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    hl.specialize(y.size(-1))
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for rows in hl.tile(x.size(0)):
        acc = hl.zeros([rows, y.size(-1)], dtype=torch.float32)
        for inner in hl.tile(x.size(1)):
            acc += torch.relu(x[rows, inner]) @ y[inner, :]
        out[rows, :] = (torch.softmax(acc, 1) + b[rows, :]).to(x.dtype)
    return out


@pytest.mark.parametrize("columns", [16, 512])
def test_random_configs_with_rows_in_memory_are_legal(columns: int) -> None:
    """Promoted accumulators leave room for 64 columns of a tile."""
    x, y = torch.empty(16, 17, dtype=torch.bfloat16, device="meta").T, torch.empty(16, columns, dtype=torch.bfloat16)
    args = (x, y.to("meta"), torch.empty(17, columns, dtype=torch.bfloat16, device="meta"))
    space, rng = softmax_of_rounded.bind(args, target="h100").config_spec, random.Random(0)
    for config in (space.random(rng) for _ in range(60)):
        assert space.normalize(config) == config
