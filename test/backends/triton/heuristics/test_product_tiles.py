"""Tiles of matmuls: small matrices, lines along K, and rows that a loop computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl

FP16 = torch.float16


def powers(a: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(a)
    for tile in hl.tile(a.size(0)):
        square = torch.bmm(a[tile, :, :], a[tile, :, :])
        out[tile, :, :] = torch.bmm(square, square)
    return out


def cubes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_n, tile_k].T)
        out[tile_m, tile_n] = (acc * acc * acc).to(x.dtype)
    return out


@pytest.mark.parametrize(("side", "warps"), [(16, 1), (32, 1), (64, 4)])
def test_one_warp_multiplies_small_matrices(side: int, warps: int) -> None:
    bound = helion.kernel(powers, backend="triton").bind((tensor(16384, side, side),), target="h200")
    assert bound.seeds[0].config["num_warps"] == warps
    assert bound.resources(bound.seeds[0].config).spill_bytes == 0


@pytest.mark.parametrize(("k", "line"), [(128, 128), (160, 32), (200, 64), (256, 64), (1024, 64)])
def test_tiles_have_whole_lines_along_k(k: int, line: int) -> None:
    args = tensor(4097, k, dtype=FP16), tensor(3001, k, dtype=FP16)
    bound = helion.kernel(cubes, backend="triton").bind(args, target="h200")
    assert bound.seeds[0].config["block_sizes"][2] == line


def gated(gate: torch.Tensor, up: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, k = gate.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=gate.dtype, device=gate.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left, right = gate[tile_m, tile_k].to(torch.float32), up[tile_m, tile_k].to(torch.float32)
            acc = torch.addmm(acc, (torch.relu(left) * right).to(gate.dtype), w[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(gate.dtype)
    return out


def plain(gate: torch.Tensor, up: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, k = gate.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=gate.dtype, device=gate.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, torch.relu(gate[tile_m, tile_k]), w[tile_k, tile_n])
        out[tile_m, tile_n] = (acc + up[tile_m, tile_n]).to(gate.dtype)
    return out


@pytest.mark.parametrize("function", [gated, plain])
def test_rows_computed_from_several_loads_have_many_columns(function: Callable[..., Any]) -> None:
    """They are computed again for each tile of columns, whose operands leave less shared memory for a stage."""
    args = tensor(4096, 4096), tensor(4096, 4096), tensor(4096, 2048)
    bound = helion.kernel(function, backend="triton").bind(args, target="h200")
    seed = bound.seeds[0]
    (m, n, k), by_time = seed.config["block_sizes"], function is gated
    assert (bound.facts.matmuls[0].lhs_slot is None) == by_time
    assert not by_time or (n >= 256 and m <= 128 and k <= 64 and 2 <= seed.config["num_stages"] <= 4)
    found = bound.resources(seed.config)
    assert found.spill_bytes == 0 and not found.overflow
