"""Matmuls with reductions behind them or beside them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def cubic_kernel(x: torch.Tensor, y: torch.Tensor, gamma: float, shift: float) -> torch.Tensor:
    """`(gamma x y.T + shift)^3` of all pairs."""
    m, k = x.size()
    n = y.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_n, tile_k].T)
        v = gamma * acc + shift
        out[tile_m, tile_n] = (v * v * v).to(x.dtype)
    return out


CELLS.add(
    cubic_kernel,
    lambda device, small: (
        normal(device, *((65, 33) if small else (4097, 200)), dtype=FP16),
        normal(device, *((49, 33) if small else (3001, 200)), dtype=FP16),
        0.05,
        1.0,
    ),
    lambda x, y, g, c: (g * (x @ y.T) + c) ** 3,
)


@helion.kernel
def mahalanobis(x: torch.Tensor, mean: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """`|factor.T (x - mean)|^2` of each row."""
    m, k = x.size()
    k = hl.specialize(k)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        centered = x[tile, :] - mean[:]
        z = hl.dot(centered, factor[:, :])
        out[tile] = (z * z).sum(-1)
    return out


CELLS.add(
    mahalanobis,
    lambda device, small: (
        normal(device, *((37, 63) if small else (65536, 128))),
        normal(device, 63 if small else 128),
        normal(device, *((63, 63) if small else (128, 128)), scale=0.1),
    ),
    lambda x, m, f: (((x - m) @ f) ** 2).sum(-1),
)


@helion.kernel
def correlation(x: torch.Tensor) -> torch.Tensor:
    """Correlations of the columns of `x[N, D]`: means and deviations first, then a product of standardized tiles."""
    n, d = x.size()
    mean = torch.empty([d], dtype=torch.float32, device=x.device)
    scale = torch.empty([d], dtype=torch.float32, device=x.device)
    out = torch.empty([d, d], dtype=torch.float32, device=x.device)
    for tile in hl.tile(d):
        total = hl.zeros([tile], dtype=torch.float32)
        squares = hl.zeros([tile], dtype=torch.float32)
        for rows in hl.tile(n):
            v = x[rows, tile].to(torch.float32)
            total += v.sum(0)
            squares += (v * v).sum(0)
        mu = total / n
        mean[tile] = mu
        scale[tile] = torch.rsqrt(squares - n * mu * mu)
    hl.barrier()
    for tile_m, tile_n in hl.tile([d, d]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for rows in hl.tile(n):
            a = (x[rows, tile_m].to(torch.float32) - mean[tile_m]).to(x.dtype)
            b = (x[rows, tile_n].to(torch.float32) - mean[tile_n]).to(x.dtype)
            acc = torch.addmm(acc, a.T, b)
        out[tile_m, tile_n] = acc * scale[tile_m][:, None] * scale[tile_n][None, :]
    return out


def correlation_torch(x: torch.Tensor) -> torch.Tensor:
    c = high(x) - high(x).mean(0)
    z = c / torch.sqrt((c * c).sum(0))
    return z.T @ z


CELLS.add(
    correlation,
    lambda device, small: (normal(device, *((129, 33) if small else (32768, 512)), dtype=BF16),),
    correlation_torch,
)


@helion.kernel
def project_group_norm(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """`x @ w.T`, each group of 64 columns normalized to mean 0 and variance 1, times a gain."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, 64]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_n, tile_k].T)
        centered = acc - acc.mean(-1, keepdim=True)
        r = torch.rsqrt((centered * centered).mean(-1, keepdim=True) + eps)
        out[tile_m, tile_n] = (centered * r * gain[tile_n].to(torch.float32)).to(x.dtype)
    return out


def project_group_norm_torch(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    y = high(x @ w.T)
    return (F.group_norm(y, y.size(1) // 64, eps=eps) * gain).to(x.dtype)


CELLS.add(
    project_group_norm,
    lambda device, small: (
        normal(device, *((33, 65) if small else (8192, 2048)), dtype=BF16),
        normal(device, *((128, 65) if small else (2048, 2048)), dtype=BF16, scale=0.05),
        normal(device, 128 if small else 2048, dtype=BF16),
        1e-5,
    ),
    project_group_norm_torch,
)


@helion.kernel
def top2_router(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two experts of each token with their renormalized probabilities: `softmax(x @ w)` of 64 experts."""
    m, k = x.size()
    e = hl.specialize(w.size(1))
    share = torch.empty([m, 2], dtype=torch.float32, device=x.device)
    expert = torch.empty([m, 2], dtype=torch.int32, device=x.device)
    for tile in hl.tile(m):
        acc = hl.zeros([tile, e], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile, tile_k], w[tile_k, :])
        first = torch.amax(acc, -1)
        at = torch.argmax(acc, -1)
        rest = torch.where(hl.arange(e)[None, :] == at[:, None], float("-inf"), acc)
        second = torch.amax(rest, -1)
        p = 1.0 / (1.0 + torch.exp(second - first))
        share[tile, 0] = p
        share[tile, 1] = 1.0 - p
        expert[tile, 0] = at.to(torch.int32)
        expert[tile, 1] = torch.argmax(rest, -1).to(torch.int32)
    return share, expert


def top2_router_torch(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    v, i = torch.topk(high(x) @ high(w), 2, -1)
    return torch.softmax(v, -1), i.to(torch.int32)


CELLS.add(
    top2_router,
    lambda device, small: (
        normal(device, *((35, 65) if small else (16384, 4096)), dtype=BF16),
        normal(device, *((65, 24) if small else (4096, 64)), dtype=BF16),
    ),
    top2_router_torch,
)


@helion.kernel
def clip_sums(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-sum-exp of the rows of `scale a b.T` and of its columns: both directions of a contrastive loss."""
    n, k = a.size()
    rows = torch.empty([n], dtype=torch.float32, device=a.device)
    cols = torch.empty([n], dtype=torch.float32, device=a.device)
    k = hl.specialize(k)
    for tile_m in hl.tile(n):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        own = a[tile_m, :]
        for tile_n in hl.tile(n):
            s = hl.dot(own, b[tile_n, :].T) * scale[0]
            new = torch.maximum(top, torch.amax(s, -1))
            total = total * torch.exp(top - new) + torch.exp(s - new[:, None]).sum(-1)
            top = new
        rows[tile_m] = top + torch.log(total)
    for tile_n in hl.tile(n):
        top = hl.full([tile_n], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_n], dtype=torch.float32)
        own = b[tile_n, :]
        for tile_m in hl.tile(n):
            s = hl.dot(own, a[tile_m, :].T) * scale[0]
            new = torch.maximum(top, torch.amax(s, -1))
            total = total * torch.exp(top - new) + torch.exp(s - new[:, None]).sum(-1)
            top = new
        cols[tile_n] = top + torch.log(total)
    return rows, cols


def clip_sums_torch(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    s = high(a @ b.T) * scale
    return torch.logsumexp(s, 1), torch.logsumexp(s, 0)


CELLS.add(
    clip_sums,
    lambda device, small: (
        *(normal(device, *((130, 48) if small else (8192, 512)), dtype=BF16, scale=0.2) for _ in range(2)),
        torch.full([1], 1.4, device=device),
    ),
    clip_sums_torch,
)


@helion.kernel
def head_loss_gradient(
    x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, lse: torch.Tensor, upstream: float
) -> torch.Tensor:
    """Gradient of the logits of a linear cross entropy, tile by tile: `(softmax(x w.T) - onehot) * upstream`."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_n, tile_k].T)
        p = torch.exp(acc - lse[tile_m][:, None])
        hit = tile_n.index[None, :] == labels[tile_m][:, None]
        out[tile_m, tile_n] = (torch.where(hit, p - 1.0, p) * upstream).to(x.dtype)
    return out


def head_loss_gradient_torch(
    x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, lse: torch.Tensor, upstream: float
) -> torch.Tensor:
    p = torch.exp(high(x @ w.T) - lse[:, None])
    return ((p - F.one_hot(labels, w.size(0))) * upstream).to(x.dtype)


def make_head_loss_gradient(device: str, small: bool) -> Arguments:
    m, k, n = (35, 65, 257) if small else (2048, 1024, 50257)
    x, w = normal(device, m, k, dtype=BF16), normal(device, n, k, dtype=BF16, scale=0.05)
    return x, w, torch.randint(0, n, [m], device=device), torch.logsumexp((x @ w.T).float(), -1), 0.5


CELLS.add(head_loss_gradient, make_head_loss_gradient, head_loss_gradient_torch)


@helion.kernel
def weight_and_bias_gradient(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`g.T @ x` and the column sums of `g` by the same loop over tokens."""
    t, n = g.size()
    k = x.size(1)
    dw = torch.empty([n, k], dtype=torch.float32, device=g.device)
    db = torch.empty([n], dtype=torch.float32, device=g.device)
    for tile_n, tile_k in hl.tile([n, k]):
        acc = hl.zeros([tile_n, tile_k], dtype=torch.float32)
        sums = hl.zeros([tile_n], dtype=torch.float32)
        for tile_t in hl.tile(t):
            rows = g[tile_t, tile_n]
            acc = torch.addmm(acc, rows.T, x[tile_t, tile_k])
            sums += rows.to(torch.float32).sum(0)
        dw[tile_n, tile_k] = acc
        if tile_k.begin == 0:
            db[tile_n] = sums
    return dw, db


CELLS.add(
    weight_and_bias_gradient,
    lambda device, small: (
        normal(device, *((130, 33) if small else (16384, 1024)), dtype=BF16),
        normal(device, *((130, 49) if small else (16384, 1024)), dtype=BF16),
    ),
    lambda g, x: (high(g).T @ high(x), high(g).sum(0)),
    lambda g, x: ((g.T @ x).float(), g.float().sum(0)),
)
