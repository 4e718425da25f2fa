"""Registers and instructions of row kernels: column numbers per pass, and short sequences per value."""

from __future__ import annotations

import pytest
import torch
from backends.cute.test_row_kernels import close, numbers, prepared, run

import helion.language as hl
from helion.backends.cute.codegen.rowwise.module import render
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.shorts import short_quotients, short_values
from helion.backends.cute.roles.rowwise.program import row_program

CHOICES = (
    RowChoice(cluster=1, warps=1, rows=4),
    RowChoice(cluster=2, warps=8, keep="shared"),
    RowChoice(cluster=2, warps=8),
)


def smoothed(x, labels, loss, gradient):
    n = x.size(1)
    for tile in hl.tile(x.size(0)):
        row, label = x[tile, :].to(torch.float32), labels[tile]
        total = torch.logsumexp(row, -1)
        hit = torch.arange(n, device=x.device)[None, :] == label[:, None]
        loss[tile] = total - torch.where(hit, row, 0.0).sum(-1)
        gradient[tile, :] = (torch.exp(row - total[:, None]) - torch.where(hit, 0.9, 0.0)).to(x.dtype)


def smoothed_in_bfloat16(x, labels, loss, gradient):
    n = x.size(1)
    for tile in hl.tile(x.size(0)):
        row, label = x[tile, :].to(torch.float32), labels[tile]
        total = torch.logsumexp(row, -1)
        hit = torch.arange(n, device=x.device)[None, :] == label[:, None]
        loss[tile] = total - torch.where(hit, row, 0.0).sum(-1)
        gradient[tile, :] = (torch.exp(row - total[:, None]) - torch.where(hit, 0.9, 0.0)).to(torch.bfloat16)


def powers(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = torch.exp(row - row.mean(-1)[:, None]).to(out.dtype)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_loss_and_gradient_of_labels(choice: RowChoice) -> None:
    m, n = 5, 1003
    x, labels = numbers(m, n), torch.tensor([0, 1002, 7, -100, 512])
    loss, gradient = torch.empty(m), numbers(m, n)
    run(smoothed, (x, labels, loss, gradient), choice)
    wide = x.double()
    hit = torch.arange(n)[None, :] == labels[:, None]
    total = wide.logsumexp(-1)
    assert close(loss, total - torch.where(hit, wide, 0.0).sum(-1))
    assert close(gradient, torch.exp(wide - total[:, None]) - torch.where(hit, 0.9, 0.0))


def test_each_pass_numbers_columns_of_its_own() -> None:
    """Otherwise the comparisons with labels of one pass occupy registers until the next: 1728 bytes were spilled."""
    m, n = 5, 4096
    given = numbers(m, n), torch.zeros(m, dtype=torch.int64), torch.empty(m), numbers(m, n)
    text = render(row_program(prepared(smoothed, given, RowChoice(cluster=2, warps=8))[1]))
    assert text.count("row.thread = renewed(row.thread, cta.lane)") == 1
    assert "cutlass.Float32(first_column" not in text
    assert "renewed" not in render(row_program(prepared(powers, given[::3], RowChoice(cluster=2, warps=8))[1]))


@pytest.mark.parametrize(("dtype", "short"), [(torch.bfloat16, True), (torch.float32, False)])
def test_short_sequences_for_what_is_stored_in_16_bits(dtype: torch.dtype, short: bool) -> None:
    x, out = numbers(5, 1003), numbers(5, 1003, dtype=dtype)
    _, plan = prepared(powers, (x, out), RowChoice(warps=4))
    exps = [
        value
        for value in range(2, plan.problem.epilogue.last + 1)
        if plan.problem.epilogue.instruction(value).op == "exp"
    ]
    assert bool(short_values(plan.problem) & {*exps}) == short
    assert ("fastmath=True)" in render(row_program(plan))) == short
    run(powers, (x, out), RowChoice(warps=4))
    wide = x.double()
    assert close(out, torch.exp(wide - wide.mean(-1, keepdim=True)))


def test_losses_in_32_bits_keep_exact_values_where_gradients_do_not() -> None:
    """Sums of 16-bit elements are short as well; those of fp32 elements are exact."""
    for dtype, short in ((torch.bfloat16, 2), (torch.float32, 1)):
        x, gradient = numbers(5, 1003, dtype=dtype), numbers(5, 1003)
        given = x, torch.zeros(5, dtype=torch.int64), torch.empty(5), gradient
        problem = prepared(smoothed_in_bfloat16, given, RowChoice(warps=4))[1].problem
        ops = {value: problem.epilogue.instruction(value).op for value in range(4, problem.epilogue.last + 1)}
        exps = {value for value, op in ops.items() if op == "exp"}
        assert len(exps) == 2 and len(short_values(problem) & exps) == short


def logarithms_of_sums(x, y, loss):
    for tile in hl.tile(x.size(0)):
        given, other = x[tile, :].to(torch.float32), y[tile, :].to(torch.float32)
        top = torch.maximum(given, other)
        loss[tile] = (top + torch.log1p(torch.exp(-torch.abs(given - other)))).sum(-1)


def test_short_logarithms_of_one_plus_an_exponential() -> None:
    x, y, loss = numbers(5, 1003), numbers(5, 1003, seed=1), torch.empty(5)
    run(logarithms_of_sums, (x, y, loss), RowChoice(warps=4))
    assert "short_log1p" in render(row_program(prepared(logarithms_of_sums, (x, y, loss), RowChoice(warps=4))[1]))
    assert close(loss, torch.logaddexp(x.double(), y.double()).sum(-1))


def divided_by_a_temperature(x, y, out, temperature):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) / temperature[tile][:, None]
        out[tile, :] = torch.softmax(row, -1).to(out.dtype)
        y[tile, :] = row


def test_quotients_of_exponentials_are_short_unless_they_are_stored() -> None:
    """A stored quotient in fp32 keeps the rounding of a division; ptxas does not keep that of an earlier pass."""
    x, out, y, t = numbers(5, 1003), numbers(5, 1003), torch.empty(5, 1003), torch.rand(5) + 0.5
    only = prepared(softmax_of_quotients, (x, out, t), RowChoice(warps=4))[1]
    both = prepared(divided_by_a_temperature, (x, y, out, t), RowChoice(warps=4))[1]
    assert len(short_quotients(only.problem)) == 2 and len(short_quotients(both.problem)) == 1
    assert "_inverse = (renewed(row." in render(row_program(both))
    run(softmax_of_quotients, (x, out, t), RowChoice(warps=4))
    assert close(out, torch.softmax(x.double() / t.double()[:, None], -1))


def softmax_of_quotients(x, out, temperature):
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].to(torch.float32) / temperature[tile][:, None], -1).to(out.dtype)
