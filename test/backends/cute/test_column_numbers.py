"""Epilogues that compute with the numbers of rows and columns: labels, lengths, triangles."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends.cute import gemms, lockstep
from backends.cute.products import BOUNDS, row_error, values
from backends.cute.rows import Chain
from backends.cute.test_memory_rows import run
from backends.cute.test_rows import UNITS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import Epilogue
from helion.backends.cute.plan.records import Choice, RowFinish, TileFinish
from helion.backends.cute.toolchain.offline import compile_text
from helion.hardware import Target

PROVE = os.environ.get("HELION_PROVE") == "1"
F = torch.nn.functional
BF16, FP32 = torch.bfloat16, torch.float32


@helion.kernel(backend="cute")
def cross_entropy(
    x: torch.Tensor, y: torch.Tensor, label: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss, its gradient by the product, and how many numbers are above that of the label."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    loss = torch.empty([m], dtype=torch.float32, device=x.device)
    gradient = torch.empty([m, n], dtype=x.dtype, device=x.device)
    above = torch.empty([m], dtype=torch.int64, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        is_label = hl.arange(n)[None, :] == label[tile_m][:, None]
        picked = torch.where(is_label, acc, 0.0).sum(-1)
        loss[tile_m] = torch.logsumexp(acc, -1) - picked
        gradient[tile_m, :] = (torch.softmax(acc, -1) - is_label.to(torch.float32)).to(x.dtype)
        above[tile_m] = (acc > picked[:, None]).sum(-1)
    return loss, gradient, above


@helion.kernel(backend="cute")
def tiled_cross_entropy(x: torch.Tensor, y: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    loss = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        picked = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            raised = torch.maximum(top, acc.amax(-1))
            total = total * torch.exp(top - raised) + torch.exp(acc - raised[:, None]).sum(-1)
            top = raised
            picked += torch.where(tile_n.index[None, :] == label[tile_m][:, None], acc, 0.0).sum(-1)
        loss[tile_m] = torch.log(total) + top - picked
    return loss


@helion.kernel(backend="cute")
def within(x: torch.Tensor, y: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """A product whose rows end somewhere, with a slope along its columns."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        column = tile_n.index[None, :]
        out[tile_m, tile_n] = torch.where(column < length[tile_m][:, None], acc + 0.25 * column, 0.0).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def causal(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax of what lies up to the diagonal, and its logsumexp with the row's number added to it."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    last = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        kept = torch.where(hl.arange(n)[None, :] <= tile_m.index[:, None], acc, float("-inf"))
        out[tile_m, :] = torch.softmax(kept, -1).to(x.dtype)
        last[tile_m] = torch.logsumexp(kept, -1) + tile_m.index
    return out, last


@helion.kernel(backend="cute")
def lower_triangle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        row, column = tile_m.index[:, None].to(torch.float32), tile_n.index[None, :].to(torch.float32)
        out[tile_m, tile_n] = torch.where(column <= row, acc - 0.25 * (row - column), 0.0).to(x.dtype)
    return out


def arguments(m: int, n: int, k: int = 72, dtype: torch.dtype = torch.int64) -> tuple[torch.Tensor, ...]:
    x, y = values(m, k, dtype=FP32, device="cpu"), values(k, n, dtype=FP32, device="cpu", seed=1, mean=-0.2)
    label = torch.randint(0, n, (m,), generator=torch.Generator().manual_seed(0)).to(dtype)
    label[:2] = torch.tensor([0, n - 1])
    return x.to(BF16), (y * k**-0.5).to(BF16), label


@pytest.mark.parametrize(("m", "n", "dtype"), [(37, 1000, torch.int64), (7, 4104, torch.int32)])
def test_labels(m: int, n: int, dtype: torch.dtype) -> None:
    """In the registers of a cluster, and in memory; tiles leave their parts of all that is one number per row."""
    x, y, label = arguments(m, n, dtype=dtype)
    sums = x.double() @ y.double()
    wanted = F.cross_entropy(sums, label.long(), reduction="none")
    loss, gradient, above = cross_entropy(x, y, label)
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-5)
    assert row_error(gradient, sums.softmax(1) - F.one_hot(label.long(), n)) < BOUNDS[BF16]
    assert torch.equal(above, (sums > sums.gather(1, label.long()[:, None])).sum(1))
    torch.testing.assert_close(tiled_cross_entropy(x, y, label).double(), wanted, rtol=1e-5, atol=1e-5)
    if n > 4096:
        assert isinstance(cross_entropy.bind((x, y, label)).plan().gemm.finish, RowFinish)
        assert isinstance(tiled_cross_entropy.bind((x, y, label)).plan().gemm.finish, TileFinish)


def test_lengths() -> None:
    x, y, length = arguments(130, 200)
    length[3] = 2**24 + 1  # fp32 has its neighbour, which is as far behind the last column
    column = torch.arange(200)
    wanted = torch.where(column < length[:, None], x.double() @ y.double() + 0.25 * column, 0.0)
    assert row_error(within(x, y, length), wanted) < BOUNDS[BF16]


@pytest.mark.parametrize(("m", "n"), [(130, 200), (7, 4104)])
def test_triangles(m: int, n: int) -> None:
    x, y, _ = arguments(m, n)
    row, column = torch.arange(m)[:, None], torch.arange(n)
    sums = x.double() @ y.double()
    kept = torch.where(column <= row, sums, -torch.inf)
    out, last = causal(x, y)
    assert row_error(out, kept.softmax(1)) < BOUNDS[BF16]
    torch.testing.assert_close(last.double(), kept.logsumexp(1) + row[:, 0], rtol=1e-5, atol=1e-5)
    wanted = torch.where(column <= row, sums - 0.25 * (row - column), 0.0)
    assert row_error(lower_triangle(x, y), wanted) < BOUNDS[BF16]


@pytest.mark.parametrize("static", [True, False])
def test_masks_of_what_there_is_are_none(static: bool) -> None:
    """Whether sizes are known or only those of a launch."""

    @helion.kernel(backend="cute", static_shapes=static)
    def inside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        m, k = x.size()
        n = y.size(1)
        out = torch.empty([m, n], dtype=x.dtype, device=x.device)
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            keep = (tile_m.index[:, None] < m) & ~(tile_n.index[None, :] >= n)
            out[tile_m, tile_n] = torch.where(keep, acc, 0.0).to(x.dtype)
        return out

    for m, n in ((130, 200), (70, 296)):
        x, y, _ = arguments(m, n)
        assert row_error(inside(x, y), x.double() @ y.double()) < BOUNDS[BF16]
        assert inside.bind((x, y)).plan().gemm.problem.epilogue.instructions == ()


# The text ------------------------------------------------------------------------------------------------------------------


def picking(n: int) -> Epilogue:
    """The number at the label, and of the row, the sums less the former before the label, and the distance to the diagonal
    behind it."""
    e = Chain(("label", "column", "int64", 1))
    column = e("column_number")
    picked = e("row_sum", e("where", e("eq", column, 1), 0, 0.0))
    row = e("row_number")
    y = e("where", e("lt", column, 1), e("sub", 0, picked), e("sub", column, row))
    return e.done(("d", y, "exact", "float32", n), ("picked", e("add", picked, row), "column", "float32", 1))


def triangle() -> Epilogue:
    """Without numbers per row in registers."""
    e = Chain()
    e("where", e("le", e("column_number"), e("row_number")), 0, e("neg", e("row_number")))
    return e.done()


def pick(sums: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    row, column, picked = *places(sums), sums.gather(1, label[:, None])
    return torch.where(column < label[:, None], sums - picked, (column - row).to(sums.dtype)), picked[:, 0] + row[:, 0]


def places(sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(sums.shape[0])[:, None], torch.arange(sums.shape[1])


def problem(m: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(m, n, generator=generator), torch.randint(0, n, (m,), generator=generator)


@pytest.mark.parametrize("unit", UNITS if PROVE else ("wgmma", "wgmma_tall", "tcgen05_64"))
def test_the_text_numbers_rows_and_columns(unit: str) -> None:
    tile, ctas, n = UNITS[unit]
    target = gemms.HOPPER if unit.startswith("wgmma") else gemms.BLACKWELL
    asked = gemms.product(tile[0], n, 64, epilogue=picking(n))
    plan = plan_gemm(asked, Choice(tile=tile, cluster=(1, ctas), epilogue_n=16), target)
    sums, label = problem(tile[0], n)
    cluster = lockstep.Cluster(plan, [sums], {"label": label})
    cluster.run()
    wanted, picked = pick(sums, label)
    assert torch.equal(cluster.matrix("d")[: tile[0], :n], wanted)
    assert torch.equal(cluster.columns["picked"].values, picked)


@pytest.mark.parametrize("unit", UNITS if PROVE else ("wgmma_64", "wgmma_tall", "tcgen05"))
def test_the_text_numbers_elements(unit: str) -> None:
    tile, ctas, n = UNITS[unit]
    target = gemms.HOPPER if unit.startswith("wgmma") else gemms.BLACKWELL
    plan = plan_gemm(
        gemms.product(tile[0], n, 64, output="float32", epilogue=triangle()),
        Choice(tile=tile, cluster=(1, ctas), epilogue_n=16),
        target,
    )
    assert not plan.by_rows
    sums, _ = problem(tile[0], n)
    cluster = lockstep.Cluster(plan, [sums], {})
    cluster.run()
    row, column = places(sums)
    assert torch.equal(cluster.matrix("d")[: tile[0], :n], torch.where(column <= row, sums, -row.to(sums.dtype)))


def test_a_row_in_memory_numbers_its_columns() -> None:
    plan = plan_gemm(gemms.product(5, 4104, 64, epilogue=picking(4104)), gemms.in_memory((64, 128, 64)), gemms.HOPPER)
    sums, label = problem(5, 4104)
    wanted, picked = pick(sums, label)
    found, numbers = run(plan, sums, {"label": label})
    assert torch.equal(found, wanted) and torch.equal(numbers, picked)


# What is refused -------------------------------------------------------------------------------------------------------------


@helion.kernel(backend="cute")
def chosen(x: torch.Tensor, y: torch.Tensor, label: torch.Tensor, choose: hl.constexpr) -> torch.Tensor:
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m], dtype=torch.int64, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m] = choose(acc, label[tile_m])
    return out


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda a, label: torch.where(a.amax(-1) > 0, label, 0), "integers that fp32 may not hold are compared"),
        (lambda a, label: a.argmax(-1) + label, "add of int64"),
        (lambda a, label: (a * (label == label + 1)[:, None]).argmax(-1), "add of int64"),
        (lambda a, label: (a * (label == label.abs())[:, None]).argmax(-1), "abs of int64"),
        (lambda a, label: (a * (label == 2**24)[:, None]).argmax(-1), "comparisons of two integers"),
    ],
)
def test_integers_that_fp32_does_not_hold_are_refused(choose: Callable[..., Any], message: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=message):
        chosen.bind((*arguments(37, 200), choose))


@pytest.mark.parametrize("target", [gemms.HOPPER, gemms.BLACKWELL])
def test_the_text_compiles(target: Target) -> None:
    """In a walk that reduces, in ones that store, and in the kernel that finishes rows."""
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    for n, choice in ((1000, gemms.clusters((64, 128, 64), 8)), (4104, gemms.in_memory((128, 128, 64)))):
        plan = plan_gemm(gemms.product(64, n, 64, epilogue=picking(n)), choice, target)
        assert compile_text(build(plan), plan).cubin
    plan = plan_gemm(gemms.product(1000, 1000, 64, epilogue=triangle()), Choice(tile=(64, 64, 64)), target)
    assert compile_text(build(plan), plan).cubin
