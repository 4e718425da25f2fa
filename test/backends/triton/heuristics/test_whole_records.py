"""Records in memory: warps of a program by the bytes that programs start for."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS


@helion.kernel
def volumes(x: torch.Tensor) -> torch.Tensor:
    """Six times the volumes of tetrahedra `[N, 4, 3]`."""
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        p = [[x[tile, i, j] for j in range(3)] for i in range(4)]
        u = [[p[i][j] - p[0][j] for j in range(3)] for i in (1, 2, 3)]
        first = u[0][0] * (u[1][1] * u[2][2] - u[1][2] * u[2][1])
        second = u[0][1] * (u[1][0] * u[2][2] - u[1][2] * u[2][0])
        out[tile] = first - second + u[0][2] * (u[1][0] * u[2][1] - u[1][1] * u[2][0])
    return out


@pytest.mark.parametrize(("name", "warps"), [("determinants", 4), ("inverses4", 1), ("cholesky8", 1)])
def test_short_records_have_programs_of_more_warps(name: str, warps: int) -> None:
    """Measured on an H200 with one warp: 117, 35 and 69 us; 128 and 64 records take 64.5, 55 and 73 us."""
    bound = CELLS[name].kernel.bind(CELLS[name].arguments("meta", False), target="h200")
    config = bound.default_config()
    assert (config["block_sizes"], config["num_warps"]) == ([32 * warps], warps)


@pytest.mark.parametrize("target", ["sm_80", "h200", "b200"])
def test_a_thread_has_one_record(target: str) -> None:
    config = volumes.bind((tensor(5_000_000, 4, 3, dtype=torch.float32),), target=target).default_config()
    assert config["block_sizes"] == [32 * config["num_warps"]]


@pytest.mark.parametrize("n", [63, 1000, 4097])
@pytest.mark.parametrize("warps", [1, 4])
def test_volumes_are_right(n: int, warps: int) -> None:
    x = torch.randn(n, 4, 3)
    kernel = helion.kernel(volumes.fn, config=helion.Config(block_sizes=[32 * warps], num_warps=warps))
    torch.testing.assert_close(kernel(x), torch.linalg.det(x[:, 1:] - x[:, :1]), rtol=1e-3, atol=1e-4)
