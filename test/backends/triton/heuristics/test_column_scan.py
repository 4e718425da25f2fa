"""Scans along a strided dimension take a sector of the contiguous one."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from helion.autotuner.proposal import Declined
from helion.backends.triton.heuristics.families.column_scan import TritonColumnScanHeuristic


@helion.kernel(backend="triton")
def running_sums(x: torch.Tensor) -> torch.Tensor:
    b, _, d = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_d in hl.tile([b, d]):
        out[tile_b, :, tile_d] = torch.cumsum(x[tile_b, :, tile_d].to(torch.float32), dim=1).to(x.dtype)
    return out


@helion.kernel(backend="triton")
def sums_along_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cumsum(x[tile, :], dim=1)
    return out


@helion.kernel(backend="triton")
def shares(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(1)):
        column = x[:, tile]
        out[:, tile] = torch.cumsum(column, dim=0) / column.sum(0)[None, :]
    return out


@pytest.mark.parametrize(
    ("shape", "dtype", "width", "chunk"),
    [
        ((32, 1000, 768), torch.bfloat16, 32, 128),
        ((32, 1000, 768), torch.float32, 16, None),
        ((32, 1000, 777), torch.bfloat16, 8, None),
        ((64, 256, 1024), torch.float32, 32, None),
        ((16, 2048, 768), torch.bfloat16, 16, None),
        ((4, 8000, 768), torch.bfloat16, 32, 512),
        ((64, 100, 8), torch.bfloat16, 8, None),
    ],
)
def test_a_sector_of_columns(shape: tuple[int, ...], dtype: torch.dtype, width: int, chunk: int | None) -> None:
    bound = running_sums.bind((torch.empty(shape, dtype=dtype, device="meta"),), target="h200")
    seed = bound.seeds[0]
    assert seed.heuristic == "TritonColumnScanHeuristic"
    assert seed.config.block_sizes == [1, width]
    assert seed.config.reduction_loops == [chunk]
    assert not bound.resources(seed.config).spill_bytes


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [(sums_along_rows, "contiguous along the scanned dimension"), (shares, "a matmul or a reduction")],
)
def test_others_are_declined(kernel: helion.Kernel, reason: str) -> None:
    bound = kernel.bind((torch.empty(4096, 1000, device="meta"),), target="h200")
    found = TritonColumnScanHeuristic().propose(bound.facts, bound.target)
    assert isinstance(found, Declined) and reason in found.reason


def test_the_default_is_right() -> None:
    x = torch.randn(3, 70, 33)
    torch.testing.assert_close(running_sums(x), x.cumsum(1), rtol=1e-5, atol=1e-4)
