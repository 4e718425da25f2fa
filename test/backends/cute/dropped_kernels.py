"""Attention with dropout, and its gradients, as users write them, each with its reference in fp64."""

from __future__ import annotations

import math

import torch
from backends.cute.backward_kernels import Case

import helion.language as hl
from helion._support.philox import philox, uniform

DROPPED = 0.25
SEED = 7**15


def attention_with_dropout(q, k, v, seed: int, dropped: float, causal: hl.constexpr):
    """`[B, H, S, D]`, with the offsets of all heads' scores. Sums are those of all weights."""
    batch, heads, m, _ = q.size()
    n, shared = k.size(2), heads // k.size(1)
    dims, wide = hl.specialize(q.size(3)), hl.specialize(v.size(3))
    out = torch.empty([batch, heads, m, wide], dtype=q.dtype, device=q.device)
    logsum = torch.empty([batch, heads, m], dtype=torch.float32, device=q.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, wide], dtype=torch.float32)
        query = q[b.begin, h.begin, tile_m, :]
        for tile_n in hl.tile(n):
            scores = hl.dot(query, k[b.begin, h.begin // shared, tile_n, :].T) * dims**-0.5
            if causal:
                seen = tile_m.index[:, None] + (n - m) >= tile_n.index[None, :]
                scores = torch.where(seen, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            offsets = ((b.begin * heads + h.begin) * m + tile_m.index[:, None]) * n + tile_n.index[None, :]
            kept = hl.rand([tile_m, tile_n], seed, offsets=offsets) >= dropped
            weights = torch.where(kept, weights / (1 - dropped), 0.0)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin // shared, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = (acc / total[:, None]).to(out.dtype)
        logsum[b.begin, h.begin, tile_m] = highest + torch.log(total)
    return out, logsum


def attention_of_seeds(q, k, v, seeds):
    """A seed per head, numbers by their place in `[M, N]`, and an output in fp32."""
    batch, heads, m, _ = q.size()
    n = k.size(2)
    dims = hl.specialize(q.size(3))
    out = torch.empty([batch, heads, m, dims], dtype=torch.float32, device=q.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            scores = hl.dot(q[b.begin, h.begin, tile_m, :], k[b.begin, h.begin, tile_n, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            kept = (hl.rand([tile_m, tile_n], seeds[b.begin, h.begin]) > 0.25).to(torch.float32)
            acc = torch.addmm(acc * shrink[:, None], (weights * kept).to(v.dtype), v[b.begin, h.begin, tile_n, :])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = acc / (total[:, None] * 0.75)
    return out


def gradient_of_queries(q, k, v, do, logsum, delta, seed: int, dropped: float):
    batch, heads, m, _ = q.size()
    n = k.size(2)
    dims = hl.specialize(q.size(3))
    scale = dims**-0.5
    dq = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        query, upstream = q[b.begin, h.begin, tile_m, :], do[b.begin, h.begin, tile_m, :]
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            key = k[b.begin, h.begin, tile_n, :]
            weights = torch.exp(hl.dot(query, key.T) * scale - logsum[b.begin, h.begin, tile_m][:, None])
            offsets = ((b.begin * heads + h.begin) * m + tile_m.index[:, None]) * n + tile_n.index[None, :]
            kept = hl.rand([tile_m, tile_n], seed, offsets=offsets) >= dropped
            changes = hl.dot(upstream, v[b.begin, h.begin, tile_n, :].T)
            changes = torch.where(kept, changes / (1 - dropped), 0.0) - delta[b.begin, h.begin, tile_m][:, None]
            acc = hl.dot((weights * changes).to(k.dtype), key, acc=acc)
        dq[b.begin, h.begin, tile_m, :] = acc * scale
    return dq


def gradients_of_keys(q, k, v, do, logsum, delta, seed: int, dropped: float):
    """Tiles of keys, so that offsets grow by a row of scores from one column to the next."""
    batch, heads, m, _ = q.size()
    n = k.size(2)
    dims = hl.specialize(q.size(3))
    scale = dims**-0.5
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for b, h, tile_n in hl.tile([batch, heads, n], block_size=[1, 1, None]):
        key, value = k[b.begin, h.begin, tile_n, :], v[b.begin, h.begin, tile_n, :]
        key_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        value_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        for tile_m in hl.tile(m):
            query, upstream = q[b.begin, h.begin, tile_m, :], do[b.begin, h.begin, tile_m, :]
            weights = torch.exp(hl.dot(key, query.T) * scale - logsum[b.begin, h.begin, tile_m][None, :])
            offsets = ((b.begin * heads + h.begin) * m + tile_m.index[None, :]) * n + tile_n.index[:, None]
            kept = hl.rand([tile_n, tile_m], seed, offsets=offsets) >= dropped
            left = torch.where(kept, weights / (1 - dropped), 0.0)
            value_sum = hl.dot(left.to(do.dtype), upstream, acc=value_sum)
            changes = torch.where(kept, hl.dot(value, upstream.T) / (1 - dropped), 0.0)
            changes = changes - delta[b.begin, h.begin, tile_m][None, :]
            key_sum = hl.dot((weights * changes).to(q.dtype), query, acc=key_sum)
        dk[b.begin, h.begin, tile_n, :] = (key_sum * scale).to(dk.dtype)
        dv[b.begin, h.begin, tile_n, :] = value_sum.to(dv.dtype)
    return dk, dv


def numbers(seed, offsets: torch.Tensor) -> torch.Tensor:
    return uniform(philox(torch.as_tensor(seed, device=offsets.device), offsets)[0])


def _forward(q, k, v, kept, seen=None):
    wide = [x.double().repeat_interleave(q.size(1) // k.size(1), 1) for x in (k, v)]
    scores = q.double() @ wide[0].mT / math.sqrt(q.size(3))
    scores = scores if seen is None else scores.masked_fill(~seen, -math.inf)
    return torch.softmax(scores, -1) * kept @ wide[1], torch.logsumexp(scores, -1)


def cases(device: str = "cpu", dtype: torch.dtype = torch.bfloat16, batch: int = 2) -> list[Case]:
    """Return attention and its gradients with dropout, of about 200 queries and keys."""
    m, n, heads = 196, 230, 4
    sizes = ((heads, m), (2, n), (2, n), (heads, n), (heads, n), (heads, m))
    q, *shared, k, v, do = ((torch.randn(batch, *size, 64, device=device) + 0.2).to(dtype) for size in sizes)
    offsets = torch.arange(batch * heads * m * n, device=device).view(batch, heads, m, n)
    kept = (numbers(SEED, offsets) >= DROPPED).double() / (1 - DROPPED)
    seen = torch.arange(m, device=device)[:, None] + (n - m) >= torch.arange(n, device=device)
    seeds = torch.arange(batch * heads, device=device).view(batch, heads) * 2**40 - 3
    place = torch.arange(m * n, device=device).view(m, n)
    of_seeds = torch.stack([torch.stack([numbers(s, place) for s in row]) for row in seeds]) > 0.25
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out, logsum = _forward(*leaves, kept)
    wanted = torch.autograd.grad(out, leaves, do.double())
    delta = (do.double() * out).sum(-1)
    saved = logsum.detach().float(), delta.detach().float()
    arguments = (q, k, v, do, *saved, SEED, DROPPED)

    def case(name, kernel, given, expected):
        return Case(name=name, kernel=kernel, arguments=given, wanted=tuple(expected))

    return [
        case("dropout", attention_with_dropout, (q, k, v, SEED, DROPPED, False), _forward(q, k, v, kept)),
        case("dropout, causal, shared keys", attention_with_dropout, (q, *shared, SEED, DROPPED, True),
             _forward(q, *shared, kept, seen)),
        case("a seed for each head", attention_of_seeds, (q, k, v, seeds), _forward(q, k, v, of_seeds.double() / 0.75)[:1]),
        case("gradient of queries with dropout", gradient_of_queries, arguments, wanted[:1]),
        case("gradients of keys with dropout", gradients_of_keys, arguments, wanted[1:]),
    ]  # fmt: skip
