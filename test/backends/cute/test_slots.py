"""Groups of rows in slots: as many rows of each group as a count on the device."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch
from backends.cute import cubins, products
from backends.cute.grouped_kernels import CHOICES, plan_of, problem
from backends.cute.test_groups import on_request, stored_rows

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.plan.records import Groups
from helion.backends.cute.resources.shape import shape_of

GROUPS, SPAN, K, N = 4, 70, 72, 136


@helion.kernel(backend="cute")
def by_counts(x: torch.Tensor, w: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    groups, span, k = x.size()
    n = w.size(2)
    out = torch.zeros([groups, span, n], dtype=x.dtype, device=x.device)
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(counts[g.id]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[g.id, tile_m, tile_k], w[g.id, tile_k, tile_n], acc=acc)
            out[g.id, tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def gated_by_counts(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, counts: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    groups, span, k = x.size()
    n = gate.size(1)
    out = torch.zeros([groups, span, n], dtype=x.dtype, device=x.device)
    for g in hl.grid(groups):
        for tile_m, tile_n in hl.tile([counts[g], n]):
            left = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            right = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                rows = x[g, tile_m, tile_k]
                left = hl.dot(rows, gate[g, tile_n, tile_k].T, acc=left)
                right = hl.dot(rows, up[g, tile_n, tile_k].T, acc=right)
            out[g, tile_m, tile_n] = (torch.nn.functional.silu(left) * right + residual[g, tile_m, tile_n]).to(x.dtype)
    return out


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return products.values(*shape, dtype=torch.bfloat16, device="cpu", seed=seed)


def masked(value: torch.Tensor, counts: list[int]) -> torch.Tensor:
    inside = torch.arange(SPAN)[None] < torch.tensor(counts)[:, None]
    return torch.where(inside[..., None], value, 0.0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("counts", [[0, 70, 1, 33], [0, 0, 0, 0], [99, 64, -3, 70]])
def test_rows_of_each_group(counts: list[int], dtype: torch.dtype) -> None:
    x, w = tensor(GROUPS, SPAN, K), tensor(GROUPS, K, N, seed=1)
    found = by_counts(x, w, torch.tensor(counts, dtype=dtype))
    wanted = masked(x.double() @ w.double(), counts)
    assert (found.double() - wanted).norm() <= 5e-3 * wanted.norm()
    bound = by_counts.bind((x, w, torch.tensor(counts, dtype=dtype)), target="sm_90")
    groups, shape = bound.plan().gemm.problem.groups, shape_of(bound.facts)
    assert groups == Groups(name=groups.name, size=GROUPS, dtype=str(dtype).split(".")[1], span=SPAN)
    assert not isinstance(shape, str) and shape.problem.m == bound.plan().gemm.problem.m == GROUPS * SPAN
    assert not on_request(bound)


def test_two_products_and_a_matrix_of_the_epilogue() -> None:
    counts, x = [5, 70, 0, 33], tensor(GROUPS, SPAN, K)
    gate, up, residual = tensor(GROUPS, N, K, seed=1), tensor(GROUPS, N, K, seed=2), tensor(GROUPS, SPAN, N, seed=3)
    found = gated_by_counts(x, gate * K**-0.5, up, torch.tensor(counts), residual)
    sums = [x.double() @ each.double().mT for each in (gate * K**-0.5, up)]
    wanted = masked(torch.nn.functional.silu(sums[0]) * sums[1] + residual.double(), counts)
    assert (found.double() - wanted).norm() <= 5e-3 * wanted.norm()


@pytest.mark.parametrize("choice", CHOICES)
def test_every_row_that_is_counted_is_stored_once(choice: str) -> None:
    counts = [0, 1, 300, 129, 500]
    plan = plan_of(
        choice, dataclasses.replace(problem(rows=1500), groups=Groups(name="offsets", size=5, dtype="int64", span=300))
    )
    found = sum((stored_rows(plan, counts, at, 3) for at in range(3)), Counter())
    tiles = plan.work[1] * plan.cluster_tiles[1]
    wanted = [(g, 300 * g + row) for g, count in enumerate(counts) for row in range(min(count, 300))]
    assert found == Counter((g, row, column) for g, row in wanted for column in range(tiles))


@pytest.mark.prove
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_kernels_compile_without_spills(target: str) -> None:
    given = [torch.empty(*shape, dtype=torch.bfloat16, device="meta") for shape in ((8, 512, 1024), (8, 1024, 2048))]
    bound = by_counts.bind((*given, torch.empty(8, dtype=torch.int32, device="meta")), target=target)
    found = cubins.measure(bound.plan().gemm)
    assert found["stack_bytes"] == 0 and not found["misplaced_barriers"]


def test_other_slots_are_refused() -> None:
    x, w, counts = tensor(GROUPS, 2 * SPAN, K)[:, :SPAN], tensor(GROUPS, K, N, seed=1), torch.tensor([1, 2, 3, 4])
    with pytest.raises(
        exc.CuteUnsupported, match="x has 4 groups of 70 rows, which are implemented one after the other"
    ):
        by_counts.bind((x, w, counts), target="sm_90")
    dynamic = helion.kernel(by_counts.fn, backend="cute", static_shapes=False)
    with pytest.raises(exc.CuteUnsupported, match="known when the kernel is compiled"):
        dynamic.bind((tensor(GROUPS, SPAN, K), w, counts), target="sm_90")
