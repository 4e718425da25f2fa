"""Passes over a row in shared memory as loops over its chunks: the bits of straight code, on simulated threads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from backends.cute.test_row_kernels import close, numbers, prepared, run

import helion.language as hl
from helion.backends.cute.codegen.rowwise.module import render
from helion.backends.cute.plan.rowwise import loops
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.roles.rowwise.program import row_program

LONG = RowChoice(cluster=2, warps=1, ctas_per_sm=1, keep="shared")


def divergence(x, y, loss):
    for tile in hl.tile(x.size(0)):
        one = torch.log_softmax(x[tile, :].to(torch.float32) / 2.0, dim=-1)
        other = torch.log_softmax(y[tile, :].to(torch.float32) / 2.0, dim=-1)
        mixed = torch.logaddexp(one + math.log(0.5), other + math.log(0.5))
        parts = torch.exp(one) * (one - mixed) + torch.exp(other) * (other - mixed)
        loss[tile] = parts.sum(-1) * 0.5


def gated_norm(x, y, out):
    for tile in hl.tile(x.size(0)):
        row = torch.sigmoid(x[tile, :].to(torch.float32)) * torch.tanh(y[tile, :].to(torch.float32))
        size = torch.amax(torch.abs(row), -1)
        scaled = row / (size[:, None] + 1e-3)
        total = torch.log1p(torch.exp(-torch.abs(scaled))).sum(-1)
        out[tile, :] = (scaled * total[:, None] * torch.sigmoid(scaled)).to(out.dtype)


def lone_sum(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile] = (row - row.sum(-1)[:, None] * 0.1).abs().sum(-1)


def expected(fn: Callable[..., None], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = x.double(), y.double()
    if fn is divergence:
        one, other = torch.log_softmax(x / 2, -1), torch.log_softmax(y / 2, -1)
        mixed = torch.logaddexp(one, other) - math.log(2)
        return 0.5 * (one.exp() * (one - mixed) + other.exp() * (other - mixed)).sum(-1)
    row = torch.sigmoid(x) * torch.tanh(y)
    scaled = row / (row.abs().amax(-1, keepdim=True) + 1e-3)
    return scaled * torch.log1p(torch.exp(-scaled.abs())).sum(-1, keepdim=True) * torch.sigmoid(scaled)


@pytest.mark.parametrize("granules", [1024, 1023, 1000, 962])
@pytest.mark.parametrize(
    ("fn", "dtype"), [(divergence, torch.bfloat16), (divergence, torch.float32), (gated_norm, torch.bfloat16)]
)
def test_loops_give_the_bits_of_straight_code(
    fn: Callable[..., None], dtype: torch.dtype, granules: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = granules * 16 // dtype.itemsize
    x, y = numbers(3, n, dtype=dtype), numbers(3, n, dtype=dtype, seed=1)
    found = []
    for least in (1, 1 << 40):
        monkeypatch.setattr(loops, "LEAST_OPERATIONS", least)
        loops.walks_in_loops.cache_clear()
        out = torch.full([3], 7.0) if fn is divergence else torch.full_like(x, 7.0)
        _, plan = prepared(fn, (x, y, out), LONG)
        assert loops.walks_in_loops(plan) is (least == 1)
        run(fn, (x, y, out), LONG)
        found.append(out)
    loops.walks_in_loops.cache_clear()
    assert torch.equal(*found)
    assert close(found[0], expected(fn, x, y))


def test_only_long_passes_are_loops() -> None:
    x, y = numbers(3, 8192), numbers(3, 8192, seed=1)
    _, plan = prepared(divergence, (x, y, torch.empty(3)), LONG)
    assert loops.walks_in_loops(plan) and "for chunk in cutlass.range(0, " in render(row_program(plan))
    for changed in (RowChoice(cluster=2, warps=4, keep="shared"), dataclasses.replace(LONG, keep="registers")):
        _, plan = prepared(divergence, (x, y, torch.empty(3)), changed)
        assert not loops.walks_in_loops(plan), "few chunks, or a row in registers"
    few = numbers(3, 7200)
    _, plan = prepared(divergence, (few, few, torch.empty(3)), LONG)
    assert not loops.walks_in_loops(plan), "a last chunk with fewer granules"
    _, plan = prepared(lone_sum, (x, torch.empty(3)), LONG)
    assert not loops.walks_in_loops(plan), "few operations"


def scaled_sum(x, w, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = (x[tile, :].to(torch.float32) * w[:].to(torch.float32)).sum(-1)


@pytest.mark.parametrize("cluster", [1, 2])
def test_loops_over_one_pass_read_no_vector_past_shared_memory(cluster: int) -> None:
    """The last chunk has more granules than the row: their part of the vector is after its end."""
    x, w, out = numbers(3, 287 * 8), numbers(287 * 8, seed=2), torch.full([3], 7.0)
    choice = RowChoice(cluster=cluster, warps=1, ctas_per_sm=3 - cluster)
    _, plan = prepared(scaled_sum, (x, w, out), choice)
    assert plan.layout.rolled and plan.layout.thread_granules < plan.layout.chunks * plan.layout.chunk_granules
    run(scaled_sum, (x, w, out), choice)
    assert close(out, (x.double() * w.double()).sum(-1))
