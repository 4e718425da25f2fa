"""Row kernels whose grid has several dimensions of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute.test_row_kernels import EPS, close, numbers
from harness import tensor

import helion
import helion.language as hl
from helion import exc

X = tensor(3, 5, 96, dtype=torch.bfloat16)


def rms_norm(x, w, out, scale):
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_m, :].to(torch.float32)
        r = torch.rsqrt((row * row).mean(-1) + EPS)
        scale[tile_b, tile_m] = r
        out[tile_b, tile_m, :] = (row * r[:, :, None] * w[:].to(torch.float32)).to(out.dtype)


def scaled_softmax(x, temperature, out):
    for tile_a, tile_b, tile_m in hl.tile([x.size(0), x.size(1), x.size(2)]):
        row = x[tile_a, tile_b, tile_m, :].to(torch.float32) * temperature[tile_a, tile_b, tile_m][:, :, :, None]
        out[tile_a, tile_b, tile_m, :] = torch.softmax(row, -1).to(out.dtype)


def sums_in_loops(x, out):
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        acc = hl.zeros([tile_b, tile_m], dtype=torch.float32)
        for tile_n in hl.tile(x.size(2)):
            acc += x[tile_b, tile_m, tile_n].to(torch.float32).sum(-1)
        out[tile_b, tile_m] = acc


@pytest.mark.parametrize("n", [96, 1003])
def test_grids_over_batches(n: int) -> None:
    x, w = numbers(3, 5, n), numbers(n, seed=1)
    out, scale = torch.full_like(x, 7.0), torch.full((3, 5), 7.0)
    kernel = helion.kernel(rms_norm, backend="cute")
    kernel(x, w, out, scale)
    wide = x.double()
    r = torch.rsqrt(wide.square().mean(-1) + EPS)
    assert close(scale, r)
    assert close(out, wide * r[..., None] * w.double())
    assert "15 rows" in str(kernel.bind((x, w, out, scale), target="h100").plan())


def test_three_dimensions_and_loops() -> None:
    x, temperature = numbers(2, 3, 4, 257), torch.rand(2, 3, 4) + 0.5
    out = torch.full_like(x, 7.0)
    helion.kernel(scaled_softmax, backend="cute")(x, temperature, out)
    assert close(out, torch.softmax(x.double() * temperature.double()[..., None], -1))
    sums = torch.full((6, 4), 7.0)
    helion.kernel(sums_in_loops, backend="cute")(x.view(6, 4, 257), sums)
    assert close(sums, x.double().sum(-1).view(6, 4))


def test_rows_with_gaps_between_them() -> None:
    """One stride leads from each row of a part of a tensor to the next."""
    whole, w = numbers(3, 5, 128), numbers(96, seed=1)
    x, out, scale = whole[:, :, :96], torch.full((3, 5, 96), 7.0, dtype=torch.bfloat16), torch.full((3, 5), 7.0)
    helion.kernel(rms_norm, backend="cute")(x, w, out, scale)
    assert close(scale, torch.rsqrt(x.double().square().mean(-1) + EPS))


def test_auto_takes_long_rows_of_batches() -> None:
    x, out = (tensor(4, 512, 131072, dtype=torch.bfloat16) for _ in range(2))
    arguments = (x, tensor(131072, dtype=torch.bfloat16), out, tensor(4, 512))
    assert helion.kernel(rms_norm, backend="auto").bind(arguments, target="h100").backend == "cute"


def of_one_batch(x, bias, out):
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_m, :].to(torch.float32) + bias[tile_b, :].to(torch.float32)[:, None, :]
        out[tile_b, tile_m] = row.sum(-1)


def of_positions(x, out):
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_m, :].to(torch.float32)
        out[tile_b, tile_m] = row.sum(-1) * tile_m.index[None, :].to(torch.float32)


def over_rows(x, out):
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_m, :].to(torch.float32)
        out[tile_b, tile_m, :] = (row - row.sum(1, keepdim=True)).to(out.dtype)


@pytest.mark.parametrize(
    ("fn", "arguments", "reason"),
    [
        (of_one_batch, (X, tensor(3, 96), tensor(3, 5)), "some of the grid's dimensions"),
        (of_positions, (X, tensor(3, 5)), "positions of rows in a grid over several dimensions"),
        (over_rows, (X, X), "some of the grid's dimensions|reductions of whole rows"),
        (sums_in_loops, (X.transpose(0, 1), tensor(5, 3)), "no stride leads from each row of x"),
        (sums_in_loops, (tensor(3, 8, 96)[:, :5], tensor(3, 5)), "no stride leads from each row of x"),
    ],
)
def test_grids_that_are_refused(fn: Any, arguments: Any, reason: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(fn, backend="cute").bind(arguments, target="h100")
