"""Forms of attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def sink_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor, window: int) -> torch.Tensor:
    """Causal sliding-window attention of grouped heads with a learned sink logit per head."""
    b, h, t, d = q.size()
    groups = h // k.size(1)
    scale = 1.0 / math.sqrt(d)
    out = torch.empty_like(q)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        kv = hi // groups
        top = hl.zeros([tile_m], dtype=torch.float32) + sinks[hi].to(torch.float32)
        total = hl.full([tile_m], 1.0, dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        queries = q[bi, hi, tile_m, :]
        for tile_n in hl.tile(max(0, tile_m.begin - window + 1), tile_m.end):
            scores = hl.dot(queries, k[bi, kv, tile_n, :].T) * scale
            ahead = tile_m.index[:, None] - tile_n.index[None, :]
            scores = torch.where((ahead >= 0) & (ahead < window), scores, float("-inf"))
            new = torch.maximum(top, torch.amax(scores, -1))
            e = torch.exp(scores - new[:, None])
            old = torch.exp(top - new)
            total = total * old + e.sum(-1)
            acc = hl.dot(e.to(v.dtype), v[bi, kv, tile_n, :], acc=acc * old[:, None])
            top = new
        out[bi, hi, tile_m, :] = (acc / total[:, None]).to(q.dtype)
    return out


def sink_window_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor, window: int
) -> torch.Tensor:
    b, h, t, d = q.size()
    g = h // k.size(1)
    k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
    hi = torch.promote_types(q.dtype, torch.float32)
    s = (q @ k.transpose(-1, -2)).to(hi) / math.sqrt(d)
    ahead = torch.arange(t, device=q.device)[:, None] - torch.arange(t, device=q.device)
    s = s.masked_fill((ahead < 0) | (ahead >= window), -math.inf)
    s = torch.cat([s, sinks.to(hi)[None, :, None, None].expand(b, h, t, 1)], -1)
    return torch.softmax(s, -1)[..., :-1].to(v.dtype) @ v


def make_sink_window(device: str, small: bool) -> Arguments:
    b, h, hk, t, c, w = (1, 4, 2, 37, 32, 9) if small else (2, 32, 8, 4096, 64, 128)
    return (
        normal(device, b, h, t, c, dtype=BF16),
        normal(device, b, hk, t, c, dtype=BF16),
        normal(device, b, hk, t, c, dtype=BF16),
        normal(device, h),
        w,
    )


CELLS.add(sink_window, make_sink_window, sink_window_torch)


@helion.kernel
def differential_attention(
    q1: torch.Tensor, q2: torch.Tensor, k1: torch.Tensor, k2: torch.Tensor, v: torch.Tensor, lam: float
) -> torch.Tensor:
    """`(softmax(q1 k1) - lam softmax(q2 k2)) v` of `[B, T, D]`."""
    b, t, d = q1.size()
    scale = 1.0 / math.sqrt(d)
    dv = hl.specialize(v.size(2))
    out = torch.empty([b, t, dv], dtype=q1.dtype, device=q1.device)
    for tile_b, tile_m in hl.tile([b, t], block_size=[1, None]):
        bi = tile_b.begin
        a, c = q1[bi, tile_m, :], q2[bi, tile_m, :]
        top1 = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        top2 = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total1, total2 = hl.zeros([tile_m]), hl.zeros([tile_m])
        acc1, acc2 = hl.zeros([tile_m, dv]), hl.zeros([tile_m, dv])
        for tile_n in hl.tile(t):
            values = v[bi, tile_n, :]
            s1 = hl.dot(a, k1[bi, tile_n, :].T) * scale
            s2 = hl.dot(c, k2[bi, tile_n, :].T) * scale
            new1 = torch.maximum(top1, torch.amax(s1, -1))
            new2 = torch.maximum(top2, torch.amax(s2, -1))
            e1, e2 = torch.exp(s1 - new1[:, None]), torch.exp(s2 - new2[:, None])
            old1, old2 = torch.exp(top1 - new1), torch.exp(top2 - new2)
            total1, total2 = total1 * old1 + e1.sum(-1), total2 * old2 + e2.sum(-1)
            acc1 = hl.dot(e1.to(v.dtype), values, acc=acc1 * old1[:, None])
            acc2 = hl.dot(e2.to(v.dtype), values, acc=acc2 * old2[:, None])
            top1, top2 = new1, new2
        out[bi, tile_m, :] = (acc1 / total1[:, None] - lam * acc2 / total2[:, None]).to(q1.dtype)
    return out


def differential_attention_torch(
    q1: torch.Tensor, q2: torch.Tensor, k1: torch.Tensor, k2: torch.Tensor, v: torch.Tensor, lam: float
) -> torch.Tensor:
    return F.scaled_dot_product_attention(q1, k1, v) - lam * F.scaled_dot_product_attention(q2, k2, v)


def make_differential_attention(device: str, small: bool) -> Arguments:
    b, t, c, dv = (2, 37, 32, 64) if small else (32, 2048, 64, 128)
    return (*(normal(device, b, t, c, dtype=BF16) for _ in range(4)), normal(device, b, t, dv, dtype=BF16), 0.3)


CELLS.add(differential_attention, make_differential_attention, differential_attention_torch)


@helion.kernel
def padded_cross_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Cross attention of `[B, H, M, D]` to the first `lengths[B]` of N keys, for any head size."""
    b, h, m, d = q.size()
    d = hl.specialize(d)
    scale = d**-0.5
    out = torch.empty_like(q)
    for tile_b, tile_h, tile_m in hl.tile([b, h, m], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        queries = q[bi, hi, tile_m, :]
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(0, lengths[bi]):
            s = hl.dot(queries, k[bi, hi, tile_n, :].T) * scale
            new = torch.maximum(top, torch.amax(s, -1))
            e = torch.exp(s - new[:, None])
            old = torch.exp(top - new)
            total = total * old + e.sum(-1)
            acc = hl.dot(e.to(v.dtype), v[bi, hi, tile_n, :], acc=acc * old[:, None])
            top = new
        out[bi, hi, tile_m, :] = (acc / total[:, None]).to(q.dtype)
    return out


def padded_cross_attention_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    mask = torch.arange(k.size(2), device=q.device)[None, :] < lengths[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])


def make_padded_cross_attention(device: str, small: bool) -> Arguments:
    b, h, m, n, c = (2, 3, 37, 50, 80) if small else (16, 10, 4096, 512, 80)
    return (
        normal(device, b, h, m, c, dtype=BF16),
        normal(device, b, h, n, c, dtype=BF16),
        normal(device, b, h, n, c, dtype=BF16),
        torch.randint(n // 2, n + 1, [b], device=device),
    )


CELLS.add(padded_cross_attention, make_padded_cross_attention, padded_cross_attention_torch)


@helion.kernel
def capped_pair_bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, cap: float) -> torch.Tensor:
    """Attention of `[B, H, T, D]` with scores `cap tanh(s / cap) + bias[H, T, T]`."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    scale = d**-0.5
    out = torch.empty_like(q)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        queries = q[bi, hi, tile_m, :]
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(t):
            s = hl.dot(queries, k[bi, hi, tile_n, :].T) * scale
            s = cap * torch.tanh(s / cap) + bias[hi, tile_m, tile_n].to(torch.float32)
            new = torch.maximum(top, torch.amax(s, -1))
            e = torch.exp(s - new[:, None])
            old = torch.exp(top - new)
            total = total * old + e.sum(-1)
            acc = hl.dot(e.to(v.dtype), v[bi, hi, tile_n, :], acc=acc * old[:, None])
            top = new
        out[bi, hi, tile_m, :] = (acc / total[:, None]).to(q.dtype)
    return out


def capped_pair_bias_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, cap: float
) -> torch.Tensor:
    s = high(q @ k.transpose(-1, -2)) * q.size(-1) ** -0.5
    return torch.softmax(cap * torch.tanh(s / cap) + high(bias), -1).to(v.dtype) @ v


def make_capped_pair_bias(device: str, small: bool) -> Arguments:
    b, h, t, c = (2, 3, 37, 32) if small else (16, 8, 1024, 64)
    return (
        normal(device, b, h, t, c, dtype=BF16),
        normal(device, b, h, t, c, dtype=BF16),
        normal(device, b, h, t, c, dtype=BF16),
        normal(device, h, t, t, dtype=BF16),
        20.0,
    )


CELLS.add(capped_pair_bias, make_capped_pair_bias, capped_pair_bias_torch)


@helion.kernel
def feature_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Linear attention of `[B, T, D]` with features `elu + 1`, not causal."""
    b, t, d = q.size()
    d, e = hl.specialize(d), hl.specialize(v.size(2))
    states = torch.empty([b, d, e], dtype=torch.float32, device=q.device)
    norms = torch.empty([b, d], dtype=torch.float32, device=q.device)
    out = torch.empty([b, t, e], dtype=q.dtype, device=q.device)
    for bi in hl.grid(b):
        state = hl.zeros([d, e], dtype=torch.float32)
        norm = hl.zeros([d], dtype=torch.float32)
        for tile_t in hl.tile(t):
            x = k[bi, tile_t, :].to(torch.float32)
            features = torch.where(x > 0, x + 1.0, torch.exp(x))
            norm += features.sum(0)
            state = hl.dot(features.to(k.dtype).T, v[bi, tile_t, :], acc=state)
        states[bi, :, :] = state
        norms[bi, :] = norm
    hl.barrier()
    for tile_b, tile_t in hl.tile([b, t], block_size=[1, None]):
        x = q[tile_b.begin, tile_t, :].to(torch.float32)
        features = torch.where(x > 0, x + 1.0, torch.exp(x))
        bottom = (features * norms[tile_b.begin, :][None, :]).sum(-1)
        top = hl.dot(features.to(q.dtype), states[tile_b.begin, :, :].to(q.dtype))
        out[tile_b.begin, tile_t, :] = (top / bottom[:, None]).to(q.dtype)
    return out


def feature_attention_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    a, b = F.elu(q) + 1, F.elu(k) + 1
    return (a @ (b.transpose(1, 2) @ v)) / (high(a) @ high(b).sum(1)[..., None]).to(q.dtype)


def make_feature_attention(device: str, small: bool) -> Arguments:
    b, t, c = (3, 45, 32) if small else (128, 2048, 64)
    return normal(device, b, t, c, dtype=BF16), normal(device, b, t, c, dtype=BF16), normal(device, b, t, c, dtype=BF16)


CELLS.add(feature_attention, make_feature_attention, feature_attention_torch)


@helion.kernel
def packed_scores(qkv: torch.Tensor, scale: float) -> torch.Tensor:
    """Scores `[B, H, T, T]` of queries and keys packed as `[B, T, 3, H, D]`."""
    b, t, _, h, d = qkv.size()
    out = torch.empty([b, h, t, t], dtype=qkv.dtype, device=qkv.device)
    for tile_b, tile_h, tile_m, tile_n in hl.tile([b, h, t, t], block_size=[1, 1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_d in hl.tile(d):
            a = qkv[tile_b.begin, tile_m, 0, tile_h.begin, tile_d]
            c = qkv[tile_b.begin, tile_n, 1, tile_h.begin, tile_d]
            acc = torch.addmm(acc, a, c.T)
        out[tile_b.begin, tile_h.begin, tile_m, tile_n] = (acc * scale).to(qkv.dtype)
    return out


def packed_scores_torch(qkv: torch.Tensor, scale: float) -> torch.Tensor:
    q, k = qkv[:, :, 0].transpose(1, 2), qkv[:, :, 1].transpose(1, 2)
    return (q @ k.transpose(-1, -2)) * scale


def make_packed_scores(device: str, small: bool) -> Arguments:
    b, t, h, c = (2, 37, 3, 40) if small else (64, 577, 12, 40)
    return normal(device, b, t, 3, h, c, dtype=BF16), c**-0.5


CELLS.add(packed_scores, make_packed_scores, packed_scores_torch)
