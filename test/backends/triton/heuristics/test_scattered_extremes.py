"""Tiles and predicted times of atomics of largest and least values, and of counts at places that data selects."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion.backends.triton.resources.time.demand import demands
from helion.backends.triton.resources.time.launch import launch_of
from helion.backends.triton.resources.time.record import Demand
from helion.hardware import target

H200 = target("h200")


@helion.kernel(backend="triton")
def largest(x: torch.Tensor, ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for rows, columns in hl.tile(x.size()):
        hl.atomic_max(out, [ids[rows], columns], x[rows, columns])
    return out


@helion.kernel(backend="triton")
def added(x: torch.Tensor, ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for rows, columns in hl.tile(x.size()):
        hl.atomic_add(out, [ids[rows], columns], x[rows, columns])
    return out


@helion.kernel(backend="triton")
def nearest(distance: torch.Tensor, cells: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for points, views in hl.tile(distance.size()):
        hl.atomic_min(out, [views, cells[points]], distance[points, views].T)
    return out


def bound(kernel: helion.Kernel, dtype: torch.dtype = torch.float32, columns: int = 64) -> helion.BoundKernel:
    ids = tensor(100000, dtype=torch.int64)
    sizes = (columns, 5000) if kernel is nearest else (5000, columns)
    return kernel.bind((tensor(100000, columns, dtype=dtype), ids, tensor(*sizes, dtype=dtype)), target=H200)


def demand(kernel: helion.BoundKernel, **config: object) -> Demand:
    full = kernel.config_spec.normalize(config)
    analysis = kernel._analysis
    (found,) = demands(analysis.facts, launch_of(kernel.config_spec.decode(full)), analysis.predict(full), H200)
    return found


def test_the_operation_of_an_atomic_is_a_fact() -> None:
    assert [[op.atomic for op in bound(each).facts.atomics] for each in (largest, added, nearest)] == [
        ["max"],
        ["add"],
        ["min"],
    ]


def test_only_sums_of_floats_are_vectors() -> None:
    tile = {"block_sizes": [32, 64], "num_warps": 4}
    extremes, sums = demand(bound(largest), **tile), demand(bound(added), **tile)
    assert extremes.line_atomics == pytest.approx(16 / 3 * sums.line_atomics)
    assert extremes.accesses > sums.accesses


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("columns", [64, 200])
def test_each_thread_has_one_largest_value(dtype: torch.dtype, columns: int) -> None:
    """Measurement ``scattered_extremes``."""
    kernel = bound(largest, dtype, columns)
    config = kernel.default_config()
    rows, across = config["block_sizes"]
    assert rows * across == 32 * config["num_warps"] and across >= 64
    assert kernel.seeds[0].predicted.time_us < 0.9 * kernel.seeds[1].predicted.time_us


def test_sums_keep_long_tiles() -> None:
    config = bound(added).default_config()
    assert config["block_sizes"][0] * config["block_sizes"][1] > 32 * config["num_warps"]


def test_slices_of_the_cache_take_each_lane() -> None:
    """Of 192 x 256 counts each is rarely met, but the slices have all the lanes (measurement ``slices_of_lanes``)."""
    cell = CELLS["byte_histograms"]
    kernel = cell.kernel.bind(cell.arguments("meta", False), target="h200")
    assert 90 < kernel.seeds[0].predicted.time_us < 160


@pytest.mark.parametrize(("kernel", "least"), [(largest, -torch.inf), (nearest, torch.inf)])
def test_extremes_are_right(kernel: helion.Kernel, least: float) -> None:
    x, ids = torch.randn(63, 19), torch.randint(0, 7, [63])
    out = torch.full([19, 7] if kernel is nearest else [7, 19], least)
    found = kernel(x, ids, out.clone())
    index = ids[:, None].expand_as(x)
    way = "amin" if kernel is nearest else "amax"
    want = torch.full([7, 19], least).scatter_reduce(0, index, x, way)
    torch.testing.assert_close(found, want.T if kernel is nearest else want)
