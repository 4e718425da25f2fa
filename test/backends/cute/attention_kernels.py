"""Attention as users write it: layouts, masks and formulas, each with its reference in fp64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from backends.cute.attention_loops import loops

import helion.language as hl
from helion._testing import import_path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
attention = import_path(EXAMPLES / "attention.py").attention
flex_attention = import_path(EXAMPLES / "flex_attention.py").flex_attention

LOG2E = 1.44269504


def published(q_in, k_in, v_in):
    """The published example: scores in the type of the operands, the row maximum before the scale."""
    m_dim = q_in.size(-2)
    n_dim = k_in.size(-2)
    assert n_dim == v_in.size(-2)
    head_dim = hl.specialize(q_in.size(-1))
    q_view = q_in.reshape([-1, m_dim, head_dim])
    v_view = v_in.reshape([-1, n_dim, head_dim])
    k_view = k_in.reshape([-1, n_dim, head_dim]).transpose(1, 2)
    out = torch.empty_like(q_view)
    sm_scale = 1.0 / math.sqrt(head_dim)
    qk_scale = sm_scale * LOG2E
    for tile_b, tile_m in hl.tile([q_view.size(0), m_dim]):
        m_i = hl.full([tile_b, tile_m], float("-inf"), dtype=torch.float32)
        l_i = torch.full_like(m_i, 1.0)
        acc = hl.zeros([tile_b, tile_m, head_dim], dtype=torch.float32)
        q = q_view[tile_b, tile_m, :]
        for tile_n in hl.tile(v_view.size(1)):
            k = k_view[tile_b, :, tile_n]
            qk = torch.bmm(q, k)
            m_ij = torch.maximum(m_i, torch.amax(qk, -1) * qk_scale)
            qk = qk * qk_scale - m_ij[:, :, None]
            p = torch.exp2(qk)
            l_ij = torch.sum(p, -1)
            alpha = torch.exp2(m_i - m_ij)
            l_i = l_i * alpha + l_ij
            acc = acc * alpha[:, :, None]
            v = v_view[tile_b, tile_n, :]
            p = p.to(v.dtype)
            acc = torch.baddbmm(acc, p, v)
            m_i = m_ij
        m_i += torch.log2(l_i)
        acc = acc / l_i[:, :, None]
        out[tile_b, tile_m, :] = acc.to(out.dtype)
    return out.view(q_in.size())


def rows_of_heads(q, k, v, causal: hl.constexpr):
    """`[B, S, H, D]`, groups of heads that share keys, the base e, and the logarithm of the sums as second output.
    Queries are aligned with the last keys."""
    batch, m, heads, _ = q.size()
    n, groups = k.size(1), k.size(2)
    dims = hl.specialize(q.size(3))
    wide = hl.specialize(v.size(3))
    shared = heads // groups
    out = torch.empty([batch, m, heads, wide], dtype=q.dtype, device=q.device)
    logsum = torch.empty([batch, heads, m], dtype=torch.float32, device=q.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        head = h.begin // shared
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, wide], dtype=torch.float32)
        query = q[b.begin, tile_m, h.begin, :]
        for tile_n in hl.tile(n):
            scores = hl.dot(query, k[b.begin, tile_n, head, :].T) * (1 / math.sqrt(dims))
            if causal:
                seen = tile_n.index[None, :] <= tile_m.index[:, None] + (n - m)
                scores = torch.where(seen, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = acc * shrink[:, None] + hl.dot(weights.to(v.dtype), v[b.begin, tile_n, head, :])
            highest = raised
        out[b.begin, tile_m, h.begin, :] = (acc / total[:, None]).to(out.dtype)
        logsum[b.begin, h.begin, tile_m] = highest + torch.log(total)
    return out, logsum


def packed(qkv):
    """`[B, S, 3, H, D]`, as vision transformers have it."""
    batch, m, _, heads, _ = qkv.size()
    dims = hl.specialize(qkv.size(4))
    out = torch.empty([batch, m, heads, dims], dtype=qkv.dtype, device=qkv.device)
    for tile_b, tile_h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        b, h = tile_b.begin, tile_h.begin
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(m):
            scores = hl.dot(qkv[b, tile_m, 0, h, :], qkv[b, tile_n, 1, h, :].T)
            raised = torch.maximum(highest, scores.amax(-1))
            scale = 1 / math.sqrt(dims)
            weights = torch.exp((scores - raised[:, None]) * scale)
            shrink = torch.exp((highest - raised) * scale)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(qkv.dtype), qkv[b, tile_n, 2, h, :], acc=acc * shrink[:, None])
            highest = raised
        out[b, tile_m, h, :] = acc / total[:, None]
    return out


def biased(q, k, v, bias, padding, slopes):
    """Scores plus a number per query and key, one per key of a sequence, and a slope per head; inputs `[B, H, S, D]`."""
    batch, heads, m, _ = q.size()
    n = k.size(2)
    dims = hl.specialize(q.size(3))
    out = torch.empty_like(q)
    for tile_b, tile_h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        b, h = tile_b.begin, tile_h.begin
        highest = hl.full([tile_m], -1e30, dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        query = q[b, h, tile_m, :]
        for tile_n in hl.tile(n):
            scores = hl.dot(query, k[b, h, tile_n, :].T) * (1 / math.sqrt(dims)) + bias[h, tile_m, tile_n]
            distance = tile_m.index[:, None] - tile_n.index[None, :]
            scores = scores - slopes[h] * distance.abs() + padding[b, tile_n][None, :]
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = torch.addmm(acc * shrink[:, None], weights.to(v.dtype), v[b, h, tile_n, :])
            highest = raised
        out[b, h, tile_m, :] = acc / total[:, None]
    return out


def scaled_queries(q, k, v, factor):
    """Queries are scaled and rounded before they are multiplied, in each step of the loop."""
    heads, m, _ = q.size()
    n = k.size(1)
    dims = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    for tile_h, tile_m in hl.tile([heads, m]):
        highest = hl.full([tile_h, tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_h, tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_h, tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            query = (q[tile_h, tile_m, :] * factor).to(q.dtype)
            scores = torch.bmm(query, k[tile_h, tile_n, :].transpose(1, 2), out_dtype=torch.float32)
            raised = torch.maximum(scores.amax(-1), highest)
            weights = torch.exp(scores - raised[:, :, None])
            shrink = torch.exp(highest - raised)
            total = weights.sum(-1) + shrink * total
            acc = torch.baddbmm(shrink[:, :, None] * acc, weights.to(v.dtype), v[tile_h, tile_n, :])
            highest = raised
        out[tile_h, tile_m, :] = acc / total[:, :, None]
    return out


def documents(q, k, v, document, lengths):
    """A query sees the keys of its document, and those up to the length of its sequence; inputs `[B, S, H, D]`."""
    batch, m, heads, _ = q.size()
    n = k.size(1)
    dims = hl.specialize(q.size(3))
    out = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.full([tile_m], -1e30, dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        query = q[b.begin, tile_m, h.begin, :]
        own = document[b.begin, tile_m]
        for tile_n in hl.tile(n):
            scores = hl.dot(query, k[b.begin, tile_n, h.begin, :].T) * (1 / math.sqrt(dims))
            same = own[:, None] == document[b.begin, tile_n][None, :]
            seen = same & (tile_n.index[None, :] < lengths[b.begin])
            scores = torch.where(seen, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, tile_n, h.begin, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, tile_m, h.begin, :] = acc / torch.where(total == 0, 1.0, total)[:, None]
    return out


def local(q, k, v):
    """A window whose loop ends with the tile of queries, and a low number as its mask; inputs `[H, S, D]`."""
    heads, m, _ = q.size()
    dims = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    scale = LOG2E / math.sqrt(dims)
    for tile_h, tile_m in hl.tile([heads, m]):
        m_i = hl.full([tile_h, tile_m], float("-inf"), dtype=torch.float32)
        l_i = hl.zeros([tile_h, tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_h, tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(tile_m.begin + tile_m.block_size):
            qk = hl.dot(q[tile_h, tile_m, :], k[tile_h, tile_n, :].transpose(-2, -1)) * scale
            distance = tile_m.index[:, None] - tile_n.index[None, :]
            seen = (distance >= 0) & (distance <= 100)
            qk = torch.where(seen[None, :, :], qk, -1.0e30)
            m_ij = torch.maximum(m_i, torch.amax(qk, -1))
            p = torch.exp2(qk - m_ij[..., None])
            alpha = torch.exp2(m_i - m_ij)
            l_i = l_i * alpha + p.sum(-1)
            acc *= alpha[..., None]
            acc += hl.dot(p.to(v.dtype), v[tile_h, tile_n, :])
            m_i = m_ij
        out[tile_h, tile_m, :] = (acc / l_i[..., None]).to(out.dtype)
    return out


def many_formulas(q, k, v, slope, gate, per_query, factor):
    """Formulas of scores and outputs with every kind of operand, some read by both."""
    batch, heads, m, _ = q.size()
    n = k.size(2)
    dims = hl.specialize(q.size(3))
    out = torch.empty_like(q)
    stat = torch.empty([batch, heads, m], dtype=torch.float32, device=q.device)
    for tile_b, tile_h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        b, h = tile_b.begin, tile_h.begin
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        query = q[b, h, tile_m, :]
        for tile_n in hl.tile(n):
            s = hl.dot(query, k[b, h, tile_n, :].T) * factor
            i, j = tile_m.index[:, None], tile_n.index[None, :]
            s = s + torch.sigmoid(s) * slope[h] - torch.nn.functional.gelu(s) * per_query[b, tile_m][:, None]
            s = torch.where(((i + 3 > j) | (j < 5)) & (torch.abs(i - j) <= 200), s, -100.0)
            s = torch.minimum(s, per_query[b, tile_m][:, None] * 50) + torch.log1p(torch.abs(s)) * 0.1
            raised = torch.maximum(highest, torch.amax(s, -1))
            weights = torch.exp(s - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b, h, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        sink = torch.exp(slope[h] - highest)
        scaled = acc / (total + sink)[:, None]
        out[b, h, tile_m, :] = (
            scaled * torch.sigmoid(gate[b, h, tile_m, :].to(torch.float32)) + per_query[b, tile_m][:, None]
        )
        stat[b, h, tile_m] = highest + torch.log2(total)
    return out, stat


def cached(q, k, v, lengths):
    """Decoding: queries `[B, G, R, D]` of heads that share keys, keys `[B, S, G, D]`, of which each sequence has some, or none."""
    batch, groups = hl.specialize(q.size(0)), hl.specialize(q.size(1))
    shared, dims = hl.specialize(q.size(2)), hl.specialize(q.size(3))
    out = torch.empty([batch, groups, shared, dims], dtype=q.dtype, device=q.device)
    for tile_b, tile_g, tile_r in hl.tile([batch, groups, shared], block_size=[1, 1, None]):
        b, g = tile_b.begin, tile_g.begin
        query = q[b, g, tile_r, :]
        highest = hl.full([tile_r], -1e30, dtype=torch.float32)
        total = hl.zeros([tile_r], dtype=torch.float32)
        acc = hl.zeros([tile_r, dims], dtype=torch.float32)
        for tile_n in hl.tile(lengths[b]):
            scores = hl.dot(query, k[b, tile_n, g, :].T) * (LOG2E / math.sqrt(dims))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp2(scores - raised[:, None]), torch.exp2(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b, tile_n, g, :], acc=acc * shrink[:, None])
            highest = raised
        out[b, g, tile_r, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
    return out


def of_cached(q, k, v, lengths):
    """Return the result of ``cached`` in fp64."""
    k, v = (torch.nan_to_num(x.double(), nan=0.0) for x in (k, v))
    scores = torch.einsum("bgrd,bngd->bgrn", q.double(), k) / math.sqrt(q.size(3))
    seen = torch.arange(k.size(1), device=q.device) < lengths[:, None]
    weights = torch.softmax(scores.masked_fill(~seen[:, None, None], -1e30), -1) * seen[:, None, None]
    return torch.einsum("bgrn,bngd->bgrd", weights, v)


def softcap(score, b, h, q, k):
    return 30 * torch.tanh(score / 30)


def window(score, b, h, q, k):
    return torch.where((q >= k) & (q - k < 100), score, float("-inf"))


def capped_window(score, b, h, q, k):
    return window(softcap(score, b, h, q, k), b, h, q, k)


def near(score, b, h, q, k):
    return torch.where(torch.abs(q - k + 3) < 90, score, float("-inf"))


def causal(score, b, h, q, k):
    return torch.where(q >= k, score, float("-inf"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel, its arguments by sizes, and its reference in fp64; ``exact`` is the tolerance's factor."""

    name: str
    kernel: Callable[..., Any]
    arguments: Callable[..., tuple[Any, ...]]
    reference: Callable[..., Any]


def reference(q, k, v, scale=None, mod=None, bias=None):
    """Return attention of `[B, H, S, D]` in fp64, and the logarithm of its sums."""
    repeat = q.size(1) // k.size(1)
    k, v = (x.double().repeat_interleave(repeat, 1) for x in (k, v))
    scores = q.double() @ k.mT * (scale or q.size(-1) ** -0.5)
    if bias is not None:
        scores = scores + bias
    if mod is not None:
        at, to = torch.arange(q.size(2), device=q.device)[:, None], torch.arange(k.size(2), device=q.device)
        scores = mod(scores, None, None, at, to)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def random(*sizes: int, dtype: torch.dtype = torch.bfloat16, device: str = "cpu", mean: float = 0.25) -> torch.Tensor:
    return (torch.randn(sizes, device=device) + mean).to(dtype)


def _three(batch, heads, groups, m, n, dims, wide, device, dtype):
    q = random(batch, heads, m, dims, dtype=dtype, device=device, mean=0.0)
    return (
        q,
        random(batch, groups, n, dims, dtype=dtype, device=device),
        random(batch, groups, n, wide, dtype=dtype, device=device),
    )


def _of_biased(q, k, v, bias, padding, slopes):
    at, to = torch.arange(q.size(2), device=q.device)[:, None], torch.arange(k.size(2), device=q.device)
    extra = bias.double() - slopes.double()[:, None, None] * (at - to).abs() + padding.double()[:, None, None]
    return reference(q, k, v, bias=extra)[0]


def _of_documents(q, k, v, document, lengths):
    same = document[:, :, None] == document[:, None, :]
    seen = same & (torch.arange(k.size(1), device=q.device) < lengths[:, None, None])
    hidden = torch.zeros_like(seen, dtype=torch.float64).masked_fill(~seen, float("-inf"))[:, None]
    found = reference(*(x.transpose(1, 2) for x in (q, k, v)), bias=hidden)[0]
    return torch.nan_to_num(found, nan=0.0).transpose(1, 2)


def _of_local(q, k, v):
    def mod(score, b, h, i, j):
        return torch.where((i >= j) & (i - j <= 100), score, float("-inf"))

    return reference(q[None], k[None], v[None], mod=mod)[0][0]


def _of_many(q, k, v, slope, gate, per_query, factor):
    q, k, v, slope, gate, per_query = (x.double() for x in (q, k, v, slope, gate, per_query))
    i, j = torch.arange(q.size(2), device=q.device)[:, None], torch.arange(k.size(2), device=q.device)
    rows = per_query[:, None, :, None]
    s = q @ k.mT * factor
    s = s + torch.sigmoid(s) * slope[:, None, None] - torch.nn.functional.gelu(s) * rows
    s = torch.where(((i + 3 > j) | (j < 5)) & ((i - j).abs() <= 200), s, -100.0)
    s = torch.minimum(s, rows * 50) + torch.log1p(s.abs()) * 0.1
    highest = s.amax(-1)
    weights = torch.exp(s - highest[..., None])
    total = weights.sum(-1)
    sink = torch.exp(slope[:, None] - highest)
    out = weights @ v / (total + sink)[..., None] * torch.sigmoid(gate) + rows
    return out, highest + torch.log2(total)


def _of_scaled(q, k, v, factor):
    return reference((q * factor)[None], k[None], v[None], scale=1.0)[0][0]


def _rows(q, k, v, causal):
    mod = None
    if causal:
        mod = lambda s, b, h, i, j: torch.where(j <= i + (k.size(1) - q.size(1)), s, float("-inf"))  # noqa: E731
    out, logsum = reference(*(x.transpose(1, 2) for x in (q, k, v)), mod=mod)
    return out.transpose(1, 2), logsum


def cases(device: str = "cpu", dtype: torch.dtype = torch.bfloat16, large: bool = False) -> list[tuple[Case, tuple]]:
    """Return the cases with arguments: sizes that are no multiples of tiles, more of them if ``large``."""

    def three(*sizes):
        return _three(*sizes, device, dtype)

    def heads_last(*tensors):
        return tuple(x.transpose(1, 2).contiguous() for x in tensors)

    found: list[tuple[Case, tuple]] = []

    def add(name, kernel, arguments, wanted):
        found.append((Case(name=name, kernel=kernel, arguments=lambda: arguments, reference=wanted), arguments))

    sizes = [(2, 2, 2, 300, 300, 64, 64), (1, 3, 3, 77, 333, 128, 128)]
    if large:
        sizes += [(1, 2, 2, 1000, 4097, 128, 128), (2, 3, 3, 577, 577, 64, 64), (1, 2, 2, 700, 700, 256, 256)]
        sizes += [(1, 2, 2, 1, 500, 128, 128), (1, 1, 1, 500, 3, 64, 64), (5, 40, 40, 513, 513, 64, 64)]
        sizes += [
            (1, 2, 2, 257, 300, 32, 32),
            (1, 2, 2, 257, 300, 96, 96),
            (1, 2, 2, 200, 300, 192, 192),
            (1, 2, 2, 130, 200, 80, 80),
        ]
    for size in sizes:
        x = three(*size)
        add(f"full {size}", attention.fn, (*x, False), lambda q, k, v, c: reference(q, k, v)[0])
        add(f"published {size}", published, x, lambda q, k, v: reference(q, k, v)[0])
        if size[3] == size[4]:
            add(f"causal {size}", attention.fn, (*x, True), lambda q, k, v, c: reference(q, k, v, mod=causal)[0])
    for size in [(1, 4, 2, 300, 300, 64, 64), *([(2, 8, 2, 1000, 1000, 128, 128)] if large else [])]:
        for mod in (softcap, window, capped_window, near, causal):
            x = (*three(*size), mod)
            add(
                f"flex {mod.__name__} {size}", flex_attention.fn, x, lambda q, k, v, mod: reference(q, k, v, mod=mod)[0]
            )
    for size in [
        (1, 4, 2, 130, 300, 64, 128),
        *([(2, 4, 1, 600, 1100, 192, 128), (2, 4, 4, 900, 900, 64, 64)] if large else []),
    ]:
        for is_causal in (False, True):
            x = (*heads_last(*three(*size)), is_causal)
            add(f"rows of heads {is_causal} {size}", rows_of_heads, x, _rows)
    for size in [
        (3, 8, 2, 1, 700, 64, 64),
        (2, 4, 1, 1, 300, 64, 128),
        (1, 4, 2, 5, 1100, 64, 64),
        *(
            [
                (2, 32, 8, 1, 8192, 128, 128),
                (1, 8, 8, 16, 20000, 64, 64),
                (1, 2, 1, 64, 9000, 256, 256),
                (4, 32, 32, 1, 3000, 128, 128),
            ]
            if large
            else []
        ),
    ]:
        x = (*heads_last(*three(*size)), True)
        add(f"decode {size}", rows_of_heads, x, _rows)
    for size in [(1, 2, 2, 300, 300, 64, 64), *([(1, 8, 8, 2000, 2000, 128, 128)] if large else [])]:
        x = tuple(each[0] for each in three(*size))
        add(f"local {size}", local, x, _of_local)
    for size in [(2, 3, 3, 200, 233, 64, 64), *([(2, 4, 4, 1000, 1100, 128, 128)] if large else [])]:
        batch, heads, _, m, _, dims, _ = size
        gate = random(batch, heads, m, dims, dtype=dtype, device=device)
        extra = torch.rand(heads, device=device), gate, torch.rand(batch, m, device=device) + 0.5, 0.13
        add(f"many formulas {size}", many_formulas, (*three(*size), *extra), _of_many)
    for size in [(2, 197, 3, 64), *([(3, 577, 4, 64), (2, 1024, 2, 128)] if large else [])]:
        batch, m, heads, dims = size
        x = (random(batch, m, 3, heads, dims, dtype=dtype, device=device),)
        add(
            f"packed {size}",
            packed,
            x,
            lambda qkv: reference(*(qkv[:, :, i].transpose(1, 2) for i in range(3)))[0].transpose(1, 2),
        )
    for size in [(1, 3, 3, 200, 170, 64, 64), *([(1, 4, 4, 1000, 1100, 128, 128)] if large else [])]:
        for factor in (0.125, 0.09):
            x = three(*size)
            arguments = (*(each[0] for each in x), factor)
            add(f"scaled queries {factor} {size}", scaled_queries, arguments, _of_scaled)
    for size in [(2, 2, 2, 200, 200, 64, 64), *([(3, 4, 4, 1000, 1000, 128, 128)] if large else [])]:
        batch, m = size[0], size[3]
        document = torch.arange(m, device=device).expand(batch, m) // 70 + 2**24
        lengths = torch.tensor([m - 7 * at for at in range(batch)], device=device)
        x = (*heads_last(*three(*size)), document.contiguous().to(torch.int32), lengths)
        add(f"documents {size}", documents, x, _of_documents)
    for size in [(2, 3, 3, 200, 200, 64, 64), *([(2, 4, 4, 1000, 1100, 128, 128)] if large else [])]:
        batch, heads, _, m, n, *_ = size
        bias = random(heads, m, n, dtype=dtype, device=device)
        padding = torch.zeros(batch, n, device=device)
        padding[:, n * 3 // 4 :] = float("-inf")
        slopes = torch.rand(heads, device=device) * 0.05
        add(f"biased {size}", biased, (*three(*size), bias, padding, slopes), _of_biased)
    for named in loops(three, device, large):
        add(*named)
    return found
