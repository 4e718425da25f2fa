"""Exponentials of 16-bit elements times a number, relative to their maximum: values on simulated threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute.row_device import run_rows
from backends.cute.test_row_kernels import H100, HALVES
from harness import program_of, tensor

import helion.language as hl
from helion.backends.cute.codegen.rowwise.module import render
from helion.backends.cute.lower.rowwise.rows import rows_of
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.layout import layout_of
from helion.backends.cute.plan.rowwise.passes import demand_of, schedule_of
from helion.backends.cute.plan.rowwise.powers import fused_powers, fused_quotients
from helion.backends.cute.plan.rowwise.records import RowPlan
from helion.backends.cute.roles.rowwise.program import row_program

CHOICE = RowChoice(cluster=2, warps=8)


def by_division(x, number, out, total):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) / number
        out[tile, :] = torch.softmax(row, -1).to(out.dtype)
        total[tile] = torch.logsumexp(row, -1)


def by_product(x, number, out, total):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * number
        out[tile, :] = torch.softmax(row, -1).to(out.dtype)
        total[tile] = torch.logsumexp(row, -1)


def by_constant(x, number, out, total):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * 0.3
        out[tile, :] = torch.softmax(row, -1).to(out.dtype)
        total[tile] = torch.logsumexp(row, -1)


def of_total(x, number, out, total):
    """Divide twice, as loops over tiles of columns do."""
    for tile in hl.tile(x.size(0)):
        lost = torch.logsumexp(x[tile, :].to(torch.float32) / number, -1)
        total[tile] = lost
        out[tile, :] = torch.exp(x[tile, :].to(torch.float32) / number - lost[:, None]).to(out.dtype)


KERNELS = {
    "quotients": (by_division, 1.7, lambda number: 1 / number),
    "by a negative number": (by_division, -1.7, lambda number: 1 / number),
    "products": (by_product, 0.3, lambda number: number),
    "a constant": (by_constant, 0.0, lambda number: float(torch.tensor(0.3))),
    "minus a total": (of_total, 1.7, lambda number: 1 / number),
}


def _rows(n: int, dtype: torch.dtype) -> torch.Tensor:
    rows = [torch.tensor(values)[torch.arange(n) % len(values)] for values in HALVES.values()]
    drawn = torch.Generator().manual_seed(0)
    means = (torch.randn(n, generator=drawn) * 3 + at for at in (40000.0, -40000.0, 300.0, 0.1))
    return torch.stack([*(rows if dtype == torch.bfloat16 else ()), *means]).to(dtype)


@pytest.mark.parametrize("case", KERNELS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scaled_elements_about_any_maximum(case: str, dtype: torch.dtype) -> None:
    """No error grows with the maximum, except where a total is rounded."""
    fn, number, factor = KERNELS[case]
    x = _rows(1001, dtype)
    number = float(torch.tensor(number))
    out, total = torch.full_like(x, 7.0), torch.full((x.size(0),), 7.0)
    _run(fn, x, number, out, total)
    wide = x.double() * factor(number)
    assert torch.allclose(total.double(), torch.logsumexp(wide, -1), rtol=3e-7, atol=2e-6, equal_nan=True)
    rows = wide.isfinite().all(-1) | (fn is not of_total)  # an infinite total leaves zeros of finite elements
    assert torch.allclose(out.double()[rows], torch.softmax(wide, -1)[rows], rtol=2**-8, atol=2**-24, equal_nan=True)


def _run(fn: Any, x: torch.Tensor, number: float, out: torch.Tensor, total: torch.Tensor) -> None:
    """Run a kernel in two clusters; the number is one of the launch, if the kernel reads it."""
    like = [tensor(*each.shape, dtype=each.dtype) for each in (x, out, total)]
    program = program_of(fn, like[0], number, *like[1:])
    kernel, limits = rows_of(program), {"shared_limit_bytes": H100.smem_per_block_bytes}
    problem, given = kernel.problem, {"x": x, "out": out, "total": total}
    layout = layout_of(demand_of(problem), CHOICE, H100)
    plan = RowPlan(problem=problem, layout=layout, unit="wgmma", registers_per_sm=H100.registers_per_sm, **limits)
    assert fused_powers(problem, schedule_of(problem)) and fused_quotients(problem, schedule_of(problem))
    assert "scaled_power_base(" in render(row_program(plan))
    operands = [given[program.tensors[at].name] if isinstance(at, int) else number for at in kernel.operands]
    run_rows(plan, [given[program.tensors[at].name] for at in kernel.outputs], operands, x.size(0), clusters=2)
