"""Attention with other scores, its gradients and its statistics."""

from __future__ import annotations

import math

import torch

import helion
import helion.language as hl

from .cell import BF16, FP32, Arguments, Cells, below, heads, high, normal, scores_reference

CELLS = Cells()


@helion.kernel
def alibi_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Causal attention of `[B, H, T, D]` with a linear bias of distance, of one slope for each head."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        slope = slopes[hi]
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        queries = q[bi, hi, tile_m, :]
        for tile_n in hl.tile(tile_m.end):
            distance = tile_n.index[None, :] - tile_m.index[:, None]
            s = hl.dot(queries, k[bi, hi, tile_n, :].T) * scale + slope * distance.to(torch.float32)
            s = torch.where(distance <= 0, s, float("-inf"))
            new = torch.maximum(top, torch.amax(s, -1))
            e = torch.exp(s - new[:, None])
            old = torch.exp(top - new)
            total = total * old + e.sum(-1)
            acc = hl.dot(e.to(v.dtype), v[bi, hi, tile_n, :], acc=acc * old[:, None])
            top = new
        out[bi, hi, tile_m, :] = (acc / total[:, None]).to(q.dtype)
    return out


def alibi_causal_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    t = q.size(2)
    at = torch.arange(t, device=q.device)
    return scores_reference(q, k, v, slopes[:, None, None] * (at - at[:, None]), below(t, q.device))


CELLS.add(
    alibi_causal,
    lambda device, small: (
        *heads(device, small),
        2.0 ** -torch.arange(1, (3 if small else 16) + 1, device=device).float(),
    ),
    alibi_causal_torch,
)


@helion.kernel
def relative_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Attention with a bias `table[h, i - j + T - 1]` of relative places, after a softcap of 30."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        queries = q[bi, hi, tile_m, :]
        for tile_n in hl.tile(t):
            at = tile_m.index[:, None] - tile_n.index[None, :] + (t - 1)
            s = hl.dot(queries, k[bi, hi, tile_n, :].T) * scale
            s = 30.0 * torch.tanh(s / 30.0) + table[hi, at].to(torch.float32)
            new = torch.maximum(top, torch.amax(s, -1))
            e = torch.exp(s - new[:, None])
            old = torch.exp(top - new)
            total = total * old + e.sum(-1)
            acc = hl.dot(e.to(v.dtype), v[bi, hi, tile_n, :], acc=acc * old[:, None])
            top = new
        out[bi, hi, tile_m, :] = (acc / total[:, None]).to(q.dtype)
    return out


def relative_attention_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    t = q.size(2)
    at = torch.arange(t, device=q.device)
    hi = torch.promote_types(q.dtype, FP32)
    s = q.to(hi) @ k.to(hi).transpose(-1, -2) / math.sqrt(q.size(3))
    s = 30 * torch.tanh(s / 30) + table[:, at[:, None] - at + t - 1]
    return (torch.softmax(s, -1) @ v.to(hi)).to(q.dtype)


CELLS.add(
    relative_attention,
    lambda device, small: (
        *heads(device, small, shape=(4, 16, 1024, 64)),
        normal(device, *((3, 73) if small else (16, 2047)), dtype=BF16),
    ),
    relative_attention_torch,
)


@helion.kernel
def sigmoid_attention(q: torch.Tensor, kv: torch.Tensor, bias: float) -> torch.Tensor:
    """`sigmoid(q k / sqrt(d) + bias) v` with keys and values packed in `kv[B, T, H, 2, D]`."""
    b, t, h, d = q.size()
    n = kv.size(1)
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        queries = q[bi, tile_m, hi, :]
        for tile_n in hl.tile(n):
            s = torch.sigmoid(hl.dot(queries, kv[bi, tile_n, hi, 0, :].T) * scale + bias)
            acc = hl.dot(s.to(q.dtype), kv[bi, tile_n, hi, 1, :], acc=acc)
        out[bi, tile_m, hi, :] = acc.to(q.dtype)
    return out


def sigmoid_attention_torch(q: torch.Tensor, kv: torch.Tensor, bias: float) -> torch.Tensor:
    k, v = kv[:, :, :, 0].transpose(1, 2), kv[:, :, :, 1].transpose(1, 2)
    s = torch.sigmoid(high(q.transpose(1, 2) @ k.transpose(-1, -2)) / math.sqrt(q.size(3)) + bias)
    return (s.to(q.dtype) @ v).transpose(1, 2)


def make_sigmoid_attention(device: str, small: bool) -> Arguments:
    b, t, h, c, n = (2, 33, 2, 32, 47) if small else (8, 1024, 12, 64, 1024)
    return normal(device, b, t, h, c, dtype=BF16), normal(device, b, n, h, 2, c, dtype=BF16), -math.log(n)


CELLS.add(sigmoid_attention, make_sigmoid_attention, sigmoid_attention_torch)


@helion.kernel
def query_gradient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
) -> torch.Tensor:
    """Gradient of the queries of causal attention `[B, H, T, D]` from saved log-sum-exps and row sums `grad * out`."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        queries, go = q[bi, hi, tile_m, :], grad[bi, hi, tile_m, :]
        total, slope = lse[bi, hi, tile_m], delta[bi, hi, tile_m]
        for tile_n in hl.tile(tile_m.end):
            keys = k[bi, hi, tile_n, :]
            s = hl.dot(queries, keys.T) * scale
            p = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], torch.exp(s - total[:, None]), 0.0)
            ds = p * (hl.dot(go, v[bi, hi, tile_n, :].T) - slope[:, None]) * scale
            acc = hl.dot(ds.to(q.dtype), keys, acc=acc)
        out[bi, hi, tile_m, :] = acc.to(q.dtype)
    return out


def query_gradient_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
) -> torch.Tensor:
    s = high(q @ k.transpose(-1, -2)) / math.sqrt(q.size(3))
    p = torch.exp(s - lse[..., None]).masked_fill(~below(q.size(2), q.device), 0)
    ds = p * (high(grad @ v.transpose(-1, -2)) - delta[..., None]) / math.sqrt(q.size(3))
    return ds.to(q.dtype) @ k


def make_query_gradient(device: str, small: bool) -> Arguments:
    q, k, v, g = heads(device, small, 4, shape=(2, 16, 2048, 128))
    sc = (q.float() @ k.float().transpose(-1, -2) / math.sqrt(q.size(3))).masked_fill(
        ~below(q.size(2), device), -math.inf
    )
    out = torch.softmax(sc, -1) @ v.float()
    return q, k, v, g, torch.logsumexp(sc, -1), (g.float() * out).sum(-1)


CELLS.add(query_gradient, make_query_gradient, query_gradient_torch)


@helion.kernel
def mean_attention_map(q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Probabilities averaged over heads: `mean_h exp(q k / sqrt(d) - lse)` of `[B, H, T, D]`."""
    b, h, t, d = q.size()
    n = k.size(2)
    out = torch.empty([b, t, n], dtype=torch.float32, device=q.device)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_m, tile_n in hl.tile([b, t, n], block_size=[1, None, None]):
        bi = tile_b.begin
        total = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for hi in hl.grid(h):
            s = hl.dot(q[bi, hi, tile_m, :], k[bi, hi, tile_n, :].T) * scale
            total += torch.exp(s - lse[bi, hi, tile_m][:, None])
        out[bi, tile_m, tile_n] = total / h
    return out


def make_mean_map(device: str, small: bool) -> Arguments:
    q, k = heads(device, small, 2, shape=(4, 12, 1024, 64))
    return q, k, torch.logsumexp(q.float() @ k.float().transpose(-1, -2) / math.sqrt(q.size(3)), -1)


CELLS.add(
    mean_attention_map,
    make_mean_map,
    lambda q, k, lse: torch.exp(high(q @ k.transpose(-1, -2)) / math.sqrt(q.size(3)) - lse[..., None]).mean(1),
)


@helion.kernel
def attention_entropy(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of `[B, H, T, D]` to the first `lengths[b]` keys, and the entropy of each row's probabilities."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    entropy = torch.empty([b, h, t], dtype=torch.float32, device=q.device)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        moment = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        queries = q[bi, hi, tile_m, :]
        for tile_n in hl.tile(lengths[bi]):
            s = hl.dot(queries, k[bi, hi, tile_n, :].T) * scale
            new = torch.maximum(top, torch.amax(s, -1))
            e = torch.exp(s - new[:, None])
            old = torch.exp(top - new)
            total = total * old + e.sum(-1)
            moment = moment * old + (e * s).sum(-1)
            acc = hl.dot(e.to(v.dtype), v[bi, hi, tile_n, :], acc=acc * old[:, None])
            top = new
        out[bi, hi, tile_m, :] = (acc / total[:, None]).to(q.dtype)
        entropy[bi, hi, tile_m] = top + torch.log(total) - moment / total
    return out, entropy


def attention_entropy_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    n = k.size(2)
    keep = torch.arange(n, device=q.device) < lengths[:, None, None, None]
    s = (high(q @ k.transpose(-1, -2)) / math.sqrt(q.size(3))).masked_fill(~keep, -math.inf)
    p = torch.softmax(s, -1)
    lp = torch.log_softmax(s, -1).masked_fill(~keep, 0)
    return p.to(v.dtype) @ v, -(p * lp).sum(-1)


CELLS.add(
    attention_entropy,
    lambda device, small: (
        *heads(device, small, shape=(8, 16, 1024, 64), tiny=(2, 3, 37, 32)),
        torch.randint(20, 37 if small else 1024, [2 if small else 8], device=device),
    ),
    attention_entropy_torch,
)
