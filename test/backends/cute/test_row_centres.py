"""Sums about the mean of a row from one walk: each thread sums differences from one of its elements."""

from __future__ import annotations

import pytest
import torch
from backends.cute.test_row_kernels import numbers, prepared, run

import helion.language as hl
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.passes import schedule_of

CHOICES = (RowChoice(cluster=1, warps=1), RowChoice(cluster=2, warps=8, keep="shared", ahead=True))


def moments(x, mean, variance, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        middle = row.mean(-1)
        centred = row - middle[:, None]
        spread = (centred * centred).mean(-1)
        mean[tile] = middle
        variance[tile] = spread
        out[tile, :] = (centred * torch.rsqrt(spread[:, None] + 1e-5)).to(out.dtype)


def spread_of_sums(x, y, spread):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * y[tile, :].to(torch.float32)
        centred = row - row.mean(-1)[:, None]
        spread[tile] = (centred * centred).sum(-1)


@pytest.mark.parametrize(("choice", "n"), [(CHOICES[0], 1003), (CHOICES[1], 1000)], ids=str)
def test_elements_far_from_the_others(choice: RowChoice, n: int) -> None:
    """In the first place of a thread, in all places of a thread, and in the last place of the row."""
    x = numbers(5, n, dtype=torch.float32) + 200
    x[0, 0], x[1, 8], x[2, :16], x[3, n - 1] = 1e5, -1e5, 3e4, 1e6
    mean, variance, out = torch.empty(5), torch.empty(5), torch.empty_like(x)
    assert [
        each.number for each in schedule_of(prepared(moments, (x, mean, variance, out), choice)[1].problem).passes
    ] == [
        0,
        2,
    ]
    run(moments, (x, mean, variance, out), choice)
    wide = x.double()
    spread = wide.var(-1, correction=0)
    assert ((mean.double() - wide.mean(-1)).abs() <= 2e-6 * wide.abs().amax(-1)).all()
    assert ((variance.double() - spread).abs() <= 2e-5 * spread).all()
    assert ((out.double() - (wide - wide.mean(-1)[:, None]) * torch.rsqrt(spread + 1e-5)[:, None]).abs() <= 4e-4).all()


@pytest.mark.parametrize(("n", "dtype"), [(2, torch.float32), (5, torch.bfloat16), (21, torch.float32)])
def test_short_rows_far_from_zero(n: int, dtype: torch.dtype) -> None:
    """A row begins in any lane of its warp, and in any place of a granule."""
    x = (numbers(9, n, dtype=torch.float32) + 1000).to(dtype)
    mean, variance, out = torch.empty(9), torch.empty(9), torch.empty(9, n)
    run(moments, (x, mean, variance, out), CHOICES[1])
    spread = x.double().var(-1, correction=0)
    assert ((variance.double() - spread).abs() <= 2e-5 * spread + 1e-4).all()


@pytest.mark.parametrize("ahead", [False, True])
def test_sums_of_several_warps_are_about_one_number_near_their_means(ahead: bool) -> None:
    """Elements of the first thread of a warp, or of the first warp, are far from the others."""
    n = 4096
    x = numbers(3, n, dtype=torch.float32) + 50
    x[0, :4], x[1, 1024:1028], x[2, :256] = 4e4, -3e4, 1e4
    mean, variance, out = torch.empty(3), torch.empty(3), torch.empty_like(x)
    choice = RowChoice(cluster=2, warps=8, keep="shared", ahead=ahead)
    run(moments, (x, mean, variance, out), choice)
    wide = x.double()
    assert ((mean.double() - wide.mean(-1)).abs() <= 2e-6 * wide.abs().mean(-1)).all()
    spread = wide.var(-1, correction=0)
    assert ((variance.double() - spread).abs() <= 4e-6 * spread).all()


def test_means_of_many_rows_have_no_bias() -> None:
    """Sums over rows add up what all means have in common."""
    n = 16 * 32 * 4 * 3  # the inverse of the 384 elements of a warp is off by half of a rounding
    x = numbers(48, n, dtype=torch.float32) + 300
    mean, variance, out = torch.empty(48), torch.empty(48), torch.empty_like(x)
    run(moments, (x, mean, variance, out), RowChoice(cluster=2, warps=8, keep="shared"))
    assert abs((mean.double() / x.double().mean(-1) - 1).mean()) <= 1e-8


def test_what_is_not_finite_stays_so() -> None:
    x = numbers(4, 1000, dtype=torch.float32)
    x[0, 0], x[1, 999], x[2, 500] = float("inf"), float("-inf"), float("nan")
    mean, variance, out = torch.empty(4), torch.empty(4), torch.empty_like(x)
    for choice in (*CHOICES, RowChoice(cluster=2, warps=8, keep="shared")):
        run(moments, (x, mean, variance, out), choice)
        torch.testing.assert_close(mean, x.mean(-1), equal_nan=True)
    assert variance.isnan().tolist() == [True, True, True, False] and out[:3].isnan().all()


def test_computed_elements_of_which_none_is_stored() -> None:
    x, y, spread = numbers(3, 1001), numbers(3, 1001, seed=1), torch.empty(3)
    run(spread_of_sums, (x, y, spread), RowChoice(cluster=2, warps=8))
    wide = x.double() * y.double()
    wanted = (wide - wide.mean(-1, keepdim=True)).square().sum(-1)
    assert ((spread.double() - wanted).abs() <= 1e-5 * wanted).all()
