"""Attention as models use it: packed tokens of images, caps, biases, few keys, decoding, and steps of its gradients."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, below, high, normal, scores_reference

CELLS = Cells()


@helion.kernel
def patches_attend(qkv: torch.Tensor) -> torch.Tensor:
    """Attention of the patches of images, from packed projections `[B, T, 3, H, D]` to `[B, T, H, D]`."""
    b, t, _, h, d = qkv.size()
    d = hl.specialize(d)
    out = torch.empty([b, t, h, d], dtype=qkv.dtype, device=qkv.device)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        q = qkv[bi, rows, 0, hi, :]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(t):
            s = hl.dot(q, qkv[bi, cols, 1, hi, :].T) * scale
            s = torch.where(cols.index[None, :] < t, s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(qkv.dtype), qkv[bi, cols, 2, hi, :], acc=acc * alpha[:, None])
            m = new
        out[bi, rows, hi, :] = (acc / total[:, None]).to(out.dtype)
    return out


def patches_attend_torch(qkv: torch.Tensor) -> torch.Tensor:
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def make_patches_attend(device: str, small: bool) -> Arguments:
    b, t, h, d = (2, 37, 3, 32) if small else (16, 577, 16, 64)
    return (normal(device, b, t, 3, h, d, dtype=FP16),)


CELLS.add(patches_attend, make_patches_attend, patches_attend_torch)


@helion.kernel
def softcapped_groups(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: float) -> torch.Tensor:
    """Causal attention with scores capped by tanh; queries `[B, T, H, D]`, keys and values `[B, T, G, D]`."""
    b, t, h, d = q.size()
    d = hl.specialize(d)
    share = h // k.size(2)
    out = torch.empty_like(q)
    scale = 1.0 / (math.sqrt(d) * cap)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        group = hi // share
        queries = q[bi, rows, hi, :]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(0, rows.end):
            s = torch.tanh(hl.dot(queries, k[bi, cols, group, :].T) * scale) * cap
            s = torch.where(cols.index[None, :] <= rows.index[:, None], s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, cols, group, :], acc=acc * alpha[:, None])
            m = new
        out[bi, rows, hi, :] = (acc / total[:, None]).to(out.dtype)
    return out


def softcapped_groups_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: float) -> torch.Tensor:
    share = q.size(2) // k.size(2)
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(share, 2), v.repeat_interleave(share, 2)))
    s = torch.tanh(high(q @ k.transpose(-1, -2)) / (math.sqrt(q.size(3)) * cap)) * cap
    s = s.masked_fill(~below(q.size(2), q.device), -math.inf)
    return (torch.softmax(s, -1).to(v.dtype) @ v).transpose(1, 2)


def make_softcapped_groups(device: str, small: bool) -> Arguments:
    b, t, h, g, d = (2, 37, 4, 2, 32) if small else (2, 2048, 16, 8, 128)
    q = normal(device, b, t, h, d, dtype=BF16)
    return q, normal(device, b, t, g, d, dtype=BF16), normal(device, b, t, g, d, dtype=BF16), 50.0


CELLS.add(softcapped_groups, make_softcapped_groups, softcapped_groups_torch)


@helion.kernel
def edge_biased_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Attention of nodes `[B, H, T, D]` with a bias `[B, T, T]` of edges that all heads share."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        queries = q[bi, hi, rows, :]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(t):
            s = hl.dot(queries, k[bi, hi, cols, :].T) * scale + bias[bi, rows, cols].to(torch.float32)
            s = torch.where(cols.index[None, :] < t, s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, hi, cols, :], acc=acc * alpha[:, None])
            m = new
        out[bi, hi, rows, :] = (acc / total[:, None]).to(out.dtype)
    return out


def edge_biased_attention_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[:, None])


def make_edge_biased_attention(device: str, small: bool) -> Arguments:
    b, h, t, d = (2, 3, 37, 16) if small else (16, 32, 512, 24)
    q, k, v = (normal(device, b, h, t, d, dtype=BF16) for _ in range(3))
    return q, k, v, normal(device, b, t, t, dtype=BF16)


CELLS.add(edge_biased_attention, make_edge_biased_attention, edge_biased_attention_torch)


@helion.kernel
def text_cross_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of pixels `[B, T, H, D]` to a short text `[B, S, H, D]` whose scores fit one tile."""
    b, t, h, d = q.size()
    hl.specialize(k.size(1))
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        scores = hl.dot(q[bi, rows, hi, :], k[bi, :, hi, :].T) * scale
        p = torch.softmax(scores, dim=-1)
        out[bi, rows, hi, :] = hl.dot(p.to(v.dtype), v[bi, :, hi, :]).to(out.dtype)
    return out


def text_cross_attention_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def make_text_cross_attention(device: str, small: bool) -> Arguments:
    b, t, s, h, d = (2, 37, 21, 3, 24) if small else (8, 4096, 77, 8, 40)
    q = normal(device, b, t, h, d, dtype=FP16)
    return q, normal(device, b, s, h, d, dtype=FP16), normal(device, b, s, h, d, dtype=FP16)


CELLS.add(text_cross_attention, make_text_cross_attention, text_cross_attention_torch)


@helion.kernel
def multi_query_prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of `[B, T, H, D]` to the keys and values `[B, T, D]` of one head."""
    b, t, h, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.4426950408889634 / math.sqrt(d)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        queries = q[bi, rows, hi, :]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(0, rows.end):
            s = hl.dot(queries, k[bi, cols, :].T) * scale
            s = torch.where(cols.index[None, :] <= rows.index[:, None], s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp2(s - new[:, None])
            alpha = torch.exp2(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, cols, :], acc=acc * alpha[:, None])
            m = new
        out[bi, rows, hi, :] = (acc / total[:, None]).to(out.dtype)
    return out


def multi_query_prefill_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    keep = below(q.size(1), q.device)
    return scores_reference(q.transpose(1, 2), k[:, None], v[:, None], keep=keep).transpose(1, 2)


def multi_query_prefill_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    queries = q.transpose(1, 2)
    keys, values = (x[:, None].expand_as(queries) for x in (k, v))
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True).transpose(1, 2)


def make_multi_query_prefill(device: str, small: bool) -> Arguments:
    b, t, h, d = (2, 37, 3, 32) if small else (4, 1100, 32, 128)
    q = normal(device, b, t, h, d, dtype=BF16)
    return q, normal(device, b, t, d, dtype=BF16), normal(device, b, t, d, dtype=BF16)


CELLS.add(multi_query_prefill, make_multi_query_prefill, multi_query_prefill_reference, multi_query_prefill_torch)


@helion.kernel
def cosine_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Attention of windows `[B, H, T, D]` by cosines of queries and keys, with a scale for each head."""
    b, h, t, d = q.size()
    t, d = hl.specialize(t), hl.specialize(d)
    out = torch.empty_like(q)
    for bi, hi in hl.grid([b, h]):
        queries, keys = q[bi, hi, :, :].to(torch.float32), k[bi, hi, :, :].to(torch.float32)
        queries = queries * torch.rsqrt((queries * queries).sum(-1, keepdim=True) + 1e-12)
        keys = keys * torch.rsqrt((keys * keys).sum(-1, keepdim=True) + 1e-12)
        s = hl.dot(queries.to(q.dtype), keys.to(q.dtype).T) * scale[hi]
        p = torch.softmax(s, dim=-1)
        out[bi, hi, :, :] = hl.dot(p.to(v.dtype), v[bi, hi, :, :]).to(out.dtype)
    return out


def cosine_attention_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    queries, keys = (F.normalize(high(x), dim=-1).to(q.dtype) for x in (q, k))
    s = high(queries @ keys.transpose(-1, -2)) * scale[:, None, None]
    return torch.softmax(s, -1).to(v.dtype) @ v


def make_cosine_attention(device: str, small: bool) -> Arguments:
    b, h, t, d = (2, 3, 64, 16) if small else (1024, 6, 64, 32)
    q, k, v = (normal(device, b, h, t, d, dtype=BF16) for _ in range(3))
    return q, k, v, torch.rand([h], device=device) * 10 + 1


CELLS.add(cosine_attention, make_cosine_attention, cosine_attention_torch)


@helion.kernel
def sloped_decode(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor, slopes: torch.Tensor
) -> torch.Tensor:
    """Attention with ALiBi of one token, `q[B, G, R, D]`, to `lengths[B]` tokens of caches `[B, S, G, D]`."""
    b, g, r, d = q.size()
    r, d = hl.specialize(r), hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for bi, gi in hl.grid([b, g]):
        length = lengths[bi]
        queries = q[bi, gi, :, :]
        slope = slopes[gi, :]
        m = hl.full([r], float("-inf"), dtype=torch.float32)
        total = hl.zeros([r], dtype=torch.float32)
        acc = hl.zeros([r, d], dtype=torch.float32)
        for cols in hl.tile(length):
            distance = (length - 1 - cols.index).to(torch.float32)
            s = hl.dot(queries, keys[bi, cols, gi, :].T) * scale - slope[:, None] * distance[None, :]
            s = torch.where(cols.index[None, :] < length, s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(values.dtype), values[bi, cols, gi, :], acc=acc * alpha[:, None])
            m = new
        out[bi, gi, :, :] = (acc / total[:, None]).to(out.dtype)
    return out


def sloped_decode_torch(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor, slopes: torch.Tensor
) -> torch.Tensor:
    k, v = keys.transpose(1, 2), values.transpose(1, 2)
    at = torch.arange(k.size(2), device=q.device)
    distance = (lengths[:, None] - 1 - at).to(slopes.dtype)
    bias = -slopes[None, :, :, None] * distance[:, None, None]
    bias = bias.masked_fill((distance < 0)[:, None, None], -math.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))


def sloped_decode_reference(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor, slopes: torch.Tensor
) -> torch.Tensor:
    distance = lengths[:, None] - 1 - torch.arange(keys.size(1), device=q.device)
    bias = -slopes[None, :, :, None] * distance.to(slopes.dtype)[:, None, None]
    keep = (distance >= 0)[:, None, None]
    return scores_reference(q, keys.transpose(1, 2), values.transpose(1, 2), bias=bias, keep=keep)


def make_sloped_decode(device: str, small: bool) -> Arguments:
    b, s, g, r, d = (3, 37, 2, 4, 32) if small else (32, 4096, 8, 8, 128)
    lengths = torch.randint(s // 2, s + 1, [b], device=device, dtype=torch.int32)
    slopes = 2.0 ** (-8.0 * torch.arange(1, g * r + 1, device=device) / (g * r)).view(g, r)
    caches = (normal(device, b, s, g, d, dtype=BF16) for _ in range(2))
    return normal(device, b, g, r, d, dtype=BF16), *caches, lengths, slopes


CELLS.add(sloped_decode, make_sloped_decode, sloped_decode_reference, sloped_decode_torch)


@helion.kernel
def weights_from_lse(q: torch.Tensor, k: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Gradient of values `[B, H, S, D]`: transposed weights `exp(q k.T scale - lse)` times `grad[B, H, T, D]`."""
    b, h, t, d = q.size()
    s, d = k.size(2), hl.specialize(d)
    out = torch.empty_like(k)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, cols in hl.tile([b, h, s], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        keys = k[bi, hi, cols, :]
        acc = hl.zeros([cols, d], dtype=torch.float32)
        for rows in hl.tile(t):
            scores = hl.dot(keys, q[bi, hi, rows, :].T) * scale
            p = torch.exp(scores - lse[bi, hi, rows][None, :])
            acc = hl.dot(p.to(grad.dtype), grad[bi, hi, rows, :], acc=acc)
        out[bi, hi, cols, :] = acc.to(out.dtype)
    return out


def weights_from_lse_torch(q: torch.Tensor, k: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    p = torch.exp(high(q @ k.transpose(-1, -2)) / math.sqrt(q.size(3)) - lse[..., None])
    return p.to(grad.dtype).transpose(-1, -2) @ grad


def make_weights_from_lse(device: str, small: bool) -> Arguments:
    b, h, t, s, d = (1, 3, 37, 21, 32) if small else (4, 16, 1024, 1500, 64)
    q, k, grad = (normal(device, b, h, size, d, dtype=FP16) for size in (t, s, t))
    return q, k, grad, torch.logsumexp(high(q) @ high(k).transpose(-1, -2) / math.sqrt(d), -1)


CELLS.add(weights_from_lse, make_weights_from_lse, weights_from_lse_torch)


@helion.kernel
def normalized_state_read(q: torch.Tensor, states: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Return `f(q) states / (f(q) sums)` with `f = elu + 1` for `q[B, T, H, D]` and `states[B, H, D, E]`."""
    b, t, h, d = q.size()
    d, e = hl.specialize(d), hl.specialize(states.size(3))
    out = torch.empty([b, t, h, e], dtype=q.dtype, device=q.device)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        x = q[bi, rows, hi, :].to(torch.float32)
        features = torch.where(x > 0, x + 1.0, torch.exp(x))
        weight = (features * sums[bi, hi, :][None, :]).sum(-1) + 1e-6
        y = hl.dot(features.to(q.dtype), states[bi, hi, :, :])
        out[bi, rows, hi, :] = (y / weight[:, None]).to(out.dtype)
    return out


def normalized_state_read_torch(q: torch.Tensor, states: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    features = F.elu(high(q)).transpose(1, 2) + 1.0
    weight = (features * sums[:, :, None]).sum(-1, keepdim=True) + 1e-6
    return (high(features.to(q.dtype) @ states) / weight).to(q.dtype).transpose(1, 2)


def make_normalized_state_read(device: str, small: bool) -> Arguments:
    b, t, h, d, e = (2, 37, 3, 32, 16) if small else (8, 4096, 16, 64, 64)
    sums = torch.rand([b, h, d], device=device) + 0.5
    return normal(device, b, t, h, d, dtype=BF16), normal(device, b, h, d, e, dtype=BF16), sums


CELLS.add(normalized_state_read, make_normalized_state_read, normalized_state_read_torch)
