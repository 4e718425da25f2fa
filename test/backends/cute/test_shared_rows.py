"""Matmuls of a batch that share A: tiles of the same rows of all of them follow each other."""

from __future__ import annotations

import dataclasses
import re
import types

import pytest
import torch
from backends.cute import gemms

import helion
import helion.language as hl
from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.kernel import CutePlan
from helion.backends.cute.plan.records import Batch, Choice, GemmPlan

NAMES = ("band", "band_rows", "within", "tile_m", "column", "batch", "batch_column", "batch_tile", "batch_1", "tile_n")
LINE = re.compile(rf"^\s+({'|'.join(NAMES)}) = (.+)$")


def plan_of(m: int, n: int, a: int, *, group: int = 2, outer: bool = False) -> GemmPlan:
    """A batch of three matmuls of an own or of the same A, or of three times two."""
    further = Batch(size=2, a=3 * a, b=3 * 64 * n, d=3 * m * n, operands=()) if outer else None
    batch = Batch(size=3, a=a, b=64 * n, d=m * n, operands=(), outer=further)
    problem = dataclasses.replace(gemms.product(m, n, 64), batch=batch)
    return plan_gemm(problem, Choice(tile=(64, 64, 64), group=group), gemms.HOPPER)


def visited(plan: GemmPlan) -> list[tuple[int, ...]]:
    """Return the tile along M, that along N, and the matmul, of each work item in order, as the text computes them."""
    _, text = build(plan).split("while work <", 1)
    lines = [match.groups() for line in text.split("cute.copy", 1)[0].splitlines() if (match := LINE.match(line))]
    found = []
    for work in range(plan.pieces):
        names = {"cutlass": types.SimpleNamespace(min=min), "work": work, "place": (0, 0, 0, 0)}
        for name, value in lines:
            names[name] = eval(value, names)
        found.append((names["tile_m"], names["tile_n"], names["batch"], names.get("batch_1", 0)))
    return found


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("a", [0, 64 * 300])
def test_every_tile_of_every_matmul_is_visited_once(a: int, outer: bool) -> None:
    order = visited(plan_of(300, 136, a, outer=outer))
    assert len({*order}) == len(order) == 5 * 3 * 3 * (2 if outer else 1)


def test_rows_that_matmuls_share_are_visited_together() -> None:
    shared, own = (visited(plan_of(300, 136, a)) for a in (0, 64 * 300))
    assert {at[0] for at in shared[:18]} == {0, 1} and {at[2] for at in shared[:18]} == {0, 1, 2}
    assert {at[0] for at in own[:15]} == {*range(5)} and {at[2] for at in own[:15]} == {0}


@helion.kernel(backend="cute", static_shapes=True)
def turned_heads(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Both halves of each head, as two products of a batch of heads."""
    (m, k), n, half = x.size(), w.size(1), cos.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, head in hl.tile([m, n // (2 * half)], block_size=[None, 1]):
        first = head.begin * 2 * half + hl.arange(half)
        low = hl.zeros([tile_m, half], dtype=torch.float32)
        high = hl.zeros([tile_m, half], dtype=torch.float32)
        for tile_k in hl.tile(k):
            low = torch.addmm(low, x[tile_m, tile_k], w[tile_k, first])
            high = torch.addmm(high, x[tile_m, tile_k], w[tile_k, first + half])
        c, s = cos[tile_m, :], sin[tile_m, :]
        out[tile_m, first] = (low * c - high * s).to(x.dtype)
        out[tile_m, first + half] = (low * s + high * c).to(x.dtype)
    return out


def test_heads_of_one_matmul_share_rows_and_take_turns() -> None:
    arguments = tuple(
        torch.empty(s, dtype=torch.bfloat16, device="meta") for s in [(8192, 4096), (4096, 4096), (8192, 64)]
    )
    bound = turned_heads.bind((*arguments, arguments[-1]), target="h200")
    plan = bound.plan(bound.seeds[0].config)
    assert isinstance(plan, CutePlan)
    assert plan.gemm.teams == 2 and plan.gemm.group > 1 and plan.gemm.problem.batches == 32
