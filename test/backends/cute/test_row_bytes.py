"""Row kernels over elements of one byte: every fp8 number, and unsigned bytes in and out."""

from __future__ import annotations

import pytest
import torch
from backends.cute.test_row_kernels import close, numbers, run

import helion.language as hl
from helion.backends.cute.plan.rowwise.choice import RowChoice

CHOICES = (RowChoice(cluster=1, warps=2), RowChoice(cluster=2, warps=8))


def dequantized_norm(x, scale, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * scale[tile][:, None]
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-6)).to(out.dtype)


def to_bytes(x, low, scale, zero):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        least, most = torch.amin(row, -1), torch.amax(row, -1)
        step = torch.clamp(most - least, min=1e-8) / 255.0
        scale[tile], zero[tile] = step, least
        low[tile, :] = torch.round((row - least[:, None]) / step[:, None]).to(torch.uint8)


def from_bytes(low, x, total):
    for tile in hl.tile(low.size(0)):
        row = low[tile, :].to(torch.float32)
        x[tile, :] = row * 0.5 - 3.0
        total[tile] = row.sum(-1)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("n", [1000, 1003, 4096])
def test_rows_of_fp8(choice: RowChoice, n: int) -> None:
    x = torch.arange(3 * n, dtype=torch.int32).remainder(256).to(torch.uint8).view(torch.float8_e4m3fn).view(3, n)
    x = torch.where(x.float().isnan(), 1.5, x.float()).to(torch.float8_e4m3fn)
    scale, out = numbers(3, dtype=torch.float32), torch.full((3, n), 7.0)
    run(dequantized_norm, (x, scale, out), choice)
    row = x.double() * scale.double()[:, None]
    assert close(out, row * torch.rsqrt(row.square().mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("n", [1000, 1003])
def test_rows_to_unsigned_bytes_and_back(choice: RowChoice, n: int) -> None:
    x, low = numbers(3, n, dtype=torch.float32), torch.full((3, n), 7, dtype=torch.uint8)
    scale, zero = torch.full((3,), 7.0), torch.full((3,), 7.0)
    run(to_bytes, (x, low, scale, zero), choice)
    step = (x.amax(-1) - x.amin(-1)) / 255
    exact = (x.double() - x.amin(-1, keepdim=True).double()) / step.double()[:, None]
    assert (low.double() - exact).abs().max() < 0.501
    assert low.max() == 255
    assert close(scale, step.double())
    back, total = torch.full((3, n), 7.0), torch.full((3,), 7.0)
    run(from_bytes, (low, back, total), choice)
    assert torch.equal(back, low.float() * 0.5 - 3.0)
    assert torch.equal(total, low.float().sum(-1))
