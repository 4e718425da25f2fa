"""TF32 of an operand that is not contiguous along K: warps read it to registers, as rows of the matmul or of the transposed one."""

from __future__ import annotations

import dataclasses
import re
import types
from typing import Any

import pytest
import torch
from backends.cute import gemms, products
from backends.cute.edited_roles import edited, without

import helion
import helion.language as hl
from helion.backends.cute.codegen import raw
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.finish import is_turned
from helion.backends.cute.plan.records import Choice, GemmPlan, GemmProblem
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.halves import OrderReads, ReadHalf
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.verify.finish import verify_finish
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify

M, N, K = 520, 612, 516
FP32 = torch.float32
TILE = Choice(tile=(128, 64, 32), cluster=(2, 1))


def of_words(**changes: Any) -> GemmProblem:
    return gemms.product(M, N, K, operands="float32", output="float32", a_major="mn", **changes)


@helion.kernel(backend="cute", static_shapes=True)
def linear(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = torch.relu(acc + bias[tile_n]) + residual[tile_m, tile_n]
    return out


@helion.kernel(backend="cute", static_shapes=True)
def normed(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, :], acc=acc)
        var, mean = torch.var_mean(acc, dim=-1, keepdim=True, correction=0)
        out[tile_m, :] = (acc - mean) * torch.rsqrt(var + 1e-5) * weight[:]
    return out


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return products.values(*shape, dtype=FP32, device="cpu", seed=seed)


def test_b_along_n_is_the_rows_of_the_transposed_matmul() -> None:
    given = values(M, K), values(K, N, seed=1), values(N, seed=2), values(M, N, seed=3)
    bound = linear.bind(given, target="h200")
    plan = bound.plan().gemm
    assert (plan.problem.m, plan.problem.a_major, plan.problem.copied, plan.prepare) == (N, "mn", (), None)
    assert bound.default_config()["wgmma_copies_in"] == "tma"
    x, y, bias, residual = (each.double() for each in given)
    assert products.row_error(bound(*given), torch.relu(x @ y + bias) + residual) < products.BOUNDS[FP32]


def test_a_along_m_stays_the_rows() -> None:
    given = values(K, M).t(), values(N, K, seed=1).t(), values(N, seed=2), values(M, N, seed=3)
    problem = linear.bind(given, target="h200").plan().gemm.problem
    assert (problem.m, problem.a_major, problem.copied) == (M, "mn", ())


@pytest.mark.parametrize("shape", [(M, N, 508), (M, 504, K), (M, N + 1, K)], ids=str)
def test_few_and_odd_lines_are_copied(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    given = (torch.empty(*size, device="meta") for size in ((m, k), (k, n), (n,), (m, n)))
    problem = linear.bind(tuple(given), target="h200").plan().gemm.whole
    assert (problem.m, [each.operand for each in problem.copied]) == (m, ["b"])


def stage(plan: GemmPlan, tile: torch.Tensor) -> list[int]:
    """Return the words of the second of two stages, as TMA writes blocks of 32 rows: a swizzled line for each element along K."""
    rows, k = plan.tile[0], plan.tile[2]
    words = [-1] * (2 * rows * k)
    for m in range(rows):
        for along in range(k):
            chunk = m % 32 // 4 ^ along % 8
            words[rows * k + m // 32 * 32 * k + along * 32 + chunk * 4 + m % 4] = int(tile[m, along])
    return words


def test_fragments_are_those_of_the_operand_without_bank_conflicts() -> None:
    plan = dataclasses.replace(plan_gemm(of_words(), TILE, gemms.HOPPER), ab_stages=2)
    rows, k = plan.tile[0], plan.tile[2]
    tile = torch.arange(rows * k).view(rows, k)
    words, found = stage(plan, tile), torch.full((rows, k), -1)
    read = dict[tuple[int, int, str], set[int]]()
    cutlass = types.SimpleNamespace(
        range_constexpr=range, select_=lambda c, x, y: x if c else y, Uint32=int, TFloat32=None
    )
    cute = types.SimpleNamespace(
        make_rmem_tensor=lambda *_: types.SimpleNamespace(iterator=[0] * (k // 2)),
        make_layout=lambda size: size,
        recast_ptr=lambda place, dtype: place,
        make_tensor=lambda place, size: place,
    )
    halves = [line for half in (0, 1) for line in raw.of_half(plan, ReadHalf("ab_read", half), "k_tile")]
    program = compile("\n".join([*raw.set_up_words(plan), *halves]), "read", "exec")
    places = re.findall(r"(\w+_word_\d) = stage_words\[(.*)\]", "\n".join(halves))
    for warp in range(plan.consumer_warps):
        for lane in range(32):
            here: dict[str, Any] = {"cutlass": cutlass, "cute": cute, "lane": lane, "store_warp": warp}
            here |= {"ab_read": types.SimpleNamespace(index=1), "shared_a": types.SimpleNamespace(iterator=words)}
            here["tiled_mma"] = types.SimpleNamespace(partition_shape_A=lambda shape: shape)
            exec(program, here)
            for at, word in enumerate(here["fragment_words"]):
                place = warp * 16 + lane // 4 + at % 2 * 8, at // 4 * 8 + lane % 4 + at // 2 % 2 * 4
                found[place] = word
            for number, (_, place_of) in enumerate(places):
                address = eval(place_of, here | {"step": 0})
                read.setdefault((warp, number, ""), set()).add(address % 32)
    assert torch.equal(found, tile)
    assert all(len(banks) == 32 for banks in read.values())


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (g.Wait("ab_read"), "without a wait|stale"),
        (OrderReads(), "no fence between"),
        (g.WgmmaWait(1), "registers that the matrix unit may still read"),
        (ReadHalf("ab_read", 1), "half 1 of .* is multiplied from"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, g.Step) else "",
)
def test_planted_faults_are_found(step: g.Step, message: str) -> None:
    program = kernel_program(plan_gemm(of_words(), TILE, gemms.HOPPER))
    verify(program)
    with pytest.raises(Fault, match=message):
        verify(edited(program, "store", without(step)))


@pytest.mark.parametrize(
    ("problem", "choice", "message"),
    [
        (of_words(), Choice(tile=(64, 64, 32), pingpong=True), "without ping-pong"),
        (of_words(), Choice(tile=(256, 64, 32)), "up to 128 rows and 128 bytes along K"),
        (of_words(), Choice(tile=(128, 64, 64)), "up to 128 rows and 128 bytes along K"),
        (of_words(b_major="mn"), TILE, "operands of int8 and of 32 bits have to be contiguous along K"),
        (of_words(epilogue=gemms.swiglu(N, "float32")), TILE, "implemented on wgmma for one plain matmul"),
    ],
    ids=str,
)
def test_other_tiles_and_matmuls_are_refused(problem: GemmProblem, choice: Choice, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        plan_gemm(problem, choice, gemms.HOPPER)


def test_the_other_matrix_unit_does_not_take_them() -> None:
    with pytest.raises(Refusal, match="implemented on wgmma for one plain matmul"):
        plan_gemm(of_words(), Choice(tile=(128, 64, 32)), gemms.BLACKWELL)


def test_rows_in_memory_are_the_columns_of_the_transposed_matmul() -> None:
    given = values(M, K), values(K, N, seed=1), values(N, seed=2)
    bound = normed.bind(given, target="h200")
    asked = {"wgmma_rows_in": "memory", "wgmma_copies_in": "tma", "wgmma_k_splits": 1, "wgmma_cluster_n": 1}
    config = helion.Config(**{**bound.default_config().to_dict(), **asked, "block_sizes": [256, 32]})
    plan = bound.plan(config).gemm
    assert is_turned(plan)
    assert (plan.problem.m, plan.problem.n, plan.problem.a_major, plan.whole.m) == (N, M, "mn", M)
    assert (plan.tile, plan.cluster) == ((128, 256, 32), (1, config["wgmma_cluster_m"]))
    assert re.search(r"def gemm\(\n    b: cute.Pointer,\n    a: cute.Pointer,", bound.to_cute_code(config))
    bound.set_config(config)
    x, y, weight = (each.double() for each in given)
    exact = torch.nn.functional.layer_norm(x @ y, (N,), weight)
    assert products.row_error(bound(*given), exact) < products.BOUNDS[FP32]
    other = dataclasses.replace(plan, problem=dataclasses.replace(plan.problem, m=M, n=N))
    with pytest.raises(Fault, match=f"a matmul of {M} by {N} stores rows of {M} by {N}"):
        verify_finish(other, ())


def test_long_rows_of_tf32_need_no_transposed_copy() -> None:
    shapes = (2048, 2048), (2048, 2048), (2048,)
    config = normed.bind(tuple(torch.empty(*each, device="meta") for each in shapes), target="h200").default_config()
    assert (config["wgmma_rows_in"], config["wgmma_copies_in"]) == ("memory", "tma")
