"""Long rows with several sums: their warps take registers of the warps that load."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from backends.cute import test_row_kernels
from backends.cute.test_row_kernels import H100, numbers, prepared
from backends.cute.test_row_sums import SPAN, layer_gradients
from harness import tensor

import helion
from examples.layer_norm_backward import layer_norm_backward
from helion.backends.cute.codegen.rowwise.module import render
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.rowwise import layout
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.demand import RowDemand
from helion.backends.cute.plan.rowwise.layout import layout_of
from helion.backends.cute.plan.rowwise.passes import demand_of
from helion.backends.cute.plan.rowwise.records import RowLayout, RowPlan
from helion.backends.cute.roles.rowwise.program import row_program
from helion.hardware import Target

WARPS, ROWS = 8, 256
"""Warps of a CTA's part of a row, and their threads."""


def _layer_gradients(n: int, choice: RowChoice) -> RowPlan:
    given = [tensor(8, n) for _ in range(4)]
    parts = [tensor(2, n, dtype=torch.float32) for _ in range(2)]
    x, grad, out, _ = given
    return prepared(layer_gradients, (x, tensor(n), grad, out, *parts), choice, SPAN)[1]


def test_a_layer_gradient_of_262144_columns_has_a_layout() -> None:
    """128 sums of a thread fit 240 registers, but not the 168 that all warps have at the launch."""
    plan = _layer_gradients(262144, RowChoice(cluster=16, warps=WARPS, ctas_per_sm=1, keep="shared"))
    found = plan.layout
    assert (found.moved, found.register_limit, found.first_thread, found.cta_threads) == (True, 240, 128, 128 + ROWS)
    assert found.register_limit * ROWS + layout.LOAD_REGISTERS * 128 <= H100.registers_per_sm
    text = render(row_program(plan))
    assert "if warp < 4:\n        cute.arch.setmaxregister_decrease(24)" in text
    assert "if warp >= 4:\n        cute.arch.setmaxregister_increase(240)" in text


def test_others_keep_the_registers_of_the_launch() -> None:
    plan = _layer_gradients(131072, RowChoice(cluster=16, warps=WARPS, ctas_per_sm=1, keep="shared"))
    assert not plan.layout.moved and "setmaxregister" not in render(row_program(plan))
    with pytest.raises(Refusal, match="a thread would hold 221 registers of a row, of|stages of"):
        _layer_gradients(262144, RowChoice(cluster=16, warps=WARPS, ctas_per_sm=2, keep="shared"))


@pytest.mark.parametrize("cluster", [1, 2])
def test_values_of_rows_after_a_warpgroup_that_loads(cluster: int, monkeypatch: pytest.MonkeyPatch) -> None:
    m, n = 6, 1000
    x, grad, w = numbers(m, n), numbers(m, n, seed=1), numbers(n, seed=2)
    out, weights, biases = torch.empty_like(x), torch.empty(2, n), torch.empty(2, n)
    monkeypatch.setattr(test_row_kernels, "layout_of", _moved)
    choice = RowChoice(cluster=cluster, warps=WARPS, ctas_per_sm=1, keep="shared")
    test_row_kernels.run(layer_gradients, (x, w, grad, out, weights, biases), choice, SPAN)
    hat = torch.nn.functional.layer_norm(x.double(), (n,), eps=1e-5)
    want = [(grad.double() * hat)[at : at + SPAN].sum(0) for at in (0, SPAN)]
    assert (weights - torch.stack(want)).abs().max() < 1e-4
    assert (biases - torch.stack([grad.double()[at : at + SPAN].sum(0) for at in (0, SPAN)])).abs().max() < 1e-4


def _moved(demand: RowDemand, choice: RowChoice, gpu: Target) -> RowLayout:
    return dataclasses.replace(layout_of(demand, choice, gpu), moved=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_auto_takes_such_rows(dtype: torch.dtype) -> None:
    """They are not reduced ahead: that takes longer on an H200."""
    x = tensor(1024, 262144, dtype=dtype)
    options = {"ignore_warnings": layer_norm_backward.settings.ignore_warnings}
    arguments = (x, x, x[0], x[0])
    assert (
        helion.kernel(layer_norm_backward.fn, backend="auto", **options).bind(arguments, target="h200").backend
        == "cute"
    )
    bound = helion.kernel(layer_norm_backward.fn, backend="cute", **options).bind(arguments, target="h200")
    found = bound.plan(bound.default_config()).rows
    assert found.layout.moved and not found.layout.choice.rows_ahead
    assert demand_of(found.problem).sums == 2
