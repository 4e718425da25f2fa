"""Tiles of kernels that load elements which data selects, and of narrow windows."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS

BF16, FP32, INT16, INT32 = torch.bfloat16, torch.float32, torch.int16, torch.int32


def sizes_of(kernel: helion.Kernel, *args: object, target: str = "h200") -> tuple[list[int], int]:
    config = kernel.bind(args, target=target).default_config()
    return config["block_sizes"], config["num_warps"]


@pytest.mark.parametrize(("entries", "length"), [(16, 16), (18, 16), (22, 16), (24, 32), (31, 32)])
def test_loops_of_one_row_are_of_the_nearest_length(entries: int, length: int) -> None:
    kernel, rows = CELLS["csr_dense"].kernel, 10000
    edges = tensor(rows * entries, dtype=INT32), tensor(rows * entries, dtype=FP32)
    sizes, warps = sizes_of(kernel, tensor(rows + 1, dtype=torch.int64), *edges, tensor(rows, 128, dtype=BF16))
    assert sizes == [128, length] and warps == 1


def test_rows_that_wait_for_the_longest_have_longer_loops() -> None:
    cell = CELLS["csr_matvec"]
    sizes, _ = sizes_of(cell.kernel, *cell.arguments("meta", False))
    assert sizes == [4, 32]


@helion.kernel
def summed(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Sums of the elements, or of the columns of the rows, that each column of ids selects."""
    steps, n = ids.size()
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for tile in hl.tile(n):
        acc = hl.zeros([tile])
        for step in range(steps):
            acc += x[ids[step, tile]]
        out[tile] = acc
    return out


@pytest.mark.parametrize(("n", "tile", "warps"), [(1000000, 1024, 8), (50000, 256, 2), (4000, 32, 1)])
def test_programs_that_select_elements_have_many_warps(n: int, tile: int, warps: int) -> None:
    assert sizes_of(summed, tensor(n, dtype=FP32), tensor(20, n, dtype=INT32)) == ([tile], warps)


def test_programs_that_select_rows_keep_their_columns() -> None:
    cell = CELLS["embedding_bags"]
    assert sizes_of(cell.kernel, *cell.arguments("meta", False)) == ([16, 64], 8)


@pytest.mark.parametrize(("neighbours", "sizes"), [(48, [32, 16]), (64, [16, 64]), (24, [32, 32]), (80, [32, 16])])
def test_steps_of_gathers_have_few_idle_lanes(neighbours: int, sizes: list[int]) -> None:
    args = tensor(262144, 3, dtype=FP32), tensor(262144, neighbours, dtype=INT32), 2.5
    found, _ = sizes_of(CELLS["neighbour_forces"].kernel, *args)
    assert found[1] == sizes[1] and (neighbours % sizes[1] == 0 or found[1] >= neighbours)


@pytest.mark.parametrize("dtype", [torch.int8, INT16, torch.float16, BF16])
def test_narrow_windows_load_as_many_elements_as_registers_hold(dtype: torch.dtype) -> None:
    (rows, columns), warps = sizes_of(CELLS["median_of_five"].kernel, tensor(1000, 40961, dtype=dtype))
    assert rows * columns == 8 * 32 * warps


def test_rows_without_windows_keep_their_vectors() -> None:
    (rows, columns), warps = sizes_of(doubled, tensor(1000, 40960, dtype=INT16))
    assert rows * columns == 16 * 32 * warps


@helion.kernel
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_r, tile in hl.tile(x.size()):
        out[tile_r, tile] = x[tile_r, tile] * 2
    return out


@pytest.mark.parametrize("target", ["a100", "h100", "b200", "mi300x"])
def test_all_fit_elsewhere(target: str) -> None:
    for name in ("csr_dense", "ell_matvec", "neighbour_forces", "median_of_five"):
        cell = CELLS[name]
        bound = cell.kernel.bind(cell.arguments("meta", False), target=target)
        assert bound._analysis.predict(bound.default_config()).fits
