"""Attention whose values are the first dimensions of the keys, as users write it, with references in fp64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import helion.language as hl

WIDTHS = ((576, 512), (320, 256), (512, 512))
"""Dimensions of a key and of its value."""


def decoded(q, cache, lengths, width: hl.constexpr, scaled: hl.constexpr):
    """All heads `[B, H, D]` of a sequence see the first rows of its cache `[B, N, D]`; the queries are ``scaled``, or scores."""
    heads, dims = q.size(1), hl.specialize(q.size(2))
    batch = hl.specialize(q.size(0))
    heads = hl.specialize(heads)
    out = torch.empty([batch, heads, width], dtype=q.dtype, device=q.device)
    for tile_b, tile_h in hl.tile([batch, heads], block_size=[1, None]):
        b = tile_b.begin
        query = q[b, tile_h, :]
        if scaled:
            query = (query.to(torch.float32) * dims**-0.5).to(q.dtype)
        highest = hl.full([tile_h], -1e30, dtype=torch.float32)
        total = hl.zeros([tile_h], dtype=torch.float32)
        acc = hl.zeros([tile_h, width], dtype=torch.float32)
        for tile in hl.tile(lengths[b]):
            scores = hl.dot(query, cache[b, tile, :].T)
            if not scaled:
                scores = scores * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(q.dtype), cache[b, tile, :width], acc=acc * shrink[:, None])
            highest = raised
        out[b, tile_h, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
    return out


def paged(q, cache, table, lengths, page: hl.constexpr, width: hl.constexpr):
    """The same with rows `[P * page, D]` in the pages that ``table`` has for a sequence."""
    batch, heads, dims = q.size(0), q.size(1), hl.specialize(q.size(2))
    out = torch.empty([batch, heads, width], dtype=q.dtype, device=q.device)
    for tile_b, tile_h in hl.tile([batch, heads], block_size=[1, None]):
        b = tile_b.begin
        query = q[b, tile_h, :]
        highest = hl.full([tile_h], -1e30, dtype=torch.float32)
        total = hl.zeros([tile_h], dtype=torch.float32)
        acc = hl.zeros([tile_h, width], dtype=torch.float32)
        for tile in hl.tile(lengths[b]):
            row = table[b, tile.index // page] * page + tile.index % page
            scores = hl.dot(query, cache[row, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(q.dtype), cache[row, :width], acc=acc * shrink[:, None])
            highest = raised
        out[b, tile_h, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
    return out


def causal(q, cache, gates, width: hl.constexpr):
    """Prefill `[B, H, M, D]`, causal from the last query on, with gates `[width]` of the output and logarithms of sums."""
    batch, heads, m, dims = q.size()
    dims, n, _ = hl.specialize(dims), cache.size(1), hl.specialize(gates.size(0))
    out = torch.empty([batch, heads, m, width], dtype=q.dtype, device=q.device)
    logsum = torch.empty([batch, heads, m], dtype=torch.float32, device=q.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        query = q[b.begin, h.begin, tile_m, :]
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, width], dtype=torch.float32)
        for tile in hl.tile(n):
            scores = hl.dot(query, cache[b.begin, tile, :].T) * dims**-0.5
            scores = torch.where(tile_m.index[:, None] + (n - m) >= tile.index[None, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(q.dtype), cache[b.begin, tile, :width], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = acc / total[:, None] * gates[None, :]
        logsum[b.begin, h.begin, tile_m] = highest + torch.log(total)
    return out, logsum


def summed(q, cache, lengths, width: hl.constexpr, added: hl.constexpr):
    """The same as ``decoded``, with scores that are the sum of two products; ``added``: by an addition."""
    batch, heads, dims = q.size(0), q.size(1), hl.specialize(q.size(2))
    out = torch.empty([batch, heads, width], dtype=q.dtype, device=q.device)
    for tile_b, tile_h in hl.tile([batch, heads], block_size=[1, None]):
        b = tile_b.begin
        wide, narrow = q[b, tile_h, :width], q[b, tile_h, width:]
        highest = hl.full([tile_h], -1e30, dtype=torch.float32)
        total = hl.zeros([tile_h], dtype=torch.float32)
        acc = hl.zeros([tile_h, width], dtype=torch.float32)
        for tile in hl.tile(lengths[b]):
            value, rest = cache[b, tile, :width], cache[b, tile, width:]
            if added:
                scores = hl.dot(narrow, rest.T) + hl.dot(wide, value.T)
            else:
                scores = hl.dot(narrow, rest.T, acc=hl.dot(wide, value.T))
            scores = scores * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(q.dtype), value, acc=acc * shrink[:, None])
            highest = raised
        out[b, tile_h, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
    return out


def apart(q, turned_q, latent, turned, lengths):
    """The same with other tensors for the last dimensions of queries and of rows."""
    batch, heads = q.size(0), q.size(1)
    wide, narrow = hl.specialize((q.size(2), turned_q.size(2)))
    out = torch.empty_like(q)
    for tile_b, tile_h in hl.tile([batch, heads], block_size=[1, None]):
        b = tile_b.begin
        highest = hl.full([tile_h], -1e30, dtype=torch.float32)
        total = hl.zeros([tile_h], dtype=torch.float32)
        acc = hl.zeros([tile_h, wide], dtype=torch.float32)
        for tile in hl.tile(lengths[b]):
            value = latent[b, tile, :]
            scores = hl.dot(turned_q[b, tile_h, :], turned[b, tile, :].T, acc=hl.dot(q[b, tile_h, :], value.T))
            scores = scores * (wide + narrow) ** -0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(q.dtype), value, acc=acc * shrink[:, None])
            highest = raised
        out[b, tile_h, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
    return out


def parts_of(q: torch.Tensor, cache: torch.Tensor, lengths: torch.Tensor, width: int) -> tuple[torch.Tensor, ...]:
    """Return the arguments of ``apart`` from those of ``decoded``."""
    parts = (x[..., at] for x in (q, cache) for at in (slice(width), slice(width, None)))
    return (*(x.contiguous() for x in parts), lengths)


def packed(q, cache, cu_q, cu_k, longest, width: hl.constexpr, window: hl.constexpr):
    """Sequences of queries `[T, H, D]` and rows `[S, D]` one after another, causal from the last query on, in a window."""
    sequences, heads, dims = cu_q.size(0) - 1, q.size(1), hl.specialize(q.size(2))
    out = torch.zeros([q.size(0), heads, width], dtype=q.dtype, device=q.device)
    logsum = torch.zeros([heads, q.size(0)], dtype=torch.float32, device=q.device)
    for seq, head, tile_m in hl.tile([sequences, heads, longest], block_size=[1, 1, None]):
        start_q, start_k = cu_q[seq.begin], cu_k[seq.begin]
        len_q, len_k = cu_q[seq.begin + 1] - start_q, cu_k[seq.begin + 1] - start_k
        rows, valid = start_q + tile_m.index, tile_m.index < len_q
        query = hl.load(q, [rows, head.begin, hl.arange(dims)], extra_mask=valid[:, None])
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, width], dtype=torch.float32)
        for tile_n in hl.tile(len_k):
            scores = hl.dot(query, cache[start_k + tile_n.index, :].T) * dims**-0.5
            after = tile_m.index[:, None] + (len_k - len_q) - tile_n.index[None, :]
            scores = torch.where((after >= 0) & (after < window), scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(q.dtype), cache[start_k + tile_n.index, :width], acc=acc * shrink[:, None])
            highest = raised
        hl.store(out, [rows, head.begin, hl.arange(width)], acc / total[:, None], extra_mask=valid[:, None])
        hl.store(logsum, [head.begin, rows], highest + torch.log(total), extra_mask=valid)
    return out, logsum


def packed_of(
    lengths: Sequence[int], keys: Sequence[int], dims: int, width: int, device: str = "cpu"
) -> tuple[Any, ...]:
    """Return arguments of ``packed``; rows of no sequence are not numbers."""
    cu_q, cu_k = (torch.tensor([0, *each]).cumsum(0).int().to(device) for each in (lengths, keys))
    q, cache = (
        torch.randn(shape, device=device).add(0.2).bfloat16()
        for shape in ((sum(lengths) + 5, 2, dims), (sum(keys) + 9, dims))
    )
    cache[sum(keys) :] = float("nan")
    return q, cache, cu_q, cu_k, max(lengths), width, 70


def of_packed(
    q: torch.Tensor, cache: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, longest: int, width: int, window: int
) -> tuple[torch.Tensor, torch.Tensor]:
    out = q.new_zeros(*q.shape[:2], width, dtype=torch.float64)
    logsum = torch.zeros(q.size(1), q.size(0), dtype=torch.float64, device=q.device)
    for b in range(len(cu_q) - 1):
        own, rows = slice(cu_q[b], cu_q[b + 1]), cache[cu_k[b] : cu_k[b + 1]].double()
        scores = q[own].double().transpose(0, 1) @ rows.mT * q.size(2) ** -0.5
        m, n = scores.shape[1:]
        after = torch.arange(m, device=q.device)[:, None] + n - m - torch.arange(n, device=q.device)
        scores = scores.masked_fill((after < 0) | (after >= window), float("-inf"))
        out[own] = (torch.softmax(scores, -1) @ rows[:, :width]).transpose(0, 1)
        logsum[:, own] = torch.logsumexp(scores, -1)
    return out, logsum


def caches(
    lengths: Sequence[int], n: int, heads: int, dims: int, device: str = "cpu", numbers: torch.dtype = torch.int32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, a cache whose rows after each sequence are not numbers, and the lengths."""
    q, cache = (
        torch.randn(shape).add(0.2).bfloat16() for shape in ((len(lengths), heads, dims), (len(lengths), n, dims))
    )
    for b, length in enumerate(lengths):
        cache[b, length:] = float("nan")
    return q.to(device), cache.to(device), torch.tensor(lengths, dtype=numbers, device=device)


def pages(
    lengths: Sequence[int], page: int, most: int, heads: int, dims: int, device: str = "cpu"
) -> tuple[torch.Tensor, ...]:
    """Return queries, rows in pages in any order, the table of pages, and the lengths."""
    counts = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(counts) + 3)[: sum(counts)]
    table = torch.full([len(lengths), most], -1, dtype=torch.int32)
    cache = torch.full([(sum(counts) + 3) * page, dims], float("nan"))
    for b, (length, own) in enumerate(zip(lengths, order.split(counts), strict=True)):
        table[b, : len(own)] = own.int()
        at = torch.arange(length)
        cache[own[at // page] * page + at % page] = torch.randn(length, dims) + 0.2
    q = torch.randn(len(lengths), heads, dims) + 0.2
    return tuple(
        x.to(device) for x in (q.bfloat16(), cache.bfloat16(), table, torch.tensor(lengths, dtype=torch.int32))
    )


def of_decoded(q: torch.Tensor, cache: torch.Tensor, lengths: torch.Tensor, width: int, *_: Any) -> torch.Tensor:
    out = torch.zeros(*q.shape[:2], width, dtype=torch.float64, device=q.device)
    for b, length in enumerate(lengths.tolist()):
        rows = cache[b, :length].double()
        out[b] = torch.softmax(q[b].double() @ rows.mT * q.size(2) ** -0.5, -1) @ rows[:, :width]
    return out


def of_paged(
    q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, page: int, width: int
) -> torch.Tensor:
    at = torch.arange(table.size(1) * page, device=q.device)
    rows = table.long()[:, at // page].clamp(min=0) * page + at % page
    return of_decoded(q, cache[rows], lengths, width)


def of_causal(
    q: torch.Tensor, cache: torch.Tensor, gates: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = q.size(2), cache.size(1)
    rows = cache.double()[:, None]
    scores = q.double() @ rows.mT * q.size(3) ** -0.5
    scores = scores.masked_fill(~torch.ones(m, n, dtype=torch.bool, device=q.device).tril(n - m), float("-inf"))
    return torch.softmax(scores, -1) @ rows[..., :width] * gates.double(), torch.logsumexp(scores, -1)


def with_positions(q, q_positions, k, k_positions, v):
    """`[B, H, S, D]`, causal: scores of dimensions of each head, and of others in tensors of their own, whose keys all heads
    share."""
    batch, heads, m, dims = q.size()
    dims, more, wide = hl.specialize((dims, q_positions.size(3), v.size(3)))
    out = torch.empty([batch, heads, m, wide], dtype=q.dtype, device=q.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, wide], dtype=torch.float32)
        query, at = q[b.begin, h.begin, tile_m, :], q_positions[b.begin, h.begin, tile_m, :]
        for tile_n in hl.tile(k.size(2)):
            scores = hl.dot(query, k[b.begin, h.begin, tile_n, :].T)
            scores = hl.dot(at, k_positions[b.begin, tile_n, :].T, acc=scores) * (dims + more) ** -0.5
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = acc / total[:, None]
    return out


def of_positions(rows: int, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    """Return arguments of two heads of 128 and 64 dimensions."""
    sizes = ((1, 2, rows, 128), (1, 2, rows, 64), (1, 2, rows, 128), (1, rows, 64), (1, 2, rows, 128))
    return tuple((torch.randn(size, device=device) + 0.1).bfloat16() for size in sizes)
