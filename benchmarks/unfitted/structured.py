"""Products of structured matrices, and steps of solvers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, below, high, normal

CELLS = Cells()


@helion.kernel
def kron_apply(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`(a kron b) x` by two products: `out[n] = a @ x[n] @ b.T` of `x[N, J, L]`."""
    n, _j, _l = x.size()
    i, k = a.size(0), b.size(0)
    out = torch.empty([n, i, k], dtype=x.dtype, device=x.device)
    for tile_n in hl.tile(n, block_size=1):
        middle = hl.dot(a[:, :], x[tile_n.begin, :, :])
        out[tile_n.begin, :, :] = hl.dot(middle.to(x.dtype), b[:, :].T).to(x.dtype)
    return out


CELLS.add(
    kron_apply,
    lambda device, small: (
        normal(device, *((24, 40) if small else (64, 64)), dtype=BF16, scale=0.1),
        normal(device, *((17, 33) if small else (64, 64)), dtype=BF16, scale=0.1),
        normal(device, *((3, 40, 33) if small else (8192, 64, 64)), dtype=BF16),
    ),
    lambda a, b, x: a @ x @ b.T,
)


@helion.kernel
def block_diagonal_gelu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`gelu(x[M, G K] times G blocks w[G, K, N] + bias)`."""
    m = x.size(0)
    g, k, n = w.size()
    out = torch.empty([m, g * n], dtype=x.dtype, device=x.device)
    xs, outs, biases = x.view(m, g, k), out.view(m, g, n), bias.view(g, n)
    for tile_g, tile_m, tile_n in hl.tile([g, m, n], block_size=[1, None, None]):
        at = tile_g.begin
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, xs[tile_m, at, tile_k], w[at, tile_k, tile_n])
        outs[tile_m, at, tile_n] = F.gelu(acc + biases[at, tile_n].to(torch.float32)).to(x.dtype)
    return out


def block_diagonal_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> Any:
    g, k, n = w.size()
    return F.gelu(torch.einsum("mgk,gkn->mgn", x.view(-1, g, k), w).reshape(-1, g * n) + bias)


CELLS.add(
    block_diagonal_gelu,
    lambda device, small: (
        normal(device, *((33, 3 * 40) if small else (8192, 16 * 256)), dtype=BF16),
        normal(device, *((3, 40, 17) if small else (16, 256, 256)), dtype=BF16, scale=0.1),
        normal(device, 3 * 17 if small else 16 * 256, dtype=BF16),
    ),
    block_diagonal_torch,
)


@helion.kernel
def banded_product(a: torch.Tensor, x: torch.Tensor, width: int) -> torch.Tensor:
    """`a @ x` of a square matrix that is zero beyond `width` diagonals, stored dense."""
    n = a.size(0)
    c = x.size(1)
    out = torch.empty([n, c], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([n, c]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(max(0, tile_m.begin - width), min(n, tile_m.end + width)):
            acc = torch.addmm(acc, a[tile_m, tile_k], x[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def make_banded(device: str, small: bool) -> Arguments:
    n, c, w = (130, 33, 9) if small else (8192, 512, 256)
    at = torch.arange(n, device=device)
    return normal(device, n, n, dtype=BF16) * ((at[:, None] - at).abs() <= w), normal(device, n, c, dtype=BF16), w


CELLS.add(banded_product, make_banded, lambda a, x, w: a @ x)


@helion.kernel
def toeplitz_product(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`out[i, c] = sum_j t[i - j + n - 1] x[j, c]`: a matrix of constant diagonals, from its vector."""
    n, c = x.size()
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile([n, c]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(n):
            weights = t[tile_m.index[:, None] - tile_k.index[None, :] + (n - 1)]
            acc = torch.addmm(acc, weights, x[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def toeplitz_torch(t: torch.Tensor, x: torch.Tensor) -> Any:
    n = x.size(0)
    at = torch.arange(n, device=x.device)
    return t[at[:, None] - at + n - 1] @ x


def make_toeplitz(device: str, small: bool) -> Arguments:
    n, c = (65, 40) if small else (4096, 1024)
    return normal(device, 2 * n - 1, dtype=BF16), normal(device, n, c, dtype=BF16)


CELLS.add(toeplitz_product, make_toeplitz, toeplitz_torch)


@helion.kernel
def rank_k_update(a: torch.Tensor, c: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    """Lower triangle of `alpha a a.T + beta c`, the rest of `c` unchanged."""
    n, k = a.size()
    out = c.clone()
    for tile_m, tile_n in hl.tile([n, n]):
        if tile_m.end > tile_n.begin:
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, a[tile_m, tile_k], a[tile_n, tile_k].T)
            old = c[tile_m, tile_n].to(torch.float32)
            new = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], alpha * acc + beta * old, old)
            out[tile_m, tile_n] = new.to(c.dtype)
    return out


CELLS.add(
    rank_k_update,
    lambda device, small: (
        normal(device, *((77, 33) if small else (4096, 1024)), dtype=BF16),
        normal(device, *((77, 77) if small else (4096, 4096))),
        0.5,
        2.0,
    ),
    lambda a, c, x, y: torch.where(below(c.size(0), c.device), x * (high(a) @ high(a).T) + y * c, c),
    lambda a, c, x, y: torch.where(below(c.size(0), c.device), x * (a @ a.T).float() + y * c, c),
)


@helion.kernel
def solve_step(lower: torch.Tensor, x: torch.Tensor, b: torch.Tensor, done: int) -> torch.Tensor:
    """Right side of the next block of a forward substitution: `b[done:] - lower[done:, :done] @ x[:done]`."""
    n = lower.size(0)
    c = b.size(1)
    out = torch.empty([n - done, c], dtype=torch.float32, device=b.device)
    for tile_m, tile_n in hl.tile([n - done, c]):
        acc = b[tile_m.index + done, tile_n].to(torch.float32)
        for tile_k in hl.tile(done):
            acc = acc - hl.dot(lower[tile_m.index + done, tile_k], x[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


CELLS.add(
    solve_step,
    lambda device, small: (
        *(
            (normal(device, 96, 96, scale=0.1), normal(device, 96, 33), normal(device, 96, 33), 64)
            if small
            else (normal(device, 4096, 4096, scale=0.1), normal(device, 4096, 512), normal(device, 4096, 512), 2048)
        ),
    ),
    lambda lower, x, b, n: b[n:] - lower[n:, :n] @ x[:n],
)


@helion.kernel
def inverse_step(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Newton's step towards the inverse of each matrix of a batch: `x (2 I - a x)`."""
    b, n, _ = a.size()
    residual = torch.empty_like(x)
    out = torch.empty_like(x)
    for tile_b, tile_m, tile_n in hl.tile([b, n, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(n):
            acc = torch.addmm(acc, a[tile_b.begin, tile_m, tile_k], x[tile_b.begin, tile_k, tile_n])
        eye = torch.where(tile_m.index[:, None] == tile_n.index[None, :], 2.0, 0.0)
        residual[tile_b.begin, tile_m, tile_n] = (eye - acc).to(x.dtype)
    hl.barrier()
    for tile_b, tile_m, tile_n in hl.tile([b, n, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(n):
            acc = torch.addmm(acc, x[tile_b.begin, tile_m, tile_k], residual[tile_b.begin, tile_k, tile_n])
        out[tile_b.begin, tile_m, tile_n] = acc.to(x.dtype)
    return out


def inverse_step_torch(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    eye = torch.eye(a.size(1), dtype=a.dtype, device=a.device)
    return x @ (2 * eye - a @ x)


def make_inverse_step(device: str, small: bool) -> Arguments:
    b, n = (2, 63) if small else (16, 512)
    return normal(device, b, n, n, dtype=BF16, scale=0.05), normal(device, b, n, n, dtype=BF16, scale=0.05)


CELLS.add(inverse_step, make_inverse_step, inverse_step_torch)


@helion.kernel
def hermitian_gram(re: torch.Tensor, im: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Real and imaginary part of `A^H A` of a tall complex matrix."""
    k, n = re.size()
    real = torch.empty([n, n], dtype=torch.float32, device=re.device)
    imag = torch.empty([n, n], dtype=torch.float32, device=re.device)
    for tile_m, tile_n in hl.tile([n, n]):
        r = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        i = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            a, b = re[tile_k, tile_m].T, im[tile_k, tile_m].T
            c, d = re[tile_k, tile_n], im[tile_k, tile_n]
            r = hl.dot(a, c, acc=r)
            r = hl.dot(b, d, acc=r)
            i = hl.dot(a, d, acc=i)
            i = i - hl.dot(b, c)
        real[tile_m, tile_n] = r
        imag[tile_m, tile_n] = i
    return real, imag


CELLS.add(
    hermitian_gram,
    lambda device, small: tuple(normal(device, *((129, 33) if small else (65536, 256)), dtype=BF16) for _ in range(2)),
    lambda r, i: (high(r).T @ high(r) + high(i).T @ high(i), high(r).T @ high(i) - high(i).T @ high(r)),
    lambda r, i: ((r.T @ r).float() + (i.T @ i).float(), (r.T @ i).float() - (i.T @ r).float()),
)
