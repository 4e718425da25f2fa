"""Matmuls of few rows with weights of 8 bits, which are computed transposed, with the weights in registers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from backends.cute import copies, gemms

import helion
import helion.language as hl
from helion.backends.cute.heuristics.wgmma_matmul import choices
from helion.backends.cute.lower.kernel import known_product
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.copied import Copied
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.shared import shared_memory
from helion.backends.cute.resources.shape import ProductShape, shape_of
from helion.backends.cute.shapes import MATMUL


@helion.kernel(backend="cute", static_shapes=True)
def linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].to(x.dtype).T, acc=acc)
        out[tile_m, tile_n] = acc * scale[tile_n].to(torch.float32)[None, :] + bias[tile_m, tile_n].to(torch.float32)
    return out


def arguments(m: int, dtype: torch.dtype = torch.int8, n: int = 264, k: int = 480) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(m)
    x = torch.randn(m, k, generator=generator) + 0.25
    w = torch.randn(n, k, generator=generator) * (20 if dtype == torch.int8 else 1) + 0.5
    scale, bias = torch.rand(n, generator=generator) / 16, torch.randn(m, n, generator=generator)
    return x.bfloat16(), w.to(dtype), scale, bias.bfloat16()


@pytest.mark.parametrize(("m", "dtype"), [(1, torch.int8), (13, torch.float8_e4m3fn), (64, torch.int8)])
def test_weights_are_the_rows_of_tiles(m: int, dtype: torch.dtype) -> None:
    x, w, scale, bias = given = arguments(m, dtype)
    bound = linear.bind(given, target="h100")
    problem = bound.plan().gemm.problem
    assert (problem.m, problem.n, problem.k, problem.names[:2]) == (264, m, 480, ("w", "x"))
    assert [(each.kind, each.pitch, each.column_pitch) for each in problem.outputs] == [("strided", 1, 264)]
    config = bound.seeds[0].config
    assert config["wgmma_copies_in"] == "registers"
    assert bound.plan(config).gemm.converts
    exact = x.double() @ w.double().T * scale.double() + bias.double()
    torch.testing.assert_close(bound(*given).double(), exact, rtol=1e-2, atol=1e-2)


def test_other_matmuls_keep_their_rows() -> None:
    cases: dict[str, tuple[torch.Tensor, ...]] = {"more rows": arguments(65), "bfloat16": arguments(13, torch.bfloat16)}
    x, w, *others = arguments(13)
    cases["contiguous along N"] = (x, w.T.contiguous().T, *others)
    for why, given in cases.items():
        assert linear.bind(given, target="h100").plan().gemm.problem.n == 264, why


def test_facts_describe_the_transposed_matmul() -> None:
    bound = linear.bind(arguments(13), target="h100")
    shape, problem = shape_of(bound.facts), known_product(bound.plan().program).problem
    assert not isinstance(shape, str)
    assert (shape.problem.m, shape.problem.n) == (problem.m, problem.n)
    assert shape.blocks == known_product(bound.plan().program).blocks
    described = sorted(each.kind for each in shape.problem.epilogue.operands)
    assert described == sorted(each.kind for each in problem.epilogue.operands) == ["column", "strided"]


def test_what_cannot_be_in_registers_is_refused() -> None:
    problem, choice = copies.COPIES["registers_int8"]
    (copied,) = problem.copied

    def of(changed: Copied, **other: Any) -> None:
        plan_gemm(dataclasses.replace(problem, copied=(changed,)), dataclasses.replace(choice, **other), gemms.HOPPER)

    of(copied)
    for changes in ({"tile": (128, 64, 64)}, {"tile": (256, 64, 128)}, {"tile": (64, 64, 128), "pingpong": True}):
        with pytest.raises(Refusal, match="with A in registers"):
            of(copied, **changes)
    of(copied, tile=(64, 64, 128), splits=2, epilogue_n=16, ctas_per_sm=2)
    of(copied, tile=(128, 32, 128), epilogue_n=16, ctas_per_sm=2)
    of(copied, tile=(64, 16, 128), epilogue_n=8, ctas_per_sm=3)
    for tile, ctas in (((64, 16, 128), 4), ((128, 16, 128), 3), ((64, 128, 128), 3)):
        with pytest.raises(Refusal, match=f"{ctas} CTAs on an SM"):
            of(copied, tile=tile, epilogue_n=8, ctas_per_sm=ctas)
    tall = {"tile": (128, 32, 128), "epilogue_n": 16, "splits": 2}
    for changes in (tall, {"tile": (128, 64, 128)}):
        with pytest.raises(Refusal, match="two CTAs on an SM with a tile of .* and A in registers"):
            of(copied, **changes, ctas_per_sm=2)
    with pytest.raises(Refusal, match="operands in registers are implemented on wgmma for A"):
        of(dataclasses.replace(copied, operand="b"))
    with pytest.raises(Refusal, match="operands in registers"):
        plan_gemm(problem, choice, gemms.BLACKWELL)


def test_clusters_along_the_weights_are_refused() -> None:
    """On an H200 a kernel whose two CTAs shared the few rows did not report in time."""
    problem, choice = copies.COPIES["registers_int8"]
    with pytest.raises(Refusal, match="one CTA along M in a cluster"):
        plan_gemm(problem, dataclasses.replace(choice, cluster=(2, 1)), gemms.HOPPER)


def test_shared_memory_has_no_converted_operand() -> None:
    names = [each.name for each in shared_memory(copies.plan("registers_int8", "sm_90"))]
    assert "shared_raw_a" in names and "shared_a" not in names


@helion.kernel(backend="cute", static_shapes=False)
def of_any_rows(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    m = x.size(0)
    n, k = hl.specialize(w.size())
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].to(x.dtype).T, acc=acc)
        out[tile_m, tile_n] = acc * scale[tile_n][None, :]
    return out


def test_launches_give_the_rows() -> None:
    bound = of_any_rows.bind(arguments(13)[:3], target="h100")
    plan = bound.plan().gemm
    assert plan.problem.runtime == ("size_n",) and plan.converts
    assert {seed.config["wgmma_copies_in"] for seed in bound.seeds} <= {"registers", "slices"}
    for m in (13, 5):
        x, w, scale, _ = arguments(m)
        exact = x.double() @ w.double().T * scale.double()
        torch.testing.assert_close(bound(x, w, scale).double(), exact, rtol=1e-2, atol=1e-2)


def test_a_kernel_before_converts_weights_for_many_rows() -> None:
    plan = of_any_rows.bind(arguments(4096, n=64)[:3], target="h100").plan().gemm
    assert plan.prepare is not None and plan.problem.runtime == ("size_m",)


def test_auto_takes_what_has_run() -> None:
    static = helion.kernel(of_any_rows.fn, backend="cute", static_shapes=True)
    few, more = (static.bind(arguments(m)[:3], target="h100") for m in (32, 64))
    assert all(MATMUL.on_request(each.plan().program, each.facts, each.target) == "" for each in (few, more))
    leads = [MATMUL.lead(each.plan().program, each.facts) for each in (few, more)]
    assert [lead.corrected for lead in leads] == [1.0, 1.2]
    assert {seed.config["wgmma_copies_in"] for seed in (*few.seeds, *more.seeds)} == {"registers"}


def test_more_columns_are_left_to_requests() -> None:
    wide, _ = copies.COPIES["registers_int8"]
    shape = ProductShape(problem=wide, blocks=(0, 1, 2), root=0)
    assert {choice.copies_in for choice in choices(shape, gemms.HOPPER)} == {"shared", "memory"}


def test_weights_that_one_tile_reads_leave_the_cache_first() -> None:
    few, more = (linear.bind(arguments(m), target="h100") for m in (13, 64))
    assert "cache_policy=read_once" in few.to_code(few.seeds[0].config)
    two_tiles = helion.Config(block_sizes=[32, 64, 128], wgmma_copies_in="registers")
    assert "read_once" not in more.to_code(two_tiles)


@pytest.mark.parametrize("n", [8192, 40960])
def test_two_ctas_share_an_sm_where_tiles_are_many(n: int) -> None:
    shapes, dtypes = ((13, 2048), (n, 2048), (n,), (13, n)), (torch.bfloat16, torch.int8, torch.float32, torch.bfloat16)
    given = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in zip(shapes, dtypes, strict=True)]
    bound = linear.bind(given, target="h100")
    assert bound.seeds[0].config["wgmma_ctas_per_sm"] == 2


def test_few_columns_of_a_tile_suffice_for_few_rows() -> None:
    few, more = (linear.bind(arguments(m), target="h100") for m in (13, 17))
    assert [each.seeds[0].config["block_sizes"][0] for each in (few, more)] == [16, 32]
    assert {each.plan().gemm.tile[1] for each in (few, more)} == {16, 32}


def test_auto_takes_weights_of_8_bits_for_few_rows() -> None:
    auto = helion.kernel(of_any_rows.fn, backend="auto", static_shapes=True)
    shapes, dtypes = ((16, 8192), (8192, 8192), (8192,)), (torch.bfloat16, torch.int8, torch.float32)
    given = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in zip(shapes, dtypes, strict=True)]
    assert auto.bind(given, target="h200").seeds[0].config["wgmma_copies_in"] == "registers"


@helion.kernel(backend="cute", static_shapes=True)
def of_a_batch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    (batch, m, k), n = x.size(), w.size(1)
    out = torch.empty([batch, m, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([batch, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_b.id, tile_m, tile_k], w[tile_b.id, tile_n, tile_k].t().to(x.dtype), acc=acc)
        out[tile_b.id, tile_m, tile_n] = acc.to(x.dtype)
    return out


def test_weights_of_a_batch_are_the_rows_of_tiles() -> None:
    several = [arguments(13 + at)[:2] for at in range(3)]
    x, w = torch.stack([x[:13] for x, _ in several]), torch.stack([w for _, w in several])
    bound = of_a_batch.bind((x, w), target="h100")
    shape, problem = shape_of(bound.facts), bound.plan().gemm.problem
    assert not isinstance(shape, str) and shape.problem.batch is not None and problem.batch is not None
    assert (shape.problem.m, shape.problem.batch.a, shape.problem.batch.b) == (264, problem.batch.a, problem.batch.b)
    assert (problem.m, problem.n, problem.names[:2]) == (264, 13, ("w", "x"))
    assert {seed.config["wgmma_copies_in"] for seed in bound.seeds} <= {"registers", "slices"}
    exact = x.double() @ w.double().mT
    torch.testing.assert_close(bound(x, w).double(), exact, rtol=1e-2, atol=1e-2)
    assert MATMUL.on_request(bound.plan().program, bound.facts, bound.target) == ""
