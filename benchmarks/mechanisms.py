"""Kernels whose time one physical mechanism decides, for the choice of first configs.

Atomics that meet at few addresses, pairs of columns that one thread holds, fewer programs than SMs, rows that begin at
odd addresses, padded lanes, and random numbers. `benchmarks/seeds.py --suites mechanisms` times them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .unseen.table import BF16, FP16, FP32, Arguments, Maker, Unseen, wide

LOG2E = math.log2(math.e)


@helion.kernel()
def one_hot_counts(ids: torch.Tensor, bins: hl.constexpr) -> torch.Tensor:
    """Count each of ``bins`` integers in ``ids[N]``: a one-hot matrix per tile, and its sum with atomics."""
    out = torch.zeros([bins], dtype=torch.int32, device=ids.device)
    for tile in hl.tile(ids.size(0)):
        every = hl.arange(bins)
        hits = (ids[tile][:, None] == every[None, :]).to(torch.int32)
        hl.atomic_add(out, [every], hits.sum(0))
    return out


@helion.kernel()
def counted_values(ids: torch.Tensor, bins: int) -> torch.Tensor:
    """Count the same with one atomic per element."""
    out = torch.zeros([bins], dtype=torch.int32, device=ids.device)
    for tile in hl.tile(ids.size(0)):
        hl.atomic_add(out, [ids[tile]], torch.ones_like(ids[tile], dtype=torch.int32))
    return out


@helion.kernel()
def rotated_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate neighbouring columns of ``x[T, H, D]`` by the angles of ``cos[T, D / 2]`` and ``sin``."""
    t, h, d = x.size()
    d = hl.specialize(d)
    out = torch.empty_like(x)
    for tile_t, tile_h in hl.tile([t, h]):
        pairs = x[tile_t, tile_h, :].to(torch.float32).reshape(tile_t, tile_h, d // 2, 2)
        even, odd = hl.split(pairs)
        c, s = cos[tile_t, :][:, None, :], sin[tile_t, :][:, None, :]
        turned = hl.join(even * c - odd * s, even * s + odd * c)
        out[tile_t, tile_h, :] = turned.reshape(tile_t, tile_h, d).to(x.dtype)
    return out


@helion.kernel()
def sample_energies(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of the squares of each of the samples ``x[B, N]``."""
    b, n = x.size()
    out = torch.empty([b], dtype=torch.float32, device=x.device)
    for tile_b in hl.tile(b):
        total = hl.zeros([tile_b], dtype=torch.float32)
        for tile_n in hl.tile(n):
            values = x[tile_b, tile_n].to(torch.float32)
            total = total + (values * values).sum(-1)
        out[tile_b] = total
    return out


@helion.kernel()
def biased_product(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`x[M, K] @ w[K, N] + bias[N]`."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        out[tile_m, tile_n] = (acc + bias[tile_n].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel()
def dropped_residual(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, rate: float, seed: int
) -> torch.Tensor:
    """`dropout(x[M, N] + bias[N], rate) + residual[M, N]`."""
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        values = x[tile_m, tile_n].to(torch.float32) + bias[tile_n].to(torch.float32)
        kept = torch.where(hl.rand([tile_m, tile_n], seed=seed) >= rate, values / (1.0 - rate), 0.0)
        out[tile_m, tile_n] = (kept + residual[tile_m, tile_n].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel()
def packed_attention(qkv: torch.Tensor) -> torch.Tensor:
    """Attend within each image of ``qkv[B, T, 3, H, D]``, without a mask; the result is ``[B, T, H, D]``."""
    b, t, _, h, d = qkv.size()
    d = hl.specialize(d)
    out = torch.empty([b, t, h, d], dtype=qkv.dtype, device=qkv.device)
    scale = LOG2E / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        image, head = tile_b.begin, tile_h.begin
        rows = qkv[image, tile_m, 0, head, :]
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        den = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(t):
            scores = hl.dot(rows, qkv[image, tile_n, 1, head, :].T) * scale
            new = torch.maximum(top, scores.amax(-1))
            p = torch.exp2(scores - new[:, None])
            corr = torch.exp2(top - new)
            den = den * corr + p.sum(-1)
            acc = hl.dot(p.to(qkv.dtype), qkv[image, tile_n, 2, head, :], acc=acc * corr[:, None])
            top = new
        out[image, tile_m, head, :] = (acc / den[:, None]).to(qkv.dtype)
    return out


@helion.kernel()
def grouped_prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of ``q[T, H, D]`` with the fewer heads of ``k`` and ``v`` ``[T, G, D]``."""
    t, h, d = q.size()
    d = hl.specialize(d)
    shared = h // k.size(1)
    out = torch.empty_like(q)
    scale = LOG2E / math.sqrt(d)
    for tile_h, tile_m in hl.tile([h, t], block_size=[1, None]):
        head = tile_h.begin
        rows = q[tile_m, head, :]
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        den = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(0, tile_m.end):
            scores = hl.dot(rows, k[tile_n, head // shared, :].T) * scale
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            new = torch.maximum(top, scores.amax(-1))
            p = torch.exp2(scores - new[:, None])
            corr = torch.exp2(top - new)
            den = den * corr + p.sum(-1)
            acc = hl.dot(p.to(q.dtype), v[tile_n, head // shared, :], acc=acc * corr[:, None])
            top = new
        out[tile_m, head, :] = (acc / den[:, None]).to(q.dtype)
    return out


@helion.kernel()
def added_gradient(grad: torch.Tensor, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """`total[N, K] + grad[M, N].T @ x[M, K]` in fp32."""
    m, n = grad.size()
    k = x.size(1)
    out = torch.empty_like(total)
    for tile_n, tile_k in hl.tile([n, k]):
        acc = total[tile_n, tile_k]
        for tile_m in hl.tile(m):
            acc = torch.addmm(acc, grad[tile_m, tile_n].T, x[tile_m, tile_k])
        out[tile_n, tile_k] = acc
    return out


@helion.kernel()
def shuffled_pixels(x: torch.Tensor, side: hl.constexpr) -> torch.Tensor:
    """Return ``[B, C, H side, W side]`` of ``x[B, C side side, H, W]``."""
    b, packed, h, w = x.size()
    c = packed // (side * side)
    source = x.view(b, c, side, side, h, w)
    out = torch.empty([b, c, h, side, w, side], dtype=x.dtype, device=x.device)
    for tile_b, tile_c, tile_h, tile_w in hl.tile([b, c, h, w], block_size=[1, None, None, None]):
        values = source[tile_b.begin, tile_c, :, :, tile_h, tile_w]
        out[tile_b.begin, tile_c, tile_h, :, tile_w, :] = values.permute(0, 3, 1, 4, 2)
    return out.view(b, c, h * side, w * side)


@helion.kernel()
def packed_pixels(x: torch.Tensor, side: hl.constexpr) -> torch.Tensor:
    """Return ``[B, C side side, H, W]`` of ``x[B, C, H side, W side]``."""
    b, c, tall, broad = x.size()
    h, w = tall // side, broad // side
    source = x.view(b, c, h, side, w, side)
    out = torch.empty([b, c, side, side, h, w], dtype=x.dtype, device=x.device)
    for tile_b, tile_c, tile_h, tile_w in hl.tile([b, c, h, w], block_size=[1, None, None, None]):
        values = source[tile_b.begin, tile_c, tile_h, :, tile_w, :]
        out[tile_b.begin, tile_c, :, :, tile_h, tile_w] = values.permute(0, 2, 4, 1, 3)
    return out.view(b, c * side * side, h, w)


@helion.kernel()
def shuffled_channels(x: torch.Tensor, groups: hl.constexpr) -> torch.Tensor:
    """Interleave the channels of the groups of ``x[B, H, W, C]``."""
    b, h, w, c = x.size()
    rows = b * h * w
    source = x.view(rows, groups, c // groups)
    out = torch.empty([rows, c // groups, groups], dtype=x.dtype, device=x.device)
    for tile_r, tile_c in hl.tile([rows, c // groups]):
        out[tile_r, tile_c, :] = source[tile_r, :, tile_c].permute(0, 2, 1)
    return out.view(b, h, w, c)


@helion.kernel()
def weighted_counts(ids: torch.Tensor, weights: torch.Tensor, bins: hl.constexpr) -> torch.Tensor:
    """Add ``weights[N]`` to the bins of ``ids[N]``: a one-hot matrix per tile, and its sum with atomics."""
    out = torch.zeros([bins], dtype=torch.float32, device=ids.device)
    for tile in hl.tile(ids.size(0)):
        every = hl.arange(bins)
        hits = torch.where(ids[tile][:, None] == every[None, :], weights[tile][:, None], 0.0)
        hl.atomic_add(out, [every], hits.sum(0))
    return out


@helion.kernel()
def summed_rows(x: torch.Tensor, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """Add each row of ``x[N, D]`` to row ``ids[N]`` of few ``rows``."""
    out = torch.zeros([rows, x.size(1)], dtype=torch.float32, device=x.device)
    for tile_n, tile_d in hl.tile(x.size()):
        hl.atomic_add(out, [ids[tile_n], tile_d], x[tile_n, tile_d].to(torch.float32))
    return out


# --- the same in PyTorch ------------------------------------------------------------------------------------------------


def _counts(ids: torch.Tensor, bins: int) -> torch.Tensor:
    return (ids[:, None] == torch.arange(bins, device=ids.device)).sum(0, dtype=torch.int32)


def _added(ids: torch.Tensor, bins: int) -> torch.Tensor:
    zeros = torch.zeros(bins, dtype=torch.int32, device=ids.device)
    return zeros.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = wide(x)[..., 0::2], wide(x)[..., 1::2]
    c, s = cos[:, None], sin[:, None]
    return torch.stack((even * c - odd * s, even * s + odd * c), -1).flatten(-2).to(x.dtype)


def _energies(x: torch.Tensor) -> torch.Tensor:
    return (wide(x) * wide(x)).sum(-1)


def _biased(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x @ w + bias


def _dropped(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, rate: float, seed: int) -> torch.Tensor:
    values = wide(x) + wide(bias)
    kept = torch.where(torch.rand_like(values) >= rate, values / (1 - rate), 0.0)
    return (kept + wide(residual)).to(x.dtype)


def _packed(qkv: torch.Tensor) -> torch.Tensor:
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def _prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads = (each.transpose(0, 1)[None] for each in (q, k, v))
    return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def _gradient(grad: torch.Tensor, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    return total + (grad.T @ x).to(total.dtype)


# --- arguments ----------------------------------------------------------------------------------------------------------


def _ids(make: Maker, dtype: torch.dtype, n: int, bins: int) -> Arguments:
    return make.integers(n, high=bins, dtype=dtype), bins


def _angles(make: Maker, dtype: torch.dtype, t: int, h: int, d: int) -> Arguments:
    return make.normal(t, h, d, dtype=dtype), make.normal(t, d // 2, dtype=FP32), make.normal(t, d // 2, dtype=FP32)


def _samples(make: Maker, dtype: torch.dtype, b: int, n: int) -> Arguments:
    return (make.normal(b, n, dtype=dtype),)


def _with_bias(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    return make.normal(m, k, dtype=dtype), make.normal(k, n, dtype=dtype, scale=k**-0.5), make.normal(n, dtype=dtype)


def _rated(make: Maker, dtype: torch.dtype, m: int, n: int) -> Arguments:
    """Return arguments with a rate of zero, at which the same numbers are drawn and the result is known."""
    return make.normal(m, n, dtype=dtype), make.normal(n, dtype=dtype), make.normal(m, n, dtype=dtype), 0.0, 1234


def _images(make: Maker, dtype: torch.dtype, b: int, t: int, h: int, d: int) -> Arguments:
    return (make.normal(b, t, 3, h, d, dtype=dtype),)


def _groups(make: Maker, dtype: torch.dtype, t: int, h: int, g: int, d: int) -> Arguments:
    return tuple(make.normal(t, heads, d, dtype=dtype) for heads in (h, g, g))


def _sums(make: Maker, dtype: torch.dtype, m: int, n: int, k: int) -> Arguments:
    factors = (make.normal(m, side, dtype=dtype, scale=m**-0.25) for side in (n, k))
    return *factors, make.normal(n, k, dtype=FP32)


def _pixels(make: Maker, dtype: torch.dtype, b: int, c: int, h: int, w: int, side: int) -> Arguments:
    return make.normal(b, c * side * side, h, w, dtype=dtype), side


def _shuffled(x: torch.Tensor, groups: int) -> torch.Tensor:
    return x.unflatten(-1, (groups, -1)).transpose(-1, -2).flatten(-2)


def _weighted(ids: torch.Tensor, weights: torch.Tensor, bins: int) -> torch.Tensor:
    zeros = torch.zeros(bins, dtype=weights.dtype, device=ids.device)
    return zeros.index_add_(0, ids, weights).to(FP32)


def _rows_added(x: torch.Tensor, ids: torch.Tensor, rows: int) -> torch.Tensor:
    zeros = torch.zeros(rows, x.size(1), dtype=torch.promote_types(x.dtype, FP32), device=x.device)
    return zeros.index_add_(0, ids, wide(x)).to(FP32)


def _packed_images(make: Maker, dtype: torch.dtype, b: int, c: int, h: int, w: int, side: int) -> Arguments:
    return make.normal(b, c, h * side, w * side, dtype=dtype), side


def _grouped_channels(make: Maker, dtype: torch.dtype, b: int, h: int, w: int, c: int, groups: int) -> Arguments:
    return make.normal(b, h, w, c, dtype=dtype), groups


def _weights(make: Maker, dtype: torch.dtype, n: int, bins: int) -> Arguments:
    return make.integers(n, high=bins, dtype=torch.int32), make.normal(n, dtype=dtype), bins


def _few_rows(make: Maker, dtype: torch.dtype, n: int, d: int, rows: int) -> Arguments:
    return make.normal(n, d, dtype=dtype), make.integers(n, high=rows, dtype=torch.int32), rows


def _row(kernel: helion.Kernel, reference: Any, arguments: Any, shapes: Any, small: Any) -> Unseen:
    return Unseen(kernel=kernel, reference=reference, arguments=arguments, shapes=shapes, small=small)


I32, I64 = torch.int32, torch.int64

MECHANISMS = (
    _row(one_hot_counts, _counts, _ids, ((I32, (1 << 19, 256)), (I64, (1 << 22, 64))), ((I32, (100, 16)),)),
    _row(rotated_pairs, _rotated, _angles, ((BF16, (8192, 32, 128)), (FP16, (4096, 40, 64))), ((FP32, (9, 3, 8)),)),
    _row(sample_energies, _energies, _samples, ((FP32, (64, 786432)), (BF16, (64, 150528))), ((FP32, (3, 70)),)),
    _row(
        biased_product,
        _biased,
        _with_bias,
        ((BF16, (8192, 479, 1024)), (BF16, (4096, 4096, 1001))),
        ((FP32, (17, 31, 21)),),
    ),
    _row(dropped_residual, _dropped, _rated, ((BF16, (16384, 4096)), (FP32, (8192, 1000))), ((FP32, (9, 70)),)),
    _row(added_gradient, _gradient, _sums, ((BF16, (16384, 2048, 2048)),), ((FP32, (37, 20, 24)),)),
    _row(shuffled_pixels, F.pixel_shuffle, _pixels, ((BF16, (8, 64, 180, 320, 2)),), ((FP32, (2, 3, 9, 10, 2)),)),
    _row(
        packed_attention,
        _packed,
        _images,
        ((BF16, (64, 577, 16, 64)), (FP16, (32, 197, 12, 64))),
        ((FP32, (2, 37, 3, 16)),),
    ),
    _row(grouped_prefill, _prefill, _groups, ((BF16, (8192, 32, 8, 128)),), ((FP32, (37, 4, 2, 16)),)),
    _row(
        packed_pixels, F.pixel_unshuffle, _packed_images, ((BF16, (8, 64, 180, 320, 2)),), ((FP32, (2, 3, 9, 10, 2)),)
    ),
    _row(shuffled_channels, _shuffled, _grouped_channels, ((BF16, (32, 56, 56, 480, 4)),), ((FP32, (2, 3, 5, 12, 4)),)),
    _row(weighted_counts, _weighted, _weights, ((FP32, (1 << 20, 128)),), ((FP32, (100, 16)),)),
    _row(summed_rows, _rows_added, _few_rows, ((BF16, (1 << 17, 512, 64)),), ((FP32, (100, 20, 7)),)),
    _row(counted_values, _added, _ids, ((I32, (1 << 24, 256)),), ((I64, (100, 7)),)),
)
