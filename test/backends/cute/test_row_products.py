"""Kernels of users whose products are followed by reductions of whole rows: what they become, compute and refuse."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends.cute import row_kernels
from backends.cute.products import BOUNDS, row_error, values
from backends.cute.row_kernels import BF16, CASES, COLUMNS, FP16, FP32, expected, operands

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.grammar import Program
from helion.backends.cute.lower.product import Product, product_of
from helion.backends.cute.plan.build import check_problem
from helion.backends.cute.plan.kernel import CutePlan
from helion.backends.cute.plan.records import RowFinish
from helion.backends.cute.plan.refusal import Refusal


def program_of(kernel: Any, *arguments: Any) -> Program:
    """As traced for a backend that refuses nothing of this."""
    return helion.kernel(kernel.fn, static_shapes=True, backend="triton").bind(arguments)._analysis.program


def product(kernel: Any, *arguments: Any) -> Product:
    return product_of(program_of(kernel, *arguments))


@pytest.mark.parametrize("name", CASES)
def test_whole_rows(name: str) -> None:
    case = CASES[name]
    given = operands(37, 1000, 72, FP16 if case.dtype == FP16 else BF16)
    found = row_kernels.whole_rows(*given, case.dtype, case.chain)
    assert found.dtype == case.dtype
    assert row_error(found, expected(case, *given)) < max(BOUNDS[case.dtype], BOUNDS[FP32] * 5)


@pytest.mark.parametrize("name", COLUMNS)
def test_one_number_per_row(name: str) -> None:
    case = COLUMNS[name]
    x, y, *_ = operands(63, 520, 40, BF16)
    found = row_kernels.per_row(x, y, case.dtype, case.chain)
    wanted = expected(case, x, y)
    assert found.shape == (63,) and found.dtype == case.dtype
    torch.testing.assert_close(found, wanted.to(case.dtype), rtol=1e-2 if case.dtype == BF16 else 1e-4, atol=1e-4)


@helion.kernel(backend="cute", static_shapes=True)
def read_back(x: torch.Tensor, y: torch.Tensor, rows: hl.constexpr) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums in bf16, which are read again, rows less their largest number or tiles less 1; the sums are stored once more."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    sums = torch.empty([m, n], dtype=x.dtype, device=x.device)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        sums[tile_m, :] = acc.to(x.dtype)
        found = sums[tile_m, :].to(torch.float32)
        out[tile_m, :] = found - torch.amax(found, dim=-1, keepdim=True) if rows else found - 1
        sums[tile_m, :] = sums[tile_m, :] * 2
    return sums, out


@pytest.mark.parametrize("rows", [True, False])
def test_what_was_stored_is_read_rounded(rows: bool) -> None:
    x, y, *_ = operands(65, 264, 72, BF16)
    sums, out = read_back(x, y, rows)
    rounded = (x.float() @ y.float()).bfloat16()
    torch.testing.assert_close(sums, rounded * 2, rtol=1e-2, atol=0)
    half = sums.float() / 2
    assert torch.equal(out, half - (half.amax(1, keepdim=True) if rows else 1))


def test_several_outputs() -> None:
    x, y, *_ = operands(65, 264, 72, BF16)
    probabilities, logits, total, place = row_kernels.softmax_with_statistics(x, y)
    exact = x.double() @ y.double()
    assert row_error(probabilities, exact.softmax(1)) < BOUNDS[BF16]
    assert row_error(logits, exact) < BOUNDS[FP32]
    torch.testing.assert_close(total[:, 0].double(), exact.logsumexp(1), rtol=1e-5, atol=1e-5)
    assert torch.equal(place, exact.argmax(1))
    outputs = product(row_kernels.softmax_with_statistics, x, y).problem.outputs
    assert [(output.kind, output.pitch) for output in outputs] == [("exact", 264)] * 2 + [("column", 1)] * 2


def test_rows_quantized_with_their_scale() -> None:
    x, y, *_ = operands(65, 272, 72, BF16)
    found, scale = row_kernels.quantized_rows(x, y)
    sums = x.double() @ y.double()
    torch.testing.assert_close(scale.double(), sums.abs().amax(1) / 127, rtol=1e-5, atol=0)
    assert ((found.double() * scale.double()[:, None] - sums).abs().amax(1) < 0.501 * scale).all()


def test_a_norm_of_two_products() -> None:
    x, y, *_ = operands(65, 264, 72, BF16)
    up, weight = values(72, 264, dtype=BF16, device="cpu", seed=7), values(264, dtype=BF16, device="cpu", seed=8)
    found = row_kernels.gated_rows(x, y, up, weight)
    hidden = torch.nn.functional.silu(x.double() @ y.double()) * (x.double() @ up.double())
    wanted = hidden * torch.rsqrt(hidden.square().mean(1, keepdim=True) + 1e-6) * weight.double()
    assert row_error(found, wanted) < BOUNDS[BF16]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_rows_of_8_bit_products_with_scales(dtype: torch.dtype) -> None:
    m, n, k = 63, 272, 144
    x = values(m, k, dtype=FP32, device="cpu").to(dtype)
    y = values(n, k, dtype=FP32, device="cpu", seed=1).to(dtype).t()
    scales = values(m, dtype=FP32, device="cpu", seed=2), values(n, dtype=FP32, device="cpu", seed=3)
    out, scale = row_kernels.scaled_rows(x, y, *scales)
    sums = (x.double() @ y.double()) * scales[0].double()[:, None] * scales[1].double()
    wanted = sums * torch.rsqrt(sums.square().mean(1, keepdim=True) + 1e-6)
    found = out.double() * scale.double()[:, None]
    assert row_error(found, wanted) < 0.03, "an 8-bit float is off by 1/32 of itself on average"
    torch.testing.assert_close(scale.double(), wanted.abs().amax(1) / 448, rtol=1e-5, atol=0)
    for target in ("sm_90", "sm_100"):
        plan = row_kernels.scaled_rows.bind((x, y, *scales), target=target).plan().gemm
        assert plan.cluster[1] > 1 or isinstance(plan.finish, RowFinish)


def test_casts_on_the_way_round() -> None:
    x, y, *others = operands(37, 520, 72, BF16)
    case = CASES["rounded on the way"]
    ops = [i.op for i in product(row_kernels.whole_rows, x, y, *others, FP32, case.chain).problem.epilogue.instructions]
    assert ops[0] == "round_bfloat16" and "row_maximum" in ops and "row_sum" in ops


def test_sums_that_one_output_needs_alone() -> None:
    """An output that no reduction reaches has its own instructions, and nothing is computed twice."""
    x, y, *_ = operands(65, 264, 72, BF16)
    epilogue = product(row_kernels.softmax_with_statistics, x, y).problem.epilogue
    ops = [instruction.op for instruction in epilogue.instructions]
    assert ops.count("row_sum") == 1 and ops.count("row_first") == 1
    assert epilogue.outputs[1].value == 0


@pytest.mark.parametrize("name", ["softmax", "two norms"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 8), (63, 1000, 136), (129, 1536, 72)])
def test_odd_sizes(name: str, m: int, n: int, k: int) -> None:
    case = CASES[name]
    given = operands(m, n, k, BF16)
    found = row_kernels.whole_rows(*given, case.dtype, case.chain)
    assert row_error(found, expected(case, *given)) < BOUNDS[case.dtype]


def test_numbers_that_only_a_call_knows() -> None:
    x, y, weight, *_ = operands(65, 264, 72, BF16)
    kernel, sums = row_kernels.scaled_norm, x.double() @ y.double()
    for eps, scale in ((1e-6, 1.0), (100.0, -0.3), (2, 3)):
        wide = sums * scale
        wanted = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + eps) * weight.double()
        assert row_error(kernel(x, y, weight, eps, scale), wanted) < BOUNDS[BF16]
    plan = kernel.bind((x, y, weight, 1e-6, 1.0)).plan()
    assert [operand.kind for operand in plan.gemm.problem.epilogue.operands].count("number") == 2


# Configs -----------------------------------------------------------------------------------------------------------------


def bound_of(target: str, m: int, n: int, k: int, name: str = "softmax", dtype: torch.dtype = BF16) -> Any:
    shapes = ((m, k), (k, n), (n,), (n,), (m,), (m, n))
    dtypes = (dtype, dtype, BF16, FP32, FP32, BF16)
    given = [torch.empty(s, dtype=d, device="meta") for s, d in zip(shapes, dtypes, strict=True)]
    return row_kernels.whole_rows.bind((*given, BF16, CASES[name].chain), target=target)


@pytest.mark.parametrize("name", ["softmax", "residual and norm", "no reduction"])
@pytest.mark.parametrize(("target", "n"), [("sm_90", 1000), ("sm_90", 4096), ("sm_100", 1536)])
def test_random_configs_are_legal_and_planned_as_predicted(target: str, n: int, name: str) -> None:
    bound = bound_of(target, 4097, n, 1000, name)
    space, rng, seen = bound.config_spec, random.Random(0), set()
    for _ in range(24):
        config = space.random(rng)
        predicted = bound._analysis.predict(config)
        if not predicted.fits:
            assert predicted.reason
            continue
        assert space.normalize(config) == config
        plan: CutePlan = bound.plan(config)
        assert plan.shared_bytes == predicted.shared_bytes
        held = plan.gemm.cluster[1] * plan.gemm.tile[1] >= n
        assert held or name == "no reduction" or plan.gemm.finish is not None
        seen.add((plan.gemm.tile, plan.gemm.cluster))
    assert len(seen) >= 2


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("m", "n", "k", "tile", "cluster"),
    [
        (131072, 1024, 512, (128, 256, 64), (1, 4)),
        (131072, 2048, 4096, (128, 256, 64), (1, 8)),
        (131072, 4096, 512, (128, 256, 64), (1, 16)),
        (4097, 3000, 1000, (128, 192, 64), (1, 16)),
    ],
)
def test_seeds_hold_rows_and_say_why(
    target: str, m: int, n: int, k: int, tile: tuple[int, int, int], cluster: tuple[int, int]
) -> None:
    bound = bound_of(target, m, n, k)
    assert {seed.heuristic for seed in bound.seeds} == {"CuteClusterEpilogueHeuristic"}
    plan = bound.plan().gemm
    if target == "sm_90":
        assert (plan.tile, plan.cluster) == (tile, cluster)
    assert plan.cluster[1] * plan.tile[1] >= n
    shape = "x".join(map(str, plan.tile))
    said = rf"rows of {n} columns in {plan.cluster[1]} CTAs of {shape}: \d+ clusters, \d+ at once, in \d+ rounds"
    assert re.match(said, bound.seeds[0].reason)


def test_few_rows_get_small_tiles_and_few_rounds_two_ctas_on_an_sm() -> None:
    assert bound_of("sm_90", 1024, 1024, 1024).plan().gemm.tile[0] == 64
    seeds = bound_of("sm_90", 131072, 1024, 512, "rms_norm").seeds
    assert any("two CTAs on an SM" in seed.reason for seed in seeds)


def test_times_are_those_that_were_measured() -> None:
    """Of rms_norm in the same tiles on an H200; see spec of the heuristic."""
    for m, n, k, measured in ((131072, 1024, 512, 247.1), (131072, 2048, 4096, 2931.9), (131072, 4096, 512, 1091.1)):
        predicted = bound_of("h200", m, n, k, "rms_norm").seeds[0].predicted.time_us
        assert abs(predicted / measured - 1) < 0.08


def test_configs_are_brought_to_what_divides_a_tile() -> None:
    space = bound_of("sm_90", 1000, 1536, 512).config_spec
    asked = helion.Config(block_sizes=[64, 64], wgmma_epilogue_columns=64, wgmma_c_stages=8)
    config = space.normalize(asked)
    assert (config["wgmma_cluster_n"], config["wgmma_epilogue_columns"], config["wgmma_c_stages"]) == (8, 32, 2)
    assert "two sub-tiles" in " ".join(map(str, space.adjusted(asked)))
    assert space.normalize({**asked, "wgmma_cluster_n": 2})["wgmma_cluster_n"] == 8  # rows of other lengths take 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"wgmma_cluster_n": 3}, "wgmma_cluster_n"),
        ({"wgmma_cluster_n": 16}, "16 CTAs cannot load slices of A: 64 lines"),
        ({"wgmma_pingpong": True}, "numbers per row are implemented without ping-pong"),
        ({"wgmma_k_splits": 2}, "numbers per row are implemented without ping-pong and without splitting K"),
        ({"wgmma_rows_in": "registers"}, "must be one of 'cluster', 'memory'"),
        ({"wgmma_rows_in": "memory", "wgmma_k_splits": 3}, "leaves no room for the partials of other CTAs"),
        ({"wgmma_ctas_per_sm": 2}, "2 CTAs on an SM with 128 accumulator registers per thread"),
        ({"tcgen05_ab_stages": 2}, "the matrix unit is wgmma"),
    ],
)
def test_configs_that_cannot_be_had(config: dict[str, Any], message: str) -> None:
    space = bound_of("sm_90", 1000, 2048, 512).config_spec
    with pytest.raises(exc.InvalidConfig, match=message):
        space.normalize({"block_sizes": [64, 64], **config})


def test_rows_that_no_cluster_holds_lie_in_memory() -> None:
    bound = bound_of("sm_90", 1000, 4104, 512)
    assert isinstance(bound.plan().gemm.finish, RowFinish) and "wgmma_rows_in" in bound.config_spec.keys
    said = r"rows of 4104 columns in memory: \d+ tiles of .+, then \d+ us of a kernel that reads rows: \d+ us"
    assert all(re.match(said, seed.reason) for seed in bound.seeds)
    with pytest.raises(exc.InvalidConfig, match="wgmma_rows_in must be one of 'memory', got 'cluster'"):
        bound.config_spec.normalize({"wgmma_rows_in": "cluster"})
    assert bound_of("sm_90", 1000, 4104, 512, "no reduction").plan().gemm.tile[1] == 256


def test_few_rows_that_a_cluster_holds_lie_in_memory_where_that_is_faster() -> None:
    """Clusters of whole rows leave most SMs without work; parts of K occupy them."""
    bound = bound_of("h200", 16, 4096, 8192, "rms_norm")
    plan = bound.plan().gemm
    assert plan.finish is not None and plan.parts > 1
    assert re.search(r"in \d+ parts.*; held by a cluster rows would take \d+ us", bound.seeds[0].reason)
    held = bound_of("h200", 8192, 2048, 512, "rms_norm")
    assert held.plan().gemm.finish is None
    assert "; in memory rows would take" in held.seeds[0].reason


def test_configs_say_where_rows_lie() -> None:
    space = bound_of("sm_90", 1000, 1024, 512).config_spec
    asked = {"block_sizes": [64, 64], "wgmma_rows_in": "memory", "wgmma_tile_columns": 128, "wgmma_cluster_n": 4}
    config = space.normalize(asked)
    assert (config["wgmma_rows_in"], config["wgmma_tile_columns"], config["wgmma_cluster_n"]) == ("memory", 128, 1)
    held = space.normalize({"block_sizes": [64, 64], "wgmma_tile_columns": 64})
    assert (held["wgmma_rows_in"], held["wgmma_tile_columns"]) == ("cluster", 256)


@pytest.mark.parametrize(
    ("chain", "m", "n", "k", "measured"),
    [
        ("rms_norm", 1024, 1024, 1024, 12.5),
        ("rms_norm", 1024, 1024, 64, 7.7),
        ("rms_norm", 512, 512, 512, 8.4),
        ("rms_norm", 256, 2048, 4096, 19.0),
        ("rms_norm", 1000, 4096, 4096, 53.4),
        ("rms_norm", 1, 2048, 4096, 14.2),
    ],
)
def test_times_of_few_rows_are_those_that_were_measured(chain: str, m: int, n: int, k: int, measured: float) -> None:
    """On an H200, where launching and finishing rows take as long as the product."""
    seed = bound_of("h200", m, n, k, chain).seeds[0]
    assert abs(seed.predicted.time_us / measured - 1) < 0.1, seed.reason


@pytest.mark.parametrize("m", [1024, 131072])
def test_clusters_have_all_stages_that_fit(m: int) -> None:
    """In one round of tiles as in many: warps that store for themselves wait little for buffers of D."""
    bound = bound_of("h200", m, 1024, 1024, "rms_norm")
    seed = next(seed.config for seed in bound.seeds if seed.config["wgmma_rows_in"] == "cluster")
    plan = bound.plan(seed).gemm
    held = {"wgmma_rows_in": "cluster", "wgmma_cluster_n": plan.cluster[1], "block_sizes": [plan.tile[0], 64]}
    most = bound.plan(bound.config_spec.normalize(held)).gemm.ab_stages
    assert plan.ab_stages == most


def test_tiles_of_fewer_rows_than_a_cluster_slices_lie_in_memory() -> None:
    """16 CTAs load slices of 8 rows each, so that tiles of a cluster have 128; what is predicted of 64 is what runs."""
    bound = bound_of("h200", 16, 4096, 4096)
    plans = [bound.plan(seed.config).gemm for seed in bound.seeds]
    assert [plan.tile[0] for plan in plans] == [64, 64, 64]
    for seed, plan in zip(bound.seeds, plans, strict=True):
        assert bound.config_spec.normalize(seed.config) == seed.config
        assert "x".join(map(str, plan.tile)) in seed.reason
    space = bound.config_spec
    first, few = space.normalize({}), space.normalize({"block_sizes": [64, 64], "wgmma_cluster_n": 16})
    assert (first["block_sizes"], first["wgmma_rows_in"], first["wgmma_cluster_n"]) == ([128, 64], "cluster", 16)
    assert (few["block_sizes"], few["wgmma_rows_in"], few["wgmma_cluster_n"]) == ([64, 64], "memory", 1)


@pytest.mark.parametrize("name", ["softmax", "two norms"])
def test_rows_in_memory(name: str) -> None:
    case, given = CASES[name], operands(7, 4104, 72, BF16)
    found = row_kernels.whole_rows(*given, case.dtype, case.chain)
    assert row_error(found, expected(case, *given)) < BOUNDS[case.dtype]


def test_a_row_of_more_elements_than_a_tile_of_triton() -> None:
    assert bound_of("sm_90", 63, 50264, 512).plan().gemm.whole.n == 50264


def test_reductions_in_stages() -> None:
    facts = bound_of("sm_90", 1000, 1024, 512, "two norms")._analysis.facts
    (fact,) = facts.reductions
    assert fact.stages == (("sum",), ("sum",), ("sum",))
    (fact,) = bound_of("sm_90", 1000, 1024, 512, "layer_norm of two sums")._analysis.facts.reductions
    assert fact.stages == (("sum", "sum"),)


# What is refused -------------------------------------------------------------------------------------------------------------


def refused(chain: Callable[..., Any], dtype: torch.dtype = FP32) -> str:
    x, y, *others = operands(40, 40, 72, BF16)
    with pytest.raises(Refusal) as refusal:
        check_problem(product(row_kernels.whole_rows, x, y, *others, dtype, chain).problem)
    return str(refusal.value)


def test_reductions_of_anything_else_are_refused() -> None:
    assert "along N" in refused(lambda a, w, b, c, r: a - torch.amax(a, dim=0, keepdim=True))
    assert "reduction by prod" in refused(lambda a, w, b, c, r: a * torch.prod(a, dim=1, keepdim=True))
    assert "along N" in refused(lambda a, w, b, c, r: a * torch.sum(w))
    assert "the same in all columns" in refused(lambda a, w, b, c, r: a * torch.sum(c.expand(a.size()), dim=1)[:, None])
    assert "scan in an epilogue" in refused(lambda a, w, b, c, r: torch.cumsum(a, dim=1))


def test_a_reduction_of_a_tile_is_no_reduction_of_a_row() -> None:
    @helion.kernel(static_shapes=True)
    def tiled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        m, k = x.size()
        _, n = y.size()
        out = torch.empty([m, n], dtype=x.dtype, device=x.device)
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = (acc - torch.amax(acc, dim=-1, keepdim=True)).to(x.dtype)
        return out

    x, y, *_ = operands(65, 264, 72, BF16)
    with pytest.raises(Refusal, match="where a program holds whole rows, hl.tile over M alone"):
        product(tiled, x, y)


def test_an_output_without_the_product_is_refused() -> None:
    @helion.kernel(static_shapes=True)
    def copying(x: torch.Tensor, y: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m, k = x.size()
        n = hl.specialize(y.size(1))
        out = torch.empty([m, n], dtype=x.dtype, device=x.device)
        copied = torch.empty([m, n], dtype=x.dtype, device=x.device)
        for tile_m in hl.tile(m):
            acc = hl.zeros([tile_m, n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
            out[tile_m, :] = acc.to(x.dtype)
            copied[tile_m, :] = other[tile_m, :] + 1
        return out, copied

    x, y, *_, residual = operands(65, 264, 72, BF16)
    with pytest.raises(Refusal, match="the value stored to copied does not depend on the matmul"):
        product(copying, x, y, residual)
