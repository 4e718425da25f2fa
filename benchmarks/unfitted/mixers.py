"""Mixing of tokens in language models: paged and block-sparse attention, chunks of linear attention, gradients."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, Arguments, Cells, below, heads, high, normal, scores_reference

CELLS = Cells()


@helion.kernel
def paged_fp8_decode(
    q: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    key_scale: float,
    value_scale: float,
) -> torch.Tensor:
    """Attention of one token, queries `[B, G, R, D]`, to pages `[P, 16, G, D]` in e4m3 that a table `[B, N]` names."""
    b, g, r, d = q.size()
    r, d = hl.specialize(r), hl.specialize(d)
    page_size = hl.specialize(key_pages.size(1))
    all_keys, all_values = key_pages.view(-1, g, d), value_pages.view(-1, g, d)
    out = torch.empty_like(q)
    scale = key_scale / math.sqrt(d)
    for sequence, group in hl.grid([b, g]):
        query = q[sequence, group, :, :]
        m = hl.full([r], float("-inf"), dtype=torch.float32)
        total = hl.zeros([r], dtype=torch.float32)
        acc = hl.zeros([r, d], dtype=torch.float32)
        for tile in hl.tile(lengths[sequence]):
            slots = table[sequence, tile.index // page_size] * page_size + tile.index % page_size
            keys = all_keys[slots, group, :].to(q.dtype)
            s = hl.dot(query, keys.T) * scale
            new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - new[:, None])
            alpha = torch.exp(m - new)
            total = total * alpha + p.sum(-1)
            values = all_values[slots, group, :].to(q.dtype)
            acc = hl.dot(p.to(q.dtype), values, acc=acc * alpha[:, None])
            m = new
        out[sequence, group, :, :] = (acc * value_scale / total[:, None]).to(q.dtype)
    return out


def paged_fp8_decode_torch(
    q: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    key_scale: float,
    value_scale: float,
) -> torch.Tensor:
    k = (key_pages.view(torch.int8)[table].view(E4M3).to(q.dtype) * key_scale).flatten(1, 2).transpose(1, 2)
    v = (value_pages.view(torch.int8)[table].view(E4M3).to(q.dtype) * value_scale).flatten(1, 2).transpose(1, 2)
    keep = torch.arange(k.size(2), device=q.device)[None] < lengths[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])


def make_paged_fp8_decode(device: str, small: bool) -> Arguments:
    count, b, g, r, d, n = (30, 2, 3, 4, 32, 5) if small else (16384, 48, 8, 4, 128, 256)
    pages = (normal(device, count, 16, g, d).to(E4M3) for _ in range(2))
    table = torch.randint(0, count, [b, n], device=device, dtype=torch.int32)
    lengths = torch.randint(8 * n, 16 * n + 1, [b], device=device, dtype=torch.int32)
    return normal(device, b, g, r, d, dtype=BF16), *pages, table, lengths, 0.5, 0.25


CELLS.add(paged_fp8_decode, make_paged_fp8_decode, paged_fp8_decode_torch)


@helion.kernel
def block_sparse_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, counts: torch.Tensor, blocks: torch.Tensor
) -> torch.Tensor:
    """Attention of each block of 64 queries to the `counts[H, T / 64]` blocks of keys in `blocks[H, T / 64, N]`."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    sm_scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, 64]):
        bi, hi, mi = tile_b.begin, tile_h.begin, tile_m.id
        queries = q[bi, hi, tile_m, :]
        m_i = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        l_i = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        for i in hl.grid(counts[hi, mi]):
            cols = blocks[hi, mi, i] * 64 + hl.arange(64)
            qk = hl.dot(queries, k[bi, hi, cols, :].T) * sm_scale
            m_new = torch.maximum(m_i, torch.amax(qk, -1))
            p = torch.exp(qk - m_new[:, None])
            alpha = torch.exp(m_i - m_new)
            l_i = l_i * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, hi, cols, :], acc=acc * alpha[:, None])
            m_i = m_new
        out[bi, hi, tile_m, :] = (acc / l_i[:, None]).to(q.dtype)
    return out


def block_sparse_attention_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, counts: torch.Tensor, blocks: torch.Tensor
) -> torch.Tensor:
    n = blocks.size(1)
    listed = torch.arange(blocks.size(2), device=q.device) < counts[..., None]
    hits = torch.zeros([blocks.size(0), n, n], dtype=torch.int32, device=q.device)
    keep = hits.scatter_add(2, blocks.long(), listed.to(torch.int32)) > 0
    keep = keep.repeat_interleave(64, 1).repeat_interleave(64, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[None])


def make_block_sparse_attention(device: str, small: bool) -> Arguments:
    b, h, t, d, most = (1, 2, 256, 32, 3) if small else (2, 16, 4096, 128, 16)
    n = t // 64
    blocks = torch.rand([h, n, n], device=device).argsort(-1)[..., :most].contiguous().to(torch.int32)
    counts = torch.randint(1, most + 1, [h, n], device=device, dtype=torch.int32)
    return *(normal(device, b, h, t, d, dtype=BF16) for _ in range(3)), counts, blocks


CELLS.add(block_sparse_attention, make_block_sparse_attention, block_sparse_attention_torch)


@helion.kernel
def gated_chunk_states(k: torch.Tensor, v: torch.Tensor, log_gate: torch.Tensor) -> torch.Tensor:
    """Contribution `[B, N, D, E]` of each chunk of 64 tokens to the state of gated linear attention."""
    b, n, length, d = k.size()
    e = v.size(3)
    d, e, length = hl.specialize(d), hl.specialize(e), hl.specialize(length)
    out = torch.empty([b, n, d, e], dtype=torch.float32, device=k.device)
    for bi, ci in hl.grid([b, n]):
        gate = log_gate[bi, ci, :, :]
        cum = torch.cumsum(gate, 0)
        decay = torch.exp(gate.sum(0)[None, :] - cum)
        keys = (k[bi, ci, :, :].to(torch.float32) * decay).to(k.dtype)
        out[bi, ci, :, :] = hl.dot(keys.T, v[bi, ci, :, :])
    return out


def gated_chunk_states_torch(k: torch.Tensor, v: torch.Tensor, log_gate: torch.Tensor) -> torch.Tensor:
    decay = torch.exp(log_gate.sum(2, keepdim=True) - torch.cumsum(log_gate, 2))
    return ((high(k) * decay).to(k.dtype).transpose(-1, -2) @ v).to(torch.float32)


def make_gated_chunk_states(device: str, small: bool) -> Arguments:
    b, n, length, d, e = (2, 3, 16, 32, 16) if small else (64, 64, 64, 128, 128)
    gate = F.logsigmoid(normal(device, b, n, length, d)) / 16
    return normal(device, b, n, length, d, dtype=BF16), normal(device, b, n, length, e, dtype=BF16), gate


CELLS.add(gated_chunk_states, make_gated_chunk_states, gated_chunk_states_torch)


@helion.kernel
def chunk_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    log_decay: torch.Tensor,
    keys: torch.Tensor,
    queries: torch.Tensor,
    states: torch.Tensor,
    skip: torch.Tensor,
) -> torch.Tensor:
    """Outputs of a state-space layer in chunks: `x[B, N, L, H, P]`, `dt` and sums of decays `[B, N, H, L]`, keys and
    queries `[B, N, L, S]` of all heads, states `[B, N, H, P, S]` before each chunk."""
    b, n, length, h, p = x.size()
    p = hl.specialize(p)
    out = torch.empty_like(x)
    for tile_b, tile_n, tile_h, rows in hl.tile([b, n, h, length], block_size=[1, 1, 1, None]):
        bi, ni, hi = tile_b.begin, tile_n.begin, tile_h.begin
        q = queries[bi, ni, rows, :]
        a_rows = log_decay[bi, ni, hi, rows]
        acc = hl.dot(q, states[bi, ni, hi, :, :].T) * torch.exp(a_rows)[:, None]
        for cols in hl.tile(0, rows.end):
            scores = hl.dot(q, keys[bi, ni, cols, :].T)
            weight = torch.exp(a_rows[:, None] - log_decay[bi, ni, hi, cols][None, :]) * dt[bi, ni, hi, cols][None, :]
            scores = torch.where(rows.index[:, None] >= cols.index[None, :], scores * weight, 0.0)
            acc = hl.dot(scores.to(x.dtype), x[bi, ni, cols, hi, :], acc=acc)
        acc = acc + skip[hi] * x[bi, ni, rows, hi, :].to(torch.float32)
        out[bi, ni, rows, hi, :] = acc.to(x.dtype)
    return out


def chunk_scan_torch(
    x: torch.Tensor,
    dt: torch.Tensor,
    log_decay: torch.Tensor,
    keys: torch.Tensor,
    queries: torch.Tensor,
    states: torch.Tensor,
    skip: torch.Tensor,
) -> torch.Tensor:
    scores = high(queries @ keys.transpose(-1, -2))[:, :, None]
    ahead = log_decay[..., :, None] - log_decay[..., None, :]
    ahead = ahead.masked_fill(~below(x.size(2), x.device), -math.inf)
    weights = (scores * torch.exp(ahead) * dt[..., None, :]).to(x.dtype)
    inside = high(weights @ x.transpose(2, 3))
    before = high(queries[:, :, None] @ states.transpose(-1, -2)) * torch.exp(log_decay)[..., None]
    return ((inside + before).transpose(2, 3) + skip[:, None] * high(x)).to(x.dtype)


def make_chunk_scan(device: str, small: bool) -> Arguments:
    b, n, length, h, p, s = (1, 2, 37, 3, 16, 32) if small else (4, 16, 256, 24, 64, 128)
    dt = torch.rand([b, n, h, length], device=device) * 0.1
    return (
        normal(device, b, n, length, h, p, dtype=BF16),
        dt,
        torch.cumsum(-dt, -1),
        normal(device, b, n, length, s, dtype=BF16, scale=0.2),
        normal(device, b, n, length, s, dtype=BF16, scale=0.2),
        normal(device, b, n, h, p, s, dtype=BF16),
        normal(device, h),
    )


CELLS.add(chunk_scan, make_chunk_scan, chunk_scan_torch)


@helion.kernel
def delta_chunk_prepare(
    k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, cum: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(I + A)^-1` times weighted keys and values of chunks of the gated delta rule: `k[B, N, L, D]`, `v[B, N, L, E]`,
    beta and sums of log-decays `[B, N, L]`; A is the lower part of the decayed products of keys."""
    b, n, length, d = k.size()
    length, d = hl.specialize(length), hl.specialize(d)
    w, u = torch.empty_like(k), torch.empty_like(v)
    for bi, ci in hl.grid([b, n]):
        keys = k[bi, ci, :, :]
        g, rate = cum[bi, ci, :], beta[bi, ci, :]
        i = hl.arange(length)
        strictly = i[:, None] > i[None, :]
        a = hl.dot(keys, keys.T) * torch.exp(torch.where(strictly, g[:, None] - g[None, :], 0.0)) * rate[:, None]
        power = torch.where(strictly, -a, 0.0)
        inverse = torch.where(i[:, None] == i[None, :], 1.0, power)
        for _ in hl.static_range(5):
            power = hl.dot(power, power)
            inverse = inverse + hl.dot(inverse, power)
        inverse = inverse.to(k.dtype)
        w[bi, ci, :, :] = hl.dot(inverse, (keys.to(torch.float32) * (rate * torch.exp(g))[:, None]).to(k.dtype)).to(
            k.dtype
        )
        values = (v[bi, ci, :, :].to(torch.float32) * rate[:, None]).to(v.dtype)
        u[bi, ci, :, :] = hl.dot(inverse, values).to(v.dtype)
    return w, u


def delta_chunk_prepare_torch(
    k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, cum: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    keys = high(k)
    ahead = (cum[..., :, None] - cum[..., None, :]).masked_fill(~below(k.size(2), k.device), 0.0)
    a = ((keys @ keys.transpose(-1, -2)) * torch.exp(ahead) * beta[..., None]).tril(-1)
    eye = torch.eye(k.size(2), dtype=keys.dtype, device=k.device)
    right = torch.cat([keys * (beta * torch.exp(cum))[..., None], high(v) * beta[..., None]], -1)
    both = torch.linalg.solve_triangular(a + eye, right, upper=False, unitriangular=True)
    return both[..., : k.size(3)].to(k.dtype), both[..., k.size(3) :].to(v.dtype)


def make_delta_chunk_prepare(device: str, small: bool) -> Arguments:
    b, n, length, d, e = (2, 3, 16, 32, 16) if small else (64, 64, 64, 128, 128)
    k = F.normalize(normal(device, b, n, length, d), dim=-1).to(BF16)
    beta = torch.rand([b, n, length], device=device)
    cum = torch.cumsum(-0.1 * torch.rand([b, n, length], device=device), -1)
    return k, normal(device, b, n, length, e, dtype=BF16), beta, cum


CELLS.add(delta_chunk_prepare, make_delta_chunk_prepare, delta_chunk_prepare_torch)


@helion.kernel
def pair_bias_gradient(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    bias: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
) -> torch.Tensor:
    """Gradient of a bias `[H, T, T]` of attention of `[B, H, T, D]`, added over the batch."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(bias)
    scale = d**-0.5
    for tile_h, rows, cols in hl.tile([h, t, t], block_size=[1, None, None]):
        hi = tile_h.begin
        own = bias[hi, rows, cols].to(torch.float32)
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for bi in hl.grid(b):
            s = hl.dot(q[bi, hi, rows, :], k[bi, hi, cols, :].T) * scale + own
            p = torch.exp(s - lse[bi, hi, rows][:, None])
            dp = hl.dot(grad[bi, hi, rows, :], v[bi, hi, cols, :].T)
            acc += p * (dp - delta[bi, hi, rows][:, None])
        out[hi, rows, cols] = acc.to(bias.dtype)
    return out


def pair_bias_gradient_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    bias: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
) -> torch.Tensor:
    s = high(q @ k.transpose(-1, -2)) * q.size(3) ** -0.5 + high(bias)
    dp = high(grad @ v.transpose(-1, -2))
    return (torch.exp(s - lse[..., None]) * (dp - delta[..., None])).sum(0).to(bias.dtype)


def make_pair_bias_gradient(device: str, small: bool) -> Arguments:
    q, k, v, grad = heads(device, small, 4, shape=(8, 8, 1000, 64))
    bias = normal(device, q.size(1), q.size(2), q.size(2), dtype=BF16)
    lse = torch.logsumexp(high(q) @ high(k).transpose(-1, -2) * q.size(3) ** -0.5 + high(bias), -1)
    return q, k, v, grad, bias, lse, normal(device, *q.shape[:3])


CELLS.add(pair_bias_gradient, make_pair_bias_gradient, pair_bias_gradient_torch)


@helion.kernel
def output_gradient_sums(out: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Row sums `[B, H, T]` of `out * grad`, both `[B, T, H, D]`: the first step of a gradient of attention."""
    b, t, h, _ = out.size()
    delta = torch.empty([b, h, t], dtype=torch.float32, device=out.device)
    for tile_b, tile_t, tile_h in hl.tile([b, t, h]):
        o = out[tile_b, tile_t, tile_h, :].to(torch.float32)
        g = grad[tile_b, tile_t, tile_h, :].to(torch.float32)
        delta[tile_b, tile_h, tile_t] = (o * g).sum(-1).transpose(1, 2)
    return delta


CELLS.add(
    output_gradient_sums,
    lambda device, small: heads(device, small, 2, shape=(4, 4096, 32, 128)),
    lambda out, grad: (high(out) * high(grad)).sum(-1).transpose(1, 2).contiguous(),
)


@helion.kernel
def prefix_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prefix: torch.Tensor) -> torch.Tensor:
    """Attention of tokens `[B, T, H, D]` to those before them, and to all of the first `prefix[B]`."""
    b, t, h, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        known = prefix[bi]
        queries = q[bi, tile_m, hi, :]
        m_i = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        l_i = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(torch.maximum(known, tile_m.end)):
            s = hl.dot(queries, k[bi, tile_n, hi, :].T) * scale
            keep = (tile_n.index[None, :] <= tile_m.index[:, None]) | (tile_n.index[None, :] < known)
            s = torch.where(keep, s, float("-inf"))
            m_new = torch.maximum(m_i, torch.amax(s, -1))
            p = torch.exp(s - m_new[:, None])
            alpha = torch.exp(m_i - m_new)
            l_i = l_i * alpha + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[bi, tile_n, hi, :], acc=acc * alpha[:, None])
            m_i = m_new
        out[bi, tile_m, hi, :] = (acc / l_i[:, None]).to(q.dtype)
    return out


def prefix_attention_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prefix: torch.Tensor) -> torch.Tensor:
    t = q.size(1)
    known = torch.arange(t, device=q.device)[None, None] < prefix[:, None, None]
    keep = (below(t, q.device)[None] | known)[:, None]
    return scores_reference(*(x.transpose(1, 2) for x in (q, k, v)), keep=keep).transpose(1, 2)


def prefix_attention_baseline(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prefix: torch.Tensor) -> torch.Tensor:
    t = q.size(1)
    known = torch.arange(t, device=q.device)[None, None] < prefix[:, None, None]
    keep = (below(t, q.device)[None] | known)[:, None]
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=keep).transpose(1, 2)


def make_prefix_attention(device: str, small: bool) -> Arguments:
    b, t, h, d = (2, 37, 3, 24) if small else (8, 1024, 12, 96)
    prefix = torch.randint(1, t // 2, [b], device=device, dtype=torch.int32)
    return *(normal(device, b, t, h, d, dtype=FP16) for _ in range(3)), prefix


CELLS.add(prefix_attention, make_prefix_attention, prefix_attention_torch, prefix_attention_baseline)
