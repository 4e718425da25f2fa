"""Attention to contexts of many forms: caches of few bits, trees, windows with global tokens, and linear attention."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, Arguments, Cells, below, high, normal, scores_reference

CELLS = Cells()


@helion.kernel
def windowed_group_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, window: int
) -> torch.Tensor:
    """Attention of one token `q[B, G, R, D]` to the last `window` of `lengths[b]` keys `[B, S, G, D]`."""
    b, g, r, d = q.size()
    r, d = hl.specialize(r), hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for bi, gi in hl.grid([b, g]):
        length = lengths[bi]
        query = q[bi, gi, :, :]
        m = hl.full([r], float("-inf"), dtype=torch.float32)
        total = hl.zeros([r], dtype=torch.float32)
        acc = hl.zeros([r, d], dtype=torch.float32)
        for near in hl.tile(torch.clamp(length - window, min=0), length):
            s = hl.dot(query, k[bi, near, gi, :].T) * scale
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, near, gi, :], acc=acc * alpha[:, None])
            m = new
        out[bi, gi, :, :] = (acc / total[:, None]).to(q.dtype)
    return out


def windowed_group_decode_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, window: int
) -> torch.Tensor:
    at = torch.arange(k.size(1), device=q.device)[None]
    keep = (at < lengths[:, None]) & (at >= lengths[:, None] - window)
    return scores_reference(q, k.transpose(1, 2), v.transpose(1, 2), keep=keep[:, None, None])


def windowed_group_decode_baseline(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, window: int
) -> torch.Tensor:
    at = torch.arange(k.size(1), device=q.device)[None]
    keep = (at < lengths[:, None]) & (at >= lengths[:, None] - window)
    return F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=keep[:, None, None])


def make_windowed_group_decode(device: str, small: bool) -> Arguments:
    b, s, g, r, d, window = (3, 37, 2, 5, 32, 8) if small else (96, 6000, 4, 5, 96, 4096)
    lengths = torch.randint(s // 3, s + 1, [b], device=device, dtype=torch.int32)
    k, v = (normal(device, b, s, g, d, dtype=BF16) for _ in range(2))
    return normal(device, b, g, r, d, dtype=BF16), k, v, lengths, window


CELLS.add(
    windowed_group_decode, make_windowed_group_decode, windowed_group_decode_torch, windowed_group_decode_baseline
)


@helion.kernel
def capped_decode_in_splits(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int, cap: float, splits: int
) -> torch.Tensor:
    """Attention of one token `q[B, G, R, D]` to `length` keys `[B, G, S, D]`, scores capped by a tanh, in splits."""
    b, g, r, d = q.size()
    r, d, splits = hl.specialize(r), hl.specialize(d), hl.specialize(splits)
    part = (length + splits - 1) // splits
    sums = torch.empty([b, g, splits, r, d], dtype=torch.float32, device=q.device)
    logs = torch.empty([b, g, splits, r], dtype=torch.float32, device=q.device)
    out = torch.empty_like(q)
    scale = d**-0.5
    for bi, gi, si in hl.grid([b, g, splits]):
        query = q[bi, gi, :, :]
        m = hl.full([r], float("-inf"), dtype=torch.float32)
        total = hl.zeros([r], dtype=torch.float32)
        acc = hl.zeros([r, d], dtype=torch.float32)
        for near in hl.tile(si * part, min(si * part + part, length)):
            s = torch.tanh(hl.dot(query, k[bi, gi, near, :].T) * (scale / cap)) * cap
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, gi, near, :], acc=acc * alpha[:, None])
            m = new
        sums[bi, gi, si, :, :] = acc / total[:, None]
        logs[bi, gi, si, :] = m + torch.log(total)
    hl.barrier()
    for bi, gi in hl.grid([b, g]):
        share = torch.softmax(logs[bi, gi, :, :], dim=0)
        out[bi, gi, :, :] = (sums[bi, gi, :, :, :] * share[:, :, None]).sum(0).to(q.dtype)
    return out


def capped_decode_in_splits_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int, cap: float, splits: int
) -> torch.Tensor:
    s = high(q @ k[:, :, :length].transpose(-1, -2)) * q.size(3) ** -0.5
    return (torch.softmax(torch.tanh(s / cap) * cap, -1).to(v.dtype) @ v[:, :, :length]).to(q.dtype)


def make_capped_decode_in_splits(device: str, small: bool) -> Arguments:
    b, g, r, s, d, length, splits = (2, 2, 4, 48, 16, 41, 4) if small else (4, 8, 4, 33000, 128, 32001, 16)
    k, v = (normal(device, b, g, s, d, dtype=BF16) for _ in range(2))
    return normal(device, b, g, r, d, dtype=BF16), k, v, length, 30.0, splits


CELLS.add(capped_decode_in_splits, make_capped_decode_in_splits, capped_decode_in_splits_torch)


@helion.kernel
def image_of_197_patches(qkv: torch.Tensor) -> torch.Tensor:
    """Attention of `qkv[B, T, 3, H, D]` to all T tokens of an image, whose scores a program holds whole."""
    b, t, _, h, d = qkv.size()
    t, d = hl.specialize(t), hl.specialize(d)
    out = torch.empty([b, t, h, d], dtype=qkv.dtype, device=qkv.device)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        s = hl.dot(qkv[bi, rows, 0, hi, :], qkv[bi, :, 1, hi, :].T) * d**-0.5
        p = torch.softmax(s, dim=-1)
        out[bi, rows, hi, :] = hl.dot(p.to(qkv.dtype), qkv[bi, :, 2, hi, :]).to(qkv.dtype)
    return out


def image_of_197_patches_torch(qkv: torch.Tensor) -> torch.Tensor:
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def make_image_of_197_patches(device: str, small: bool) -> Arguments:
    b, t, h, d = (2, 19, 2, 16) if small else (128, 197, 12, 64)
    return (normal(device, b, t, 3, h, d, dtype=BF16),)


CELLS.add(image_of_197_patches, make_image_of_197_patches, image_of_197_patches_torch)


@helion.kernel
def packed_cross_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    q_starts: torch.Tensor,
    kv_starts: torch.Tensor,
    tile_sequence: torch.Tensor,
    tile_first: torch.Tensor,
) -> torch.Tensor:
    """Attention of packed queries `[T, H, D]` to packed keys and values `[S, 2, H, D]` of the same sequence. The host
    lists tiles of 64 queries: the sequence of each, and its first row within the sequence."""
    _, h, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for ti, hi in hl.grid([tile_sequence.size(0), h]):
        sequence = tile_sequence[ti]
        rows = q_starts[sequence] + tile_first[ti] + hl.arange(64)
        inside = rows < q_starts[sequence + 1]
        queries = hl.load(q, [rows, hi, slice(None)], extra_mask=inside[:, None])
        m = hl.full([64], float("-inf"), dtype=torch.float32)
        total = hl.zeros([64], dtype=torch.float32)
        acc = hl.zeros([64, d], dtype=torch.float32)
        for near in hl.tile(kv_starts[sequence], kv_starts[sequence + 1]):
            s = hl.dot(queries, kv[near, 0, hi, :].T) * scale
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(kv.dtype), kv[near, 1, hi, :], acc=acc * alpha[:, None])
            m = new
        hl.store(out, [rows, hi, slice(None)], (acc / total[:, None]).to(q.dtype), extra_mask=inside[:, None])
    return out


def packed_cross_attention_torch(
    q: torch.Tensor,
    kv: torch.Tensor,
    q_starts: torch.Tensor,
    kv_starts: torch.Tensor,
    tile_sequence: torch.Tensor,
    tile_first: torch.Tensor,
) -> torch.Tensor:
    parts = []
    pairs = zip(itertools.pairwise(q_starts.tolist()), itertools.pairwise(kv_starts.tolist()), strict=True)
    for (a, b), (c, e) in pairs:
        k, v = kv[c:e].permute(1, 2, 0, 3)
        parts.append(F.scaled_dot_product_attention(q[a:b].transpose(0, 1)[None], k[None], v[None])[0].transpose(0, 1))
    return torch.cat(parts)


def make_packed_cross_attention(device: str, small: bool) -> Arguments:
    lengths = [70, 5, 64] if small else [1500, 900, 350, 1100] * 6
    others = [9, 31, 17] if small else [77, 301, 150, 512] * 6
    h, d = (2, 16) if small else (8, 64)
    starts, other_starts = (
        torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32, device=device) for n in (lengths, others)
    )
    tiles = [(i, first) for i, length in enumerate(lengths) for first in range(0, length, 64)]
    sequence, first = (torch.tensor(n, dtype=torch.int32, device=device) for n in zip(*tiles, strict=True))
    q, kv = normal(device, sum(lengths), h, d, dtype=FP16), normal(device, sum(others), 2, h, d, dtype=FP16)
    return q, kv, starts, other_starts, sequence, first


CELLS.add(packed_cross_attention, make_packed_cross_attention, packed_cross_attention_torch)


@helion.kernel
def grouped_int8_cache(
    q: torch.Tensor, k: torch.Tensor, k_scale: torch.Tensor, v: torch.Tensor, v_scale: torch.Tensor
) -> torch.Tensor:
    """Attention of one token `q[B, G, R, D]` to int8 keys and values `[B, G, S, D]`, a scale for each 32 elements."""
    b, g, r, d = q.size()
    s = k.size(2)
    r, d = hl.specialize(r), hl.specialize(d)
    out = torch.empty_like(q)
    scale = d**-0.5
    for bi, gi in hl.grid([b, g]):
        query = q[bi, gi, :, :]
        group = hl.arange(d) // 32
        m = hl.full([r], float("-inf"), dtype=torch.float32)
        total = hl.zeros([r], dtype=torch.float32)
        acc = hl.zeros([r, d], dtype=torch.float32)
        for near in hl.tile(s):
            keys = k[bi, gi, near, :].to(q.dtype) * k_scale[bi, gi, near, group]
            scores = hl.dot(query, keys.T) * scale
            new = torch.maximum(m, scores.amax(-1))
            p = torch.exp(scores - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            values = v[bi, gi, near, :].to(q.dtype) * v_scale[bi, gi, near, group]
            acc = hl.dot(p.to(q.dtype), values, acc=acc * alpha[:, None])
            m = new
        out[bi, gi, :, :] = (acc / total[:, None]).to(q.dtype)
    return out


def grouped_int8_cache_torch(
    q: torch.Tensor, k: torch.Tensor, k_scale: torch.Tensor, v: torch.Tensor, v_scale: torch.Tensor
) -> torch.Tensor:
    keys, values = (x.to(q.dtype) * y.repeat_interleave(32, -1) for x, y in ((k, k_scale), (v, v_scale)))
    return scores_reference(q, keys, values)


def grouped_int8_cache_baseline(
    q: torch.Tensor, k: torch.Tensor, k_scale: torch.Tensor, v: torch.Tensor, v_scale: torch.Tensor
) -> torch.Tensor:
    keys, values = (x.to(q.dtype) * y.repeat_interleave(32, -1) for x, y in ((k, k_scale), (v, v_scale)))
    return F.scaled_dot_product_attention(q, keys, values)


def make_grouped_int8_cache(device: str, small: bool) -> Arguments:
    b, g, r, s, d = (2, 2, 4, 37, 64) if small else (64, 8, 4, 2000, 128)
    k, v = (torch.randint(-127, 128, [b, g, s, d], device=device, dtype=torch.int8) for _ in range(2))
    scales = ((torch.rand([b, g, s, d // 32], device=device) * 0.01 + 0.005).to(FP16) for _ in range(2))
    return normal(device, b, g, r, d, dtype=FP16), k, next(scales), v, next(scales)


CELLS.add(grouped_int8_cache, make_grouped_int8_cache, grouped_int8_cache_torch, grouped_int8_cache_baseline)


@helion.kernel
def latent_fp8_decode(
    q: torch.Tensor, q_rope: torch.Tensor, latents: torch.Tensor, scale: torch.Tensor, k_rope: torch.Tensor
) -> torch.Tensor:
    """Attention of one token of H heads, `q[B, H, L]` and `q_rope[B, H, P]`, to latents `[B, S, L]` in e4m3 with a scale
    for each token, and turned keys `[B, S, P]` in bf16."""
    b, h, latent = q.size()
    s, p = k_rope.size(1), k_rope.size(2)
    latent, p = hl.specialize(latent), hl.specialize(p)
    out = torch.empty_like(q)
    factor = (latent + p) ** -0.5
    for tile_b, heads in hl.tile([b, h], block_size=[1, None]):
        bi = tile_b.begin
        query, turned = q[bi, heads, :], q_rope[bi, heads, :]
        m = hl.full([heads], float("-inf"), dtype=torch.float32)
        total = hl.zeros([heads], dtype=torch.float32)
        acc = hl.zeros([heads, latent], dtype=torch.float32)
        for near in hl.tile(s):
            own = scale[bi, near]
            values = latents[bi, near, :].to(q.dtype)
            scores = hl.dot(query, values.T) * own[None, :]
            scores = hl.dot(turned, k_rope[bi, near, :].T, acc=scores) * factor
            new = torch.maximum(m, scores.amax(-1))
            weights = torch.exp(scores - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + weights.sum(-1)
            acc = hl.dot((weights * own[None, :]).to(q.dtype), values, acc=acc * alpha[:, None])
            m = new
        out[bi, heads, :] = (acc / total[:, None]).to(q.dtype)
    return out


def latent_fp8_decode_torch(
    q: torch.Tensor, q_rope: torch.Tensor, latents: torch.Tensor, scale: torch.Tensor, k_rope: torch.Tensor
) -> torch.Tensor:
    values = (latents.float() * scale[..., None]).to(q.dtype)
    scores = high(q @ values.transpose(1, 2)) + high(q_rope @ k_rope.transpose(1, 2))
    weights = torch.softmax(scores * (q.size(2) + q_rope.size(2)) ** -0.5, -1)
    return weights.to(q.dtype) @ values


def make_latent_fp8_decode(device: str, small: bool) -> Arguments:
    b, h, s, latent, p = (2, 6, 37, 64, 16) if small else (64, 64, 2500, 512, 64)
    latents = normal(device, b, s, latent).to(E4M3)
    scale = torch.rand([b, s], device=device) + 0.5
    q, q_rope = normal(device, b, h, latent, dtype=BF16), normal(device, b, h, p, dtype=BF16)
    return q, q_rope, latents, scale, normal(device, b, s, p, dtype=BF16)


CELLS.add(latent_fp8_decode, make_latent_fp8_decode, latent_fp8_decode_torch)


@helion.kernel
def drafts_by_ancestor_bits(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, ancestors: torch.Tensor
) -> torch.Tensor:
    """Attention of N drafted tokens `q[B, N, G, R, D]` to `lengths[b]` cached keys `[B, S, G, D]`, and to those drafts
    behind them whose bits are set in `ancestors[B, N]`."""
    b, n, g, r, d = q.size()
    n, r, d = hl.specialize(n), hl.specialize(r), hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for bi, gi in hl.grid([b, g]):
        known = lengths[bi]
        query = q[bi, :, gi, :, :].reshape(n * r, d)
        bits = ancestors[bi, :][:, None].expand(n, r).reshape(n * r)
        m = hl.full([n * r], float("-inf"), dtype=torch.float32)
        total = hl.zeros([n * r], dtype=torch.float32)
        acc = hl.zeros([n * r, d], dtype=torch.float32)
        for near in hl.tile(known + n):
            s = hl.dot(query, k[bi, near, gi, :].T) * scale
            place = torch.clamp(near.index - known, min=0)
            keep = (near.index < known)[None, :] | (((bits[:, None] >> place[None, :]) & 1) == 1)
            s = torch.where(keep, s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, near, gi, :], acc=acc * alpha[:, None])
            m = new
        out[bi, :, gi, :, :] = (acc / total[:, None]).to(q.dtype).reshape(n, r, d)
    return out


def drafts_by_ancestor_bits_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, ancestors: torch.Tensor
) -> torch.Tensor:
    n, r = q.size(1), q.size(3)
    place = torch.arange(k.size(1), device=q.device)[None, :] - lengths[:, None]
    bit = (ancestors[:, :, None] >> place.clamp(0, n - 1)[:, None, :]) & 1
    keep = (place < 0)[:, None, :] | ((place < n)[:, None, :] & (bit == 1))
    keys, values = (x.transpose(1, 2).repeat_interleave(r, 1) for x in (k, v))
    mixed = F.scaled_dot_product_attention(q.flatten(2, 3).transpose(1, 2), keys, values, attn_mask=keep[:, None])
    return mixed.transpose(1, 2).unflatten(2, [-1, r])


def make_drafts_by_ancestor_bits(device: str, small: bool) -> Arguments:
    b, n, g, r, s, d = (2, 4, 2, 2, 37, 16) if small else (32, 16, 8, 4, 2048, 128)
    lengths = torch.randint(s // 2, s - n, [b], device=device, dtype=torch.int32)
    below_or_own = torch.tensor([(2 << i) - 1 for i in range(n)], device=device, dtype=torch.int32)
    own = torch.tensor([1 << i for i in range(n)], device=device, dtype=torch.int32)
    ancestors = torch.randint(0, 1 << n, [b, n], device=device, dtype=torch.int32) & below_or_own | own
    k, v = (normal(device, b, s, g, d, dtype=BF16) for _ in range(2))
    return normal(device, b, n, g, r, d, dtype=BF16), k, v, lengths, ancestors


CELLS.add(drafts_by_ancestor_bits, make_drafts_by_ancestor_bits, drafts_by_ancestor_bits_torch)


@helion.kernel
def elu_linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Linear attention of `[B, H, T, D]` with features `elu(x) + 1`: sums of `k.T v`, then `q` times these sums."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    states = torch.empty([b, h, d, d], dtype=q.dtype, device=q.device)
    totals = torch.empty([b, h, d], dtype=torch.float32, device=q.device)
    out = torch.empty_like(q)
    for bi, hi in hl.grid([b, h]):
        acc = hl.zeros([d, d], dtype=torch.float32)
        total = hl.zeros([d], dtype=torch.float32)
        for rows in hl.tile(t):
            keys = k[bi, hi, rows, :].to(torch.float32)
            keys = torch.where(rows.index[:, None] < t, F.elu(keys) + 1.0, 0.0)
            total += keys.sum(0)
            acc = hl.dot(keys.to(q.dtype).T, v[bi, hi, rows, :], acc=acc)
        states[bi, hi, :, :] = acc.to(q.dtype)
        totals[bi, hi, :] = total
    hl.barrier()
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        queries = F.elu(q[bi, hi, rows, :].to(torch.float32)) + 1.0
        weight = (queries * totals[bi, hi, :][None, :]).sum(-1)
        mixed = hl.dot(queries.to(q.dtype), states[bi, hi, :, :])
        out[bi, hi, rows, :] = (mixed / weight[:, None]).to(q.dtype)
    return out


def elu_linear_attention_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    queries, keys = F.elu(high(q)) + 1.0, F.elu(high(k)) + 1.0
    states = keys.to(q.dtype).transpose(-1, -2) @ v
    weight = (queries * keys.sum(2, keepdim=True)).sum(-1, keepdim=True)
    return (high(queries.to(q.dtype) @ states) / weight).to(q.dtype)


def make_elu_linear_attention(device: str, small: bool) -> Arguments:
    b, h, t, d = (2, 2, 37, 16) if small else (16, 16, 3000, 64)
    q, k, v = (normal(device, b, h, t, d, dtype=BF16) for _ in range(3))
    return q, k, v + 0.5


CELLS.add(elu_linear_attention, make_elu_linear_attention, elu_linear_attention_torch)


@helion.kernel
def retention_by_chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor) -> torch.Tensor:
    """Causal retention of `q` and `k[B, H, C, L, D]`, `v[B, H, C, L, E]` in chunks of L, with a state for each head."""
    b, h, chunks, length, d = q.size()
    e = v.size(4)
    length, d = hl.specialize(length), hl.specialize(d)
    out = torch.empty_like(v)
    for tile_b, tile_h, cols in hl.tile([b, h, e], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        rate = log_decay[hi]
        i = hl.arange(length).to(torch.float32)
        ahead = i[:, None] - i[None, :]
        inside = torch.where(ahead >= 0, torch.exp(rate * ahead), 0.0)
        state = hl.zeros([d, cols], dtype=torch.float32)
        for ci in hl.grid(chunks):
            queries, keys, values = q[bi, hi, ci, :, :], k[bi, hi, ci, :, :], v[bi, hi, ci, :, cols]
            scores = hl.dot(queries, keys.T) * inside
            y = hl.dot(queries, state.to(q.dtype)) * torch.exp(rate * (i + 1.0))[:, None]
            y = hl.dot(scores.to(v.dtype), values, acc=y)
            out[bi, hi, ci, :, cols] = y.to(v.dtype)
            weighted = (keys.to(torch.float32) * torch.exp(rate * (length - 1.0 - i))[:, None]).to(k.dtype)
            state = hl.dot(weighted.T, values, acc=state * torch.exp(rate * length))
    return out


def retention_by_chunks_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor
) -> torch.Tensor:
    queries, keys, values = (x.flatten(2, 3) for x in (q, k, v))
    at = torch.arange(queries.size(2), device=q.device)
    ahead = (at[:, None] - at[None, :]).to(torch.float32)
    decay = torch.exp(log_decay[:, None, None] * ahead).masked_fill(~below(at.size(0), q.device), 0.0)
    return ((high(queries @ keys.transpose(-1, -2)) * decay).to(v.dtype) @ values).view(v.shape)


def make_retention_by_chunks(device: str, small: bool) -> Arguments:
    b, h, chunks, length, d, e = (2, 2, 3, 16, 16, 32) if small else (8, 16, 32, 64, 64, 128)
    q, k = (normal(device, b, h, chunks, length, d, dtype=BF16, scale=d**-0.25) for _ in range(2))
    rate = torch.log1p(-torch.exp2(-3.0 - torch.arange(h, device=device) / 4))
    return q, k, normal(device, b, h, chunks, length, e, dtype=BF16), rate


CELLS.add(retention_by_chunks, make_retention_by_chunks, retention_by_chunks_torch)


@helion.kernel
def learned_sink_prefill(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor, window: int
) -> torch.Tensor:
    """Causal attention of `q[B, T, H, D]` to the last `window` keys `[B, T, G, D]`, with a learned logit `sinks[H]` that
    takes weight and has no value."""
    b, t, h, d = q.size()
    group = h // k.size(2)
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        gi = hi // group
        queries = q[bi, tile_m, hi, :]
        m = hl.zeros([tile_m], dtype=torch.float32) + sinks[hi]
        total = hl.full([tile_m], 1.0, dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        for near in hl.tile(max(0, tile_m.begin - window + 1), tile_m.end):
            s = hl.dot(queries, k[bi, near, gi, :].T) * scale
            ahead = tile_m.index[:, None] - near.index[None, :]
            s = torch.where((ahead >= 0) & (ahead < window), s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, near, gi, :], acc=acc * alpha[:, None])
            m = new
        out[bi, tile_m, hi, :] = (acc / total[:, None]).to(q.dtype)
    return out


def learned_sink_prefill_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor, window: int
) -> torch.Tensor:
    group = q.size(2) // k.size(2)
    queries, keys, values = q.transpose(1, 2), *(x.transpose(1, 2).repeat_interleave(group, 1) for x in (k, v))
    at = torch.arange(q.size(1), device=q.device)
    ahead = at[:, None] - at[None, :]
    s = high(queries @ keys.transpose(-1, -2)) * q.size(3) ** -0.5
    s = s.masked_fill(~((ahead >= 0) & (ahead < window)), -math.inf)
    s = torch.cat([s, sinks[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    return (torch.softmax(s, -1)[..., :-1].to(v.dtype) @ values).transpose(1, 2)


def make_learned_sink_prefill(device: str, small: bool) -> Arguments:
    b, t, h, g, d, window = (2, 37, 4, 2, 16, 8) if small else (2, 4000, 64, 8, 64, 128)
    k, v = (normal(device, b, t, g, d, dtype=BF16) for _ in range(2))
    return normal(device, b, t, h, d, dtype=BF16), k, v, normal(device, h), window


CELLS.add(learned_sink_prefill, make_learned_sink_prefill, learned_sink_prefill_torch)


@helion.kernel
def triangle_start_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Attention within the rows of pairs `[N, N, H, D]`, biased by `bias[H, N, N]` for all rows, and gated."""
    n, _, h, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for row, head, tile_m in hl.tile([n, h, n], block_size=[1, 1, None]):
        ri, hi = row.begin, head.begin
        queries = q[ri, tile_m, hi, :]
        m = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        for near in hl.tile(n):
            s = hl.dot(queries, k[ri, near, hi, :].T) * scale + bias[hi, tile_m, near].to(torch.float32)
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[ri, near, hi, :], acc=acc * alpha[:, None])
            m = new
        passed = torch.sigmoid(gate[ri, tile_m, hi, :].to(torch.float32))
        out[ri, tile_m, hi, :] = (acc / total[:, None] * passed).to(q.dtype)
    return out


def triangle_start_attention_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    queries, keys, values = (x.transpose(1, 2) for x in (q, k, v))
    y = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias[None])
    return (high(y.transpose(1, 2)) * torch.sigmoid(high(gate))).to(q.dtype)


def make_triangle_start_attention(device: str, small: bool) -> Arguments:
    n, h, d = (21, 2, 16) if small else (300, 4, 32)
    q, k, v, gate = (normal(device, n, n, h, d, dtype=BF16) for _ in range(4))
    return q, k, v, gate, normal(device, h, n, n, dtype=BF16)


CELLS.add(triangle_start_attention, make_triangle_start_attention, triangle_start_attention_torch)
