"""Attention as models of today have it: packed and ragged tokens, chunks, gates, latents, and steps of decoding."""

from __future__ import annotations

import inspect
import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, below, high, normal

CELLS = Cells()
CAUSAL: dict[str, Any] = (
    {"window_size": (-1, 0)} if "window_size" in inspect.signature(varlen_attn).parameters else {"is_causal": True}
)


@helion.kernel
def packed_causal_sequences(qkv: torch.Tensor, starts: torch.Tensor, longest: int) -> torch.Tensor:
    """Causal attention within sequences of packed tokens `qkv[T, 3, H, D]`, from `starts[i]` to `starts[i + 1]`."""
    t, _, h, d = qkv.size()
    d = hl.specialize(d)
    out = torch.empty([t, h, d], dtype=qkv.dtype, device=qkv.device)
    scale = 1.0 / math.sqrt(d)
    for sequences, heads, tile in hl.tile([starts.size(0) - 1, h, longest], block_size=[1, 1, None]):
        head, first = heads.begin, starts[sequences.begin]
        length = starts[sequences.begin + 1] - first
        if tile.begin < length:
            rows = first + tile.index
            inside = tile.index < length
            q = hl.load(qkv, [rows, 0, head, slice(None)], extra_mask=inside[:, None])
            m = hl.full([tile], float("-inf"), dtype=torch.float32)
            total = hl.zeros([tile], dtype=torch.float32)
            acc = hl.zeros([tile, d], dtype=torch.float32)
            for near in hl.tile(min(tile.end, length)):
                cols = first + near.index
                s = hl.dot(q, qkv[cols, 1, head, :].T) * scale
                s = torch.where(tile.index[:, None] >= near.index[None, :], s, float("-inf"))
                new = torch.maximum(m, s.amax(-1))
                p = torch.exp(s - new[:, None])
                alpha = torch.exp(m - new)
                total = total * alpha + p.sum(-1)
                acc = hl.dot(p.to(qkv.dtype), qkv[cols, 2, head, :], acc=acc * alpha[:, None])
                m = new
            y = (acc / total[:, None]).to(qkv.dtype)
            hl.store(out, [rows, head, slice(None)], y, extra_mask=inside[:, None])
    return out


def packed_causal_sequences_torch(qkv: torch.Tensor, starts: torch.Tensor, longest: int) -> torch.Tensor:
    parts = []
    for begin, end in itertools.pairwise(starts.tolist()):
        q, k, v = qkv[begin:end].permute(1, 2, 0, 3)
        parts.append(F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0].transpose(0, 1))
    return torch.cat(parts)


def packed_causal_sequences_baseline(qkv: torch.Tensor, starts: torch.Tensor, longest: int) -> torch.Tensor:
    q, k, v = qkv.unbind(1)
    attended = varlen_attn(q, k, v, starts, starts, longest, longest, **CAUSAL)
    assert isinstance(attended, torch.Tensor)
    return attended


def make_packed_causal_sequences(device: str, small: bool) -> Arguments:
    lengths = [5, 37, 16] if small else [384, 576, 768, 960] * 4
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    h, d = (2, 16) if small else (16, 128)
    return normal(device, sum(lengths), 3, h, d, dtype=BF16), starts, max(lengths)


CELLS.add(
    packed_causal_sequences,
    make_packed_causal_sequences,
    packed_causal_sequences_torch,
    packed_causal_sequences_baseline,
)


@helion.kernel
def chunked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int) -> torch.Tensor:
    """Causal attention of `[B, T, H, D]` in chunks: a token attends to those before it in its own chunk."""
    b, t, h, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.4426950408889634 / math.sqrt(d)
    for bi, hi, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        batch, head = bi.begin, hi.begin
        queries = q[batch, rows, head, :]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(rows.begin // chunk * chunk, rows.end):
            s = hl.dot(queries, k[batch, cols, head, :].T) * scale
            same = rows.index[:, None] // chunk == cols.index[None, :] // chunk
            s = torch.where(same & (rows.index[:, None] >= cols.index[None, :]), s, -1.0e30)
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp2(s - new[:, None])
            alpha = torch.exp2(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[batch, cols, head, :], acc=acc * alpha[:, None])
            m = new
        out[batch, rows, head, :] = (acc / total[:, None]).to(q.dtype)
    return out


def chunked_attention_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int) -> torch.Tensor:
    queries, keys, values = (x.unflatten(1, [-1, chunk]).flatten(0, 1).transpose(1, 2) for x in (q, k, v))
    y = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return y.transpose(1, 2).reshape(q.shape)


def make_chunked_attention(device: str, small: bool) -> Arguments:
    b, t, h, d, chunk = (1, 40, 2, 16, 10) if small else (2, 8192, 16, 128, 1024)
    return *(normal(device, b, t, h, d, dtype=BF16) for _ in range(3)), chunk


CELLS.add(chunked_attention, make_chunked_attention, chunked_attention_torch)


@helion.kernel
def output_gated_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Causal attention of `q[B, H, T, D]` to fewer heads `[B, G, T, D]`, times the sigmoid of `gate[B, T, H, D]`."""
    b, h, t, d = q.size()
    g = k.size(1)
    d = hl.specialize(d)
    each = h // g
    out = torch.empty_like(gate)
    scale = 1.0 / math.sqrt(d)
    for bi, hi, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        batch, head = bi.begin, hi.begin
        group = head // each
        queries = q[batch, head, rows, :]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(rows.end):
            s = hl.dot(queries, k[batch, group, cols, :].T) * scale
            s = torch.where(rows.index[:, None] >= cols.index[None, :], s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[batch, group, cols, :], acc=acc * alpha[:, None])
            m = new
        opened = torch.sigmoid(gate[batch, rows, head, :].to(torch.float32))
        out[batch, rows, head, :] = (acc / total[:, None] * opened).to(q.dtype)
    return out


def output_gated_attention_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
    return (high(y) * torch.sigmoid(high(gate))).to(q.dtype).contiguous()


def make_output_gated_attention(device: str, small: bool) -> Arguments:
    b, h, g, t, d = (1, 4, 2, 37, 16) if small else (2, 16, 2, 4096, 128)
    q, *kv = (normal(device, b, heads, t, d, dtype=BF16) for heads in (h, g, g))
    return q, *kv, normal(device, b, t, h, d, dtype=BF16)


CELLS.add(output_gated_attention, make_output_gated_attention, output_gated_attention_torch)


@helion.kernel
def shared_rotary_prefill(
    q: torch.Tensor, k: torch.Tensor, turned: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention and its log-sum-exps of `q[B, T, H, D + R]` to keys `[B, T, H, D]` beside turned parts
    `[B, T, R]` that all heads share; values are `[B, T, H, D]`."""
    b, t, h, _ = q.size()
    d, r = hl.specialize(k.size(3)), hl.specialize(turned.size(2))
    out = torch.empty_like(v)
    lse = torch.empty([b, h, t], dtype=torch.float32, device=q.device)
    for bi, hi, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        batch, head = bi.begin, hi.begin
        own = q[batch, rows, head, hl.arange(d)]
        rotary = q[batch, rows, head, d + hl.arange(r)]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(rows.end):
            s = hl.dot(own, k[batch, cols, head, :].T)
            s = hl.dot(rotary, turned[batch, cols, :].T, acc=s) * scale
            s = torch.where(rows.index[:, None] >= cols.index[None, :], s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[batch, cols, head, :], acc=acc * alpha[:, None])
            m = new
        out[batch, rows, head, :] = (acc / total[:, None]).to(q.dtype)
        lse[batch, head, rows] = m + torch.log(total)
    return out, lse


def shared_rotary_prefill_torch(
    q: torch.Tensor, k: torch.Tensor, turned: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.cat([k, turned[:, :, None].expand(-1, -1, k.size(2), -1)], -1).transpose(1, 2)
    scores = high(q.transpose(1, 2) @ keys.transpose(-1, -2)) * scale
    scores = scores.masked_fill(~below(q.size(1), q.device), -math.inf)
    y = torch.softmax(scores, -1).to(v.dtype) @ v.transpose(1, 2)
    return y.transpose(1, 2).contiguous(), torch.logsumexp(scores, -1)


def make_shared_rotary_prefill(device: str, small: bool) -> Arguments:
    b, t, h, d, r = (1, 37, 2, 32, 16) if small else (1, 4096, 16, 128, 64)
    q = normal(device, b, t, h, d + r, dtype=BF16)
    k, v = (normal(device, b, t, h, d, dtype=BF16) for _ in range(2))
    return q, k, normal(device, b, t, r, dtype=BF16), v, (d + r) ** -0.5


CELLS.add(shared_rotary_prefill, make_shared_rotary_prefill, shared_rotary_prefill_torch)


@helion.kernel
def parts_of_decoding(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, slopes: torch.Tensor, part: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one token `q[B, G, R, D]` to each part of a cache `[B, S, G, D]`, with biases of distance
    `slopes[G, R]`: unnormalized results `[B, P, G, R, D]`, and maxima and sums `[B, P, G, 2, R]`."""
    b, g, r, d = q.size()
    r, d = hl.specialize(r), hl.specialize(d)
    parts = k.size(1) // part
    out = torch.empty([b, parts, g, r, d], dtype=torch.float32, device=q.device)
    stats = torch.empty([b, parts, g, 2, r], dtype=torch.float32, device=q.device)
    scale = 1.0 / math.sqrt(d)
    for sequence, which, group in hl.grid([b, parts, g]):
        length = lengths[sequence]
        query, slope = q[sequence, group, :, :], slopes[group, :]
        m = hl.full([r], -1.0e30, dtype=torch.float32)
        total = hl.zeros([r], dtype=torch.float32)
        acc = hl.zeros([r, d], dtype=torch.float32)
        for tile in hl.tile(which * part, min(which * part + part, length)):
            s = hl.dot(query, k[sequence, tile, group, :].T) * scale
            s = s + slope[:, None] * (tile.index - length + 1).to(torch.float32)[None, :]
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[sequence, tile, group, :], acc=acc * alpha[:, None])
            m = new
        out[sequence, which, group, :, :] = acc
        stats[sequence, which, group, 0, :] = m
        stats[sequence, which, group, 1, :] = total
    return out, stats


def parts_of_decoding_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, slopes: torch.Tensor, part: int
) -> tuple[torch.Tensor, torch.Tensor]:
    b, s, g, d = k.size()
    k, v = (each.view(b, s // part, part, g, d).transpose(2, 3) for each in (k, v))
    place = torch.arange(s, device=q.device).view(s // part, 1, 1, part)
    ends = lengths[:, None, None, None, None]
    scores = high(q[:, None] @ k.transpose(-1, -2)) / math.sqrt(d) + slopes[:, :, None] * (place - ends + 1)
    scores = torch.where(place < ends, scores, -1.0e30)
    m = scores.amax(-1)
    p = torch.where(place < ends, torch.exp(scores - m[..., None]), 0.0)
    return high(p.to(v.dtype) @ v), torch.stack([m, p.sum(-1)], 3)


def make_parts_of_decoding(device: str, small: bool) -> Arguments:
    b, s, g, r, d, part = (2, 64, 2, 4, 16, 16) if small else (16, 8192, 8, 4, 128, 1024)
    lengths = torch.randint(s - part + 1, s + 1, [b], device=device, dtype=torch.int32)
    k, v = (normal(device, b, s, g, d, dtype=BF16) for _ in range(2))
    slopes = torch.exp2(-8.0 * torch.rand([g, r], device=device) - 4.0)
    return normal(device, b, g, r, d, dtype=BF16), k, v, lengths, slopes, part


CELLS.add(parts_of_decoding, make_parts_of_decoding, parts_of_decoding_torch)


@helion.kernel
def capped_two_sided_window(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, reach: int, cap: float
) -> torch.Tensor:
    """Attention of encoders `[B, T, H, D]` to tokens at most ``reach`` away and before `lengths[B]`, with a softcap."""
    b, t, h, d = q.size()
    d = hl.specialize(d)
    out = torch.zeros_like(q)
    scale = 1.0 / math.sqrt(d)
    for bi, hi, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        batch, head = bi.begin, hi.begin
        length = lengths[batch]
        queries = q[batch, rows, head, :]
        m = hl.full([rows], -1.0e30, dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(max(0, rows.begin - reach), min(length, rows.end + reach)):
            s = cap * torch.tanh(hl.dot(queries, k[batch, cols, head, :].T) * (scale / cap))
            near = torch.abs(rows.index[:, None] - cols.index[None, :]) <= reach
            s = torch.where(near, s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[batch, cols, head, :], acc=acc * alpha[:, None])
            m = new
        y = torch.where((rows.index < length)[:, None], acc / torch.clamp(total, min=1e-30)[:, None], 0.0)
        out[batch, rows, head, :] = y.to(q.dtype)
    return out


def capped_two_sided_window_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, reach: int, cap: float
) -> torch.Tensor:
    place = torch.arange(q.size(1), device=q.device)
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    scores = high(q @ k.transpose(-1, -2)) / math.sqrt(q.size(-1))
    keep = ((place[:, None] - place[None]).abs() <= reach) & (place < lengths[:, None])[:, None, None]
    scores = (cap * torch.tanh(scores / cap)).masked_fill(~keep, -1.0e30)
    y = torch.softmax(scores, -1).to(v.dtype) @ v
    return torch.where((place < lengths[:, None])[:, None, :, None], y, 0.0).transpose(1, 2).contiguous()


def make_capped_two_sided_window(device: str, small: bool) -> Arguments:
    b, t, h, d, reach = (2, 37, 2, 16, 6) if small else (8, 2048, 12, 64, 256)
    lengths = torch.randint(t // 2, t + 1, [b], device=device, dtype=torch.int32)
    return *(normal(device, b, t, h, d, dtype=BF16) for _ in range(3)), lengths, reach, 50.0


CELLS.add(capped_two_sided_window, make_capped_two_sided_window, capped_two_sided_window_torch)


@helion.kernel
def squared_scores_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_forget: torch.Tensor
) -> torch.Tensor:
    """Causal attention of `[B, H, T, D]` with weights `(q k)^2`, decayed by the difference of `log_forget[B, H, T]`."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    for bi, hi, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        batch, head = bi.begin, hi.begin
        queries, own = q[batch, head, rows, :], log_forget[batch, head, rows]
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(rows.end):
            s = hl.dot(queries, k[batch, head, cols, :].T) * (1.0 / d)
            ahead = own[:, None] - log_forget[batch, head, cols][None, :]
            weight = torch.where(rows.index[:, None] >= cols.index[None, :], s * s * torch.exp(ahead), 0.0)
            total += weight.sum(-1)
            acc = hl.dot(weight.to(v.dtype), v[batch, head, cols, :], acc=acc)
        out[batch, head, rows, :] = (acc / (total[:, None] + 1e-5)).to(q.dtype)
    return out


def squared_scores_attention_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_forget: torch.Tensor
) -> torch.Tensor:
    scores = high(q @ k.transpose(-1, -2)) / q.size(-1)
    ahead = log_forget[..., :, None] - log_forget[..., None, :]
    weight = scores * scores * torch.exp(ahead.masked_fill(~below(q.size(2), q.device), -math.inf))
    return (high(weight.to(v.dtype) @ v) / (weight.sum(-1, keepdim=True) + 1e-5)).to(q.dtype)


def make_squared_scores_attention(device: str, small: bool) -> Arguments:
    b, h, t, d = (1, 2, 37, 16) if small else (2, 16, 2048, 128)
    forget = F.logsigmoid(normal(device, b, h, t) + 4.0).cumsum(-1)
    return *(normal(device, b, h, t, d, dtype=BF16) for _ in range(3)), forget


CELLS.add(squared_scores_attention, make_squared_scores_attention, squared_scores_attention_torch)
