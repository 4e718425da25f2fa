"""Scales of blocks of K, of the matmuls of a batch and of groups of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute import cubins
from backends.cute.test_groups import on_request

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.resources.shape import shape_of

GROUPS, ROWS, N, K, E4M3 = 3, 203, 384, 512, torch.float8_e4m3fn


@helion.kernel(backend="cute")
def grouped(
    x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    rows, k = x.size()
    groups, n, _ = w.size()
    out = torch.zeros([rows, n], dtype=torch.bfloat16, device=x.device)
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.id], offsets[g.id + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k, block_size=128):
                part = hl.dot(x[tile_m, tile_k], w[g.id, tile_n, tile_k].T)
                acc += part * x_scale[tile_m, tile_k.id][:, None] * w_scale[g.id, tile_n.index // 128, tile_k.id]
            out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@helion.kernel(backend="cute")
def counted(
    x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    groups, rows, k = x.size()
    n = w.size(1)
    out = torch.zeros([groups, rows, n], dtype=torch.bfloat16, device=x.device)
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(counts[g.id]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k, block_size=128):
                part = hl.dot(x[g.id, tile_m, tile_k], w[g.id, tile_n, tile_k].T)
                acc += part * x_scale[g.id, tile_m, tile_k.id][:, None] * w_scale[g.id, tile_n.index // 128, tile_k.id]
            out[g.id, tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@helion.kernel(backend="cute")
def batched(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    batch, rows, k = x.size()
    n = w.size(1)
    out = torch.empty([batch, rows, n], dtype=torch.bfloat16, device=x.device)
    for i in hl.grid(batch):
        for tile_m, tile_n in hl.tile([rows, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k, block_size=128):
                part = hl.dot(x[i, tile_m, tile_k], w[i, tile_n, tile_k].T)
                acc += part * x_scale[i, tile_m.index // 128, tile_k.id][:, None] * w_scale[i, tile_n, tile_k.id]
            out[i, tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    x, w = numbers(GROUPS, ROWS, K).to(E4M3), numbers(GROUPS, N, K, seed=1).to(E4M3)
    return (
        x,
        w,
        numbers(GROUPS, ROWS, K // 128, seed=2).abs() + 0.1,
        numbers(GROUPS, N // 128, K // 128, seed=3).abs() + 0.1,
    )


def multiplied(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """Return the product of each group in fp64, of scaled operands: a scale of rows or columns is repeated to all of them."""
    sides = []
    for each, scale in ((x, x_scale), (w, w_scale)):
        lines = -(-each.size(1) // max(1, scale.size(1)))
        wide = scale.repeat_interleave(lines, 1)[:, : each.size(1)].repeat_interleave(128, 2)
        sides.append(each.double() * wide.double())
    return sides[0] @ sides[1].mT


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found.double() - wanted).norm() <= 5e-3 * wanted.norm())


def check_shape(kernel: helion.Kernel, given: tuple[Any, ...]) -> None:
    bound = kernel.bind(given, target="sm_90")
    shape, problem = shape_of(bound.facts), bound.plan().gemm.problem
    assert not isinstance(shape, str) and shape.problem.scales is not None and problem.scales is not None
    assert (shape.problem.m, shape.problem.batches) == (problem.m, problem.batches)
    assert [each.side for each in shape.problem.scales.factors] == [each.side for each in problem.scales.factors]
    assert not on_request(bound)


def test_groups_of_rows() -> None:
    bounds, (x, w, x_scale, w_scale) = [3, 64, 64, 190], operands()
    given = (x[0], w, x_scale[0], w_scale, torch.tensor(bounds))
    wanted = torch.zeros(ROWS, N, dtype=torch.float64)
    for g in range(GROUPS):
        rows = slice(bounds[g], bounds[g + 1])
        wanted[rows] = multiplied(x[:1, rows], w[g : g + 1], x_scale[:1, rows], w_scale[g : g + 1])[0]
    assert close(grouped(*given), wanted)
    check_shape(grouped, given)
    text = grouped.bind(given, target="sm_90").to_cute_code()
    assert "cutlass.min(group_begin + " in text and "k_tile, batch]" in text


def test_groups_whose_rows_are_counted() -> None:
    counts, given = [0, ROWS, 65], operands()
    inside = torch.arange(ROWS)[None] < torch.tensor(counts)[:, None]
    assert close(counted(*given, torch.tensor(counts)), torch.where(inside[..., None], multiplied(*given), 0.0))


def test_batches() -> None:
    x, w, _, _ = operands()
    x_scale, w_scale = (
        numbers(GROUPS, 2, K // 128, seed=2).abs() + 0.1,
        numbers(GROUPS, N, K // 128, seed=3).abs() + 0.1,
    )
    wide = x_scale.repeat_interleave(128, 1)[:, :ROWS]
    assert close(batched(x, w, x_scale, w_scale), multiplied(x, w, wide, w_scale))
    check_shape(batched, (x, w, x_scale, w_scale))


@pytest.mark.prove
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("kernel", [grouped, counted], ids=lambda each: each.name)
def test_kernels_compile_without_spills(kernel: helion.Kernel, target: str) -> None:
    x, w, x_scale, w_scale = (each.to("meta") for each in operands())
    last = torch.empty(GROUPS + (kernel is grouped), dtype=torch.int32, device="meta")
    given = (x, w, x_scale, w_scale) if kernel is counted else (x[0], w, x_scale[0], w_scale)
    found = cubins.measure(kernel.bind((*given, last), target=target).plan().gemm)
    assert found["stack_bytes"] == 0 and not found["misplaced_barriers"]


def test_scales_that_rows_of_groups_share_are_refused() -> None:
    x, w, x_scale, w_scale = operands()

    def shared(
        x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        rows, k = x.size()
        groups, n, _ = w.size()
        out = torch.zeros([rows, n], dtype=torch.bfloat16, device=x.device)
        for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
            for tile_m in hl.tile(offsets[g.id], offsets[g.id + 1]):
                acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
                for tile_k in hl.tile(k, block_size=128):
                    part = hl.dot(x[tile_m, tile_k], w[g.id, tile_n, tile_k].T)
                    acc += part * x_scale[tile_m.index // 2, tile_k.id][:, None]
                out[tile_m, tile_n] = acc.to(torch.bfloat16)
        return out

    with pytest.raises(exc.CuteUnsupported, match="a scale along K for each row"):
        helion.kernel(shared, backend="cute").bind(
            (x[0], w, x_scale[0], w_scale, torch.tensor([0, 5, 9, 100])), target="sm_90"
        )
