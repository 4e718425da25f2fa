"""Row kernels that reduce the next row before the exchange of one: values on simulated threads, faults and refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from backends.cute.test_row_kernels import (
    EPS,
    argmax,
    close,
    cross_entropy,
    edited,
    layer_norm,
    numbers,
    prepared,
    rms_norm,
    run,
    softmax,
)
from backends.cute.test_row_registers import smoothed
from backends.cute.test_row_sums import SPAN, rms_gradients
from harness import tensor

import helion
import helion.language as hl
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.records import RowLayout
from helion.backends.cute.roles.rowwise import program as r
from helion.backends.cute.verify.rowwise.simulate import RowCluster
from helion.backends.cute.verify.rowwise.verify import smaller
from helion.backends.cute.verify.state import Fault

CHOICES = tuple(
    RowChoice(cluster=cluster, warps=warps, ctas_per_sm=1, keep="shared", ahead=True)
    for cluster, warps in ((2, 8), (4, 8))
)


def _with_refusal(fn: Any, *arguments: torch.Tensor, **choice: Any) -> None:
    prepared(fn, arguments, RowChoice(**{"cluster": 2, "keep": "shared", "ahead": True, **choice}))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_norms_and_softmax(choice: RowChoice, dtype: torch.dtype) -> None:
    m, n = 7, 1003
    x, w, b = numbers(m, n, dtype=dtype), numbers(n, dtype=dtype, seed=1), numbers(n, dtype=dtype, seed=2)
    out, wide = torch.empty_like(x), x.double()
    run(softmax, (x, out), choice)
    assert close(out, torch.softmax(wide, -1))
    run(rms_norm, (x, w, out), choice)
    assert close(out, wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * w.double())
    run(layer_norm, (x, w, b, out), choice)
    assert close(out, torch.nn.functional.layer_norm(wide, (n,), w.double(), b.double(), EPS))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_numbers_of_rows_and_gathers(choice: RowChoice) -> None:
    """Nothing is held after the messages here, except by the gradient, which loads its labels again."""
    m, n = 7, 1003
    x, labels = numbers(m, n), torch.tensor([0, 1002, 7, 3, 512, 9, 1])
    wide, total = x.double(), x.double().logsumexp(-1)
    loss, gradient, weight = torch.empty(m), torch.empty_like(x), torch.rand(m)
    run(smoothed, (x, labels, loss, gradient), choice)
    hit = torch.arange(n)[None, :] == labels[:, None]
    assert close(gradient, torch.exp(wide - total[:, None]) - torch.where(hit, 0.9, 0.0))
    run(cross_entropy, (x, labels, weight, loss), choice)
    picked = wide.gather(1, labels[:, None])[:, 0]
    assert close(loss, (total - picked * 0.5) * weight.double())
    place, top = torch.empty(m, dtype=torch.int64), torch.empty(m)
    run(argmax, (x, place, top), dataclasses.replace(choice, keep="registers"))
    assert torch.equal(place, x.float().argmax(-1)) and torch.equal(top, x.float().amax(-1))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_sums_over_rows(choice: RowChoice) -> None:
    m, n = 11, 1000
    x, grad, w = numbers(m, n), numbers(m, n, seed=1), numbers(n, seed=2)
    out, parts = torch.empty_like(x), torch.empty(3, n)
    run(rms_gradients, (x, w, grad, out, parts), choice, SPAN)
    wide, given, slope = x.double(), grad.double(), grad.double() * w.double()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    assert close(out, scale * slope - wide * scale**3 * (wide * slope).mean(-1, keepdim=True))
    assert close(parts, torch.stack([each.sum(0) for each in (given * wide * scale).split(SPAN)]))


def _program(choice: RowChoice) -> r.RowProgram:
    x = numbers(7, 4099)
    return r.row_program(smaller(prepared(softmax, (x, x), choice)[1]))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_plans_are_free_of_faults(choice: RowChoice) -> None:
    for seed in range(12):
        RowCluster(_program(choice), tiles=seed, seed=seed).run()


def test_three_stages_of_messages_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow warp has not read the messages of a row when a fast one sends for the third row after it."""
    monkeypatch.setattr(RowLayout, "exchange_stages", property(lambda layout: 3))
    with pytest.raises(Fault, match="messages|message"):
        for seed in range(60):
            RowCluster(_program(CHOICES[0]), tiles=9, seed=seed).run()


def test_stages_of_the_next_row_are_not_those_of_this_one() -> None:
    """A row that is mapped from the stages that were read last is mapped from the next row's."""
    changed = edited(
        _program(CHOICES[0]),
        lambda step: (r.HoldChunk(r.READ),) if isinstance(step, r.HoldChunk) else (step,),
    )
    with pytest.raises(Fault, match="reads a stage that was released"):
        RowCluster(changed, tiles=5, seed=0).run()


def test_refusals() -> None:
    x, out = tensor(64, 4096), tensor(64, 4096)
    with pytest.raises(Refusal, match="stay in registers are not reduced ahead"):
        _with_refusal(softmax, x, out, keep="registers")
    with pytest.raises(Refusal, match="ahead of one exchange between the CTAs of a cluster"):
        _with_refusal(softmax, x, out, cluster=1, warps=8)
    long = tensor(64, 131072)
    with pytest.raises(Refusal, match="leave no room for loads ahead"):
        _with_refusal(softmax, long, long, cluster=2, warps=16, ctas_per_sm=1)


def test_a_config_reduces_rows_ahead() -> None:
    x, out = tensor(64, 131072), tensor(64, 131072)
    kernel = helion.kernel(softmax, backend="cute").bind((x, out), target="h100")
    assert {bool(seed.config.get("cute_row_ahead")) for seed in kernel.seeds} == {True, False}
    config = dict(cute_row_cluster=4, cute_row_warps=16, cute_row_ctas_per_sm=1, cute_row_keep="shared")
    chosen = helion.kernel(softmax, backend="cute", config=helion.Config(**config, cute_row_ahead=True))
    assert "the next one reduced ahead" in str(chosen.bind((x, out), target="h100").plan())


OVERLAPPED = tuple(
    RowChoice(cluster=cluster, warps=8, ctas_per_sm=1, keep="shared", overlap=True) for cluster in (1, 2)
)


def added(x, y, w, both, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) + y[tile, :].to(torch.float32)
        both[tile, :] = row.to(both.dtype)
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1, keepdim=True) + EPS) * w[:]).to(out.dtype)


def scaled(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        row = row + torch.rsqrt((row * row).mean(-1, keepdim=True) + EPS)
        out[tile, :] = (row / torch.amax(torch.abs(row), -1, keepdim=True)).to(out.dtype)


@pytest.mark.parametrize("choice", OVERLAPPED, ids=str)
def test_norms_of_rows_that_overlap(choice: RowChoice) -> None:
    m, n = 7, 1003
    x, w, b = numbers(m, n), numbers(n, seed=1), numbers(n, seed=2)
    out, wide = torch.empty_like(x), x.double()
    run(rms_norm, (x, w, out), choice)
    assert close(out, wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * w.double())
    run(layer_norm, (x, w, b, out), choice)
    assert close(out, torch.nn.functional.layer_norm(wide, (n,), w.double(), b.double(), EPS))
    run(softmax, (x, out), choice)
    assert close(out, torch.softmax(wide, -1))
    for fn, arguments in ((rms_norm, (x, w, out)), (softmax, (x, out))):
        program = r.row_program(smaller(prepared(fn, arguments, choice)[1]))
        for seed in range(4):
            RowCluster(program, tiles=seed, seed=seed).run()


def _overlapped(choice: RowChoice) -> r.RowProgram:
    x = numbers(7, 1000)
    return r.row_program(smaller(prepared(rms_gradients, (x, x[0], x, x, torch.empty(2, 1000)), choice, SPAN)[1]))


@pytest.mark.parametrize("choice", OVERLAPPED, ids=str)
def test_overlapped_rows_are_free_of_faults(choice: RowChoice) -> None:
    for seed in range(9):
        RowCluster(_overlapped(choice), tiles=seed, seed=seed).run()


def test_overlapped_rows_need_four_stages_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowLayout, "exchange_stages", property(lambda layout: 3))
    with pytest.raises(Fault, match="message"):
        for seed in range(60):
            RowCluster(_overlapped(OVERLAPPED[1]), tiles=4, seed=seed).run()


def test_cursors_of_rows_that_are_not_there_are_restored() -> None:
    """A block of three rows moves the cursors of rows ahead by five."""
    changed = edited(_overlapped(OVERLAPPED[1]), lambda step: () if isinstance(step, r.Restart) else (step,))
    with pytest.raises(Fault):
        RowCluster(changed, tiles=3, seed=0).run()


def test_a_second_pass_reduces_the_row_that_follows() -> None:
    """The stages of the row that is mapped are released before it."""
    x = numbers(7, 1000)
    program = r.row_program(smaller(prepared(softmax, (x, x), OVERLAPPED[1])[1]))
    changed = edited(
        program, lambda step: (dataclasses.replace(step, follows=False),) if isinstance(step, r.WalkRow) else (step,)
    )
    with pytest.raises(Fault, match="reads a stage that was released"):
        RowCluster(changed, tiles=5, seed=0).run()


def test_refusals_of_overlapped_rows() -> None:
    x = tensor(64, 4096)
    with pytest.raises(Refusal, match="only maps of rows in shared memory"):
        _with_refusal(rms_norm, x, x[0], x, ahead=False, keep="registers", overlap=True)
    with pytest.raises(Refusal, match="a pass over elements before the last one stores some"):
        _with_refusal(added, x, x, x[0], x, x, ahead=False, overlap=True)
    reason = (
        "one exchange and up to 3 passes, of which the last one follows it; such rows are not reduced ahead as well"
    )
    with pytest.raises(Refusal, match=reason):
        _with_refusal(rms_norm, x, x[0], x, ahead=True, overlap=True)
    with pytest.raises(Refusal, match=reason):
        _with_refusal(scaled, x, x, ahead=False, overlap=True)


def test_rows_of_a_tile_do_not_overlap() -> None:
    """Warps of several rows would count in at one barrier of messages, which counts those of one."""
    x = tensor(64, 1024)
    given = RowChoice(cluster=1, warps=1, rows=4, ctas_per_sm=3, keep="shared", overlap=True)
    with pytest.raises(Refusal, match="maps of rows overlap with reductions of later ones, 4 rows at a time: one is"):
        prepared(rms_norm, (x, x[0], x), given)
