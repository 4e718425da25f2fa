"""Matmuls of int8 operands with accumulators in int32, exact before they are rounded to fp32."""

from __future__ import annotations

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.module import build
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.toolchain.offline import compile_text

M, N, K = 150, 104, 3008


@helion.kernel(backend="cute")
def linear(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=BF16, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.int32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[j, d].T, acc=acc)
        out[i, j] = (acc.to(torch.float32) * x_scale[i][:, None] * w_scale[j][None, :]).to(BF16)
    return out


@helion.kernel(backend="cute")
def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The sums themselves, of ``w[K, N]``."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.int32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[d, j], acc=acc)
        out[i, j] = acc.to(torch.float32)
    return out


@helion.kernel(backend="cute")
def blocks(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """Scales for every 128 of K."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k, block_size=128):
            part = hl.dot(x[i, d], w[j, d].T)
            acc = acc + part.to(torch.float32) * x_scale[i, d.id][:, None] * w_scale[j, d.id][None, :]
        out[i, j] = acc
    return out


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def test_sums_are_exact_and_rounded_once() -> None:
    x, w = numbers(M, K), numbers(N, K, seed=1)
    x[:, ::2], w[:, ::2] = -128, -128  # sums past 2**24
    exact = x.long() @ w.long().t()
    assert exact.abs().max() > 2**24
    assert torch.equal(plain(x, w.t()), exact.float())
    assert torch.equal(plain(x, w.t().contiguous()), exact.float())
    x_scale, w_scale = torch.rand(M) + 0.5, torch.rand(N) + 0.5
    wanted = exact.double() * x_scale.double()[:, None] * w_scale.double()
    assert products.row_error(linear(x, w, x_scale, w_scale), wanted) < BOUNDS[BF16]


def test_blocks_of_k_have_scales() -> None:
    x, w, count = numbers(M, K), numbers(N, K, seed=1), -(-K // 128)
    x_scale, w_scale = torch.rand(M, count) + 0.5, torch.rand(N, count) + 0.5
    left, right = (
        tensor.double() * scale.double().repeat_interleave(128, 1)[:, :K]
        for tensor, scale in ((x, x_scale), (w, w_scale))
    )
    assert products.row_error(blocks(x, w, x_scale, w_scale), left @ right.t()) < 1e-5


def test_the_matrix_unit_multiplies_integers() -> None:
    x, w, count = numbers(M, K), numbers(N, K, seed=1), -(-K // 128)
    for kernel, scales in ((linear, ((M,), (N,))), (blocks, ((M, count), (N, count)))):
        bound = kernel.bind((x, w, *(torch.rand(shape) for shape in scales)), target="sm_90")
        gemm = bound.plan().gemm
        assert gemm.promote == (kernel is blocks) and gemm.parts == 1
        assert not MATMUL.on_request(bound.plan().program, bound.facts, bound.target)
    text = build(gemm)
    assert "sums[i].to(cutlass.Float32)" in text and "sums_shape, cutlass.Int32" in text
    assert "s32.s8.s8" in compile_text(text, gemm).ptx


@pytest.mark.parametrize("kernel", [linear, blocks], ids=lambda kernel: kernel.name)
def test_tensor_memory_holds_integers(kernel: helion.Kernel) -> None:
    """Registers have the bits of the accumulator, which are converted before they are read."""
    x, w, count = numbers(M, K), numbers(N, K, seed=1), -(-K // 128)
    scales = ((M,), (N,)) if kernel is linear else ((M, count), (N, count))
    bound = kernel.bind((x, w, *(torch.rand(shape) for shape in scales)), target="sm_100")
    assert MATMUL.on_request(bound.plan().program, bound.facts, bound.target)
    gemm = bound.plan().gemm
    text = build(gemm)
    loaded, converted = (
        "cute.arch.fence_view_async_tmem_load()",
        "values.store(cute.recast_tensor(values, cutlass.Int32)",
    )
    assert text.index(loaded) < text.index(converted) and "recast_ptr(sums_pointer, dtype=cutlass.Int32)" in text
    assert "kind::i8" in compile_text(text, gemm).ptx


@helion.kernel(backend="cute")
def started(x: torch.Tensor, w: torch.Tensor, start: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Integers that are added before they are rounded."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.int32) + start[j][None, :]
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[j, d].T, acc=acc)
        out[i, j] = (acc + bias[j][None, :]).to(torch.float32)
    return out


@helion.kernel(backend="cute")
def stored(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=torch.int32, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.int32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[j, d].T, acc=acc)
        out[i, j] = acc
    return out


def test_what_needs_all_bits_of_a_sum_is_refused() -> None:
    x, w, zeros = numbers(M, K), numbers(N, K, seed=1), torch.zeros(N, dtype=torch.int32)
    with pytest.raises(exc.CuteUnsupported, match=r"start from other numbers than zero|add of int32"):
        started.bind((x, w, zeros, zeros), target="sm_90")
    with pytest.raises(exc.CuteUnsupported, match="outputs of int32 are not implemented"):
        stored.bind((x, w), target="sm_90")
    with pytest.raises(exc.CuteUnsupported, match="int8 are implemented where tcgen05 has instructions for them"):
        plain.bind((x, w.t()), target="sm_103")
    long = torch.empty(64, 2**17, dtype=torch.int8, device="meta")
    with pytest.raises(exc.CuteUnsupported, match="sums of up to 131071 products fit in int32"):
        plain.bind((long, long.t()), target="sm_90")
    bound = plain.bind((x, w.t()), target="sm_90")
    with pytest.raises(exc.InvalidConfig, match="in 4 parts, whose sums fp32 may not hold"):
        bound.set_config({"wgmma_grid_splits": 4})
