"""Attention to caches, windows, packed sequences and quantized keys, and convolutions of frames and images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, Arguments, Cells, below, high, normal, scores_reference

CELLS = Cells()


@helion.kernel
def append_prefill(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention of the last T tokens `[B, T, H, D]` to caches `[B, S, G, D]` that end with them."""
    b, t, h, d = q.size()
    s = keys.size(1)
    d = hl.specialize(d)
    share = h // keys.size(2)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        group = hi // share
        queries = q[bi, rows, hi, :]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(0, s - t + rows.end):
            scores = hl.dot(queries, keys[bi, cols, group, :].T) * scale
            scores = torch.where(cols.index[None, :] <= rows.index[:, None] + (s - t), scores, float("-inf"))
            new = torch.maximum(m, scores.amax(-1))
            p = torch.exp(scores - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(values.dtype), values[bi, cols, group, :], acc=acc * alpha[:, None])
            m = new
        out[bi, rows, hi, :] = (acc / total[:, None]).to(out.dtype)
    return out


def append_prefill_torch(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    s, share = keys.size(1), q.size(2) // keys.size(2)
    keep = below(s, q.device)[s - q.size(1) :]
    k, v = (x.repeat_interleave(share, 2).transpose(1, 2) for x in (keys, values))
    return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=keep).transpose(1, 2)


def make_append_prefill(device: str, small: bool) -> Arguments:
    b, t, s, h, g, d = (2, 13, 37, 4, 2, 32) if small else (4, 512, 4096, 32, 8, 128)
    caches = (normal(device, b, s, g, d, dtype=BF16) for _ in range(2))
    return normal(device, b, t, h, d, dtype=BF16), *caches


CELLS.add(append_prefill, make_append_prefill, append_prefill_torch)


@helion.kernel
def windowed_prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Attention of tokens `[B, H, T, D]` to the `window` tokens that end with each."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        queries = q[bi, hi, rows, :]
        m = hl.full([rows], -1e30, dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(max(0, rows.begin - window + 1), min(rows.end, t)):
            s = hl.dot(queries, k[bi, hi, cols, :].T) * scale
            ahead = rows.index[:, None] - cols.index[None, :]
            s = torch.where((ahead >= 0) & (ahead < window), s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, hi, cols, :], acc=acc * alpha[:, None])
            m = new
        out[bi, hi, rows, :] = (acc / total[:, None]).to(out.dtype)
    return out


def windowed_prefill_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    keep = below(q.size(2), q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep & ~keep.tril(-window))


def make_windowed_prefill(device: str, small: bool) -> Arguments:
    b, h, t, d, window = (1, 3, 67, 32, 9) if small else (2, 16, 8192, 64, 512)
    q, k, v = (normal(device, b, h, t, d, dtype=FP16) for _ in range(3))
    return q, k, v, window


CELLS.add(windowed_prefill, make_windowed_prefill, windowed_prefill_torch)


@helion.kernel
def packed_encoder(qkv: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Attention within sequences of packed tokens `[T, 3, H, D]`, which begin and end at `offsets[N + 1]`."""
    t, _, h, d = qkv.size()
    d = hl.specialize(d)
    count = offsets.size(0) - 1
    out = torch.empty([t, h, d], dtype=qkv.dtype, device=qkv.device)
    scale = 1.0 / math.sqrt(d)
    for si, hi in hl.grid([count, h]):
        begin, end = offsets[si], offsets[si + 1]
        for rows in hl.tile(begin, end):
            queries = qkv[rows, 0, hi, :]
            m = hl.full([rows], float("-inf"), dtype=torch.float32)
            total = hl.zeros([rows], dtype=torch.float32)
            acc = hl.zeros([rows, d], dtype=torch.float32)
            for cols in hl.tile(begin, end):
                s = hl.dot(queries, qkv[cols, 1, hi, :].T) * scale
                s = torch.where(cols.index[None, :] < end, s, float("-inf"))
                new = torch.maximum(m, s.amax(-1))
                p = torch.exp(s - new[:, None])
                alpha = torch.exp(m - new)
                total = total * alpha + p.sum(-1)
                acc = hl.dot(p.to(qkv.dtype), qkv[cols, 2, hi, :], acc=acc * alpha[:, None])
                m = new
            out[rows, hi, :] = (acc / total[:, None]).to(out.dtype)
    return out


def packed_encoder_reference(qkv: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    parts = []
    for part in qkv.tensor_split(offsets[1:-1].cpu().long()):
        q, k, v = part.permute(1, 2, 0, 3)
        parts.append(scores_reference(q, k, v).transpose(0, 1))
    return torch.cat(parts)


def packed_encoder_torch(qkv: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    at = torch.arange(qkv.size(0), device=qkv.device, dtype=offsets.dtype)
    owner = torch.searchsorted(offsets, at, right=True)
    q, k, v = (x[None].transpose(1, 2) for x in qkv.unbind(1))
    keep = owner[:, None] == owner[None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)[0].transpose(0, 1)


def make_packed_encoder(device: str, small: bool) -> Arguments:
    t, h, d, count = (61, 3, 32, 4) if small else (8192, 12, 64, 32)
    ends = torch.arange(1, count, device=device) * (t // count) - torch.randint(
        0, t // count, [count - 1], device=device
    )
    offsets = F.pad(ends, [1, 1])
    offsets[-1] = t
    return normal(device, t, 3, h, d, dtype=FP16), offsets.to(torch.int32)


CELLS.add(packed_encoder, make_packed_encoder, packed_encoder_reference, packed_encoder_torch)


@helion.kernel
def wide_keys_prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention with queries and keys `[B, T, H, 192]` and values `[B, T, H, 128]`, as in latent attention."""
    b, t, h, d = q.size()
    d, e = hl.specialize(d), hl.specialize(v.size(3))
    out = torch.empty([b, t, h, e], dtype=q.dtype, device=q.device)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        queries = q[bi, rows, hi, :]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, e], dtype=torch.float32)
        for cols in hl.tile(0, rows.end):
            s = hl.dot(queries, k[bi, cols, hi, :].T) * scale
            s = torch.where(cols.index[None, :] <= rows.index[:, None], s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, cols, hi, :], acc=acc * alpha[:, None])
            m = new
        out[bi, rows, hi, :] = (acc / total[:, None]).to(out.dtype)
    return out


def wide_keys_prefill_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def make_wide_keys_prefill(device: str, small: bool) -> Arguments:
    b, t, h, d, e = (2, 37, 3, 48, 32) if small else (1, 2048, 32, 192, 128)
    q, k = normal(device, b, t, h, d, dtype=BF16), normal(device, b, t, h, d, dtype=BF16)
    return q, k, normal(device, b, t, h, e, dtype=BF16)


CELLS.add(wide_keys_prefill, make_wide_keys_prefill, wide_keys_prefill_torch)


@helion.kernel
def bucketed_bias(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, buckets: torch.Tensor
) -> torch.Tensor:
    """Attention of `[B, H, T, D]` without a scale, with a learned bias `table[H, N]` of the bucket of a distance.

    The bucket of query t and key s is `buckets[t - s + T - 1]`.
    """
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        queries = q[bi, hi, rows, :]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(t):
            bucket = buckets[rows.index[:, None] - cols.index[None, :] + (t - 1)]
            s = hl.dot(queries, k[bi, hi, cols, :].T) + table[hi, bucket]
            s = torch.where(cols.index[None, :] < t, s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, hi, cols, :], acc=acc * alpha[:, None])
            m = new
        out[bi, hi, rows, :] = (acc / total[:, None]).to(out.dtype)
    return out


def _bucket_bias(q: torch.Tensor, table: torch.Tensor, buckets: torch.Tensor) -> torch.Tensor:
    at = torch.arange(q.size(2), device=q.device)
    return table[:, buckets[at[:, None] - at + q.size(2) - 1].long()]


def bucketed_bias_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, buckets: torch.Tensor
) -> torch.Tensor:
    return scores_reference(q, k, v, bias=_bucket_bias(q, table, buckets), scale=1.0)


def bucketed_bias_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, buckets: torch.Tensor
) -> torch.Tensor:
    bias = _bucket_bias(q, table, buckets).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)


def make_bucketed_bias(device: str, small: bool) -> Arguments:
    b, h, t, d = (2, 3, 37, 32) if small else (8, 12, 1000, 64)
    q = normal(device, b, h, t, d, dtype=BF16, scale=d**-0.5)
    k, v = normal(device, b, h, t, d, dtype=BF16), normal(device, b, h, t, d, dtype=BF16)
    distance = torch.arange(1 - t, t, device=device)
    near = torch.log2(distance.abs().to(torch.float32) + 1.0) * 2.0
    buckets = torch.clamp(near, max=15.0).to(torch.int32) + 16 * (distance > 0).to(torch.int32)
    return q, k, v, normal(device, h, 32), buckets


CELLS.add(bucketed_bias, make_bucketed_bias, bucketed_bias_reference, bucketed_bias_torch)


@helion.kernel
def int8_scores_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor
) -> torch.Tensor:
    """Attention with int8 queries and keys `[B, H, T, D]`, a scale for each token `[B, H, T]`, and fp16 values."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(v)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        queries = q[bi, hi, rows, :]
        row_scale = q_scale[bi, hi, rows]
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(t):
            products = hl.dot(queries, k[bi, hi, cols, :].T)
            s = products.to(torch.float32) * row_scale[:, None] * k_scale[bi, hi, cols][None, :]
            s = torch.where(cols.index[None, :] < t, s, float("-inf"))
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp2(s - new[:, None])
            alpha = torch.exp2(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, hi, cols, :], acc=acc * alpha[:, None])
            m = new
        out[bi, hi, rows, :] = (acc / total[:, None]).to(out.dtype)
    return out


def int8_scores_attention_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor
) -> torch.Tensor:
    q, k = q.to(q_scale.dtype) * q_scale[..., None], k.to(k_scale.dtype) * k_scale[..., None]
    return scores_reference(q, k, v, scale=math.log(2.0)).to(v.dtype)


def int8_scores_attention_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor
) -> torch.Tensor:
    queries, keys = (q * q_scale[..., None]).to(v.dtype), (k * k_scale[..., None]).to(v.dtype)
    return F.scaled_dot_product_attention(queries, keys, v, scale=math.log(2.0))


def make_int8_scores_attention(device: str, small: bool) -> Arguments:
    b, h, t, d = (1, 3, 37, 32) if small else (2, 24, 2304, 64)
    q, k = (torch.randint(-127, 128, [b, h, t, d], device=device).to(torch.int8) for _ in range(2))
    q_scale, k_scale = (torch.rand([b, h, t], device=device) * 0.01 + 0.005 for _ in range(2))
    return q, k, normal(device, b, h, t, d, dtype=FP16), q_scale * d**-0.5, k_scale


CELLS.add(
    int8_scores_attention,
    make_int8_scores_attention,
    int8_scores_attention_reference,
    int8_scores_attention_torch,
)


@helion.kernel
def context_of_tokens(k: torch.Tensor, v: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Return `softmax(k).T v` over tokens, `[B, H, D, E]`, for `k[B, T, H, D]` with known `lse[B, H, D]`."""
    b, t, h, d = k.size()
    d, e = hl.specialize(d), hl.specialize(v.size(3))
    out = torch.empty([b, h, d, e], dtype=torch.float32, device=k.device)
    for bi, hi in hl.grid([b, h]):
        norm = lse[bi, hi, :]
        acc = hl.zeros([d, e], dtype=torch.float32)
        for rows in hl.tile(t):
            p = torch.exp(k[bi, rows, hi, :].to(torch.float32) - norm[None, :])
            acc = hl.dot(p.to(v.dtype).T, v[bi, rows, hi, :], acc=acc)
        out[bi, hi, :, :] = acc
    return out


def context_of_tokens_torch(k: torch.Tensor, v: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    p = torch.exp(high(k) - lse[:, None]).to(v.dtype)
    return high(p.permute(0, 2, 3, 1) @ v.transpose(1, 2))


def make_context_of_tokens(device: str, small: bool) -> Arguments:
    b, t, h, d = (2, 37, 3, 32) if small else (16, 4096, 8, 64)
    k, v = normal(device, b, t, h, d, dtype=BF16), normal(device, b, t, h, d, dtype=BF16)
    return k, v, torch.logsumexp(high(k), 1)


CELLS.add(context_of_tokens, make_context_of_tokens, context_of_tokens_torch)


@helion.kernel
def fp8_keys_prefill(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k_scale: torch.Tensor, v_scale: torch.Tensor
) -> torch.Tensor:
    """Attention of `q[B, H, T, D]` to e4m3 keys and values `[B, H, S, D]`, with a scale for each head."""
    b, h, t, d = q.size()
    s, d = k.size(2), hl.specialize(d)
    out = torch.empty_like(q)
    for tile_b, tile_h, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        queries = q[bi, hi, rows, :]
        scale = k_scale[hi] * d**-0.5
        m = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for cols in hl.tile(s):
            scores = hl.dot(queries, k[bi, hi, cols, :].to(q.dtype).T) * scale
            scores = torch.where(cols.index[None, :] < s, scores, float("-inf"))
            new = torch.maximum(m, scores.amax(-1))
            p = torch.exp(scores - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            acc = hl.dot(p.to(q.dtype), v[bi, hi, cols, :].to(q.dtype), acc=acc * alpha[:, None])
            m = new
        out[bi, hi, rows, :] = (acc * v_scale[hi] / total[:, None]).to(out.dtype)
    return out


def fp8_keys_prefill_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k_scale: torch.Tensor, v_scale: torch.Tensor
) -> torch.Tensor:
    keys, values = ((x.to(q.dtype) * y[:, None, None]).to(q.dtype) for x, y in ((k, k_scale), (v, v_scale)))
    return F.scaled_dot_product_attention(q, keys, values)


def make_fp8_keys_prefill(device: str, small: bool) -> Arguments:
    b, h, t, s, d = (2, 3, 13, 37, 32) if small else (4, 16, 256, 4000, 128)
    k, v = normal(device, b, h, s, d).to(E4M3), normal(device, b, h, s, d).to(E4M3)
    return normal(device, b, h, t, d, dtype=BF16), k, v, *(torch.rand([h], device=device) + 0.5 for _ in range(2))


CELLS.add(fp8_keys_prefill, make_fp8_keys_prefill, fp8_keys_prefill_torch)


@helion.kernel
def frames_conv3(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Add a convolution over 3 frames, `w[3, C, N]`, of `x[B, F, P, C]` with pixels P; frames outside are zero."""
    b, f, pixels, c = x.size()
    n = w.size(2)
    out = torch.empty_like(residual)
    for batch, frame, places, cols in hl.tile([b, f, pixels, n], block_size=[1, 1, None, None]):
        bi, fi = batch.begin, frame.begin
        acc = residual[bi, fi, places, cols].to(torch.float32)
        for near in hl.tile(max(fi - 1, 0), min(fi + 2, f), block_size=1):
            for inner in hl.tile(c):
                acc = hl.dot(x[bi, near.begin, places, inner], w[near.begin - fi + 1, inner, cols], acc=acc)
        out[bi, fi, places, cols] = acc.to(out.dtype)
    return out


def frames_conv3_torch(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    y = F.conv2d(x.permute(0, 3, 1, 2), w.permute(2, 1, 0)[..., None], padding=(1, 0))
    return residual + y.permute(0, 2, 3, 1)


def make_frames_conv3(device: str, small: bool) -> Arguments:
    b, f, pixels, c, n = (2, 4, 21, 24, 40) if small else (2, 16, 1024, 320, 320)
    w = normal(device, 3, c, n, dtype=FP16, scale=(3 * c) ** -0.5)
    return normal(device, b, f, pixels, c, dtype=FP16), w, normal(device, b, f, pixels, n, dtype=FP16)


CELLS.add(frames_conv3, make_frames_conv3, frames_conv3_torch)


@helion.kernel
def upsampling_conv2(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Apply a transposed 2x2 convolution `w[2, C, 2, N]` with stride 2 to `x[B, H, W, C]`."""
    b, height, width, c = x.size()
    n = w.size(3)
    out = torch.empty([b, 2 * height, 2 * width, n], dtype=x.dtype, device=x.device)
    for image, row, places, cols in hl.tile([b, 2 * height, width, n], block_size=[1, 1, None, None]):
        bi, ri = image.begin, row.begin
        left = hl.zeros([places, cols], dtype=torch.float32)
        right = hl.zeros([places, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            own = x[bi, ri // 2, places, inner]
            left = hl.dot(own, w[ri % 2, inner, 0, cols], acc=left)
            right = hl.dot(own, w[ri % 2, inner, 1, cols], acc=right)
        out[bi, ri, places.index * 2, cols] = (left + bias[cols][None, :]).to(out.dtype)
        out[bi, ri, places.index * 2 + 1, cols] = (right + bias[cols][None, :]).to(out.dtype)
    return out


def upsampling_conv2_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = F.conv_transpose2d(x.permute(0, 3, 1, 2), w.permute(1, 3, 0, 2), bias.to(x.dtype), stride=2)
    return y.permute(0, 2, 3, 1).contiguous()


def make_upsampling_conv2(device: str, small: bool) -> Arguments:
    b, height, c, n = (2, 5, 24, 40) if small else (8, 64, 512, 256)
    w = normal(device, 2, c, 2, n, dtype=BF16, scale=c**-0.5)
    return normal(device, b, height, height, c, dtype=BF16), w, normal(device, n)


CELLS.add(upsampling_conv2, make_upsampling_conv2, upsampling_conv2_torch)
