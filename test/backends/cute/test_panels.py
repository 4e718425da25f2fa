"""Reductions of tiles of a grid over rows and columns: numbers per tile, and sums that atomics add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends.cute import cubins, gemms, lockstep, products
from backends.cute.panel_kernels import (
    block_scales,
    column_sums,
    group_scales,
    numbered,
    roots,
    shares,
    square_sums,
    tile_sums,
    tile_tops,
    top_sums,
)

import helion
from helion import exc
from helion.backends.cute.lower.rewrites.panels import lines_of_panels
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import BLOCK_REDUCTIONS, Epilogue, Instruction, constant
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.shapes import MATMUL

M, N, K = 203, 384, 72


def given(kernel: Callable[..., Any], n: int = N) -> tuple[torch.Tensor, ...]:
    x, w = (products.values(*shape, dtype=torch.bfloat16, device="cpu") for shape in ((M, K), (K, n)))
    if kernel is group_scales:
        return x, w, torch.empty(M, n, dtype=torch.float8_e4m3fn)
    return (x, w, torch.linspace(-9, 9, n)) if kernel is tile_sums else (x, w)


def bound(kernel: Callable[..., Any], target: str = "sm_90", n: int = N) -> helion.BoundKernel:
    arguments = tuple(each.to("meta") for each in given(kernel, n))
    return helion.kernel(kernel, backend="cute").bind(arguments, target=target)


def run(kernel: Callable[..., Any], *arguments: torch.Tensor) -> Any:
    return helion.kernel(kernel, backend="cute").bind(arguments, target="sm_90")(*arguments)


def close(one: torch.Tensor, other: torch.Tensor, bound: float = 1e-5) -> bool:
    return bool((one.double() - other).norm() <= bound * other.norm())


def test_scales_of_groups_of_columns() -> None:
    x, w, out = given(group_scales)
    scales = run(group_scales, x, w, out)
    exact = (x.double() @ w.double()).view(M, -1, 128)
    wanted = exact.abs().amax(-1) / 448
    assert close(scales, wanted)
    assert close(out.to(torch.float64), (exact / wanted[..., None]).flatten(1), 0.03)


def test_scales_of_blocks_of_rows_and_columns() -> None:
    x, w = (products.values(*shape, dtype=torch.bfloat16, device="cpu") for shape in ((2 * 128, K), (K, N)))
    out = torch.empty(2 * 128, N, dtype=torch.float8_e4m3fn)
    scales = run(block_scales, x, w, out)
    exact = (x.double() @ w.double()).view(2, 128, -1, 128)
    wanted = exact.abs().amax((1, 3)) / 448
    assert close(scales, wanted)
    assert close(out.to(torch.float64), (exact / wanted[:, None, :, None]).view(2 * 128, N), 0.03)
    with pytest.raises(exc.CuteUnsupported, match="tiles of sizes that the program sets, which divide the matrix"):
        helion.kernel(block_scales, backend="cute").bind((x[:200], w, out[:200]), target="sm_90")
    with pytest.raises(exc.CuteUnsupported, match="blocks of 128 rows are implemented on wgmma"):
        helion.kernel(block_scales, backend="cute").bind((x, w, out), target="sm_100")


@pytest.mark.parametrize("op", ["block_maximum", "block_sum"])
def test_the_text_reduces_the_rows_of_all_warps(op: str) -> None:
    steps = (Instruction(BLOCK_REDUCTIONS[op], (0,)), Instruction(op, (1, constant(128.0))), Instruction("sub", (0, 2)))
    problem = gemms.product(128, 64, 64, output="float32", epilogue=Epilogue(instructions=steps))
    plan = plan_gemm(problem, Choice(tile=(128, 64, 64), epilogue_n=16), gemms.HOPPER)
    sums = torch.randn(128, 64, generator=torch.Generator().manual_seed(0)) + 0.25
    cluster = lockstep.Cluster(plan, [sums], {})
    cluster.run()
    wanted = sums.double() - (sums.max() if op == "block_maximum" else sums.double().sum())
    torch.testing.assert_close(cluster.matrix(problem.outputs[0].name).double(), wanted, rtol=1e-4, atol=1e-4)


def test_sums_and_maxima_of_tiles() -> None:
    x, w, bias = given(tile_sums)
    exact = x.double() @ w.double()
    assert close(run(tile_sums, x, w, bias), torch.relu(exact + bias.double()).view(M, -1, 64).sum(-1).t())
    assert close(run(tile_tops, x, w), exact.view(M, -1, 64).amax(-1))


@pytest.mark.parametrize("n", [384, 200, 1000])
def test_sums_that_atomics_add_up(n: int) -> None:
    x, w = given(square_sums, n)
    exact = x.double() @ w.double()
    assert close(run(square_sums, x, w), exact.square().sum(-1) / 2)
    out, total = run(column_sums, x, w)
    assert close(out, exact, 5e-3) and close(total, exact.sum(0))


def test_numbers_of_rows_begin_anywhere() -> None:
    x, w = given(shares, 64)
    top = torch.softmax(x.double() @ w.double() * 0.05, -1).topk(2)[0]
    assert close(run(shares, x, (w * 0.05).bfloat16()), top / top.sum(-1, keepdim=True), 1e-2)
    found = bound(shares, n=64)
    assert max(found.plan().gemm.whole.epilogue.levels) == 5
    assert not MATMUL.on_request(found._analysis.program, found.facts, found.env.target)


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("kernel", [group_scales, tile_sums, square_sums, column_sums], ids=lambda each: each.__name__)
def test_facts_show_the_same_matmul(kernel: Callable[..., Any], target: str) -> None:
    found = bound(kernel, target)
    shape, problem = shape_of(found.facts), found.plan().gemm.whole
    assert not isinstance(shape, str) and found.seeds
    assert (shape.problem.m, shape.problem.n, shape.problem.k) == (problem.m, problem.n, problem.k)
    assert shape.problem.repeats == problem.repeats
    assert [each.kind for each in shape.problem.outputs] == [each.kind for each in problem.outputs]
    assert [each.adds for each in shape.problem.outputs] == [each.adds for each in problem.outputs]
    asked = MATMUL.on_request(found._analysis.program, found.facts, found.env.target)
    if target == "sm_90":
        assert not asked
    else:
        assert any(part in asked for part in ("whose rows are reduced in a batch", "added to memory"))


@pytest.mark.prove
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("kernel", [group_scales, tile_sums, square_sums, column_sums], ids=lambda each: each.__name__)
def test_kernels_compile_without_spills(kernel: Callable[..., Any], target: str) -> None:
    found = cubins.measure(bound(kernel, target).plan().gemm)
    assert found["stack_bytes"] == 0 and not found["misplaced_barriers"]


def test_tiles_have_the_columns_that_the_program_sets() -> None:
    plan = bound(group_scales).plan().gemm
    assert plan.problem.batch is not None and (plan.problem.batch.size, plan.problem.n) == (N // 128, 128)
    assert plan.tile[1] * plan.cluster[1] == 128


def test_panels_are_full() -> None:
    assert lines_of_panels(128, 384) == 128 and lines_of_panels(128, 400) is None
    assert lines_of_panels(8, 384) is None and lines_of_panels(512, 1024) is None
    assert [lines_of_panels(None, extent) for extent in (384, 448, 200, 4095, 4099)] == [128, 64, 200, 4095, None]


@pytest.mark.parametrize("kernel", [numbered, top_sums, roots], ids=lambda each: each.__name__)
def test_what_depends_on_the_size_of_tiles_is_refused(kernel: Callable[..., Any]) -> None:
    with pytest.raises(
        exc.CuteUnsupported, match="reductions of a tile's columns|without offsets and masks|tiled by the grid"
    ):
        bound(kernel)


def test_panels_in_part_are_refused() -> None:
    with pytest.raises(exc.CuteUnsupported, match="reductions of a tile's columns|without offsets and masks"):
        bound(tile_tops, n=440)
