"""Sums of products with a number of the row: the number is taken out where the sum then needs no exchange of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute.test_row_kernels import EPS, close, numbers, prepared, run

import helion.language as hl
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.passes import schedule_of

CHOICES = (RowChoice(cluster=1, warps=4), RowChoice(cluster=2, warps=8, keep="shared"))


def rms_gradient(x, w, grad, out):
    for tile in hl.tile(x.size(0)):
        row, given = x[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
        scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + EPS)
        hat, slope = row * scale, given * w[:].to(torch.float32)
        out[tile, :] = (scale * (slope - hat * (slope * hat).mean(-1, keepdim=True))).to(out.dtype)


def layer_gradient(x, w, grad, out):
    for tile in hl.tile(x.size(0)):
        row, given = x[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
        centred = row - row.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPS)
        hat, slope = centred * scale, given * w[:].to(torch.float32)
        along = (slope * hat).mean(-1, keepdim=True)
        out[tile, :] = (scale * (slope - slope.mean(-1, keepdim=True) - hat * along)).to(out.dtype)


def of_two_numbers(x, y, scale, total):
    for tile in hl.tile(x.size(0)):
        row, other = x[tile, :].to(torch.float32), y[tile, :].to(torch.float32)
        most, size = torch.amax(row, -1)[:, None], (other * other).sum(-1)[:, None]
        total[tile] = ((most * row) * (other * size) * scale[tile][:, None]).sum(-1)


def of_differences(x, total):
    """Return sums that have to wait: a factor of a difference is none of the sum."""
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        most = torch.amax(row, -1)[:, None]
        total[tile] = (most * torch.sigmoid(row - most)).sum(-1)


def exchanges(fn: Any, *arguments: torch.Tensor) -> int:
    return len(schedule_of(prepared(fn, arguments, RowChoice(warps=4))[0].problem).meetings)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_gradients_with_fewer_exchanges(choice: RowChoice) -> None:
    m, n = 5, 1003
    x, grad, w, out = numbers(m, n), numbers(m, n, seed=1), numbers(n, seed=2), numbers(m, n)
    wide, slope = x.double(), grad.double() * w.double()
    assert exchanges(rms_gradient, x, w, grad, out) == 1
    run(rms_gradient, (x, w, grad, out), choice)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    hat = wide * scale
    assert close(out, scale * (slope - hat * (slope * hat).mean(-1, keepdim=True)))
    assert exchanges(layer_gradient, x, w, grad, out) == 1
    run(layer_gradient, (x, w, grad, out), choice)
    scale = torch.rsqrt(wide.var(-1, correction=0, keepdim=True) + EPS)
    hat = torch.nn.functional.layer_norm(wide, (n,), eps=EPS)
    want = scale * (slope - slope.mean(-1, keepdim=True) - hat * (slope * hat).mean(-1, keepdim=True))
    assert ((out.double() - want).abs() <= 2**-8 * (want.abs() + 0.1 * slope.abs().mean())).all()


def test_factors_of_several_numbers() -> None:
    """Loaded numbers of a row stay: they need no exchange."""
    x, y, scale, total = numbers(4, 515), numbers(4, 515, seed=1), numbers(4, dtype=torch.float32), torch.empty(4)
    kernel, _ = prepared(of_two_numbers, (x, y, scale, total), RowChoice(warps=2))
    assert len(schedule_of(kernel.problem).meetings) == 1
    run(of_two_numbers, (x, y, scale, total), RowChoice(warps=2))
    wide, other = x.double(), y.double()
    want = (wide * other).sum(-1) * wide.amax(-1) * other.square().sum(-1) * scale.double()
    assert close(total, want)


def test_factors_of_values_that_wait() -> None:
    x, total = numbers(4, 515), torch.empty(4)
    assert exchanges(of_differences, x, total) == 2
    run(of_differences, (x, total), RowChoice(warps=2))
    most = x.double().amax(-1, keepdim=True)
    assert close(total, (most * torch.sigmoid(x.double() - most)).sum(-1))
