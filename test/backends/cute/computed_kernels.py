"""Gradients of attention whose loop computes what it needs of rows: the row sums of `do * o`, and scaled queries."""

from __future__ import annotations

import torch
from backends.cute.backward_kernels import Case, gradients

import helion.language as hl

SCALE = 0.11
"""No power of two: scaled queries are rounded."""


def gradient_with_its_delta(q, k, v, do, logsum, out, causal: hl.constexpr):
    """`[B, H, S, D]`; the sums are computed before the loop over keys."""
    batch, heads, m, dims = q.size()
    n, shared, dims = k.size(2), heads // k.size(1), hl.specialize(dims)
    dq = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        group, upstream = h.begin // shared, do[b.begin, h.begin, tile_m, :]
        delta = (upstream.float() * out[b.begin, h.begin, tile_m, :].float()).sum(-1)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            key = k[b.begin, group, tile_n, :]
            scores = hl.dot(q[b.begin, h.begin, tile_m, :], key.T) * SCALE
            if causal:
                seen = tile_m.index[:, None] + (n - m) >= tile_n.index[None, :]
                scores = torch.where(seen, scores, float("-inf"))
            weights = torch.exp(scores - logsum[b.begin, h.begin, tile_m][:, None])
            changes = hl.dot(upstream, v[b.begin, group, tile_n, :].T)
            acc = hl.dot((weights * (changes - delta[:, None])).to(k.dtype), key, acc=acc)
        dq[b.begin, h.begin, tile_m, :] = acc * SCALE
    return dq


def gradients_with_their_delta(q, k, v, do, logsum, out, causal: hl.constexpr):
    """`[B, S, H, D]`, a loop over the heads that share keys; the sums are computed for each block of queries."""
    batch, m, heads, _ = q.size()
    n, groups = k.size(1), k.size(2)
    dims, shared = hl.specialize(q.size(3)), hl.specialize(heads // groups)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for b, g, tile_n in hl.tile([batch, groups, n], block_size=[1, 1, None]):
        key, value = k[b.begin, tile_n, g.begin, :], v[b.begin, tile_n, g.begin, :]
        key_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        value_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        for at in hl.grid(shared):
            h = g.begin * shared + at
            for tile_m in hl.tile(m):
                query, upstream = q[b.begin, tile_m, h, :], do[b.begin, tile_m, h, :]
                scores = hl.dot(query, key.T) * SCALE
                if causal:
                    seen = tile_m.index[:, None] + (n - m) >= tile_n.index[None, :]
                    scores = torch.where(seen, scores, float("-inf"))
                weights = torch.exp(scores - logsum[b.begin, h, tile_m][:, None])
                value_sum = hl.dot(weights.to(do.dtype).T, upstream, acc=value_sum)
                delta = torch.sum(upstream.float() * out[b.begin, tile_m, h, :], dim=-1)
                differences = weights * (hl.dot(upstream, value.T) - delta[:, None])
                key_sum = hl.dot(differences.to(q.dtype).T, query, acc=key_sum)
        dk[b.begin, tile_n, g.begin, :] = (key_sum * SCALE).to(dk.dtype)
        dv[b.begin, tile_n, g.begin, :] = value_sum.to(dv.dtype)
    return dk, dv


def gradient_of_scaled_queries(q, k, v, do, logsum, delta, scale: hl.constexpr):
    batch, heads, m, dims = q.size()
    n, shared, dims = k.size(2), heads // k.size(1), hl.specialize(dims)
    dq = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        group, query = h.begin // shared, q[b.begin, h.begin, tile_m, :] * scale
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            key = k[b.begin, group, tile_n, :]
            weights = torch.exp(hl.dot(query, key.T) - logsum[b.begin, h.begin, tile_m][:, None])
            changes = hl.dot(do[b.begin, h.begin, tile_m, :], v[b.begin, group, tile_n, :].T)
            differences = weights * (changes - delta[b.begin, h.begin, tile_m][:, None])
            acc = hl.dot(differences.to(k.dtype), key, acc=acc)
        dq[b.begin, h.begin, tile_m, :] = acc * scale
    return dq


def gradients_of_scaled_keys(q, k, v, do, logsum, out, scale: hl.constexpr):
    """The gradients of keys and values, with sums and scaled queries of each block."""
    batch, heads, m, dims = q.size()
    dims = hl.specialize(dims)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for b, h, tile_n in hl.tile([batch, heads, k.size(2)], block_size=[1, 1, None]):
        key_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        value_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        for tile_m in hl.tile(m):
            query, upstream = (
                (q[b.begin, h.begin, tile_m, :].float() * scale).to(q.dtype),
                do[b.begin, h.begin, tile_m, :],
            )
            weights = torch.exp(
                hl.dot(query, k[b.begin, h.begin, tile_n, :].T) - logsum[b.begin, h.begin, tile_m][:, None]
            )
            value_sum = hl.dot(weights.to(do.dtype).T, upstream, acc=value_sum)
            changes = hl.dot(upstream, v[b.begin, h.begin, tile_n, :].T)
            delta = (upstream.float() * out[b.begin, h.begin, tile_m, :].float()).sum(-1)
            key_sum = hl.dot((weights * (changes - delta[:, None])).to(q.dtype).T, query, acc=key_sum)
        dk[b.begin, h.begin, tile_n, :] = key_sum.to(dk.dtype)
        dv[b.begin, h.begin, tile_n, :] = value_sum.to(dv.dtype)
    return dk, dv


def _case(name, kernel, shapes, causal=False, scale=None, rows=False, sums=True, keys=False, device="cpu", dtype=None):
    """Return a case; ``scale`` is that of scaled queries, whose rounding the reference has as well."""
    operands = [(torch.randn(shape, device=device) + 0.2).to(dtype or torch.bfloat16) for shape in shapes]
    q, k, v, do = operands
    factor = SCALE if scale is None else scale
    exact = q if scale is None else (q * scale).double() / factor
    seen = (
        torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=device).tril(k.size(2) - q.size(2))
        if causal
        else None
    )
    given = exact.double() * factor * q.size(3) ** 0.5  # the reference divides by that
    logsum, delta, found = gradients(given, k, v, do, seen)
    wide = [x.repeat_interleave(q.size(1) // k.size(1), 1).double() for x in (k, v)]
    scores = exact.double() @ wide[0].mT * factor
    out = torch.softmax(scores if seen is None else scores.masked_fill(~seen, float("-inf")), -1) @ wide[1]
    wanted = (found[0] * (factor * q.size(3) ** 0.5), found[1], found[2])
    chosen = wanted[1:] if keys else wanted[:1]
    middle = out.to(q.dtype) if sums else delta
    if rows:
        operands, chosen, middle = (
            [x.transpose(1, 2).contiguous() for x in operands],
            [x.transpose(1, 2) for x in chosen],
            middle.transpose(1, 2).contiguous(),
        )
    return Case(
        name=name,
        kernel=kernel,
        arguments=(*operands, logsum, middle, causal if scale is None else scale),
        wanted=tuple(chosen),
    )


def cases(device: str = "cpu", dtype: torch.dtype = torch.bfloat16, scale: int = 1) -> list[Case]:
    """Return cases of about 100 rows, times ``scale``."""
    m, n = 97 * scale, 130 * scale
    some = {"device": device, "dtype": dtype}

    def shapes(dims: int, heads: int, groups: int, square: bool = False) -> list[tuple[int, ...]]:
        of_keys = (2, groups, m if square else n, dims)
        return [(2, heads, m, dims), of_keys, of_keys, (2, heads, m, dims)]

    return [
        _case("queries with sums", gradient_with_its_delta, shapes(64, 4, 2), causal=True, **some),
        _case("queries with sums, 96 dimensions", gradient_with_its_delta, shapes(96, 2, 2), **some),
        _case("keys with sums", gradients_with_their_delta, shapes(64, 4, 2), rows=True, keys=True, **some),
        _case("keys with sums, causal", gradients_with_their_delta, shapes(128, 2, 1, True), causal=True, rows=True, keys=True, **some),
        _case("scaled queries", gradient_of_scaled_queries, shapes(128, 4, 2), scale=SCALE, sums=False, **some),
        _case("scaled queries, by a power of two", gradient_of_scaled_queries, shapes(64, 2, 2), scale=0.125, sums=False, **some),
        _case("keys of scaled queries", gradients_of_scaled_keys, shapes(64, 2, 2), scale=SCALE, keys=True, **some),
        _case("keys of scaled queries, by a power of two", gradients_of_scaled_keys, shapes(256, 2, 2), scale=0.0625, keys=True, **some),
    ]  # fmt: skip
