"""Logarithms of 16-bit elements: every number of a type, the kernels that keep the exact one, and a divergence."""

from __future__ import annotations

import pytest
import torch
from backends.cute.test_row_kernels import prepared, run

import helion.language as hl
from helion.backends.cute.codegen.rowwise.module import render
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.logs import short_logs, summed_logs
from helion.backends.cute.roles.rowwise import program as r


def logarithms(x, out, total):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = torch.log(row)
        total[tile] = row.sum(-1)


def divergence(target, x, total):
    for tile in hl.tile(x.size(0)):
        wanted, given = target[tile, :].to(torch.float32), x[tile, :].to(torch.float32)
        total[tile] = torch.where(wanted > 0, wanted * (torch.log(wanted + 1e-9) - given), 0.0).sum(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_logarithm_of_every_number_of_16_bits(dtype: torch.dtype) -> None:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).view(2, 2**15)
    out, total = torch.full(x.shape, 7.0), torch.full((2,), 7.0)
    run(logarithms, (x, out, total), RowChoice(cluster=2, warps=8))
    want = torch.log(x.double())
    finite = want.isfinite()
    assert torch.equal(out[~finite].double().nan_to_num(5.0), want[~finite].nan_to_num(5.0))
    assert ((out.double() - want).abs() <= 2e-6 * want.abs())[finite].all()
    assert (out == 0).sum() == 1


@pytest.mark.parametrize(("other", "short"), [(torch.bfloat16, 1), (torch.float16, 1), (torch.float32, 0)])
def test_the_exact_logarithm_where_a_row_has_32_bits(other: torch.dtype, short: int) -> None:
    """The argument is one of the target alone, so that the type of the other row has no part in it."""
    for first, wanted in ((torch.bfloat16, 1), (other, short)):
        target, x = torch.empty(4, 1003, dtype=first), torch.empty(4, 1003, dtype=torch.bfloat16)
        if first.itemsize == 4:
            x = x.float()
        kernel, plan = prepared(divergence, (target, x, torch.empty(4)), RowChoice(warps=4))
        assert len(short_logs(kernel.problem)) == len(summed_logs(kernel.problem)) == wanted
        text = render(r.row_program(plan))
        assert ("lg2.approx" in text) == bool(wanted) and "log_near_one" not in text


def entropy(x, out, total):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        total[tile] = (row * torch.log1p(row)).sum(-1)
        out[tile, :] = (torch.log(row) * total[tile][:, None]).to(out.dtype)


def test_logarithms_near_one_where_an_element_or_a_small_argument_shows_them() -> None:
    x = torch.empty(4, 1003, dtype=torch.bfloat16)
    kernel, plan = prepared(entropy, (x, x.clone(), torch.empty(4)), RowChoice(warps=4))
    assert len(short_logs(kernel.problem)) == 2 and not summed_logs(kernel.problem)
    assert "summed_log" not in render(r.row_program(plan))


def test_a_divergence_of_16_bit_rows() -> None:
    generator = torch.Generator().manual_seed(3)
    target = torch.softmax(3 * torch.randn(5, 1003, generator=generator), -1).bfloat16()
    x = torch.log_softmax(torch.randn(5, 1003, generator=generator) + 2, -1).bfloat16()
    total = torch.full((5,), 7.0)
    run(divergence, (target, x, total), RowChoice(warps=4, rows=2))
    wide = target.double()
    want = torch.where(wide > 0, wide * (torch.log(wide + 1e-9) - x.double()), 0.0).sum(-1)
    assert ((total.double() - want).abs() <= 2e-6 * want.abs()).all()
