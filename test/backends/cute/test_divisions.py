"""Outputs whose rows and columns are divided, as of outer products, which TMA stores in boxes."""

from __future__ import annotations

import pytest
import torch
from backends.cute import gemms

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import Parts
from helion.backends.cute.plan.kernel import CutePlan
from helion.backends.cute.plan.records import Choice, GemmPlan
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.toolchain.offline import compile_text


@helion.kernel(backend="cute", static_shapes=True)
def outer_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Rows and columns by their parts."""
    (k, i, c), (_, j, e) = x.size(), y.size()
    left, right = x.view(k, i * c), y.view(k, j * e)
    out = torch.empty([i, j, c, e], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([i * c, j * e]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, left[tile_k, tile_m].T, right[tile_k, tile_n])
        row, column = tile_m.index[:, None], tile_n.index[None, :]
        out[row // c, column // e, row % c, column % e] = (torch.relu(acc) / k).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def of_tiles(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Tiles of outer products, each of all of two dimensions."""
    (k, i, c), (_, j, e) = x.size(), y.size()
    out = torch.empty([i, j, c, e], dtype=x.dtype, device=x.device)
    for tile_i, tile_j in hl.tile([i, j]):
        acc = hl.zeros([tile_i.block_size * c, tile_j.block_size * e], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = x[tile_k, tile_i, :].reshape(tile_k.block_size, tile_i.block_size * c)
            right = y[tile_k, tile_j, :].reshape(tile_k.block_size, tile_j.block_size * e)
            acc = torch.addmm(acc, left.T, right)
        tiles = (acc / k).reshape(tile_i.block_size, c, tile_j.block_size, e).permute(0, 2, 1, 3)
        out[tile_i, tile_j, :, :] = torch.relu(tiles).to(x.dtype)
    return out


@helion.kernel(static_shapes=True)
def turned_tiles(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same with left operands that are turned before their dimensions are one, and columns of outer products first."""
    (k, i, c), (_, j, e) = x.size(), y.size()
    out = torch.empty([j, e, i, c], dtype=x.dtype, device=x.device)
    for tile_i, tile_j in hl.tile([i, j]):
        acc = hl.zeros([tile_i.block_size * c, tile_j.block_size * e], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = x[tile_k, tile_i, :].permute(1, 2, 0).reshape(tile_i.block_size * c, tile_k.block_size)
            right = y[tile_k, tile_j, :].reshape(tile_k.block_size, tile_j.block_size * e)
            acc = torch.addmm(acc, left, right)
        tiles = (acc / k).reshape(tile_i.block_size, c, tile_j.block_size, e).permute(2, 3, 0, 1)
        out[tile_j, :, tile_i, :] = torch.relu(tiles).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def heads(x: torch.Tensor, w: torch.Tensor, width: hl.constexpr) -> torch.Tensor:
    """Columns by their heads, which are the first dimension."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([n // width, m, width], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        row, column = tile_m.index[:, None], tile_n.index[None, :]
        out[column // width, row, column % width] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def uneven(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Columns by parts whose elements are counted by another number."""
    (m, k), n = x.size(), w.size(1)
    out = torch.zeros([n // 32, m, 64], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        row, column = tile_m.index[:, None], tile_n.index[None, :]
        out[column // 32, row, column % 64] = acc.to(x.dtype)
    return out


def made(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found.double() - wanted).norm() < 5e-3 * wanted.norm())


def gemm(kernel: helion.Kernel, *arguments: object) -> GemmPlan:
    bound = kernel.bind(arguments, target="h200")
    plan = bound.plan(bound.seeds[0].config)
    assert isinstance(plan, CutePlan)
    return plan.gemm


@pytest.mark.parametrize(("k", "i", "c", "j", "e"), [(72, 5, 32, 7, 32), (1000, 20, 4, 33, 64), (63, 3, 64, 9, 128)])
def test_rows_and_columns_in_parts_are_stored_in_boxes(k: int, i: int, c: int, j: int, e: int) -> None:
    x, y = made(k, i, c, seed=0), made(k, j, e, seed=1)
    wanted = torch.relu(torch.einsum("kic,kje->ijce", x.double(), y.double())) / k
    assert close(outer_products(x, y), wanted)
    (output,) = gemm(outer_products, x, y).problem.outputs
    assert (output.kind, output.rows, output.columns) == (
        "exact",
        Parts(size=c, step=j * c * e),
        Parts(size=e, step=c * e),
    )


@pytest.mark.parametrize(("c", "e"), [(32, 32), (16, 64)])
def test_tiles_of_outer_products_are_rows_and_columns(c: int, e: int) -> None:
    x, y = made(1000, 5, c, seed=10), made(1000, 7, e, seed=11)
    wanted = torch.relu(torch.einsum("kic,kje->ijce", x.double(), y.double())) / 1000
    assert close(of_tiles(x, y), wanted)
    assert close(turned_tiles(x, y), wanted.permute(1, 3, 0, 2))
    plan = gemm(of_tiles, x, y)
    assert (plan.problem.m, plan.problem.n, plan.problem.copied) == (5 * c, 7 * e, ())
    assert plan.problem.outputs[0].rows == Parts(size=c, step=7 * c * e)


def test_columns_alone_are_in_parts() -> None:
    x, w = made(97, 72, seed=2), made(72, 192, seed=3)
    assert close(heads(x, w, 32), (x.double() @ w.double()).view(97, 6, 32).transpose(0, 1))
    (output,) = gemm(heads, x, w, 32).problem.outputs
    assert (output.pitch, output.rows, output.columns) == (32, None, Parts(size=32, step=97 * 32))


def test_the_copy_engine_has_a_dimension_for_each_part() -> None:
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    plan = gemm(outer_products, made(64, 3, 32, seed=4), made(64, 9, 32, seed=5))
    ptx = compile_text(build(plan), plan).ptx
    assert "cp.async.bulk.tensor.4d.global.shared" in ptx and ".local" not in ptx


def test_sub_tiles_are_no_wider_than_parts() -> None:
    bound = outer_products.bind((made(64, 50, 32, seed=12), made(64, 70, 32, seed=13)), target="h200")
    wide = {**bound.seeds[0].config.config, "block_sizes": [64, 256, 64], "wgmma_epilogue_columns": 64}
    plan = bound.plan(helion.Config(**wide))
    assert isinstance(plan, CutePlan) and plan.gemm.store_box[1] == 32
    with pytest.raises(Refusal, match="sub-tiles of 64 columns with parts of 32"):
        plan_gemm(plan.gemm.problem, Choice(tile=(64, 256, 64), epilogue_n=64), gemms.HOPPER)


def test_parts_that_no_box_covers_are_refused() -> None:
    x, y = made(64, 5, 24, seed=6), made(64, 7, 32, seed=7)
    with pytest.raises(exc.CuteUnsupported, match="rows in parts of 24; powers of two up to 64 are implemented"):
        outer_products.bind((x, y), target="h200")
    with pytest.raises(exc.CuteUnsupported, match="columns in parts of 24"):
        outer_products.bind((y, x), target="h200")
    with pytest.raises(exc.CuteUnsupported, match="whole tiles, without offsets"):
        uneven.bind((made(64, 64, seed=8), made(64, 64, seed=9)), target="h200")
