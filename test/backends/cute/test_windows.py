"""Parts of tensors at known places: halves of rows, one of several matrices, every second row, heads."""

from __future__ import annotations

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.shapes import MATMUL

M, N, K, D = 150, 104, 72, 64
TARGETS = ("sm_90", "sm_100")


@helion.kernel(backend="cute")
def halves(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The gate in the first rows of ``w[2 * N, K]``, what it multiplies in the others."""
    (m, k), n = x.size(), w.size(0) // 2
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        gate, up = (hl.zeros([i, j], dtype=torch.float32) for _ in range(2))
        for d in hl.tile(k):
            gate = hl.dot(x[i, d], w[j, d].T, acc=gate)
            up = hl.dot(x[i, d], w[j.index + n, d].T, acc=up)
        out[i, j] = (torch.nn.functional.silu(gate) * up).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def interleaved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The same with both in turn."""
    (m, k), n = x.size(), w.size(0) // 2
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        gate, up = (hl.zeros([i, j], dtype=torch.float32) for _ in range(2))
        for d in hl.tile(k):
            gate = hl.dot(x[i, d], w[2 * j.index, d].T, acc=gate)
            up = hl.dot(x[i, d], w[2 * j.index + 1, d].T, acc=up)
        out[i, j] = (torch.nn.functional.silu(gate) * up).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def picked(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The last matrix of ``w[3, K, N]``, of rows from the eighth on, with the second bias."""
    k, n = w.size(1), w.size(2)
    m = x.size(0) - 8
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i.index + 8, d], w[2, d, j], acc=acc)
        out[i, j] = (acc + bias[1, j][None, :].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def rotated(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads of ``w[H * 2 * D, K]``, whose halves are rotated."""
    m, k = x.size()
    half = hl.specialize(cos.size(1))
    out = torch.empty([m, w.size(0)], dtype=x.dtype, device=x.device)
    for i, head in hl.tile([m, w.size(0) // (2 * half)], block_size=[None, 1]):
        first, second = (hl.zeros([i, half], dtype=torch.float32) for _ in range(2))
        at = head.begin * 2 * half + hl.arange(half)
        for d in hl.tile(k):
            first = hl.dot(x[i, d], w[at, d].T, acc=first)
            second = hl.dot(x[i, d], w[at + half, d].T, acc=second)
        c, s = cos[i, :].to(torch.float32), sin[i, :].to(torch.float32)
        out[i, at] = (first * c - second * s).to(x.dtype)
        out[i, at + half] = (first * s + second * c).to(x.dtype)
    return out


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return products.values(*shape, dtype=dtype, device="cpu", seed=seed)


def swiglu(gate: torch.Tensor, up: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    left = x.double()
    return torch.nn.functional.silu(left @ gate.double().t()) * (left @ up.double().t())


def test_two_products_of_halves_of_one_tensor() -> None:
    x, w = tensor(M, K), tensor(2 * N, K, seed=1)
    assert products.row_error(halves(x, w), swiglu(w[:N], w[N:], x)) < BOUNDS[BF16]
    assert products.row_error(interleaved(x, w), swiglu(w[::2], w[1::2], x)) < BOUNDS[BF16]


def test_one_matrix_of_several() -> None:
    x, w, bias = tensor(M + 8, K), tensor(3, K, N, seed=1), tensor(2, N, seed=2)
    wanted = x[8:].double() @ w[2].double() + bias[1].double()
    assert products.row_error(picked(x, w, bias), wanted) < BOUNDS[BF16]
    problem = picked.bind((x, w, bias), target="sm_90").plan().gemm.problem
    assert problem.starts == (8 * K, 2 * K * N, 0, N)


def test_halves_of_heads_are_stored_to_one_tensor() -> None:
    heads, x = 3, tensor(M, K)
    w, cos, sin = tensor(heads * 2 * D, K, seed=1), tensor(M, D, seed=2), tensor(M, D, seed=3)
    first, second = (x.double() @ w.double().t()).view(M, heads, 2, D).unbind(2)
    c, s = cos.double()[:, None], sin.double()[:, None]
    wanted = torch.stack([first * c - second * s, first * s + second * c], 2).view(M, -1)
    assert products.row_error(rotated(x, w, cos, sin), wanted) < BOUNDS[BF16]


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_know_windows(target: str) -> None:
    x, w, cos = tensor(M, K), tensor(6 * D, K), tensor(M, D)
    for kernel, args in ((halves, (x, w)), (rotated, (x, w, cos, cos))):
        bound = kernel.bind(args, target=target)
        shape = shape_of(bound.facts)
        assert not isinstance(shape, str) and shape.products == 2
        assert len(shape.problem.outputs) == len(bound.plan().gemm.problem.outputs)
        on_request = MATMUL.on_request(bound.plan().program, bound.facts, bound.target)
        assert bool(on_request) == (target == "sm_100")


@helion.kernel(backend="cute")
def overlapping(x: torch.Tensor, w: torch.Tensor, step: hl.constexpr) -> torch.Tensor:
    """Two outputs in one tensor, ``step`` columns apart."""
    (m, k), n = x.size(), w.size(0)
    out = torch.zeros([m, 2 * n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[j, d].T, acc=acc)
        out[i, j] = acc.to(x.dtype)
        out[i, j.index + step] = (2 * acc).to(x.dtype)
    return out


def test_outputs_that_overlap_are_refused() -> None:
    x, w = tensor(M, K), tensor(N, K, seed=1)
    product = x.double() @ w.double().t()
    assert products.row_error(overlapping(x, w, N), torch.cat([product, 2 * product], 1)) < BOUNDS[BF16]
    with pytest.raises(exc.CuteUnsupported, match="out shares memory with the output out"):
        overlapping.bind((x, w, N - 8))


@helion.kernel(backend="cute")
def shifted(x: torch.Tensor, w: torch.Tensor, by: hl.constexpr) -> torch.Tensor:
    """Rows ``by`` after those of the output, and columns of K from the same on."""
    n, k = w.size()
    m = x.size(0) - 8
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i.index + by, d.index + by], w[j, d].T, acc=acc)
        out[i, j] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize("by", [8, 1])
def test_a_window_between_addresses_of_tma_is_copied(by: int) -> None:
    x, w = tensor(M + 8, K + 8), tensor(N, K, seed=1)
    wanted = x[by : M + by, by : K + by].double() @ w.double().t()
    assert products.row_error(shifted(x, w, by), wanted) < BOUNDS[BF16]
    bound = shifted.bind((x, w, by), target="sm_90")
    copied = [each.sources[0].aligned for each in bound.plan().gemm.whole.copied]
    assert copied == ([] if by == 8 else [False])
    assert not MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)


@helion.kernel(backend="cute")
def without_first(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """A product of all but the first column, stored to all but the first row."""
    inner, stored = x[:, 1:], out.view(-1)[1 : 1 + x.size(0) * w.size(0)].view(x.size(0), w.size(0))
    (m, k), n = inner.size(), w.size(0)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(inner[i, d], w[j, d].T, acc=acc)
        stored[i, j] = acc.to(out.dtype)
    return out


def test_tensors_between_addresses_of_tma_are_copied_for_a_launch() -> None:
    x, w, out = tensor(M, K + 1), tensor(N, K, seed=1), torch.full([M * N + 1], 3.0).bfloat16()
    found = without_first(x, w, out)
    assert products.row_error(found[1:].view(M, N), x[:, 1:].double() @ w.double().t()) < BOUNDS[BF16]
    assert found[0] == 3
    bound = without_first.bind((x, w, out), target="sm_90")
    asked = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert "which may begin between multiples of 16 bytes and is copied for each launch" in asked
