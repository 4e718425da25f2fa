"""Row kernels that gather one element of each row at a column that a comparison may replace, as losses with ignored labels do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute.test_row_kernels import close, numbers, prepared, run
from harness import tensor

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.plan.epilogue import constant
from helion.backends.cute.plan.rowwise.choice import RowChoice

M = 9


def ignored_constant(x, labels, loss):
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        label = labels[tile]
        kept = label != -100
        picked = hl.load(flat, [tile.index * x.size(1) + torch.where(kept, label, 3)]).to(torch.float32)
        total = torch.logsumexp(x[tile, :].to(torch.float32), -1)
        loss[tile] = torch.where(kept, total - picked, 0.0)


def ignored_argument(x, labels, loss, ignored: int):
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        label = labels[tile]
        kept = label != ignored
        picked = hl.load(flat, [tile.index * x.size(1) + torch.where(kept, label, 0)]).to(torch.float32)
        row = x[tile, :].to(torch.float32)
        total = torch.logsumexp(row, -1)
        loss[tile] = torch.where(
            kept, 0.9 * (total - picked) + 0.1 * (total - row.mean(-1)) + 1e-3 * total * total, 0.0
        )


def clamped(x, labels, loss):
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        label = labels[tile]
        picked = hl.load(flat, [tile.index * x.size(1) + torch.clamp(label, min=0)]).to(torch.float32)
        total = torch.logsumexp(x[tile, :].to(torch.float32), -1)
        loss[tile] = torch.where(label >= 0, total - picked, 0.0)


def _labels(n: int, ignored: int, dtype: torch.dtype) -> torch.Tensor:
    labels = torch.randint(0, n, (M,), generator=torch.Generator().manual_seed(5))
    labels[::3] = ignored
    return labels.to(dtype)


def _wanted(x: torch.Tensor, labels: torch.Tensor, kept: torch.Tensor, smoothed: bool) -> torch.Tensor:
    wide = x.double()
    total, picked = torch.logsumexp(wide, -1), wide.gather(1, torch.where(kept, labels, 0).long()[:, None])[:, 0]
    loss = total - picked
    if smoothed:
        loss = 0.9 * loss + 0.1 * (total - wide.mean(-1)) + 1e-3 * total.square()
    return torch.where(kept, loss, 0.0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("n, choice", [(1000, RowChoice(warps=4)), (1003, RowChoice(cluster=2))])
def test_ignored_labels(n: int, choice: RowChoice, dtype: torch.dtype) -> None:
    x = numbers(M, n)
    for fn, ignored in ((ignored_constant, -100), (clamped, -1)):
        labels, loss = _labels(n, ignored, dtype), torch.full((M,), 7.0)
        run(fn, (x, labels, loss), choice)
        assert close(loss, _wanted(x, labels, labels != ignored, False)), fn.__name__


@pytest.mark.parametrize("ignored", [-100, 17, 2**40, -(2**31)])
def test_a_label_to_ignore_that_is_an_argument(ignored: int) -> None:
    """In fp32 it may be rounded, but to no column of a row."""
    x, labels, loss = numbers(M, 1003), _labels(1003, ignored, torch.int64), torch.full((M,), 7.0)
    helion.kernel(ignored_argument, backend="cute")(x, labels, loss, ignored)
    assert close(loss, _wanted(x, labels, labels != ignored, True))


def test_the_column_of_a_gather() -> None:
    labels = torch.empty(M, dtype=torch.int64)
    kernel, _ = prepared(ignored_constant, (numbers(M, 1000), labels, torch.empty(M)), RowChoice())
    (gather,) = kernel.problem.gathers
    assert gather.index.startswith("labels")
    assert (gather.comparison, gather.other, gather.otherwise) == ("ne", constant(-100), 3)


def other_bound(x, labels, limit, loss):
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        label = labels[tile]
        kept = label != limit[tile]
        picked = hl.load(flat, [tile.index * x.size(1) + torch.where(kept, label, 0)]).to(torch.float32)
        loss[tile] = torch.logsumexp(x[tile, :].to(torch.float32), -1) - picked


def outside(x, labels, loss):
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        label = labels[tile]
        picked = hl.load(flat, [tile.index * x.size(1) + torch.where(label != -100, label, 1000)]).to(torch.float32)
        loss[tile] = torch.logsumexp(x[tile, :].to(torch.float32), -1) - picked


def compared_alone(x, labels, loss, ignored: int):
    for tile in hl.tile(x.size(0)):
        total = torch.logsumexp(x[tile, :].to(torch.float32), -1)
        loss[tile] = torch.where(labels[tile] != ignored, total, 0.0)


def computed_number(x, labels, loss, ignored: int):
    for tile in hl.tile(x.size(0)):
        total = torch.logsumexp(x[tile, :].to(torch.float32), -1)
        loss[tile] = torch.where(labels[tile] != ignored + 1, total, 0.0)


@pytest.mark.parametrize("ignored", [-100, 17, 2**24 - 1])
def test_labels_are_compared_with_a_number_that_fp32_holds(ignored: int) -> None:
    """Labels of any size, whose neighbors fp32 does not tell apart, are then equal to it or not."""
    x, loss = numbers(M, 1003), torch.full((M,), 7.0)
    labels = torch.tensor([ignored, ignored + 1, 2**40, -(2**62), 2**24, 0, ignored, 3, 2**24 + 1, 5, 2, 1])[:M]
    kernel = helion.kernel(compared_alone, backend="cute")
    kernel(x, labels, loss, ignored)
    assert close(loss, torch.where(labels != ignored, torch.logsumexp(x.double(), -1), 0.0))
    with pytest.raises(exc.CuteUnsupported, match="which is 16777217; less than 16777216 is exact"):
        kernel(x, labels, loss, 2**24 + 1)


def from_a_number(x, labels, loss, least: int):
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        label = labels[tile]
        picked = hl.load(flat, [tile.index * x.size(1) + torch.where(label >= least, label, 0)]).to(torch.float32)
        loss[tile] = torch.logsumexp(x[tile, :].to(torch.float32), -1) - picked


@pytest.mark.parametrize(
    ("fn", "more", "reason"),
    [
        (other_bound, (tensor(8, dtype=torch.int64), tensor(8)), "a gather from .* needs an integer per row"),
        (outside, (tensor(8),), "a gather from .* needs an integer per row"),
        (compared_alone, (tensor(8), 2**24), "integers are compared with ignored, which is 16777216"),
        (computed_number, (tensor(8), 2**24 - 1), r"integers are compared with ignored \+ 1, which is 16777216"),
        (from_a_number, (tensor(8), 5), "a gather from .* needs an integer per row"),
    ],
)
def test_columns_that_are_refused(fn: Any, more: Any, reason: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(fn, backend="cute").bind((tensor(8, 1000), tensor(8, dtype=torch.int64), *more), target="h100")
