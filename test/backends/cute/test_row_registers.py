"""Registers and instructions of row kernels: column numbers per pass, and short sequences per value."""

from __future__ import annotations

import pytest
import torch
from backends.cute.test_row_kernels import close, numbers, prepared, run

import helion.language as hl
from helion.backends.cute.codegen.rowwise.module import render
from helion.backends.cute.plan.rowwise.records import RowChoice
from helion.backends.cute.plan.rowwise.shorts import short_values
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
    given = numbers(5, 1003), torch.zeros(5, dtype=torch.int64), torch.empty(5), numbers(5, 1003)
    problem = prepared(smoothed, given, RowChoice(warps=4))[1].problem
    exps = [value for value in range(4, problem.epilogue.last + 1) if problem.epilogue.instruction(value).op == "exp"]
    assert len(exps) == 2 and len(short_values(problem) & {*exps}) == 1
