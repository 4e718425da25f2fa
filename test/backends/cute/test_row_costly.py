"""Polynomials of a row: computed once for all passes, and layouts whose code stays in the cache of instructions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from backends.cute.test_row_buckets import bound
from backends.cute.test_row_kernels import close, numbers, prepared, run

import helion
import helion.language as hl
from helion.backends.cute.plan.rowwise import passes
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.layout import layout_of
from helion.backends.cute.plan.rowwise.passes import demand_of, schedule_of
from helion.backends.cute.plan.rowwise.time import code_bytes, predicted_us
from helion.hardware import target as target_of

CHOICES = (RowChoice(cluster=2, warps=2), RowChoice(cluster=1, warps=1, rows=4), RowChoice(cluster=1, warps=4))
H200 = target_of("h200")
CAP = 3.0


def capped(x, loss, grad):
    for tile in hl.tile(x.size(0)):
        part = torch.tanh(x[tile, :].to(torch.float32) / CAP)
        total = torch.logsumexp(CAP * part, -1)
        loss[tile] = total
        grad[tile, :] = (torch.exp(CAP * part - total[:, None]) * (1.0 - part * part)).to(grad.dtype)


def normed_curve(x, out):
    for tile in hl.tile(x.size(0)):
        row = torch.tanh(x[tile, :].to(torch.float32))
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1) + 1e-5)[:, None]).to(out.dtype)


def curve_of_norm(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = torch.tanh(row * torch.rsqrt((row * row).mean(-1) + 1e-5)[:, None]).to(out.dtype)


def softmax_of_squares(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = torch.softmax(row * row, -1).to(out.dtype)


def given(fn, m, n, dtype=torch.bfloat16):
    x, out = numbers(m, n, dtype=dtype), torch.empty(m, n, dtype=dtype)
    return (x, torch.empty(m), out) if fn is capped else (x, out)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize(("n", "dtype"), [(1000, torch.bfloat16), (63, torch.bfloat16), (515, torch.float32)])
def test_capped_logits(choice: RowChoice, n: int, dtype: torch.dtype) -> None:
    arguments = given(capped, 5, n, dtype)
    run(capped, arguments, choice)
    x, loss, grad = arguments
    part = torch.tanh(x.double() / CAP)
    total = torch.logsumexp(CAP * part, -1)
    assert close(loss, total)
    assert close(grad, torch.exp(CAP * part - total[:, None]) * (1.0 - part * part))


@pytest.mark.parametrize("fn", [normed_curve, curve_of_norm, softmax_of_squares])
def test_only_a_polynomial_before_a_reduction_is_kept(fn) -> None:
    arguments = given(fn, 4, 1000)
    schedule = schedule_of(prepared(fn, arguments, CHOICES[2])[0].problem)
    assert bool(schedule.kept) == (fn is normed_curve)
    run(fn, arguments, CHOICES[2])
    x, out = arguments[0].double(), arguments[1]
    rms = lambda row: row * torch.rsqrt(row.square().mean(-1, keepdim=True) + 1e-5)  # noqa: E731
    want = {
        normed_curve: rms(torch.tanh(x)),
        curve_of_norm: torch.tanh(rms(x)),
        softmax_of_squares: torch.softmax(x * x, -1),
    }[fn]
    assert close(out, want)


def test_rows_too_long_for_registers_keep_no_polynomial(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = prepared(capped, given(capped, 4, 1000), CHOICES[2])[0].problem
    assert demand_of(problem).keeps_computed
    assert demand_of(problem).held_bytes == 4
    longer = replace(problem, n=passes.MOST_KEPT_COLUMNS + 8)
    assert not passes._keeps_costly(longer)


def test_default_of_long_rows_has_short_code() -> None:
    """The default took 1330 us on an H200 and 4 CTAs of 16 warps 393 (benchmarks/unfitted, capped_logits_gradient)."""

    @helion.kernel(backend="cute")
    def kernel(x: torch.Tensor, cap: float) -> tuple[torch.Tensor, torch.Tensor]:
        loss, grad = torch.empty(x.size(0), dtype=torch.float32, device=x.device), torch.empty_like(x)
        for row in hl.grid(x.size(0)):
            part = torch.tanh(x[row, :].to(torch.float32) / cap)
            total = torch.logsumexp(cap * part, 0)
            loss[row] = total
            grad[row, :] = (torch.exp(cap * part - total) * (1.0 - part * part)).to(x.dtype)
        return loss, grad

    compiled = kernel.bind((torch.empty(2048, 65536, dtype=torch.bfloat16, device="meta"), 30.0), target="h200")
    layout = compiled.plan(compiled.default_config()).rows.layout
    assert code_bytes(layout) <= 2**17
    assert layout.demand.keeps_computed
    assert layout.choice.cluster >= 4


def test_code_beyond_the_cache_of_instructions_takes_longer() -> None:
    problem = prepared(softmax_of_squares, given(softmax_of_squares, 4, 65536), RowChoice(cluster=2, ctas_per_sm=1))[
        0
    ].problem
    demand = demand_of(problem)
    long = RowChoice(cluster=2, ctas_per_sm=1)
    times = []
    for work in (60, 64, 128):
        layout = layout_of(replace(demand, work=work), long, H200)
        times.append(predicted_us(layout, 2048, H200))
        assert (code_bytes(layout) > 2**17) == (work > 64)
    assert times[2] > 3 * times[1]
    assert times[1] < 1.1 * times[0]


@pytest.mark.parametrize(
    "choice", [RowChoice(cluster=2, warps=4, ctas_per_sm=1), RowChoice(cluster=1, warps=4)], ids=str
)
def test_capped_logits_of_any_length(choice: RowChoice) -> None:
    launch = bound(capped, given(capped, 3, 1003), choice)
    for n in (1003, 899, 1023):
        arguments = given(capped, 3, n)
        launch(*arguments)
        x, loss, grad = arguments
        part = torch.tanh(x.double() / CAP)
        total = torch.logsumexp(CAP * part, -1)
        assert close(loss, total)
        assert close(grad, torch.exp(CAP * part - total[:, None]) * (1.0 - part * part))


def test_auto_takes_norms_of_polynomials() -> None:
    """Norms of gelu take 196 us on an H200 in cute and 382 in Triton, though 337 and 220 are predicted."""

    @helion.kernel(backend="auto")
    def kernel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            row = torch.nn.functional.gelu(x[tile, :].to(torch.float32))
            scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-6)
            out[tile, :] = (row * scale * w[:].to(torch.float32)).to(x.dtype)
        return out

    for columns, backend in ((32768, "cute"), (4096, "triton")):
        x = torch.empty(4096, columns, dtype=torch.bfloat16, device="meta")
        assert kernel.bind((x, x[0]), target="h200").backend == backend
