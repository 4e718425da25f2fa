"""Gradients of attention as users write them: of queries, and of keys and values, each with its reference in fp64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import helion.language as hl

LOG2E = math.log2(math.e)
CAP, WIDTH = 3.0, 90


def gradient_of_queries(q, k, v, do, logsum, delta, causal: hl.constexpr):
    """`[B, H, S, D]`, base e, heads that share keys; queries are aligned with the last keys."""
    batch, heads, m, _ = q.size()
    n, shared = k.size(2), heads // k.size(1)
    dims = hl.specialize(q.size(3))
    hl.specialize(v.size(3))
    scale = 1 / math.sqrt(dims)
    dq = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        group = h.begin // shared
        query, upstream = q[b.begin, h.begin, tile_m, :], do[b.begin, h.begin, tile_m, :]
        lse, less = logsum[b.begin, h.begin, tile_m], delta[b.begin, h.begin, tile_m]
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            key = k[b.begin, group, tile_n, :]
            scores = hl.dot(query, key.T) * scale
            if causal:
                seen = tile_m.index[:, None] + (n - m) >= tile_n.index[None, :]
                scores = torch.where(seen, scores, float("-inf"))
            weights = torch.exp(scores - lse[:, None])
            changes = hl.dot(upstream, v[b.begin, group, tile_n, :].T)
            differences = weights * (changes - less[:, None])
            acc = hl.dot(differences.to(k.dtype), key, acc=acc)
        dq[b.begin, h.begin, tile_m, :] = (acc * scale).to(dq.dtype)
    return dq


def gradient_in_a_window(q, k, v, do, logsum, delta):
    """The same with scores that are capped, in a window of keys, with the sum as a second statement."""
    batch, heads, m, _ = q.size()
    n = k.size(2)
    dims = hl.specialize(q.size(3))
    dq = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        lse, less = logsum[b.begin, h.begin, tile_m], delta[b.begin, h.begin, tile_m]
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            at, to = tile_m.index[:, None], tile_n.index[None, :]
            bent = torch.tanh(
                hl.dot(q[b.begin, h.begin, tile_m, :], k[b.begin, h.begin, tile_n, :].T) / dims**0.5 / CAP
            )
            scores = torch.where((to <= at) & (at - to < WIDTH), CAP * bent, float("-inf"))
            weights = torch.exp2((scores - lse[:, None]) * LOG2E)
            changes = hl.dot(do[b.begin, h.begin, tile_m, :], v[b.begin, h.begin, tile_n, :].T) - less[:, None]
            differences = weights * changes * (1 - bent * bent)
            acc += hl.dot(differences.to(k.dtype), k[b.begin, h.begin, tile_n, :])
        dq[b.begin, h.begin, tile_m, :] = acc / dims**0.5
    return dq


def gradients_of_keys(q, k, v, do, logsum, delta, causal: hl.constexpr):
    """The gradients of keys and values, for heads with keys of their own. Scores are queries by keys. With ``causal``, the
    loop begins with the tile."""
    batch, heads, m, _ = q.size()
    n = k.size(2)
    dims, wide = hl.specialize(q.size(3)), hl.specialize(v.size(3))
    scale = 1 / math.sqrt(dims)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for b, h, tile_n in hl.tile([batch, heads, n], block_size=[1, 1, None]):
        key, value = k[b.begin, h.begin, tile_n, :], v[b.begin, h.begin, tile_n, :]
        key_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        value_sum = hl.zeros([tile_n, wide], dtype=torch.float32)
        begin = 0
        if causal:
            begin = tile_n.begin
        for tile_m in hl.tile(begin, m):
            query, upstream = q[b.begin, h.begin, tile_m, :], do[b.begin, h.begin, tile_m, :]
            scores = hl.dot(query, key.T) * scale
            if causal:
                scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            weights = torch.exp(scores - logsum[b.begin, h.begin, tile_m][:, None])
            value_sum = hl.dot(weights.to(do.dtype).T, upstream, acc=value_sum)
            changes = hl.dot(upstream, value.T)
            differences = weights * (changes - delta[b.begin, h.begin, tile_m][:, None])
            key_sum = hl.dot(differences.to(q.dtype).T, query, acc=key_sum)
        dk[b.begin, h.begin, tile_n, :] = (key_sum * scale).to(dk.dtype)
        dv[b.begin, h.begin, tile_n, :] = value_sum.to(dv.dtype)
    return dk, dv


def gradients_of_shared_keys(q, k, v, do, logsum, delta, causal: hl.constexpr):
    """`[B, S, H, D]`, base 2, keys by queries, and a loop over the heads that share keys. Weights are masked."""
    batch, m, heads, _ = q.size()
    n, groups = k.size(1), k.size(2)
    dims, wide = hl.specialize(q.size(3)), hl.specialize(v.size(3))
    shared = hl.specialize(heads // groups)
    scale = LOG2E / math.sqrt(dims)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for b, g, tile_n in hl.tile([batch, groups, n], block_size=[1, 1, None]):
        key, value = k[b.begin, tile_n, g.begin, :], v[b.begin, tile_n, g.begin, :]
        key_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        value_sum = hl.zeros([tile_n, wide], dtype=torch.float32)
        for at in hl.grid(shared):
            h = g.begin * shared + at
            for tile_m in hl.tile(m):
                query, upstream = q[b.begin, tile_m, h, :], do[b.begin, tile_m, h, :]
                weights = torch.exp2(hl.dot(key, query.T) * scale - logsum[b.begin, h, tile_m][None, :] * LOG2E)
                if causal:
                    seen = tile_n.index[:, None] <= tile_m.index[None, :] + (n - m)
                    weights = torch.where(seen, weights, 0.0)
                value_sum = hl.dot(weights.to(do.dtype), upstream, acc=value_sum)
                changes = hl.dot(value, upstream.T) - delta[b.begin, h, tile_m][None, :]
                key_sum = hl.dot((weights * changes).to(q.dtype), query, acc=key_sum)
        dk[b.begin, tile_n, g.begin, :] = (key_sum / math.sqrt(dims)).to(dk.dtype)
        dv[b.begin, tile_n, g.begin, :] = value_sum.to(dv.dtype)
    return dk, dv


def all_gradients(q, k, v, do, logsum, delta, causal: hl.constexpr):
    """All gradients in one loop over queries, to which tiles of keys add that of queries in fp32. Left operands have the
    scale, so that sums need none."""
    batch, heads, m, _ = q.size()
    n, groups = k.size(2), k.size(1)
    dims, wide = hl.specialize(q.size(3)), hl.specialize(v.size(3))
    shared = hl.specialize(heads // groups)
    scale = 1 / math.sqrt(dims)
    dq = torch.zeros_like(q, dtype=torch.float32)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for b, g, tile_n in hl.tile([batch, groups, n], block_size=[1, 1, None]):
        key, value = k[b.begin, g.begin, tile_n, :], v[b.begin, g.begin, tile_n, :]
        key_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        value_sum = hl.zeros([tile_n, wide], dtype=torch.float32)
        for at in hl.grid(shared):
            h = g.begin * shared + at
            for tile_m in hl.tile(m):
                query, upstream = q[b.begin, h, tile_m, :], do[b.begin, h, tile_m, :]
                scores = hl.dot(query, key.T) * (scale * LOG2E)
                if causal:
                    seen = tile_m.index[:, None] + (n - m) >= tile_n.index[None, :]
                    scores = torch.where(seen, scores, float("-inf"))
                weights = torch.exp2(scores - (logsum[b.begin, h, tile_m] * LOG2E)[:, None])
                value_sum = hl.dot(weights.to(do.dtype).T, upstream, acc=value_sum)
                less = delta[b.begin, h, tile_m] * scale
                changes = hl.dot(upstream, value.T) * scale - less[:, None]
                differences = (weights * changes).to(q.dtype)
                key_sum = hl.dot(differences.T, query, acc=key_sum)
                hl.atomic_add(dq, [b.begin, h, tile_m, slice(None)], hl.dot(differences, key))
        dk[b.begin, g.begin, tile_n, :] = key_sum.to(dk.dtype)
        dv[b.begin, g.begin, tile_n, :] = value_sum.to(dv.dtype)
    return dq, dk, dv


def gradients_of_documents(q, k, v, do, logsum, delta, document, bias):
    """The gradients of keys and values, with a mask by documents and a bias per query and key."""
    batch, heads, m, _ = q.size()
    dims = hl.specialize(q.size(3))
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for b, h, tile_n in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        key_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        value_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        for tile_m in hl.tile(m):
            query, upstream = q[b.begin, h.begin, tile_m, :], do[b.begin, h.begin, tile_m, :]
            scores = hl.dot(k[b.begin, h.begin, tile_n, :], query.T) * dims**-0.5 + bias[h.begin, tile_m, tile_n].T
            same = document[b.begin, tile_n][:, None] == document[b.begin, tile_m][None, :]
            weights = torch.exp(torch.where(same, scores, float("-inf")) - logsum[b.begin, h.begin, tile_m][None, :])
            value_sum = hl.dot(weights.to(do.dtype), upstream, acc=value_sum)
            changes = hl.dot(v[b.begin, h.begin, tile_n, :], upstream.T) - delta[b.begin, h.begin, tile_m][None, :]
            key_sum = hl.dot((weights * changes).to(q.dtype), query, acc=key_sum)
        dk[b.begin, h.begin, tile_n, :] = (key_sum * dims**-0.5).to(dk.dtype)
        dv[b.begin, h.begin, tile_n, :] = value_sum.to(dv.dtype)
    return dk, dv


def gradient_of_queries_and_bias(q, k, v, do, logsum, delta, bias):
    """The gradient of queries in fp32, and that of a bias per query and key, which the loop stores."""
    batch, heads, m, dims = q.size()
    dims = hl.specialize(dims)
    dq, dbias = torch.empty_like(q, dtype=torch.float32), torch.empty_like(bias)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(2)):
            scores = hl.dot(q[b.begin, h.begin, tile_m, :], k[b.begin, h.begin, tile_n, :].T) * dims**-0.5
            scores = scores + bias[b.begin, h.begin, tile_m, tile_n]
            weights = torch.exp(scores - logsum[b.begin, h.begin, tile_m][:, None])
            changes = hl.dot(do[b.begin, h.begin, tile_m, :], v[b.begin, h.begin, tile_n, :].T)
            differences = weights * (changes - delta[b.begin, h.begin, tile_m][:, None])
            dbias[b.begin, h.begin, tile_m, tile_n] = differences.to(dbias.dtype)
            acc = hl.dot(differences.to(k.dtype), k[b.begin, h.begin, tile_n, :], acc=acc)
        dq[b.begin, h.begin, tile_m, :] = acc * dims**-0.5
    return dq, dbias


def gradients_of_keys_and_bias(q, k, v, do, logsum, delta, bias):
    """The gradients of keys in fp32, of values, and of a bias that heads share, to which tiles add."""
    batch, heads, m, dims = q.size()
    dims = hl.specialize(dims)
    dk, dv = torch.empty_like(k, dtype=torch.float32), torch.empty_like(v)
    dbias = torch.zeros_like(bias, dtype=torch.float32)
    for b, h, tile_n in hl.tile([batch, heads, k.size(2)], block_size=[1, 1, None]):
        key_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        value_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        for tile_m in hl.tile(m):
            query, upstream = q[b.begin, h.begin, tile_m, :], do[b.begin, h.begin, tile_m, :]
            scores = hl.dot(query, k[b.begin, h.begin, tile_n, :].T) * dims**-0.5 + bias[tile_m, tile_n]
            weights = torch.exp(scores - logsum[b.begin, h.begin, tile_m][:, None])
            value_sum = hl.dot(weights.to(do.dtype).T, upstream, acc=value_sum)
            changes = hl.dot(upstream, v[b.begin, h.begin, tile_n, :].T)
            differences = weights * (changes - delta[b.begin, h.begin, tile_m][:, None])
            hl.atomic_add(dbias, [tile_m, tile_n], differences)
            key_sum = hl.dot(differences.to(q.dtype).T, query, acc=key_sum)
        dk[b.begin, h.begin, tile_n, :] = key_sum * dims**-0.5
        dv[b.begin, h.begin, tile_n, :] = value_sum.to(dv.dtype)
    return dk, dv, dbias


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel, its arguments, and its gradients in fp64."""

    name: str
    kernel: Callable[..., Any]
    arguments: tuple[Any, ...]
    wanted: tuple[torch.Tensor, ...]
    ordered: bool = True
    """True if every run gives the same bits: the kernel has no atomic sums."""


def gradients(q, k, v, do, seen=None, cap=None, bias=None):
    """Return logarithms of sums, the row sums of `do * o`, and the gradients of `[B, H, S, D]`, and of a bias, in fp64."""
    leaves = [x.double().requires_grad_() for x in (q, k, v, *(() if bias is None else (bias,)))]
    wide = [x.repeat_interleave(q.size(1) // k.size(1), 1) for x in leaves[1:3]]
    scores = leaves[0] @ wide[0].mT / math.sqrt(q.size(3))
    scores = scores if bias is None else scores + leaves[3]
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    scores = scores if seen is None else scores.masked_fill(~seen, -math.inf)
    out = torch.softmax(scores, -1) @ wide[1]
    found = torch.autograd.grad(out, leaves, do.double())
    logsum, delta = torch.logsumexp(scores, -1).detach().float(), (do.double() * out).sum(-1).detach().float()
    return logsum, delta, found


def _operands(batch, heads, groups, m, n, dims, wide, device, dtype):
    sizes = ((heads, m, dims), (groups, n, dims), (groups, n, wide), (heads, m, wide))
    return [(torch.randn(batch, *size, device=device) + 0.2).to(dtype) for size in sizes]


def _case(
    name,
    kernel,
    operands,
    seen=None,
    *,
    keys=False,
    rows=False,
    whole=False,
    more=(),
    cap=None,
    bias=None,
    stored=False,
):
    q, k, v, do = operands
    logsum, delta, found = gradients(q, k, v, do, seen, cap, bias)
    wanted = (*(found[:3] if whole else found[1:3] if keys else found[:1]), *(found[3:] if stored else ()))
    if rows:
        operands, wanted = ([x.transpose(1, 2).contiguous() for x in each] for each in (operands, wanted))
    return Case(
        name=name,
        kernel=kernel,
        arguments=(*operands, logsum, delta, *more),
        wanted=tuple(wanted),
        ordered=not whole and not (keys and stored),
    )


def cases(device: str = "cpu", dtype: torch.dtype = torch.bfloat16, scale: int = 1) -> list[Case]:
    """Return cases of about 200 rows, times ``scale``. Numbers per query have rows of 16-byte multiples, but for documents."""
    m, n, odd = 196 * scale, 230 * scale, 190 * scale
    at, to = (torch.arange(x, device=device) for x in (m, n))
    causal, window = at[:, None] + (n - m) >= to, (to <= at[:, None]) & (at[:, None] - to < WIDTH)
    some = [device, dtype]
    shared, own = (_operands(1, 4, groups, m, n, 64, 64, *some) for groups in (2, 4))
    square, wide = _operands(1, 2, 2, m, m, 128, 128, *some), _operands(1, 2, 2, m, n, 96, 64, *some)
    large, few = _operands(1, 2, 2, m, m, 256, 256, *some), _operands(1, 4, 2, m, n, 256, 256, *some)
    document = (torch.arange(odd, device=device) // 70).expand(1, odd).to(torch.int32).contiguous()
    bias = (torch.randn(2, odd, odd, device=device) * 0.5).to(dtype)
    stored, added = _operands(1, 2, 2, m, n, 64, 64, *some), _operands(2, 2, 2, m, odd + 1, 64, 64, *some)
    own_bias = torch.randn(1, 2, m, n, device=device).to(dtype)
    one_bias = torch.randn(m, odd + 1, device=device).to(dtype)
    together = (document[:, :, None] == document[:, None, :])[:, None]
    heads_of_keys = {"keys": True, "rows": True}
    return [
        _case("queries", gradient_of_queries, shared, more=(False,)),
        _case("queries, causal", gradient_of_queries, shared, causal, more=(True,)),
        _case("queries, 96 and 64 dimensions", gradient_of_queries, wide, more=(False,)),
        _case("queries, capped in a window", gradient_in_a_window, _operands(2, 1, 1, m, m, 64, 64, *some),
              window[:, :m], cap=CAP),
        _case("keys", gradients_of_keys, own, keys=True, more=(False,)),
        _case("keys, 96 and 64 dimensions", gradients_of_keys, wide, keys=True, more=(False,)),
        _case("keys, causal", gradients_of_keys, square, at[:, None] >= at, keys=True, more=(True,)),
        _case("shared keys", gradients_of_shared_keys, shared, more=(False,), **heads_of_keys),
        _case("shared keys, causal", gradients_of_shared_keys, shared, causal, more=(True,), **heads_of_keys),
        _case("a head of each key", gradients_of_shared_keys, own, causal, more=(True,), **heads_of_keys),
        _case("keys, documents", gradients_of_documents, _operands(1, 2, 2, odd, odd, 128, 128, *some), together, keys=True, more=(document, bias), bias=bias.double()),
        _case("all", all_gradients, _operands(2, 4, 2, m, n, 128, 128, *some), whole=True, more=(False,)),
        _case("all, causal", all_gradients, _operands(2, 4, 2, m, n, 128, 128, *some), causal, whole=True, more=(True,)),
        _case("all, 64 and 96 dimensions", all_gradients, _operands(1, 2, 2, m, n, 64, 96, *some), whole=True, more=(False,)),
        _case("queries, 256 dimensions", gradient_of_queries, few, causal, more=(True,)),
        _case("keys, 256 dimensions", gradients_of_keys, large, at[:, None] >= at, keys=True, more=(True,)),
        _case("shared keys, 256 dimensions", gradients_of_shared_keys, few, more=(False,), **heads_of_keys),
        _case("queries, stored bias", gradient_of_queries_and_bias, stored, more=(own_bias,), bias=own_bias, stored=True),
        _case("keys, added bias", gradients_of_keys_and_bias, added, keys=True, more=(one_bias,), bias=one_bias, stored=True),
    ]  # fmt: skip
