"""Random numbers in the epilogue of a matmul: drawn by the threads, the same as eager ones of the same seed."""

from __future__ import annotations

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion._support.philox import philox, uniform
from helion.backends.cute.codegen.module import build
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.toolchain.offline import compile_text

M, N, K, SEED, LARGE = 150, 104, 72, 7, 2**45 + 12345
TARGETS = ("sm_90", "sm_100")


@helion.kernel(backend="cute")
def dropped(x: torch.Tensor, w: torch.Tensor, seed: int) -> torch.Tensor:
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[d, j], acc=acc)
        out[i, j] = torch.where(hl.rand([i, j], seed=seed) > 0.3, acc / 0.7, 0.0).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def dropped_sums(x: torch.Tensor, w: torch.Tensor, seed: int) -> torch.Tensor:
    """Whole rows that are dropped, and reduced."""
    (m, k), n = x.size(), hl.specialize(w.size(1))
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for i in hl.tile(m):
        acc = hl.zeros([i, n], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[d, :], acc=acc)
        columns = hl.arange(n)
        kept = hl.rand([i, n], seed=seed) > 0.3
        out[i] = torch.where(kept & (columns < n)[None, :], acc, 0.0).sum(-1)
    return out


@helion.kernel(backend="cute")
def noisy(x: torch.Tensor, w: torch.Tensor, seed: int) -> torch.Tensor:
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[d, j], acc=acc)
        out[i, j] = (acc + seed * torch.randn_like(acc)).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def dropped_by_loaded_seed(x: torch.Tensor, w: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[d, j], acc=acc)
        out[i, j] = torch.where(hl.rand([i, j], seed=seeds[0]) > 0.3, acc, 0.0).to(x.dtype)
    return out


def tensors(dtype: torch.dtype = BF16, n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = (products.values(*shape, dtype=dtype, device="cpu", seed=at) for at, shape in enumerate(((M, K), (K, n))))
    return x, w


def kept(n: int, seed: int) -> torch.Tensor:
    offsets = torch.arange(M)[:, None] * n + torch.arange(n)
    return uniform(philox(torch.tensor(seed), offsets)[0]) > 0.3


@pytest.mark.parametrize(("dtype", "n", "seed"), [(BF16, N, SEED), (torch.float16, 103, LARGE), (torch.float32, N, -1)])
def test_numbers_are_those_of_the_seed(dtype: torch.dtype, n: int, seed: int) -> None:
    x, w = tensors(dtype, n)
    found, wanted = dropped(x, w, seed), torch.where(kept(n, seed), x.double() @ w.double() / 0.7, 0.0)
    assert torch.equal(found != 0, kept(n, seed))
    assert products.row_error(found, wanted) < BOUNDS[dtype]


def test_reduced_rows_are_dropped() -> None:
    x, w = tensors()
    wanted = torch.where(kept(N, SEED), x.double() @ w.double(), 0.0).sum(-1)
    torch.testing.assert_close(dropped_sums(x, w, SEED).double(), wanted, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_arguments_and_positions_whole_numbers(target: str) -> None:
    bound = dropped.bind((*tensors(), SEED), target=target)
    gemm, shape = bound.plan().gemm, shape_of(bound.facts)
    assert not isinstance(shape, str) and len(shape.problem.epilogue.of_kind("uniform")) == 1
    (operand,) = gemm.problem.epilogue.of_kind("uniform")
    assert (operand.pitch, operand.column_pitch, operand.dtype) == (N, 1, "int32")
    text = build(gemm)
    assert text.count(f"{operand.label}: cutlass.Int64,") == 2 and f"* {N} + cutlass.Int64(" in text
    asked = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert asked.startswith("matmuls with random numbers in the epilogue run on request") == (target == "sm_100")


@pytest.mark.parametrize(
    ("kernel", "last", "reason"),
    [
        (noisy, SEED, "random numbers in an epilogue that are not uniform"),
        (dropped_by_loaded_seed, torch.tensor([SEED]), "seeds of random numbers in an epilogue other than integers"),
    ],
)
def test_other_numbers_are_refused(kernel: helion.Kernel, last: object, reason: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=reason):
        kernel.bind((*tensors(), last), target="sm_90")


def test_sizes_of_launches_are_refused() -> None:
    kernel = helion.kernel(dropped.fn, backend="cute", static_shapes=False)
    with pytest.raises(exc.CuteUnsupported, match="random numbers"):
        kernel.bind((*tensors(), SEED), target="sm_90")


@pytest.mark.prove
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_without_spills(target: str) -> None:
    for kernel in (dropped, dropped_sums):
        gemm = kernel.bind((*tensors(), SEED), target=target).plan().gemm
        assert ".local" not in compile_text(build(gemm), gemm).ptx
