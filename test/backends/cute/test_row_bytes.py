"""Row kernels over elements of one byte: every fp8 number, and unsigned bytes in and out."""

from __future__ import annotations

import pytest
import torch
from backends.cute.test_row_kernels import close, numbers, run

import helion
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


def rounded_and_stored(x, low, again):
    for tile in hl.tile(x.size(0)):
        rounded = x[tile, :].to(torch.float8_e4m3fn)
        low[tile, :] = rounded
        again[tile, :] = rounded.to(torch.float32) - torch.amax(x[tile, :] * 0.0, -1)[:, None]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_numbers_too_large_for_e4m3_become_the_largest(choice: RowChoice) -> None:
    edges = torch.tensor([447.0, 449.0, 464.0, 464.1, 465.0, 480.0, -500.0, 61440.0, -1e30, 0.3])
    x = edges.repeat(3, 100)
    low, again = torch.zeros(3, 1000, dtype=torch.float8_e4m3fn), torch.full((3, 1000), 7.0)
    run(rounded_and_stored, (x, low, again), choice)
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    torch.testing.assert_close(low.float(), expected, rtol=0, atol=0)
    torch.testing.assert_close(again, expected, rtol=0, atol=0)


def test_infinities_and_nan_as_e4m3_on_both_backends() -> None:
    edges = torch.tensor([float("inf"), float("-inf"), float("nan"), 464.1, 1e9, -2.0, 0.0, 448.0]).repeat(2, 16)
    for backend in ("cute", "triton"):
        kernel = helion.kernel(converted, backend=backend)
        low = kernel(edges, torch.ones(2, 128)).float()
        torch.testing.assert_close(
            low, edges.clamp(-448, 448).to(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True
        )


def converted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    low = torch.empty(x.size(), dtype=torch.float8_e4m3fn, device=x.device)
    for tile in hl.tile(x.size(0)):
        low[tile, :] = (x[tile, :] * torch.amax(y[tile, :], -1)[:, None]).to(torch.float8_e4m3fn)
    return low
