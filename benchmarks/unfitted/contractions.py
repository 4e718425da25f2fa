"""Products of few rows, and contractions of tensors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Cells, high, normal

CELLS = Cells()


@helion.kernel
def one_row_head(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Logits of one token: `x[1, K] @ w[K, N] + bias`, N of a vocabulary and K odd."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        out[tile_m, tile_n] = acc + bias[tile_n].to(torch.float32)
    return out


CELLS.add(
    one_row_head,
    lambda device, small: (
        normal(device, 1, 79 if small else 479, dtype=BF16),
        normal(device, *((79, 257) if small else (479, 50257)), dtype=BF16),
        normal(device, 257 if small else 50257, dtype=BF16),
    ),
    lambda x, w, b: high(x) @ high(w) + b,
    lambda x, w, b: (x @ w + b).float(),
)


@helion.kernel
def greedy_head(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest logit of `x[M, K] @ w[N, K].T` in each part of the vocabulary, and its place."""
    m, k = x.size()
    n = w.size(0)
    torch.empty([m], dtype=torch.float32, device=x.device)
    torch.empty([m], dtype=torch.int64, device=x.device)
    block = hl.register_block_size(n)
    parts = helion.cdiv(n, block)
    tops = torch.empty([m, parts], dtype=torch.float32, device=x.device)
    places = torch.empty([m, parts], dtype=torch.int64, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, block]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_n, tile_k].T)
        acc = torch.where(tile_n.index[None, :] < n, acc, float("-inf"))
        tops[tile_m, tile_n.id] = torch.amax(acc, -1)
        places[tile_m, tile_n.id] = torch.argmax(acc, -1) + tile_n.begin
    at = tops.argmax(-1, keepdim=True)
    return tops.gather(1, at)[:, 0], places.gather(1, at)[:, 0]


CELLS.add(
    greedy_head,
    lambda device, small: (
        normal(device, *((3, 65) if small else (17, 4096)), dtype=BF16),
        normal(device, *((301, 65) if small else (50257, 4096)), dtype=BF16),
    ),
    lambda x, w: tuple((high(x) @ high(w).T).max(-1)),
    lambda x, w: tuple((x @ w.T).float().max(-1)),
)


@helion.kernel
def three_tokens(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`relu(x gate)^2 * (x up)` of three rows."""
    m, k = x.size()
    n = gate.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        a = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        b = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            a = torch.addmm(a, rows, gate[tile_k, tile_n])
            b = torch.addmm(b, rows, up[tile_k, tile_n])
        r = torch.relu(a)
        out[tile_m, tile_n] = (r * r * b).to(x.dtype)
    return out


CELLS.add(
    three_tokens,
    lambda device, small: (
        normal(device, 3, 63 if small else 4096, dtype=BF16),
        normal(device, *((63, 130) if small else (4096, 11008)), dtype=BF16, scale=0.02),
        normal(device, *((63, 130) if small else (4096, 11008)), dtype=BF16, scale=0.02),
    ),
    lambda x, g, u: torch.relu(x @ g) ** 2 * (x @ u),
)


@helion.kernel
def strided_batches(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`out[b, h] = a[b, :, h, :] @ b[b, :, h, :].T` of tensors that keep heads next to channels."""
    batch, t, h, d = a.size()
    n = b.size(1)
    out = torch.empty([batch, h, t, n], dtype=a.dtype, device=a.device)
    for tile_b, tile_h, tile_m, tile_n in hl.tile([batch, h, t, n], block_size=[1, 1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(d):
            acc = torch.addmm(
                acc, a[tile_b.begin, tile_m, tile_h.begin, tile_k], b[tile_b.begin, tile_n, tile_h.begin, tile_k].T
            )
        out[tile_b.begin, tile_h.begin, tile_m, tile_n] = (acc / math.sqrt(d)).to(a.dtype)
    return out


CELLS.add(
    strided_batches,
    lambda device, small: tuple(
        normal(device, *((2, n, 3, 40) if small else (4, n * 16, 16, 80)), dtype=BF16) for n in (33, 63)
    ),
    lambda a, b: torch.einsum("bthd,bnhd->bhtn", a, b) / math.sqrt(a.size(3)),
)


@helion.kernel
def contract_two(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`out[b, i, l] = sum_jk a[b, i, j, k] b[l, j, k]`, a sum along two dimensions."""
    n, i, j, k = a.size()
    count = b.size(0)
    out = torch.empty([n, i, count], dtype=a.dtype, device=a.device)
    for tile_b, tile_i, tile_l in hl.tile([n, i, count], block_size=[1, None, None]):
        acc = hl.zeros([tile_i, tile_l], dtype=torch.float32)
        for jj in hl.grid(j):
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, a[tile_b.begin, tile_i, jj, tile_k], b[tile_l, jj, tile_k].T)
        out[tile_b.begin, tile_i, tile_l] = acc.to(a.dtype)
    return out


CELLS.add(
    contract_two,
    lambda device, small: (
        normal(device, *((2, 35, 3, 24) if small else (8, 512, 16, 96)), dtype=BF16),
        normal(device, *((49, 3, 24) if small else (768, 16, 96)), dtype=BF16),
    ),
    lambda a, b: torch.einsum("bijk,ljk->bil", a, b),
)


@helion.kernel
def khatri_rao(x: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """`out[i, r] = sum_jk x[i, j, k] b[j, r] c[k, r]`, the step of a CP decomposition."""
    i, j, k = x.size()
    r = b.size(1)
    out = torch.empty([i, r], dtype=torch.float32, device=x.device)
    for tile_i, tile_r in hl.tile([i, r]):
        acc = hl.zeros([tile_i, tile_r], dtype=torch.float32)
        for jj in hl.grid(j):
            part = hl.zeros([tile_i, tile_r], dtype=torch.float32)
            for tile_k in hl.tile(k):
                part = torch.addmm(part, x[tile_i, jj, tile_k], c[tile_k, tile_r])
            acc += part * b[jj, tile_r].to(torch.float32)[None, :]
        out[tile_i, tile_r] = acc
    return out


CELLS.add(
    khatri_rao,
    lambda device, small: (
        normal(device, *((33, 5, 40) if small else (1024, 64, 512)), dtype=BF16),
        normal(device, *((5, 17) if small else (64, 64)), dtype=BF16),
        normal(device, *((40, 17) if small else (512, 64)), dtype=BF16),
    ),
    lambda x, b, c: torch.einsum("ijk,jr,kr->ir", high(x), high(b), high(c)),
)


@helion.kernel
def bilinear_scores(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`out[b, o] = x[b] @ w[o] @ y[b] + bias[o]`."""
    m, i = x.size()
    o, _, j = w.size()
    j = hl.specialize(j)
    out = torch.empty([m, o], dtype=torch.float32, device=x.device)
    for tile_m, tile_o in hl.tile([m, o], block_size=[None, 1]):
        acc = hl.zeros([tile_m, j], dtype=torch.float32)
        for tile_i in hl.tile(i):
            acc = torch.addmm(acc, x[tile_m, tile_i], w[tile_o.begin, tile_i, :])
        out[tile_m, tile_o.begin] = (acc * y[tile_m, :].to(torch.float32)).sum(-1) + bias[tile_o.begin].to(
            torch.float32
        )
    return out


CELLS.add(
    bilinear_scores,
    lambda device, small: (
        normal(device, *((35, 48) if small else (4096, 256)), dtype=BF16),
        normal(device, *((7, 48, 33) if small else (64, 256, 128)), dtype=BF16),
        normal(device, *((35, 33) if small else (4096, 128)), dtype=BF16),
        normal(device, 7 if small else 64, dtype=BF16),
    ),
    lambda x, w, y, b: torch.einsum("bi,oij,bj->bo", high(x), high(w), high(y)) + b,
    lambda x, w, y, b: F.bilinear(x, y, w, b).float(),
)


@helion.kernel
def fourth_powers(a: torch.Tensor) -> torch.Tensor:
    """Fourth power of each small square matrix."""
    b, _n, _ = a.size()
    out = torch.empty_like(a)
    for tile in hl.tile(b):
        square = torch.bmm(a[tile, :, :], a[tile, :, :])
        out[tile, :, :] = torch.bmm(square, square)
    return out


CELLS.add(
    fourth_powers,
    lambda device, small: (normal(device, *((5, 32, 32) if small else (16384, 32, 32)), dtype=BF16, scale=0.2),),
    lambda a: (a @ a) @ (a @ a),
)
