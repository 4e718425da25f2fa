"""8-bit floats of either major mode on tcgen05, which TMA loads as they are."""

from __future__ import annotations

import pytest
import torch
from backends.cute import cubins, products
from backends.cute.products import BOUNDS, E4M3, E5M2

import helion
import helion.language as hl
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.shapes import MATMUL
from helion.hardware import target as target_of

M, N, K = 304, 272, 400
BF16 = torch.bfloat16


@helion.kernel(backend="cute")
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], y[d, j], acc=acc)
        out[i, j] = acc.to(out.dtype)
    return out


@helion.kernel(backend="cute")
def batched(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (b, m, k), n = x.size(), y.size(2)
    out = torch.empty([b, m, n], dtype=torch.bfloat16, device=x.device)
    for g, i, j in hl.tile([b, m, n], block_size=[1, None, None]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[g.begin, i, d], y[g.begin, d, j], acc=acc)
        out[g.begin, i, j] = acc.to(out.dtype)
    return out


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = E4M3) -> torch.Tensor:
    return products.values(*shape, dtype=torch.float32, device="cpu", seed=seed).to(dtype)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("turned", [False, True], ids=["row", "column"])
def test_tma_loads_either_major_mode_on_blackwell(dtype: torch.dtype, turned: bool) -> None:
    x = tensor(K, M, dtype=dtype).t() if turned else tensor(M, K, dtype=dtype)
    y = tensor(K, N, seed=1, dtype=dtype)
    bound = matmul.bind((x, y), target="sm_100")
    assert products.row_error(bound(x, y), x.double() @ y.double()) < BOUNDS[BF16]
    gemm = bound.plan().gemm
    majors = gemm.problem.a_major, gemm.problem.b_major
    assert (majors, gemm.prepare, gemm.problem.copied) == (("mn" if turned else "k", "mn"), None, ())
    assert gemm.tile[1] % 128 == 0 and (not turned or gemm.cta_tile[0] % 128 == 0)
    asked = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert "of 8 bits is not contiguous along K" in asked
    hopper = matmul.bind((x, y), target="sm_90").plan().gemm
    assert {each.operand for each in hopper.whole.copied} == ({"a", "b"} if turned else {"b"})


def test_batches_keep_their_strides() -> None:
    x, y = tensor(3, M, K), tensor(3, K, N, seed=1)
    bound = batched.bind((x, y), target="sm_100")
    assert products.row_error(bound(x, y).flatten(0, 1), (x.double() @ y.double()).flatten(0, 1)) < BOUNDS[BF16]
    problem = bound.plan().gemm.problem
    assert problem.batch is not None and (problem.b_major, problem.b_pitch, problem.batch.b) == ("mn", N, K * N)


def test_other_operands_are_copied() -> None:
    odd = matmul.bind((tensor(M, K), tensor(K, 263, seed=1)), target="sm_100")
    assert {each.operand for each in odd.plan().gemm.whole.copied} == {"b"}
    problem = matmul.bind((tensor(M, K), tensor(K, N, seed=1)), target="sm_90").plan().gemm.whole
    with pytest.raises(Refusal, match="are implemented on tcgen05 for 8-bit floats of either major mode"):
        plan_gemm(problem, Choice(tile=(128, 128, 128), copies_in="tma"), target_of("sm_90"))


@pytest.mark.prove
@pytest.mark.parametrize(("tile", "pair"), [((128, 128, 128), 1), ((128, 256, 128), 1), ((256, 256, 256), 2)])
def test_tiles_compile_without_spills(tile: tuple[int, int, int], pair: int) -> None:
    problem = matmul.bind((tensor(M, K), tensor(K, N, seed=1)), target="sm_100").plan().gemm.problem
    choice = Choice(tile=tile, cluster=(pair, 1), ctas_per_mma=pair, epilogue_n=16)
    found = cubins.measure(plan_gemm(problem, choice, target_of("sm_100")))
    assert found["stack_bytes"] == 0 and not found["misplaced_barriers"] and found["opcodes"]["UTCQMMA"] > 0
