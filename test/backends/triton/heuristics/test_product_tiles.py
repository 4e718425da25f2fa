"""Tiles of matmuls: small matrices, lines along K, and rows that a loop computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS

BF16 = torch.bfloat16

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


def lower_rows(x: torch.Tensor, y: torch.Tensor, above: int) -> torch.Tensor:
    out = torch.empty([x.size(0) - above, y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = acc - hl.dot(x[tile_m.index + above, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
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


@pytest.mark.parametrize("rows", [17, 20, 33, 40])
@pytest.mark.parametrize("name", ["sm_80", "h200", "sm_100"])
def test_one_tile_takes_all_of_a_few_rows(rows: int, name: str) -> None:
    """Measurement ``rows_in_one_tile``."""
    for args in ((tensor(rows, 4096), tensor(12288, 4096)), (tensor(12288, 4096), tensor(rows, 4096))):
        bound = helion.kernel(cubes, backend="triton").bind(args, target=name)
        config = bound.default_config()
        side = 0 if args[0].size(0) == rows else 1
        halved = [size if at != side else size // 2 for at, size in enumerate(config["block_sizes"])]
        half = bound._analysis.predict(bound.config_spec.normalize({**config, "block_sizes": halved}))
        assert rows <= config["block_sizes"][side] < 2 * rows
        assert bound._analysis.predict(config).time_us < half.time_us


@pytest.mark.parametrize(("m", "n", "k", "deep"), [(2048, 512, 2048, 64), (4096, 4096, 4096, 32)])
def test_programs_that_all_run_at_once_take_longer_steps(m: int, n: int, k: int, deep: int) -> None:
    """Measurement ``deep_steps``."""
    args = (tensor(m + 64, k, dtype=torch.float32), tensor(k, n, dtype=torch.float32), 64)
    bound = helion.kernel(lower_rows, backend="triton").bind(args, target="h200")
    assert bound.seeds[0].config["block_sizes"][2] == deep


@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 50257), (16, 128256), (17, 50257)])
def test_few_rows_read_whole_lines(rows: int, vocabulary: int) -> None:
    """Measurement ``rows_in_one_tile``."""
    bound = helion.kernel(cubes, backend="triton").bind((tensor(rows, 4096), tensor(vocabulary, 4096)), target="h200")
    _, columns, k = bound.default_config()["block_sizes"]
    assert (columns, k) == (128, 128) and bound.default_config()["pid_type"] == "flat"


@pytest.mark.parametrize(("rows", "held"), [(5, 8), (16, 16), (17, 32), (24, 32), (33, 64)])
def test_few_rows_of_unpacked_weights_are_one_tile(rows: int, held: int) -> None:
    """Programs of several tiles of rows would each unpack the same weights."""
    args = (tensor(rows, 4096, dtype=BF16), tensor(14336, 4096, dtype=torch.int8), tensor(14336, 32, dtype=BF16))
    kernel = CELLS["int8_groups_few_rows"].kernel.bind((*args, tensor(14336, dtype=BF16)), target="h200")
    assert kernel.default_config()["block_sizes"][0] == held
