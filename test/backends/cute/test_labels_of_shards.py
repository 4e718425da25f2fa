"""Epilogues that compare columns with labels less the first class of a shard."""

from __future__ import annotations

import pytest
import torch
from backends.cute.test_column_numbers import BF16, arguments

import helion
import helion.language as hl
from helion import exc


def of_a_shard(
    x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, first: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The largest logit, the sum of exponentials below it, and the label's logit, which is 0 if another shard has it."""
    t, d = x.size()
    v = w.size(0)
    top = torch.empty([t], dtype=torch.float32, device=x.device)
    sums = torch.empty_like(top)
    own = torch.empty_like(top)
    for rows in hl.tile(t):
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        picked = hl.zeros([rows], dtype=torch.float32)
        label = labels[rows] - first
        for cols in hl.tile(v):
            logits = hl.zeros([rows, cols], dtype=torch.float32)
            for inner in hl.tile(d):
                logits = hl.dot(x[rows, inner], w[cols, inner].T, acc=logits)
            new = torch.maximum(m, logits.amax(-1))
            total = total * torch.exp(m - new) + torch.exp(logits - new[:, None]).sum(-1)
            picked += torch.where(cols.index[None, :] == label[:, None], logits, 0.0).sum(-1)
            m = new
        top[rows], sums[rows], own[rows] = m, total, picked
    return top, sums, own


def others(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, first: int) -> torch.Tensor:
    """Logits of all classes but the label's, which is compared with the constant of a shard, from the other side."""
    t, d = x.size()
    v = w.size(0)
    out = torch.empty([t, v], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([t, v]):
        logits = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(d):
            logits = hl.dot(x[rows, inner], w[cols, inner].T, acc=logits)
        out[rows, cols] = torch.where((labels[rows] - 40)[:, None] != cols.index[None, :], logits, float(first))
    return out


def given(v: int = 88, dtype: torch.dtype = torch.int64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, w, _ = arguments(70, v)
    labels = torch.randint(-2 * v, 4 * v, (70,), dtype=dtype)
    return x, w.T.contiguous(), labels


#: Labels that fp32 does not hold, and those next to the limits.
FAR = (2**24 + 1, 2**24 - 1, -(2**24) - 1, 2**31 - 1, -(2**31))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("first", [0, 88, -50, 2**24 - 89, 1 - 2**24])
def test_labels_less_a_number(first: int, dtype: torch.dtype) -> None:
    x, w, labels = given(dtype=dtype)
    labels += first
    labels[0], labels[1], labels[2] = first, first + 87, first + 88
    labels[3:8] = torch.tensor(FAR).to(dtype)
    if dtype == torch.int64:
        labels[8:10] = torch.tensor([2**40 + first + 3, -(2**63)])
    top, sums, own = helion.kernel(of_a_shard, backend="cute")(x, w, labels, first)
    logits = x.double() @ w.double().T
    place = labels.long() - first
    here = (place >= 0) & (place < 88)
    assert here[0] and here[1] and not here[2]
    wanted = torch.where(here, logits.gather(1, torch.where(here, place, 0)[:, None])[:, 0], 0.0)
    torch.testing.assert_close(own.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(top.double(), logits.amax(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        sums.double(), torch.exp(logits - logits.amax(1, keepdim=True)).sum(1), rtol=1e-4, atol=0
    )


def test_a_constant_and_other_columns() -> None:
    x, w, labels = given()
    labels[:3] = torch.tensor([40, 127, 128])
    found = helion.kernel(others, backend="cute")(x, w, labels, 7)
    logits = x.double() @ w.double().T
    wanted = torch.where((labels - 40)[:, None] != torch.arange(88), logits, 7.0)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first", [2**24 - 88, -(2**24), 2**40])
def test_numbers_that_fp32_does_not_hold_with_their_columns(first: int) -> None:
    """The kernel that was compiled for another number is not called with these."""
    x, w, labels = given()
    kernel = helion.kernel(of_a_shard, backend="cute")
    kernel(x, w, labels, 88)
    with pytest.raises(exc.CuteUnsupported, match="exact in fp32"):
        kernel(x, w, labels, first)


def used_elsewhere(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, first: int) -> torch.Tensor:
    """The difference is part of a result, for which it has to be exact."""
    t, d = x.size()
    v = w.size(0)
    out = torch.empty([t, v], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([t, v]):
        logits = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(d):
            logits = hl.dot(x[rows, inner], w[cols, inner].T, acc=logits)
        out[rows, cols] = logits + (labels[rows] - first).to(torch.float32)[:, None]
    return out


def ordered(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, first: int) -> torch.Tensor:
    """Integers that wrap have another order than their numbers in fp32."""
    t, d = x.size()
    v = w.size(0)
    out = torch.empty([t, v], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([t, v]):
        logits = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(d):
            logits = hl.dot(x[rows, inner], w[cols, inner].T, acc=logits)
        out[rows, cols] = torch.where(cols.index[None, :] < (labels[rows] - first)[:, None], logits, 0.0)
    return out


@pytest.mark.parametrize("fn", [used_elsewhere, ordered])
def test_other_uses_of_a_difference_are_refused(fn) -> None:
    with pytest.raises(exc.CuteUnsupported, match="sub of int64"):
        helion.kernel(fn, backend="cute").bind((*given(), 3))


def test_a_loss_of_a_shard_is_one_kernel() -> None:
    """Triton multiplies first, and reads all logits again."""
    x, w = (torch.empty(rows, 1024, dtype=BF16, device="meta") for rows in (4096, 16032))
    labels = torch.empty(4096, dtype=torch.int64, device="meta")
    bound = helion.kernel(of_a_shard, backend="auto").bind((x, w, labels, 16032), target="h200")
    assert bound.backend == "cute"


@pytest.mark.parametrize("rank", [0, 3, -2])
def test_the_first_class_may_follow_from_a_number_of_the_launch(rank: int) -> None:
    """Each call checks that number instead."""

    @helion.kernel(backend="cute")
    def own_logits(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, rank: int) -> torch.Tensor:
        t, d = x.size()
        v = w.size(0)
        out = torch.empty([t, v], dtype=torch.float32, device=x.device)
        for rows, cols in hl.tile([t, v]):
            logits = hl.zeros([rows, cols], dtype=torch.float32)
            for inner in hl.tile(d):
                logits = hl.dot(x[rows, inner], w[cols, inner].T, acc=logits)
            hit = cols.index[None, :] == (labels[rows] - (5 - rank * v))[:, None]
            out[rows, cols] = torch.where(hit, logits, 0.0)
        return out

    x, w, labels = given()
    found = own_logits(x, w, labels, rank)
    hit = (labels - (5 - rank * 88))[:, None] == torch.arange(88)
    torch.testing.assert_close(found.double(), torch.where(hit, x.double() @ w.double().T, 0.0), rtol=1e-4, atol=1e-4)
    most = (2**24 - 1 + 5) // 88
    own_logits(x, w, labels, most)
    with pytest.raises(exc.CuteUnsupported, match="exact in fp32"):
        own_logits(x, w, labels, most + 1)
    least = -((2**24 - 1 - 88 - 5) // 88)
    own_logits(x, w, labels, least)
    with pytest.raises(exc.CuteUnsupported, match="exact in fp32"):
        own_logits(x, w, labels, least - 1)
