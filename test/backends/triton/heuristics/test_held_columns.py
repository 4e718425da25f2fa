"""Reductions over rows that programs hold whole: few warps, parts of lines, and registers of results."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion.backends.triton.heuristics.sizing import estimate
from helion.runtime.bound import BoundKernel


@helion.kernel
def middle_softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for batch, columns in hl.tile([x.size(0), x.size(2)]):
        values = x[batch, :, columns].to(torch.float32)
        out[batch, :, columns] = torch.softmax(values, dim=1).to(x.dtype)
    return out


@helion.kernel
def middle_gradient(gradient: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(y)
    for batch, columns in hl.tile([y.size(0), y.size(2)]):
        g, v = gradient[batch, :, columns].to(torch.float32), y[batch, :, columns].to(torch.float32)
        out[batch, :, columns] = (v * (g - (g * v).sum(1, keepdim=True))).to(y.dtype)
    return out


def bound(*shape: int, dtype: torch.dtype = torch.bfloat16, target: str = "h200") -> BoundKernel:
    return middle_softmax.bind((tensor(*shape, dtype=dtype),), target=target)


@pytest.mark.parametrize(("shape", "columns", "warps"), [((64, 512, 1024), 32, 4), ((64, 80, 8192), 64, 2)])
def test_few_warps_hold_the_widest_columns_that_fit(shape: tuple[int, ...], columns: int, warps: int) -> None:
    """Measurement ``held_columns``."""
    seeds = bound(*shape).seeds
    seed = next(each for each in seeds if "predicted to be faster" not in each.reason)
    assert seed.config["block_sizes"] == [1, columns] and seed.config["num_warps"] == warps
    assert seed.config["reduction_loops"] == [None]


def test_rows_that_begin_anywhere_have_two_lines_of_columns() -> None:
    seed = bound(256, 96, 1001, dtype=torch.float32).seeds[0]
    assert seed.config["block_sizes"] == [1, 64] and seed.config["num_warps"] == 4
    assert bound(256, 96, 1024, dtype=torch.float32).seeds[0].config["block_sizes"] == [1, 32]


def test_few_programs_keep_their_warps() -> None:
    assert bound(1, 256, 4096).seeds[0].config["num_warps"] >= 4


def test_a_thread_has_as_many_elements_of_several_loads() -> None:
    y = tensor(32, 256, 4096, dtype=torch.bfloat16)
    seed = middle_gradient.bind((y, y), target="h200").seeds[0]
    assert seed.config["block_sizes"] == [1, 32] and seed.config["num_warps"] == 4
    g, v = torch.randn(3, 21, 65), torch.randn(3, 21, 65)
    torch.testing.assert_close(middle_gradient(g, v), v * (g - (g * v).sum(1, keepdim=True)))


def test_rows_too_long_for_four_warps_keep_more() -> None:
    seed = bound(16, 1000, 4096).seeds[0]
    assert seed.config["num_warps"] > 4 and not seed.predicted.spill_risk


@pytest.mark.parametrize("target", ["sm_80", "h200", "b200"])
def test_results_of_columns_are_no_rows(target: str) -> None:
    """Results of a batch and its columns have a register for each column of a thread, not one for each of its rows."""
    kernel = bound(64, 150, 16384, target=target)
    facts = kernel._analysis.facts
    column, rows = facts.axes[1].block_id, facts.axes[2].padded
    predicted = estimate(facts, kernel._analysis.target, {0: 1, column: 64}, 4, 1)
    assert rows == 256 and not predicted.spill_risk
    assert rows * 64 // 128 < predicted.least_registers < 2 * rows * 64 // 128


def test_programs_have_no_short_pieces_of_rows() -> None:
    """Measurement ``held_columns``: the others of a line are read by another program."""
    cell = CELLS["perceptual_distance"]
    seed = cell.kernel.bind(cell.arguments("meta", False), target="h200").seeds[0]
    assert seed.config["block_sizes"][1] >= 32 and seed.config["num_warps"] == 4


@pytest.mark.parametrize("width", [63, 65])
def test_columns_held_whole_are_right(width: int) -> None:
    x = torch.randn(3, 21, width)
    for columns, warps in ((16, 1), (64, 4)):
        config = helion.Config(block_sizes=[1, columns], num_warps=warps)
        torch.testing.assert_close(middle_softmax.bind((x,)).compile_config(config)(x), torch.softmax(x, 1))
