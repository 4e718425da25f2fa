"""Outputs whose rows end within 16 bytes: TMA would store the rest of them, which may belong to others."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.runtime import check_row_ends


@helion.kernel(backend="cute")
def written(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    (m, k), n = x.size(), y.size(1)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(out.dtype)


def numbers(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) + 0.25).to(dtype)


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("columns", "dtype", "kind"),
    [(100, BF16, "strided"), (104, BF16, "exact"), (102, torch.float32, "strided"), (100, torch.float32, "exact")],
)
def test_outputs_in_wider_rows(columns: int, dtype: torch.dtype, kind: str, target: str) -> None:
    x, y = numbers(72, 96), numbers(96, 112)[:, :columns]
    around = torch.full([72, 112], 7.0, dtype=dtype)
    bound = written.bind((x, y, around[:, :columns]), target=target)
    (output,) = bound.plan().gemm.problem.outputs
    assert output.kind == kind
    bound(x, y, around[:, :columns])
    assert products.row_error(around[:, :columns], x.double() @ y.double()) < BOUNDS[BF16]
    assert (around[:, columns:] == 7).all()


def test_what_tma_would_store_is_refused() -> None:
    x, y, around = numbers(72, 96), numbers(96, 104), torch.zeros([72, 112], dtype=BF16)
    problem = written.bind((x, y, around[:, :104]), target="sm_90").plan().gemm.problem
    (output,) = problem.outputs
    check_row_ends(problem, output)
    with pytest.raises(Refusal, match="out has rows of 102 elements, 204 bytes; TMA stores a multiple of 16"):
        check_row_ends(dataclasses.replace(problem, n=102), output)


def test_widths_are_looked_at_when_a_call_comes() -> None:
    kernel = helion.kernel(written.fn, backend="cute", static_shapes=False)
    x, y, around = numbers(72, 96), numbers(96, 112), torch.zeros([72, 112], dtype=BF16)
    bound = kernel.bind((x, y[:, :104], around[:, :104]), target="sm_90")
    bound(x, y[:, :88], around[:, :88])
    assert products.row_error(around[:, :88], x.double() @ y[:, :88].double()) < BOUNDS[BF16]
    with pytest.raises(exc.Base, match="out has rows of 102 elements, 204 bytes"):
        bound(x, y[:, :102], around[:, :102])
