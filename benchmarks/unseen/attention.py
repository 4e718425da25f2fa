"""Attention in the forms in which users write it: forward, decoding against a cache, backward, and its linear kin."""

from __future__ import annotations

import math

import torch

import helion
import helion.language as hl

LOG2E = math.log2(math.e)


@helion.kernel()
def flash_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """`q[B, H, M, D]`, `k` and `v` `[B, H, N, D]`; heads and batch in one dimension, products by torch."""
    m, n, d = q.size(-2), k.size(-2), hl.specialize(q.size(-1))
    queries = q.reshape([-1, m, d])
    values = v.reshape([-1, n, d])
    keys = k.reshape([-1, n, d]).transpose(1, 2)
    out = torch.empty_like(queries)
    scale = LOG2E / math.sqrt(d)
    for tile_b, tile_m in hl.tile([queries.size(0), m]):
        m_i = hl.full([tile_b, tile_m], float("-inf"), dtype=torch.float32)
        l_i = torch.full_like(m_i, 1.0)
        acc = hl.zeros([tile_b, tile_m, d], dtype=torch.float32)
        rows = queries[tile_b, tile_m, :]
        for tile_n in hl.tile(n):
            qk = torch.bmm(rows, keys[tile_b, :, tile_n])
            m_ij = torch.maximum(m_i, torch.amax(qk, -1) * scale)
            p = torch.exp2(qk * scale - m_ij[:, :, None])
            alpha = torch.exp2(m_i - m_ij)
            l_i = l_i * alpha + torch.sum(p, -1)
            acc = acc * alpha[:, :, None]
            part = values[tile_b, tile_n, :]
            acc = torch.baddbmm(acc, p.to(part.dtype), part)
            m_i = m_ij
        out[tile_b, tile_m, :] = (acc / l_i[:, :, None]).to(out.dtype)
    return out.view(q.size())


@helion.kernel()
def causal_gqa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal, `q[B, H, M, D]` with `k` and `v` `[B, G, M, D]`; stops at the diagonal and stores the log-sums as well."""
    b, h, m, d = q.size()
    d = hl.specialize(d)
    shared = h // k.size(1)
    out = torch.empty_like(q)
    lse = torch.empty([b, h, m], dtype=torch.float32, device=q.device)
    scale = LOG2E / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, m], block_size=[1, 1, None]):
        i_b, i_h = tile_b.begin, tile_h.begin
        rows = q[i_b, i_h, tile_m, :]
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        den = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(0, tile_m.end):
            s = hl.dot(rows, k[i_b, i_h // shared, tile_n, :].T) * scale
            s = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], s, float("-inf"))
            new = torch.maximum(top, s.amax(-1))
            p = torch.exp2(s - new[:, None])
            corr = torch.exp2(top - new)
            den = den * corr + p.sum(-1)
            acc = acc * corr[:, None] + hl.dot(p.to(v.dtype), v[i_b, i_h // shared, tile_n, :])
            top = new
        out[i_b, i_h, tile_m, :] = (acc / den[:, None]).to(q.dtype)
        lse[i_b, i_h, tile_m] = (top + torch.log2(den)) / LOG2E
    return out, lse


@helion.kernel()
def softcapped_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Causal with a window of keys and capped scores, all by masks: `q`, `k`, `v` `[B, M, D]`."""
    b, m, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for i in hl.grid(b):
        for tile_m in hl.tile(m):
            rows = q[i, tile_m, :]
            top = hl.full([tile_m], -1.0e30, dtype=torch.float32)
            den = hl.zeros([tile_m], dtype=torch.float32)
            acc = hl.zeros([tile_m, d], dtype=torch.float32)
            for tile_n in hl.tile(m):
                s = torch.matmul(rows, k[i, tile_n, :].transpose(0, 1)).to(torch.float32) * scale
                s = 30.0 * torch.tanh(s / 30.0)
                apart = tile_m.index[:, None] - tile_n.index[None, :]
                s = torch.where((apart >= 0) & (apart < window), s, -1.0e30)
                new = torch.maximum(top, torch.amax(s, dim=1))
                p = torch.exp(s - new[:, None])
                corr = torch.exp(top - new)
                den = den * corr + torch.sum(p, dim=1)
                acc = torch.addmm(acc * corr[:, None], p.to(v.dtype), v[i, tile_n, :])
                top = new
            out[i, tile_m, :] = (acc / den[:, None]).to(q.dtype)
    return out


@helion.kernel()
def varlen_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, longest: int
) -> torch.Tensor:
    """Sequences one behind the other: `q`, `k`, `v` `[T, H, D]`, sequence s from `starts[s]` to `starts[s + 1]`."""
    _, h, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = LOG2E / math.sqrt(d)
    for s, head, tile in hl.tile([starts.size(0) - 1, h, longest], block_size=[1, 1, None]):
        begin = starts[s.begin]
        length = starts[s.begin + 1] - begin
        inside = tile.index < length
        at = begin + tile.index
        rows = hl.load(q, [at, head.begin, hl.arange(d)], extra_mask=inside[:, None])
        top = hl.full([tile], float("-inf"), dtype=torch.float32)
        den = hl.zeros([tile], dtype=torch.float32)
        acc = hl.zeros([tile, d], dtype=torch.float32)
        for keys in hl.tile(begin, begin + length):
            scores = hl.dot(rows, k[keys, head.begin, :].T) * scale
            new = torch.maximum(top, scores.amax(-1))
            p = torch.exp2(scores - new[:, None])
            corr = torch.exp2(top - new)
            den = den * corr + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[keys, head.begin, :], acc=acc * corr[:, None])
            top = new
        hl.store(out, [at, head.begin, hl.arange(d)], (acc / den[:, None]).to(q.dtype), extra_mask=inside[:, None])
    return out


@helion.kernel()
def decode_one_token(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query for each head, `q[B, H, D]`, the heads of a group as rows of a product; `k`, `v` `[B, G, N, D]`."""
    b, h, d = q.size()
    _, g, n, d = k.size()
    d = hl.specialize(d)
    shared = hl.specialize(h // g)
    queries = q.view(b, g, shared, d)
    out = torch.empty_like(queries)
    scale = LOG2E / math.sqrt(d)
    for tile_b, tile_g in hl.tile([b, g], block_size=[1, 1]):
        rows = queries[tile_b.begin, tile_g.begin, :, :]
        top = hl.full([shared], float("-inf"), dtype=torch.float32)
        den = hl.zeros([shared], dtype=torch.float32)
        acc = hl.zeros([shared, d], dtype=torch.float32)
        for tile_n in hl.tile(n):
            s = hl.dot(rows, k[tile_b.begin, tile_g.begin, tile_n, :].T) * scale
            new = torch.maximum(top, s.amax(-1))
            p = torch.exp2(s - new[:, None])
            corr = torch.exp2(top - new)
            den = den * corr + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[tile_b.begin, tile_g.begin, tile_n, :], acc=acc * corr[:, None])
            top = new
        out[tile_b.begin, tile_g.begin, :, :] = (acc / den[:, None]).to(q.dtype)
    return out.view(b, h, d)


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def decode_split_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same with the keys in parts whose length is a block size; the parts are put together by torch."""
    b, h, d = q.size()
    _, g, n, d = k.size()
    d = hl.specialize(d)
    shared = hl.specialize(h // g)
    queries = q.view(b, g, shared, d)
    span = hl.register_block_size(n)
    parts = helion.cdiv(n, span)
    out = torch.empty([parts, b, g, shared, d], dtype=torch.float32, device=q.device)
    lse = torch.empty([parts, b, g, shared], dtype=torch.float32, device=q.device)
    scale = LOG2E / math.sqrt(d)
    for tile_b, tile_g, part in hl.tile([b, g, n], block_size=[1, 1, span]):
        rows = queries[tile_b.begin, tile_g.begin, :, :]
        top = hl.full([shared], float("-inf"), dtype=torch.float32)
        den = hl.zeros([shared], dtype=torch.float32)
        acc = hl.zeros([shared, d], dtype=torch.float32)
        for tile_n in hl.tile(part.begin, part.end):
            s = hl.dot(rows, k[tile_b.begin, tile_g.begin, tile_n, :].T) * scale
            new = torch.maximum(top, s.amax(-1))
            p = torch.exp2(s - new[:, None])
            corr = torch.exp2(top - new)
            den = den * corr + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[tile_b.begin, tile_g.begin, tile_n, :], acc=acc * corr[:, None])
            top = new
        out[part.id, tile_b.begin, tile_g.begin, :, :] = acc / den[:, None]
        lse[part.id, tile_b.begin, tile_g.begin, :] = top + torch.log2(den)
    weights = torch.exp2(lse - lse.amax(0))
    return ((out * (weights / weights.sum(0))[:, :, :, :, None]).sum(0)).to(q.dtype).view(b, h, d)


@helion.kernel()
def paged_decode(
    q: torch.Tensor, pages_k: torch.Tensor, pages_v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Decoding against pages: `pages[P, page, G, D]`, the pages of sequence b in `table[b]`, of `lengths[b]` keys."""
    b, h, d = q.size()
    _, page, g, d = pages_k.size()
    d, page = hl.specialize(d), hl.specialize(page)
    shared = hl.specialize(h // g)
    queries = q.view(b, g, shared, d)
    flat_k, flat_v = pages_k.view(-1, g, d), pages_v.view(-1, g, d)
    out = torch.empty_like(queries)
    scale = LOG2E / math.sqrt(d)
    for tile_b, tile_g in hl.tile([b, g], block_size=[1, 1]):
        rows = queries[tile_b.begin, tile_g.begin, :, :]
        top = hl.full([shared], -1.0e30, dtype=torch.float32)
        den = hl.zeros([shared], dtype=torch.float32)
        acc = hl.zeros([shared, d], dtype=torch.float32)
        length = lengths[tile_b.begin]
        for tile_n in hl.tile(0, length):
            at = table[tile_b.begin, tile_n.index // page] * page + tile_n.index % page
            s = hl.dot(rows, flat_k[at, tile_g.begin, :].T) * scale
            s = torch.where(tile_n.index[None, :] < length, s, -1.0e30)
            new = torch.maximum(top, s.amax(-1))
            p = torch.exp2(s - new[:, None])
            corr = torch.exp2(top - new)
            den = den * corr + p.sum(-1)
            acc = hl.dot(p.to(q.dtype), flat_v[at, tile_g.begin, :], acc=acc * corr[:, None])
            top = new
        out[tile_b.begin, tile_g.begin, :, :] = (acc / den[:, None]).to(q.dtype)
    return out.view(b, h, d)


@helion.kernel()
def latent_decode(q: torch.Tensor, latent: torch.Tensor, width: hl.constexpr) -> torch.Tensor:
    """Heads that share one latent cache: `q[B, H, D]`, `latent[B, N, D]`; the values are its first `width` columns."""
    b, h, d = q.size()
    n = latent.size(1)
    rest = hl.specialize(d - width)
    own, turned = q[:, :, :width], q[:, :, width:]
    values, places = latent[:, :, :width], latent[:, :, width:]
    out = torch.empty([b, h, width], dtype=q.dtype, device=q.device)
    scale = LOG2E / math.sqrt(width + rest)
    for tile_b, tile_h in hl.tile([b, h], block_size=[1, None]):
        rows, behind = own[tile_b.begin, tile_h, :], turned[tile_b.begin, tile_h, :]
        top = hl.full([tile_h], float("-inf"), dtype=torch.float32)
        den = hl.zeros([tile_h], dtype=torch.float32)
        acc = hl.zeros([tile_h, width], dtype=torch.float32)
        for tile_n in hl.tile(n):
            cached = values[tile_b.begin, tile_n, :]
            s = hl.dot(rows, cached.T)
            s = hl.dot(behind, places[tile_b.begin, tile_n, :].T, acc=s) * scale
            new = torch.maximum(top, s.amax(-1))
            p = torch.exp2(s - new[:, None])
            corr = torch.exp2(top - new)
            den = den * corr + p.sum(-1)
            acc = hl.dot(p.to(q.dtype), cached, acc=acc * corr[:, None])
            top = new
        out[tile_b.begin, tile_h, :] = (acc / den[:, None]).to(q.dtype)
    return out


@helion.kernel()
def causal_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of causal attention over `[B, M, D]`: one grid loop for the queries, one for keys and values."""
    b, m, d = q.size()
    d = hl.specialize(d)
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_m in hl.tile([b, m], block_size=[1, None]):
        i = tile_b.begin
        rows, gradient = q[i, tile_m, :], grad[i, tile_m, :]
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(0, tile_m.end):
            keys = k[i, tile_n, :]
            s = hl.dot(rows, keys.T) * scale - lse[i, tile_m][:, None]
            p = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], torch.exp(s), 0.0)
            dp = hl.dot(gradient, v[i, tile_n, :].T)
            ds = p * (dp - delta[i, tile_m][:, None]) * scale
            acc = hl.dot(ds.to(q.dtype), keys, acc=acc)
        grad_q[i, tile_m, :] = acc.to(q.dtype)
    for tile_b, tile_n in hl.tile([b, m], block_size=[1, None]):
        i = tile_b.begin
        keys, values = k[i, tile_n, :], v[i, tile_n, :]
        acc_k = hl.zeros([tile_n, d], dtype=torch.float32)
        acc_v = hl.zeros([tile_n, d], dtype=torch.float32)
        for tile_m in hl.tile(tile_n.begin, m):
            rows, gradient = q[i, tile_m, :], grad[i, tile_m, :]
            s = hl.dot(rows, keys.T) * scale - lse[i, tile_m][:, None]
            p = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], torch.exp(s), 0.0)
            acc_v = hl.dot(p.to(q.dtype).T, gradient, acc=acc_v)
            dp = hl.dot(gradient, values.T)
            ds = p * (dp - delta[i, tile_m][:, None]) * scale
            acc_k = hl.dot(ds.to(q.dtype).T, rows, acc=acc_k)
        grad_k[i, tile_n, :] = acc_k.to(k.dtype)
        grad_v[i, tile_n, :] = acc_v.to(v.dtype)
    return grad_q, grad_k, grad_v


@helion.kernel()
def fused_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All three gradients in one pass, that of the queries by atomics in fp32; `[B, M, D]`, not causal."""
    b, m, d = q.size()
    n, d = k.size(1), hl.specialize(d)
    grad_q = torch.zeros([b, m, d], dtype=torch.float32, device=q.device)
    grad_k, grad_v = torch.empty_like(k), torch.empty_like(v)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_n in hl.tile([b, n], block_size=[1, None]):
        i = tile_b.begin
        keys, values = k[i, tile_n, :], v[i, tile_n, :]
        acc_k = hl.zeros([tile_n, d], dtype=torch.float32)
        acc_v = hl.zeros([tile_n, d], dtype=torch.float32)
        for tile_m in hl.tile(m):
            rows, gradient = q[i, tile_m, :], grad[i, tile_m, :]
            p = torch.exp(hl.dot(rows, keys.T) * scale - lse[i, tile_m][:, None])
            acc_v = hl.dot(p.to(q.dtype).T, gradient, acc=acc_v)
            dp = hl.dot(gradient, values.T)
            ds = (p * (dp - delta[i, tile_m][:, None]) * scale).to(q.dtype)
            acc_k = hl.dot(ds.T, rows, acc=acc_k)
            hl.atomic_add(grad_q, [i, tile_m, hl.arange(d)], hl.dot(ds, keys))
        grad_k[i, tile_n, :] = acc_k.to(k.dtype)
        grad_v[i, tile_n, :] = acc_v.to(v.dtype)
    return grad_q, grad_k, grad_v


@helion.kernel()
def decayed_linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """`o[t] = q[t] @ S[t]`, `S[t] = exp(decay) S[t - 1] + k[t]^T v[t]` by chunks; `[B, M, D]`, `decay[B]` at most 0."""
    b, m, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(v)
    for tile_b, tile_e in hl.tile([b, v.size(2)], block_size=[1, None]):
        i = tile_b.begin
        rate = decay[i]
        state = hl.zeros([d, tile_e], dtype=torch.float32)
        for chunk in hl.tile(m):
            rows, keys, values = q[i, chunk, :], k[i, chunk, :], v[i, chunk, tile_e]
            at = (chunk.index - chunk.begin).to(torch.float32)
            left = (chunk.end - chunk.begin) - 1.0 - at
            apart = at[:, None] - at[None, :]
            weights = torch.where(apart >= 0, torch.exp(rate * apart), 0.0)
            inside = hl.dot((hl.dot(rows, keys.T) * weights).to(v.dtype), values)
            before = hl.dot(rows, state.to(v.dtype)) * torch.exp(rate * (at + 1.0))[:, None]
            out[i, chunk, tile_e] = (inside + before).to(v.dtype)
            faded = (keys.to(torch.float32) * torch.exp(rate * left)[:, None]).to(v.dtype)
            state = state * torch.exp(rate * (chunk.end - chunk.begin)) + hl.dot(faded.T, values)
    return out
