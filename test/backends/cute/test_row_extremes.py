"""Maxima and minima of 16-bit elements, which are compared two at a time."""

from __future__ import annotations

import pytest
import torch
from backends.cute.test_row_kernels import numbers, prepared, run

import helion.language as hl
from helion.backends.cute.codegen.rowwise.module import render
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.extremes import packed_extremes
from helion.backends.cute.roles.rowwise.program import row_program


def scaled_range(x, mask, top, low, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        most, least = torch.amax(row, -1), torch.amin(row, -1)
        top[tile], low[tile] = most, least
        out[tile] = torch.where(mask[tile, :], (row - least[:, None]) / (most - least)[:, None], 0.0).sum(-1)


CHOICES = (RowChoice(warps=2, rows=2), RowChoice(cluster=2, warps=8), RowChoice(warps=4, keep="shared"))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [1000, 1003])
def test_extremes_of_packed_elements(choice: RowChoice, dtype: torch.dtype, n: int) -> None:
    """Granules of 16 elements, because of the mask; the first and last elements are extreme as well."""
    x, mask = numbers(7, n, dtype=dtype), torch.rand(7, n) < 0.5
    x[0, 0], x[0, -1], x[1, -1], x[1, 0] = 100.0, -100.0, 100.0, -100.0
    x[2, 5], x[3, n // 2], x[4, :], x[5, 3:] = float("inf"), -float("inf"), -7.0, x[5, 3:] * 0 - 1e-7
    top, low, out = (torch.full((7,), 7.0) for _ in range(3))
    run(scaled_range, (x, mask, top, low, out), choice)
    wide = x.double()
    most, least = wide.amax(-1), wide.amin(-1)
    assert torch.equal(top.double(), most)
    assert torch.equal(low.double(), least)
    want = torch.where(mask, (wide - least[:, None]) / (most - least)[:, None], 0.0).sum(-1)
    assert torch.allclose(out.double(), want, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("n", [1000, 1003])
def test_one_element_that_is_no_number(n: int) -> None:
    x, mask = numbers(4, n), torch.ones(4, n, dtype=torch.bool)
    x[0, 0] = x[1, -1] = x[2, 501] = float("nan")
    top, low, out = (torch.full((4,), 7.0) for _ in range(3))
    run(scaled_range, (x, mask, top, low, out), RowChoice(cluster=2, warps=8))
    for found in (top, low, out):
        assert found.isnan().tolist() == [True, True, True, False]


def amax_of_products(x, y, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * y[tile, :].to(torch.float32)
        out[tile] = torch.exp(row - torch.amax(row, -1)[:, None]).sum(-1)


def amax(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.amax(x[tile, :].to(torch.float32), -1)


def test_which_extremes_stay_packed() -> None:
    """Computed elements are of 32 bits, and a loop over chunks that no later pass reads keeps its results elsewhere."""
    x, out = numbers(3, 40003), torch.empty(3)
    part = x[:, :1000].contiguous()
    for fn, arguments, packed in (
        (amax_of_products, (part, part, out), 0),
        (scaled_range, (part, torch.ones(3, 1000, dtype=torch.bool), out, out, out), 2),
        (scaled_range, (part.float(), torch.ones(3, 1000, dtype=torch.bool), out, out, out), 0),
        (amax, (x, out), 0),
    ):
        _, plan = prepared(fn, arguments, RowChoice(warps=2))
        assert len(packed_extremes(plan.problem, plan.layout)) == packed
        assert ("row_maximum_bfloat16(x, y)" in render(row_program(plan))) == bool(packed)
    run(amax, (x, out), RowChoice(warps=2))
    assert torch.equal(out, x.float().amax(-1))


def powers_of_scaled(x, scale, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * scale[tile].to(torch.float32)[:, None]
        out[tile, :] = torch.exp(row - torch.amax(row, -1)[:, None]).to(out.dtype)


def powers_scaled_after(x, scale, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = torch.exp((row - torch.amax(row, -1)[:, None]) * scale[tile].to(torch.float32)[:, None]).to(
            out.dtype
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_products_are_rounded_before_their_maximum_is_subtracted(dtype: torch.dtype) -> None:
    """An FMA would not give 0 for the largest element, and its power would not be 1."""
    x, scale = numbers(3, 1000).to(dtype), torch.tensor([0.7, 1.3, 0.1])
    x[:, 7], out = 30000.0, torch.empty(3, 1000, dtype=dtype)
    for fn, count in ((powers_of_scaled, 1), (powers_scaled_after, 0)):
        _, plan = prepared(fn, (x, scale, out), RowChoice(warps=2))
        assert render(row_program(plan)).count(" = rounded_difference(") == count
    run(powers_of_scaled, (x, scale, out), RowChoice(warps=2))
    assert out[:, 7].tolist() == [1.0] * 3
