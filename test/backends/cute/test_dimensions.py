"""Matmuls whose M, N or K is the product of two dimensions of the program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from backends.cute.products import BF16

import helion
import helion.language as hl
from helion import exc


@helion.kernel(backend="cute", static_shapes=True)
def tokens_to_heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rows of two dimensions, and columns of two."""
    b, s, k = x.size()
    h, d = w.size(1), hl.specialize(w.size(2))
    out = torch.empty([b, s, h, d], dtype=x.dtype, device=x.device)
    for tile_b, tile_s, tile_h in hl.tile([b, s, h]):
        acc = hl.zeros([tile_b, tile_s, tile_h, d], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_b, tile_s, tile_k].reshape(tile_b.block_size * tile_s.block_size, tile_k.block_size)
            columns = w[tile_k, tile_h, :].reshape(tile_k.block_size, tile_h.block_size * d)
            acc = acc + hl.dot(rows, columns).reshape(tile_b.block_size, tile_s.block_size, tile_h.block_size, d)
        out[tile_b, tile_s, tile_h, :] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def from_heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Heads and their elements are K."""
    b, s, h, d = x.size()
    n = w.size(2)
    out = torch.empty([b, s, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_s, tile_n in hl.tile([b, s, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_s, tile_n], dtype=torch.float32)
        for head in hl.grid(h):
            for tile_d in hl.tile(d):
                acc = torch.addmm(acc, x[tile_b.begin, tile_s, head, tile_d], w[head, tile_d, tile_n])
        out[tile_b.begin, tile_s, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def weight_gradient(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Two tiled dimensions are K."""
    b, s, m = x.size()
    n = grad.size(2)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for i in hl.grid(b):
            for tile_s in hl.tile(s):
                acc = torch.addmm(acc, x[i, tile_s, tile_m].T, grad[i, tile_s, tile_n])
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute", static_shapes=True)
def taps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution, whose taps a grid counts."""
    b, s, k = x.size()
    n = w.size(2)
    out = torch.empty([b, s - 2, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_s, tile_n in hl.tile([b, s - 2, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_s, tile_n], dtype=torch.float32)
        for tap in hl.grid(3):
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_b.begin, tile_s.index + tap, tile_k], w[tap, tile_k, tile_n], acc=acc)
        out[tile_b.begin, tile_s, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def flat(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rows of two dimensions."""
    b, s, k = x.size()
    n = w.size(1)
    out = torch.empty([b, s, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_s, tile_n in hl.tile([b, s, n]):
        acc = hl.zeros([tile_b, tile_s, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_b, tile_s, tile_k].reshape(tile_b.block_size * tile_s.block_size, tile_k.block_size)
            acc = acc + hl.dot(rows, w[tile_k, tile_n]).reshape(acc.size(0), acc.size(1), acc.size(2))
        out[tile_b, tile_s, tile_n] = acc.to(x.dtype)
    return out


def made(*shape: int, seed: int) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.25).to(BF16)


Case = tuple[helion.Kernel, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]
CASES: dict[str, Case] = {
    "rows and columns": (
        tokens_to_heads,
        (made(3, 29, 72, seed=0), made(72, 4, 16, seed=1)),
        lambda x, w: torch.einsum("bsk,khd->bshd", x, w),
    ),
    "heads, one in memory": (
        from_heads,
        (made(2, 50, 13, 24, seed=0), made(13, 24, 72, seed=1)),
        lambda x, w: torch.einsum("bshd,hde->bse", x, w),
    ),
    "heads, apart in memory": (
        from_heads,
        (made(2, 3, 50, 24, seed=0).transpose(1, 2), made(3, 24, 72, seed=1)),
        lambda x, w: torch.einsum("bshd,hde->bse", x, w),
    ),
    "gradient": (
        weight_gradient,
        (made(3, 50, 72, seed=0), made(3, 50, 136, seed=1)),
        lambda x, g: torch.einsum("bsi,bsj->ij", x, g),
    ),
    "taps": (
        taps,
        (made(2, 40, 24, seed=0), made(3, 24, 40, seed=1)),
        lambda x, w: sum(x[:, at : at + 38] @ w[at] for at in range(3)),
    ),
}


@pytest.mark.parametrize("name", [*CASES])
def test_products_of_dimensions_are_those_of_torch(name: str) -> None:
    kernel, args, exact = CASES[name]
    wanted = exact(*(each.double() for each in args))
    assert (kernel(*args).double() - wanted).norm() < 5e-3 * wanted.norm()


def test_one_dimension_has_the_elements_of_both() -> None:
    kernel, args, _ = CASES["rows and columns"]
    problem = kernel.bind(args, target="h200").plan().gemm.problem
    assert (problem.m, problem.n, problem.k, problem.batch, problem.copied) == (3 * 29, 4 * 16, 72, None, ())
    kernel, args, _ = CASES["heads, apart in memory"]
    assert len(kernel.bind(args, target="h200").plan().gemm.problem.terms) == 2


def test_rows_that_are_apart_in_memory_are_refused() -> None:
    x = made(3, 40, 72, seed=0)[:, :29]
    with pytest.raises(exc.CuteUnsupported, match="tiles of more than one matmul"):
        flat.bind((x, made(72, 40, seed=1)), target="h200")
