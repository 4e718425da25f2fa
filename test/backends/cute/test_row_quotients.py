"""Quotients of rows by other elements: their code, and values on simulated threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute.row_device import run_rows
from backends.cute.test_row_kernels import H100
from harness import program_of, tensor

import helion.language as hl
from helion.backends.cute.codegen.elements.quotients import near_quotients
from helion.backends.cute.codegen.rowwise.module import render
from helion.backends.cute.lower.rowwise.rows import rows_of
from helion.backends.cute.plan.rowwise.choices import ranked
from helion.backends.cute.plan.rowwise.passes import demand_of
from helion.backends.cute.plan.rowwise.records import RowPlan
from helion.backends.cute.roles.rowwise.program import row_program


def drawn(x, over, out):
    """Draw by exponential noise."""
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.argmax(torch.softmax(x[tile, :].to(torch.float32), -1) / over[tile, :], -1)


def largest(x, over, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.amax(torch.where(over[tile, :] > 0.0, x[tile, :].to(torch.float32) / over[tile, :], -1.0), -1)


def summed(x, over, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = (x[tile, :].to(torch.float32) / over[tile, :] + 1.0).sum(-1)


def above(x, over, out):
    """Count quotients, which may differ by a whole one."""
    for tile in hl.tile(x.size(0)):
        quotients = x[tile, :].to(torch.float32) / over[tile, :]
        out[tile] = torch.where(quotients >= 1.0, 1.0, 0.0).sum(-1)


def whole(x, over, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.floor(x[tile, :].to(torch.float32) / over[tile, :]).sum(-1)


def stored(x, over, out):
    for tile in hl.tile(x.size(0)):
        quotients = x[tile, :].to(torch.float32) / over[tile, :]
        out[tile, :] = quotients - quotients.amax(-1)[:, None]


KERNELS: dict[Any, tuple[torch.dtype, bool]] = {
    drawn: (torch.int64, True),
    largest: (torch.float32, True),
    summed: (torch.float32, True),
    above: (torch.float32, False),
    whole: (torch.float32, False),
    stored: (torch.float32, False),
}


def wanted(fn: Any, x: torch.Tensor, over: torch.Tensor) -> torch.Tensor:
    quotients = x.double() / over.double()
    return {
        drawn: lambda: (torch.softmax(x.double(), -1) / over.double()).argmax(-1),
        largest: lambda: torch.where(over > 0.0, quotients, -1.0).amax(-1),
        summed: lambda: (quotients + 1.0).sum(-1),
        above: lambda: (quotients >= 1.0).double().sum(-1),
        whole: lambda: quotients.floor().sum(-1),
        stored: lambda: quotients - quotients.amax(-1, keepdim=True),
    }[fn]()


@pytest.mark.parametrize("fn", KERNELS, ids=lambda fn: fn.__name__)
def test_quotients_have_no_branches_where_no_output_shows_them(fn: Any) -> None:
    """An exact division branches for each element (measurement ``long_quotients``); steps and outputs have it."""
    dtype, near = KERNELS[fn]
    x, over = torch.randn(5, 1000).to(torch.bfloat16), torch.rand(5, 1000) + 2**-7
    over[0, :7] = torch.tensor([2.0**-100, 2.0**127, 1e-30, 1e30, 3.0, 0.5, 2.0**126])
    x = x.abs() if fn is largest else x
    out = torch.zeros([5, 1000] if fn is stored else [5], dtype=dtype)
    program = program_of(fn, *(tensor(*each.shape, dtype=each.dtype) for each in (x, over, out)))
    kernel, given = rows_of(program), {"x": x, "over": over, "out": out}
    layout = ranked(demand_of(kernel.problem), 5, H100)[0]
    limits = {"registers_per_sm": H100.registers_per_sm, "shared_limit_bytes": H100.smem_per_block_bytes}
    plan = RowPlan(problem=kernel.problem, layout=layout, unit="wgmma", **limits)
    assert bool(near_quotients(kernel.problem)) == near == ("div.full" in render(row_program(plan)))
    run_rows(plan, [out], [given[program.tensors[at].name] for at in kernel.operands], 5, clusters=2)
    if fn is drawn:
        assert torch.equal(out, wanted(fn, x, over))
    else:
        rows = (
            slice(None) if fn in (largest, above) else slice(1, None)
        )  # a sum of fp32 has no small quotients next to large ones
        torch.testing.assert_close(out[rows].double(), wanted(fn, x, over)[rows], rtol=1e-5, atol=1e-5)
