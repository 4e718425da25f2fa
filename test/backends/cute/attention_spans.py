"""Attention whose keys are bounded by loaded integers, as users write it, with references in fp64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import helion.language as hl
from helion._testing import import_path
from helion.ops.kernels import varlen

of_rows = varlen.varlen_attention_kernel.fn
hstu = import_path(Path(__file__).resolve().parents[3] / "examples" / "jagged" / "hstu_attention.py")
segments = hstu.hstu_attention.fn


def documents(q, k, v, first, last):
    """Each query sees the keys from ``first`` to ``last`` and none after its own; inputs `[H, S, D]`, bounds `[S]`."""
    heads, m, _ = q.size()
    dims = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        query, low, high = q[h.begin, tile_m, :], first[tile_m][:, None], last[tile_m][:, None]
        for tile_n in hl.tile(k.size(1)):
            key = tile_n.index[None, :]
            seen = (low <= key) & (tile_m.index[:, None] >= key)
            scores = hl.dot(query, k[h.begin, tile_n, :].T) * dims**-0.5
            scores = torch.where(seen & ~(key > high), scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None]
    return out


def prefixes(q, k, v, ends):
    """Keys below a number of each query, of which a tile visits those of its longest prefix; inputs `[B, H, S, D]`."""
    batch, heads, m, _ = q.size()
    dims = hl.specialize(q.size(3))
    out = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        m_i = hl.full([tile_m], -1e30, dtype=torch.float32)
        l_i = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        until = ends[b.begin, tile_m]
        for tile_n in hl.tile(0, torch.amax(until)):
            qk = hl.dot(q[b.begin, h.begin, tile_m, :], k[b.begin, h.begin, tile_n, :].T) * dims**-0.5
            qk = torch.where(tile_n.index[None, :] < until[:, None], qk, float("-inf"))
            m_ij = torch.maximum(m_i, torch.amax(qk, -1))
            p, alpha = torch.exp(qk - m_ij[:, None]), torch.exp(m_i - m_ij)
            l_i = l_i * alpha + p.sum(-1)
            acc = acc * alpha[:, None] + hl.dot(p.to(v.dtype), v[b.begin, h.begin, tile_n, :])
            m_i = m_ij
        out[b.begin, h.begin, tile_m, :] = acc / torch.where(l_i > 0, l_i, 1.0)[:, None]
    return out


def packed(q, k, v, cu_q, cu_k, max_q, shared, causal: hl.constexpr):
    """A tile of each sequence of `[T, H, D]` whose begins are in ``cu_q`` and ``cu_k``, causal from the last query on."""
    sequences, heads = cu_q.size(0) - 1, q.size(1)
    dims, wide = hl.specialize((q.size(2), v.size(2)))
    out = torch.zeros([q.size(0), heads, wide], dtype=q.dtype, device=q.device)
    lse = torch.zeros([heads, q.size(0)], dtype=torch.float32, device=q.device)
    for seq, head, tile_m in hl.tile([sequences, heads, max_q], block_size=[1, 1, None]):
        start_q, start_k = cu_q[seq.begin], cu_k[seq.begin]
        len_q, len_k = cu_q[seq.begin + 1] - start_q, cu_k[seq.begin + 1] - start_k
        rows, valid = start_q + tile_m.index, tile_m.index < len_q
        query = hl.load(q, [rows, head.begin, hl.arange(dims)], extra_mask=valid[:, None])
        m_i = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        l_i = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, wide], dtype=torch.float32)
        for tile_n in hl.tile(len_k):
            qk = hl.dot(query, k[start_k + tile_n.index, head.begin // shared, :].T) * (dims**-0.5 * 1.44269504)
            if causal:
                qk = torch.where(tile_m.index[:, None] + (len_k - len_q) >= tile_n.index[None, :], qk, float("-inf"))
            m_ij = torch.maximum(m_i, torch.amax(qk, -1))
            p, alpha = torch.exp2(qk - m_ij[:, None]), torch.exp2(m_i - m_ij)
            l_i = l_i * alpha + p.sum(-1)
            acc = torch.addmm(acc * alpha[:, None], p.to(v.dtype), v[start_k + tile_n.index, head.begin // shared, :])
            m_i = m_ij
        hl.store(out, [rows, head.begin, hl.arange(wide)], acc / l_i[:, None], extra_mask=valid[:, None])
        hl.store(lse, [head.begin, rows], m_i + torch.log2(l_i), extra_mask=valid)
    return out, lse


def packed_in_float32(q, k, v, cu_q, cu_k, max_q):
    """The same in fp32, not causal, for one head of keys."""
    sequences, heads = cu_q.size(0) - 1, q.size(1)
    dims, wide = hl.specialize((q.size(2), v.size(2)))
    out = torch.zeros([q.size(0), heads, wide], dtype=torch.float32, device=q.device)
    for seq, head, tile_m in hl.tile([sequences, heads, max_q], block_size=[1, 1, None]):
        start_q, start_k = cu_q[seq.begin], cu_k[seq.begin]
        len_q, len_k = cu_q[seq.begin + 1] - start_q, cu_k[seq.begin + 1] - start_k
        rows, valid = start_q + tile_m.index, tile_m.index < len_q
        query = hl.load(q, [rows, head.begin, hl.arange(dims)], extra_mask=valid[:, None])
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, wide], dtype=torch.float32)
        for tile_n in hl.tile(len_k):
            scores = hl.dot(query, k[start_k + tile_n.index, 0, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[start_k + tile_n.index, 0, :], acc=acc * shrink[:, None])
            highest = raised
        hl.store(out, [rows, head.begin, hl.arange(wide)], acc / total[:, None], extra_mask=valid[:, None])
    return out


def absolute(q, k, v, offsets, longest):
    """The same with a loop over rows of the keys themselves, and masks that repeat the ends; no head shares keys."""
    dims = hl.specialize(q.size(2))
    out = torch.zeros_like(q)
    for seq, head, tile in hl.tile([offsets.size(0) - 1, q.size(1), longest], block_size=[1, 1, None]):
        b, h = seq.begin, head.begin
        begin, end = offsets[b], offsets[b + 1]
        inside = tile.index < (end - begin)
        query = hl.load(q, [begin + tile.index, h, hl.arange(dims)], extra_mask=inside[:, None])
        highest = hl.full([tile], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile], dtype=torch.float32)
        acc = hl.zeros([tile, dims], dtype=torch.float32)
        for keys in hl.tile(begin, end):
            seen = (keys.index[None, :] <= begin + tile.index[:, None]) & inside[:, None]
            scores = torch.where(seen, hl.dot(query, k[keys, h, :].T) * dims**-0.5, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[keys, h, :], acc=acc * shrink[:, None])
            highest = raised
        hl.store(out, [begin + tile.index, h, hl.arange(dims)], acc / total[:, None], extra_mask=inside[:, None])
    return out


def slots(q, k, v, slot, lengths):
    """One query per head and sequence, whose keys are in a slot of the caches `[P, N, G, D]` and end with its length."""
    dims = hl.specialize(q.size(2))
    shared = q.size(1) // k.size(2)
    queries, out = q.view([q.size(0), k.size(2), shared, dims]), torch.empty_like(q)
    of_groups = out.view([q.size(0), k.size(2), shared, dims])
    for tile_b, tile_g, rows in hl.tile([q.size(0), k.size(2), shared], block_size=[1, 1, None]):
        b, g = tile_b.begin, tile_g.begin
        own = slot[b]
        query = queries[b, g, rows, :]
        highest = hl.full([rows], -1e30, dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, dims], dtype=torch.float32)
        for tile_n in hl.tile(0, lengths[b]):
            scores = hl.dot(query, k[own, tile_n, g, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[own, tile_n, g, :], acc=acc * shrink[:, None])
            highest = raised
        of_groups[b, g, rows, :] = acc / total[:, None]
    return out


def paged(q, k, v, table, lengths, page: hl.constexpr):
    """Queries `[B, G, R, D]` that share keys `[P * page, G, D]`, in the pages that ``table`` has for a sequence."""
    dims = hl.specialize(q.size(3))
    batch, groups, shared = hl.specialize((q.size(0), q.size(1), q.size(2)))
    out = torch.empty_like(q)
    for tile_b, tile_g, rows in hl.tile([batch, groups, shared], block_size=[1, 1, None]):
        b, g = tile_b.begin, tile_g.begin
        query = q[b, g, rows, :]
        highest = hl.full([rows], -1e30, dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, dims], dtype=torch.float32)
        for tile in hl.tile(lengths[b]):
            at = tile.index % page + table[b, tile.index // page] * page
            scores = hl.dot(query, k[at, g, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[at, g, :], acc=acc * shrink[:, None])
            highest = raised
        out[b, g, rows, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
    return out


def pooled(q, k, v, table, lengths, page: hl.constexpr):
    """The same of keys `[P, page, G, D]`: a tile of keys is a page."""
    dims = hl.specialize(q.size(3))
    batch, groups, shared = hl.specialize((q.size(0), q.size(1), q.size(2)))
    out = torch.empty_like(q)
    for tile_b, tile_g, rows in hl.tile([batch, groups, shared], block_size=[1, 1, None]):
        b, g = tile_b.begin, tile_g.begin
        query = q[b, g, rows, :]
        highest = hl.full([rows], -1e30, dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, dims], dtype=torch.float32)
        for tile in hl.tile(0, lengths[b], block_size=page):
            own, at = table[b, tile.id], tile.index - tile.begin
            scores = hl.dot(query, k[own, at, g, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[own, at, g, :], acc=acc * shrink[:, None])
            highest = raised
        out[b, g, rows, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
    return out


def listed(q, k, v, blocks, counts, size: hl.constexpr):
    """Queries `[H, M, D]` whose tiles see the blocks of keys in a list `[H, M / size, N / size]`, and as many as ``counts``."""
    heads, m, _ = q.size()
    dims, out = hl.specialize(q.size(2)), torch.empty_like(q)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, size]):
        head, number = tile_h.begin, tile_m.id
        query = q[head, tile_m, :]
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(0, counts[head, number] * size):
            rows = blocks[head, number, tile_n.index // size] * size + tile_n.index % size
            scores = hl.dot(query, k[head, rows, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[head, rows, :], acc=acc * shrink[:, None])
            highest = raised
        out[head, tile_m, :] = acc / total[:, None]
    return out


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sequences:
    """Lengths of sequences of queries and keys, one after another, with some rows of no sequence at the end."""

    queries: Sequence[int]
    keys: Sequence[int] | None = None
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (64, 64)
    causal: bool = True
    window: int | None = None
    softcap: float = 0.0
    has_sinks: bool = False
    rest: int = 5
    numbers: torch.dtype = torch.int32


SEQUENCES = {
    "causal": Sequences(queries=(100, 1, 0, 333)),
    "window, softcap, other keys": Sequences(
        queries=(100, 7, 0, 133), keys=(50, 300, 20, 133), window=64, softcap=20.0, dims=(64, 128)
    ),
    "sinks, int64": Sequences(queries=(40, 150), keys=(0, 130), causal=False, has_sinks=True, numbers=torch.int64),
}


def arguments_of(case: Sequences, device: str = "cpu", seed: int = 0) -> tuple[Any, ...]:
    """Return the arguments of ``of_rows``. Keys of no sequence are not numbers."""
    torch.manual_seed(seed)
    lengths = case.queries, case.keys or case.queries
    offsets, k_offsets = (torch.tensor([0, *each]).cumsum(0).to(case.numbers).to(device) for each in lengths)
    (heads, groups), (dims, wide) = case.heads, case.dims
    m, n = int(offsets[-1]) + case.rest, int(k_offsets[-1]) + case.rest
    shapes = (m, heads, dims), (n, groups, dims), (n, groups, wide)
    q, k, v = (torch.randn(shape, device=device).add(0.2).bfloat16() for shape in shapes)
    for tensor in (k, v):
        tensor[n - case.rest :] = float("nan")
    sinks = torch.randn(heads, device=device) if case.has_sinks else None
    begins, ends = varlen._ranges(offsets, k_offsets, m, case.window or varlen.ALL, case.causal)
    return q, k, v, sinks, begins, ends, heads // groups, dims**-0.5, case.softcap


def given_of(case: Sequences, device: str = "cpu", seed: int = 0) -> tuple[tuple[Any, ...], torch.Tensor, torch.Tensor]:
    """Return the arguments of ``of_rows``, its result in fp64, and the logarithms of its sums to base 2."""
    q, k, v, sinks, begins, ends, shared, scale, softcap = given = arguments_of(case, device, seed)
    wide_k, wide_v = (torch.nan_to_num(x.double(), nan=0.0).repeat_interleave(shared, 1) for x in (k, v))
    scores = torch.einsum("thd,shd->hts", q.double(), wide_k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    key = torch.arange(k.size(0), device=device)
    scores = scores.masked_fill((key < begins[:, None]) | (key >= ends[:, None]), float("-inf"))
    highest = scores.amax(-1, keepdim=True).clamp(min=-1e30)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1)
    if sinks is not None:
        total = total + torch.exp(sinks.double()[:, None] - highest[..., 0])
    out = torch.einsum("hts,shd->thd", weights / total[..., None], wide_v)
    out = torch.where((ends > begins)[:, None, None], out, 0.0)
    logsum = torch.where(ends > begins, (highest[..., 0] + total.log()) / math.log(2), float("inf"))
    return given, out, logsum


def of_documents(q, k, v, first, last):
    at = torch.arange(q.size(1), device=q.device)
    key = torch.arange(k.size(1), device=q.device)
    seen = (key >= first[:, None]) & (key <= last[:, None]) & (key <= at[:, None])
    scores = (q.double() @ k.double().mT * q.size(2) ** -0.5).masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, -1) @ v.double()


def of_prefixes(q, k, v, ends):
    seen = torch.arange(k.size(2), device=q.device) < ends[:, None, :, None]
    scores = (q.double() @ k.double().mT * q.size(3) ** -0.5).masked_fill(~seen, -1e30)
    return torch.softmax(scores, -1) * seen @ v.double()


def of_packed(q, k, v, cu_q, cu_k, max_q, shared, causal):
    """Return the result of ``packed`` in fp64, and the logarithms of its sums to base 2."""
    out = q.new_zeros([*q.shape[:2], v.size(2)], dtype=torch.float64)
    lse = torch.zeros([q.size(1), q.size(0)], dtype=torch.float64, device=q.device)
    for b in range(len(cu_q) - 1):
        queries, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        one = q[queries].double().transpose(0, 1)
        of_keys, values = (x[keys].double().repeat_interleave(shared, 1).transpose(0, 1) for x in (k, v))
        scores = one @ of_keys.mT * q.size(2) ** -0.5
        if causal:
            m, n = scores.shape[1:]
            scores = scores.masked_fill(torch.ones(m, n, device=q.device).tril(n - m) == 0, float("-inf"))
        out[queries] = (torch.softmax(scores, -1) @ values).transpose(0, 1)
        lse[:, queries] = torch.logsumexp(scores, -1) / math.log(2)
    return out, lse


def packed_of(lengths, other, heads, shared, dims, wide, causal, device="cpu", numbers=torch.int32):
    """Return arguments of ``packed`` for sequences with ``lengths`` queries and ``other`` keys. Rows of none are not numbers."""
    cu_q, cu_k = (torch.tensor([3, *each]).cumsum(0).to(numbers).to(device) for each in (lengths, other))
    shapes = (int(cu_q[-1]) + 4, heads, dims), (int(cu_k[-1]) + 7, heads // shared, dims)
    q, k, v = (torch.randn(shape, device=device).add(0.2).bfloat16() for shape in (*shapes, (*shapes[1][:2], wide)))
    for tensor, at in ((q, cu_q), (k, cu_k), (v, cu_k)):
        tensor[: int(at[0])], tensor[int(at[-1]) :] = float("nan"), float("nan")
    return q, k, v, cu_q, cu_k, max(lengths), shared, causal


def of_slots(q, k, v, slot, lengths):
    own = slot.long()
    shared = q.size(1) // k.size(2)
    keys, values = (torch.nan_to_num(x.double()[own], nan=0.0).repeat_interleave(shared, 2) for x in (k, v))
    scores = torch.einsum("bhd,bnhd->bhn", q.double(), keys) * q.size(2) ** -0.5
    hidden = torch.arange(k.size(1), device=q.device) >= lengths[:, None, None]
    return torch.einsum("bhn,bnhd->bhd", torch.softmax(scores.masked_fill(hidden, float("-inf")), -1), values)


def paged_of(lengths, page, most, groups, shared, dims, device="cpu", numbers=torch.int32):
    """Return arguments of ``paged``. Pages that no sequence reaches are not numbers, and have no place in the table."""
    counts = [-(-length // page) for length in lengths]
    pages = sum(counts) + 3
    order = torch.randperm(pages)[: sum(counts)]
    table = torch.full([len(lengths), most], -1, dtype=numbers)
    for at, (count, own) in enumerate(zip(counts, order.split(counts), strict=True)):
        table[at, :count] = own.to(numbers)
    k, v = (torch.full([pages * page, groups, dims], float("nan")) for _ in range(2))
    for b, length in enumerate(lengths):
        rows = table[b].long()[torch.arange(length) // page] * page + torch.arange(length) % page
        k[rows], v[rows] = (torch.randn(length, groups, dims) + 0.2 for _ in range(2))
    q = torch.randn(len(lengths), groups, shared, dims) + 0.2
    given = (*(x.bfloat16() for x in (q, k, v)), table, torch.tensor(lengths, dtype=numbers))
    return (*(x.to(device) for x in given), page)


def of_paged(q, k, v, table, lengths, page):
    """Return the result of ``paged`` in fp64."""
    out = torch.zeros_like(q, dtype=torch.float64)
    for b, length in enumerate(lengths.tolist()):
        at = torch.arange(length, device=q.device)
        rows = table[b].long()[at // page] * page + at % page
        scores = torch.einsum("grd,ngd->grn", q[b].double(), k[rows].double()) * q.size(3) ** -0.5
        out[b] = torch.einsum("grn,ngd->grd", torch.softmax(scores, -1), v[rows].double())
    return out


def listed_of(heads, m, n, dims, size, device="cpu"):
    """Return arguments of ``listed``, and the blocks that each tile sees. Others in the list are no blocks."""
    q, k, v = (torch.randn(heads, rows, dims).add(0.2).bfloat16() for rows in (m, n, n))
    tiles, most = m // size, n // size
    order = torch.argsort(torch.rand(heads, tiles, most), -1)
    counts = torch.randint(1, most + 1, (heads, tiles))
    kept = torch.arange(most) < counts[..., None]
    seen = torch.zeros(heads, tiles, most, dtype=torch.bool).scatter(-1, order, kept)
    blocks = torch.where(kept, order, -7).int()
    return (*(x.to(device) for x in (q, k, v, blocks, counts.int())), size), seen.to(device)


def of_listed(q, k, v, seen, size):
    """Return the result of ``listed`` in fp64."""
    wide = seen.repeat_interleave(size, 1).repeat_interleave(size, 2)
    scores = q.double() @ k.double().mT * q.size(2) ** -0.5
    return torch.softmax(scores.masked_fill(~wide, float("-inf")), -1) @ v.double()
