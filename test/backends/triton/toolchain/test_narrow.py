"""Matmuls of 8 columns, which ptxas leaves out of loops: found in PTX, and refused for a kernel."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.backends.triton.toolchain.descriptors import MiscompiledError
from helion.backends.triton.toolchain.narrow import check_narrow


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for t, u in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([t, u], dtype=torch.float32)
        for c in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[t, c], y[c, u])
        out[t, u] = acc
    return out


def compiled(ptx: str) -> Any:
    return cast(Any, SimpleNamespace(asm={"ptx": ptx}, name="product"))


@pytest.mark.parametrize(
    ("columns", "ptxas", "wrong"),
    [(8, "12.8", True), (8, "12.9.86", True), (8, "13.0", False), (16, "12.8", False), (80, "12.8", False)],
)
def test_columns_and_releases(columns: int, ptxas: str, wrong: bool) -> None:
    made = compiled(f"\twgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{%r1}}, %rd1, %rd2, %p1, 1, 1;")
    if not wrong:
        check_narrow(made, ptxas)
        return
    with pytest.raises(MiscompiledError, match="8 columns"):
        check_narrow(made, ptxas)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_of_a_kernel(dtype: torch.dtype) -> None:
    """Refuse a tile of 64 x 16 in 8 warps, and compile the same tile in 4."""
    tensors = torch.empty(256, 256, dtype=dtype, device="meta"), torch.empty(256, 256, dtype=dtype, device="meta")
    bound = helion.kernel(backend="triton")(product).bind(tensors, target="h100")
    for warps, dropped in ((8, True), (4, False)):
        config = helion.Config(block_sizes=[64, 16, 32], num_warps=warps, num_stages=2)
        if dropped:
            with pytest.raises(exc.BaseError, match="8 columns for each group"):
                bound.resources(config)
        else:
            assert bound.resources(config).spill_bytes == 0


@pytest.mark.parametrize(
    ("block_sizes", "warps", "fewer"),
    [
        ([64, 16, 32], 8, 4),
        ([64, 64, 32], 32, 16),
        ([256, 16, 32], 16, 16),
        ([128, 32, 16], 32, 16),
        ([32, 16, 32], 8, 8),
    ],
)
def test_no_search_draws_instructions_of_8_columns(block_sizes: list[int], warps: int, fewer: int) -> None:
    tensors = torch.empty(256, 256, device="meta"), torch.empty(256, 256, device="meta")
    bound = helion.kernel(backend="triton")(product).bind(tensors, target="h100")
    config = helion.Config(block_sizes=block_sizes, num_warps=warps, num_stages=2)
    assert bound.config_spec.repair(config)["num_warps"] == fewer
    assert bound.config_spec.normalize(config)["num_warps"] == warps  # of a user: ptxas decides
    older = helion.kernel(backend="triton")(product).bind(tensors, target="a100")
    assert older.config_spec.repair(config)["num_warps"] == warps


def normalized(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for t in hl.tile(x.size(0)):
        rows = hl.zeros([t, y.size(1)], dtype=torch.float32)
        for c in hl.tile(x.size(1)):
            rows = torch.addmm(rows, x[t, c], y[c, :])
        out[t, :] = rows - rows.amax(-1, keepdim=True)
    return out


def test_unfused_matmuls_have_warps_of_their_own() -> None:
    tensors = (torch.empty(512, 256, dtype=torch.bfloat16, device="meta"),) * 2
    bound = helion.kernel(backend="triton")(normalized).bind((tensors[0], tensors[1][:256]), target="h100")
    asked = {"block_sizes": [4, 32], "num_warps": 8, "unfuse_matmul": [256, 16, 16], "matmul_num_warps": 32}
    found = bound.config_spec.repair(asked)
    assert (found["num_warps"], found["matmul_num_warps"]) == (8, 16)


def test_random_configs_have_wide_instructions() -> None:
    """Draw configs as a search does: none divides a tile's columns into instructions of 8."""
    tensors = torch.empty(256, 256, device="meta"), torch.empty(256, 256, device="meta")
    space = helion.kernel(backend="triton")(product).bind(tensors, target="h100").config_spec
    rng = Random(5)
    for config in (space.random(rng) for _ in range(200)):
        rows, columns = config["block_sizes"][:2]
        rows, columns = (columns, rows) if config.config.get("swap_ab") else (rows, columns)
        assert rows < 64 or columns < 16 or config["num_warps"] <= rows * columns // 256
