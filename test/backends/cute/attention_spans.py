"""Attention whose keys are bounded by loaded integers, as users write it, with references in fp64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

import helion.language as hl
from helion.ops.kernels import varlen

of_rows = varlen.varlen_attention_kernel.fn


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
    begins, ends = varlen._ranges(offsets, k_offsets, m, case.causal, case.window)
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
