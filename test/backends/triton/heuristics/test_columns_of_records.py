"""Reductions over rows of records, such as complex numbers: a program takes neighbouring records of each row."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion.backends.triton.heuristics.families.reduction.budget import column_axis, column_bytes


@helion.kernel
def mean_powers(x: torch.Tensor) -> torch.Tensor:
    """Mean power of each band over the frames of `x[N, F, R]`, whose records have R parts."""
    n, f, r = x.size()
    r = hl.specialize(r)
    out = torch.empty([f], dtype=torch.float32, device=x.device)
    for bands in hl.tile(f):
        total = hl.zeros([bands])
        for frames in hl.tile(n):
            parts = x[frames, bands, :].to(torch.float32)
            total += (parts * parts).sum(2).sum(0)
        out[bands] = total / n
    return out


@pytest.mark.parametrize("columns", [1025, 1024, 4097])
def test_programs_take_two_lines_of_records(columns: int) -> None:
    cell = CELLS["coherence"]
    x = tensor(64, 128, columns, 2, dtype=torch.float32)
    bound = cell.kernel.bind((x, x), target="h200")
    facts, config = bound._analysis.facts, bound.default_config()
    primary = facts.primary_reduction
    assert primary is not None and column_bytes(facts, primary) == 8
    assert config["loop_orders"] == [[1, 0]]
    ruled = (dict(seed.config) for seed in bound.seeds)  # nearby tiles may come first
    assert any(each["block_sizes"][:2] == [1, 32] and each["loop_orders"] == [[1, 0]] for each in ruled)


@pytest.mark.parametrize(("parts", "is_record"), [(2, True), (4, True), (8, False), (3, True)])
def test_records_are_short(parts: int, is_record: bool) -> None:
    facts = mean_powers.bind((tensor(4096, 1000, parts, dtype=torch.float32),), target="h200")._analysis.facts
    fact = next(each for each in facts.sized_reductions if facts.axes[each.axis].kind == "tile")
    assert (column_axis(facts, fact) is not None) is is_record
    assert not is_record or column_bytes(facts, fact) == 4 * parts


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_sums_of_records_are_right(parts: int) -> None:
    x = torch.randn(63, 37, parts)
    bound = mean_powers.bind((x,))
    expected = (x * x).sum(2).mean(0)
    torch.testing.assert_close(mean_powers(x), expected)
    config = helion.Config(block_sizes=[8, 16], num_warps=2)
    torch.testing.assert_close(bound.compile_config(config)(x), expected)
