"""Row kernels over single rows: ``hl.grid``, and tiles of one row. Values on simulated threads, code, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from backends.cute.test_row_kernels import close, numbers, prepared, run
from harness import tensor

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.plan.rowwise.choice import RowChoice

EPS = 1e-5


def rms_norm(x, w, out):
    for i in hl.grid(x.size(0)):
        row = x[i, :].to(torch.float32)
        out[i, :] = (row * torch.rsqrt((row * row).mean(-1) + EPS) * (w[:].to(torch.float32) + 1.0)).to(out.dtype)


def rms_norm_of_tiles(x, w, out):
    for tile in hl.tile(x.size(0), block_size=1):
        row = x[tile.begin, :].to(torch.float32)
        out[tile.begin, :] = (row * torch.rsqrt((row * row).mean(-1) + EPS) * (w[:].to(torch.float32) + 1.0)).to(
            out.dtype
        )


def loss(x, labels, weights, total):
    for i in hl.grid(x.size(0)):
        picked = x[i, labels[i]].to(torch.float32)
        total[i] = (torch.logsumexp(x[i, :].to(torch.float32), -1) - picked) * weights[i]


def softmax_of_loops(x, out):
    m, n = x.size()
    for i in hl.grid(m):
        top = hl.full([], float("-inf"), dtype=torch.float32)
        total = hl.zeros([], dtype=torch.float32)
        for tile in hl.tile(n):
            values = x[i, tile].to(torch.float32)
            raised = torch.maximum(top, torch.amax(values, 0))
            total = total * torch.exp(top - raised) + torch.exp(values - raised).sum(0)
            top = raised
        for tile in hl.tile(n):
            out[i, tile] = (torch.exp(x[i, tile].to(torch.float32) - top) / total).to(out.dtype)


def masked(x, length, place, total):
    for i in hl.grid(x.size(0)):
        row = torch.where(hl.arange(x.size(1)) < length[i], x[i, :].to(torch.float32), float("-inf"))
        place[i] = torch.argmax(row, -1)
        total[i] = torch.amax(row, -1) + i


def centred_heads(x, bias, out):
    for b, h in hl.grid([x.size(0), x.size(1)]):
        row = x[b, h, :].to(torch.float32) + bias[:].to(torch.float32)
        out[b, h, :] = (row - row.mean(-1)).to(out.dtype)


def norms_of_batches(x, w, out):
    for b in hl.grid(x.size(0)):
        for tile in hl.tile(x.size(1)):
            row = x[b, tile, :].to(torch.float32)
            scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + EPS)
            out[b, tile, :] = (row * scale * w[:].to(torch.float32)).to(out.dtype)


def sums_of_tiles(x, total):
    for b in hl.grid(x.size(0)):
        for tile in hl.tile(x.size(1)):
            total[b, tile] = x[b, tile, :].to(torch.float32).sum(-1) + tile.begin


def quantized(x, low, scale):
    groups = hl.specialize(x.size(1) // 128)
    for i in hl.grid(x.size(0)):
        parts = x[i, :].to(torch.float32).reshape(groups, 128)
        step = torch.clamp(torch.amax(torch.abs(parts), -1), min=1e-6) / 127.0
        scale[i, :] = step
        low[i, :] = torch.round(parts / step[:, None]).reshape(groups * 128).to(torch.int8)


def of_the_first_row(x, total):
    for i in hl.grid(x.size(0)):
        total[i] = (x[i, :].to(torch.float32) - x[0, :].to(torch.float32)).sum(-1)


CHOICES = (
    RowChoice(cluster=1, warps=1),
    RowChoice(cluster=1, warps=4, keep="shared"),
    RowChoice(cluster=2, warps=8),
    RowChoice(cluster=2, warps=8, keep="shared", ahead=True, ctas_per_sm=1),
)
SIZES = ((5, 1000), (3, 1001))


@pytest.mark.parametrize("choice", CHOICES[:3], ids=str)
@pytest.mark.parametrize("kernel", [rms_norm, rms_norm_of_tiles])
def test_norms(kernel: Callable[..., None], choice: RowChoice) -> None:
    for m, n in SIZES:
        x, w = numbers(m, n), numbers(n, seed=1)
        out = torch.full_like(x, 7.0)
        run(kernel, (x, w, out), choice)
        wide = x.double()
        assert close(out, wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * (w.double() + 1.0))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_losses_and_loops(choice: RowChoice) -> None:
    m, n = 3, 2003
    x, weights, total = numbers(m, n), numbers(m, dtype=torch.float32, seed=2), torch.full((m,), 7.0)
    labels = torch.tensor([0, 2002, 700])
    if choice.keep == "registers":
        run(loss, (x, labels, weights, total), choice)
        picked = x.double().gather(1, labels[:, None])[:, 0]
        assert close(total, (torch.logsumexp(x.double(), -1) - picked) * weights.double())
    out = torch.full_like(x, 7.0)
    run(softmax_of_loops, (x, out), choice)
    assert close(out, torch.softmax(x.double(), -1))


def test_masks_positions_and_numbers_of_rows() -> None:
    x, length = numbers(4, 1001), torch.tensor([1, 1001, 500, 77])
    place, total = torch.full((4,), -1), torch.full((4,), 7.0)
    run(masked, (x, length, place, total), RowChoice(warps=4))
    hidden = x.double().masked_fill(torch.arange(1001) >= length[:, None], float("-inf"))
    assert torch.equal(place, hidden.argmax(-1))
    assert close(total, hidden.amax(-1) + torch.arange(4))


def test_grids_of_two_dimensions() -> None:
    x, bias = numbers(2, 3, 1000), numbers(1000, seed=1)
    out = torch.full_like(x, 7.0)
    run(centred_heads, (x, bias, out), RowChoice(warps=2))
    wide = x.double() + bias.double()
    assert close(out, wide - wide.mean(-1, keepdim=True))


@pytest.mark.parametrize("choice", [*CHOICES[:3], RowChoice(warps=1, rows=4)], ids=str)
def test_loops_over_tiles_of_rows_in_a_grid(choice: RowChoice) -> None:
    x, w = numbers(2, 5, 1000), numbers(1000, seed=1)
    out = torch.full_like(x, 7.0)
    run(norms_of_batches, (x, w, out), choice)
    wide = x.double()
    assert close(out, wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * w.double())


def test_a_known_row_is_a_vector_over_columns() -> None:
    x, total = numbers(3, 1000), torch.full((3,), 7.0)
    run(of_the_first_row, (x, total), RowChoice(warps=2))
    assert ((total.double() - (x.double() - x[0].double()).sum(-1)).abs() < 1e-2).all()


def test_groups_of_columns() -> None:
    x = numbers(3, 1024)
    low, scale = torch.full((3, 1024), 7, dtype=torch.int8), torch.full((3, 8), 7.0)
    run(quantized, (x, low, scale), RowChoice(warps=2))
    parts = x.double().view(3, 8, 128)
    step = parts.abs().amax(-1) / 127.0
    assert close(scale, step)
    assert ((low.view(3, 8, 128) * step[:, :, None] - parts).abs() <= 0.51 * step[:, :, None]).all()


def test_a_grid_has_the_plan_of_tiles() -> None:
    x = numbers(4, 4096)

    def of_tiles(x, w, out):
        for tile in hl.tile(x.size(0)):
            row = x[tile, :].to(torch.float32)
            scale = torch.rsqrt((row * row).mean(-1) + EPS)
            out[tile, :] = (row * scale[:, None] * (w[:].to(torch.float32) + 1.0)[None, :]).to(out.dtype)

    arguments = (x, numbers(4096), torch.empty_like(x))
    plans = [prepared(kernel, arguments, RowChoice())[1] for kernel in (rms_norm, rms_norm_of_tiles, of_tiles)]
    assert plans[0] == plans[1] == plans[2]


@pytest.mark.parametrize("backend", ["cute", "auto"])
def test_long_rows_are_held_in_clusters(backend: str) -> None:
    arguments = tensor(2048, 131072), tensor(131072), tensor(2048, 131072)
    bound = helion.kernel(rms_norm, backend=backend).bind(arguments, target="h200")
    assert bound.backend == "cute"
    assert "rows of 131072 columns" in bound.seeds[0].reason


def same_place(x, total):
    for i in hl.grid(x.size(0)):
        total[0] = x[i, :].to(torch.float32).sum(-1)


def of_one_dimension(x, total):
    for b, h in hl.grid([x.size(0), x.size(1)]):
        total[b, h] = (x[b, h, :].to(torch.float32) + x[b, 0, :].to(torch.float32)).sum(-1)


def even_rows(x, total):
    for i in hl.grid(0, x.size(0), 2):
        total[i] = x[i, :].to(torch.float32).sum(-1)


def next_rows(x, total):
    for i in hl.grid(total.size(0)):
        total[i] = x[i + 1, :].to(torch.float32).sum(-1)


@pytest.mark.parametrize(
    ("kernel", "shapes", "reason"),
    [
        (same_place, ((4, 32768), (4,)), "total is stored at the same place by all rows"),
        (of_one_dimension, ((2, 4, 32768), (2, 4)), "x has some of the grid's dimensions"),
        (sums_of_tiles, ((2, 4, 32768), (2, 4)), "not implemented"),
        (even_rows, ((4, 32768), (4,)), "dimension i is no plain tile loop"),
        (next_rows, ((5, 32768), (4,)), "without offsets and masks"),
    ],
)
def test_refusals(kernel: Callable[..., None], shapes: Sequence[Any], reason: str) -> None:
    arguments = tensor(*shapes[0]), tensor(*shapes[1])
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(kernel, backend="cute").bind(arguments, target="h200").to_cute_code()
