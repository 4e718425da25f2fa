"""Tiles of matmuls: small matrices, and lines along K."""

from __future__ import annotations

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
