"""Attention to caches, and states that decoding carries on."""

from __future__ import annotations

import math

import torch

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, below, heads, high, normal, scores_reference

CELLS = Cells()


@helion.kernel
def tree_verify(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tree: torch.Tensor, prefix: int) -> torch.Tensor:
    """Attention of drafted tokens `q[B, H, T, D]` to a cached prefix and, by a mask `tree[T, T]`, to each other."""
    b, h, t, d = q.size()
    n = k.size(2)
    d = hl.specialize(d)
    groups = h // k.size(1)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        kv = hi // groups
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        queries = q[bi, hi, tile_m, :]
        for tile_n in hl.tile(n):
            inner = tile_n.index - prefix
            drafted = hl.load(tree, [tile_m, inner], extra_mask=(inner >= 0)[None, :])
            keep = (inner < 0)[None, :] | drafted
            s = torch.where(keep, hl.dot(queries, k[bi, kv, tile_n, :].T) * scale, float("-inf"))
            new = torch.maximum(top, torch.amax(s, -1))
            e = torch.exp(s - new[:, None])
            old = torch.exp(top - new)
            total = total * old + e.sum(-1)
            acc = hl.dot(e.to(v.dtype), v[bi, kv, tile_n, :], acc=acc * old[:, None])
            top = new
        out[bi, hi, tile_m, :] = (acc / total[:, None]).to(q.dtype)
    return out


def tree_verify_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tree: torch.Tensor, prefix: int
) -> torch.Tensor:
    g = q.size(1) // k.size(1)
    keep = torch.cat([torch.ones(q.size(2), prefix, dtype=torch.bool, device=q.device), tree], 1)
    return scores_reference(q, k.repeat_interleave(g, 1), v.repeat_interleave(g, 1), keep=keep)


def make_tree_verify(device: str, small: bool) -> Arguments:
    b, h, hk, t, p, c = (1, 4, 2, 9, 40, 32) if small else (4, 32, 8, 64, 4096, 128)
    tree = (torch.rand(t, t, device=device) < 0.3).tril() | torch.eye(t, dtype=torch.bool, device=device)
    return (
        normal(device, b, h, t, c, dtype=BF16),
        normal(device, b, hk, p + t, c, dtype=BF16),
        normal(device, b, hk, p + t, c, dtype=BF16),
        tree,
        p,
    )


CELLS.add(tree_verify, make_tree_verify, tree_verify_torch)


@helion.kernel
def paged_prefill(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, pages: torch.Tensor, start: int
) -> torch.Tensor:
    """Causal attention of a chunk of queries at `start` to a cache in pages of 16 tokens: `keys[P, 16, H, D]`."""
    b, t, h, d = q.size()
    size = hl.specialize(keys.size(1))
    d = hl.specialize(d)
    flat_keys, flat_values = keys.flatten(0, 1), values.flatten(0, 1)
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(d)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        queries = q[bi, tile_m, hi, :]
        for tile_n in hl.tile(start + tile_m.end):
            slot = pages[bi, tile_n.index // size] * size + tile_n.index % size
            ahead = tile_n.index[None, :] - (tile_m.index[:, None] + start)
            s = hl.dot(queries, flat_keys[slot, hi, :].T) * scale
            s = torch.where(ahead <= 0, s, float("-inf"))
            new = torch.maximum(top, torch.amax(s, -1))
            e = torch.exp(s - new[:, None])
            old = torch.exp(top - new)
            total = total * old + e.sum(-1)
            acc = hl.dot(e.to(values.dtype), flat_values[slot, hi, :], acc=acc * old[:, None])
            top = new
        out[bi, tile_m, hi, :] = (acc / total[:, None]).to(q.dtype)
    return out


def paged_prefill_torch(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, pages: torch.Tensor, start: int
) -> torch.Tensor:
    _b, t, _h, _d = q.size()
    k, v = (c[pages].flatten(1, 2)[:, : start + t].transpose(1, 2) for c in (keys, values))
    at = torch.arange(start + t, device=q.device)
    keep = at[None, :] <= (torch.arange(t, device=q.device) + start)[:, None]
    return scores_reference(q.transpose(1, 2), k, v, keep=keep).transpose(1, 2)


def make_paged_prefill(device: str, small: bool) -> Arguments:
    b, t, h, c, start = (2, 11, 2, 32, 37) if small else (8, 512, 16, 128, 3584)
    count = -(-(start + t) // 16)
    pages = torch.randperm(b * count, device=device).view(b, count)
    cache = tuple(normal(device, b * count, 16, h, c, dtype=BF16) for _ in range(2))
    return normal(device, b, t, h, c, dtype=BF16), *cache, pages, start


CELLS.add(paged_prefill, make_paged_prefill, paged_prefill_torch)


@helion.kernel
def merge_splits(parts: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Weighted mean of partial results `parts[S, B, H, D]` by their log-sum-exps `lse[S, B, H]`."""
    _s, b, h, d = parts.size()
    out = torch.empty([b, h, d], dtype=torch.bfloat16, device=parts.device)
    for tile_b, tile_h in hl.tile([b, h]):
        w = torch.softmax(lse[:, tile_b, tile_h], 0)
        out[tile_b, tile_h, :] = (parts[:, tile_b, tile_h, :] * w[:, :, :, None]).sum(0).to(torch.bfloat16)
    return out


CELLS.add(
    merge_splits,
    lambda device, small: (
        normal(device, *((5, 3, 7, 40) if small else (16, 64, 32, 128))),
        normal(device, *((5, 3, 7) if small else (16, 64, 32))),
    ),
    lambda p, lse: (p * torch.softmax(lse, 0)[..., None]).sum(0),
    lambda p, lse: (p * torch.softmax(lse, 0)[..., None]).sum(0).to(BF16),
)


@helion.kernel
def retention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """`sum_j<=i decay[h]^(i - j) (q_i k_j) v_j` of `[B, H, T, D]`, without a softmax."""
    b, h, t, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(v)
    for tile_b, tile_h, tile_m in hl.tile([b, h, t], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        log_decay = torch.log2(decay[hi])
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        queries = q[bi, hi, tile_m, :]
        for tile_n in hl.tile(tile_m.end):
            distance = tile_m.index[:, None] - tile_n.index[None, :]
            weight = torch.where(distance >= 0, torch.exp2(distance.to(torch.float32) * log_decay), 0.0)
            s = hl.dot(queries, k[bi, hi, tile_n, :].T) * weight
            acc = hl.dot(s.to(v.dtype), v[bi, hi, tile_n, :], acc=acc)
        out[bi, hi, tile_m, :] = acc.to(v.dtype)
    return out


def retention_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    at = torch.arange(q.size(2), device=q.device)
    distance = at[:, None] - at
    weight = torch.where(distance >= 0, decay[:, None, None] ** distance.clamp(min=0), 0.0)
    return (high(q @ k.transpose(-1, -2)) * weight).to(v.dtype) @ v


CELLS.add(
    retention,
    lambda device, small: (
        *heads(device, small),
        1 - 2.0 ** -(5 + torch.arange(3 if small else 16, device=device).float() / 4),
    ),
    retention_torch,
)


@helion.kernel
def delta_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of a gated delta rule: the state `[B, H, K, V]` decays, is corrected along `k`, and read by `q`."""
    b, h, _dk, dv = state.size()
    out = torch.empty([b, h, dv], dtype=q.dtype, device=q.device)
    new = torch.empty_like(state)
    for tile_b, tile_h, tile_v in hl.tile([b, h, dv], block_size=[1, 1, None]):
        bi, hi = tile_b.begin, tile_h.begin
        key, query = k[bi, hi, :].to(torch.float32), q[bi, hi, :].to(torch.float32)
        s = state[bi, hi, :, tile_v] * torch.exp(gate[bi, hi])
        seen = (s * key[:, None]).sum(0)
        delta = (v[bi, hi, tile_v].to(torch.float32) - seen) * beta[bi, hi]
        s = s + key[:, None] * delta[None, :]
        new[bi, hi, :, tile_v] = s
        out[bi, hi, tile_v] = (s * query[:, None]).sum(0).to(q.dtype)
    return out, new


def delta_decode_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    s = state * torch.exp(gate)[..., None, None]
    seen = torch.einsum("bhkv,bhk->bhv", s, k.to(s.dtype))
    s = s + k.to(s.dtype)[..., None] * ((v - seen) * beta[..., None])[:, :, None, :]
    return torch.einsum("bhkv,bhk->bhv", s, q.to(s.dtype)).to(q.dtype), s


def make_delta_decode(device: str, small: bool) -> Arguments:
    b, h, n = (2, 3, 40) if small else (32, 32, 128)
    return (
        *(normal(device, b, h, n, dtype=BF16, scale=0.1) for _ in range(3)),
        -torch.rand([b, h], device=device),
        torch.rand([b, h], device=device),
        normal(device, b, h, n, n),
    )


CELLS.add(delta_decode, make_delta_decode, delta_decode_torch)


@helion.kernel
def chunk_outputs(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, states: torch.Tensor, chunk: hl.constexpr
) -> torch.Tensor:
    """Causal linear attention: `q @ states[chunk]`, plus the causal products within the chunk."""
    b, h, t, d = q.size()
    e = v.size(3)
    d, e = hl.specialize(d), hl.specialize(e)
    out = torch.empty_like(v)
    for tile_b, tile_h, tile_t in hl.tile([b, h, t], block_size=[1, 1, chunk]):
        bi, hi = tile_b.begin, tile_h.begin
        queries, keys = q[bi, hi, tile_t, :], k[bi, hi, tile_t, :]
        s = hl.dot(queries, keys.T)
        at = tile_t.index
        s = torch.where(at[:, None] >= at[None, :], s, 0.0)
        acc = hl.dot(queries, states[bi, hi, tile_t.id, :, :])
        acc = hl.dot(s.to(v.dtype), v[bi, hi, tile_t, :], acc=acc)
        out[bi, hi, tile_t, :] = acc.to(v.dtype)
    return out


def chunk_outputs_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, states: torch.Tensor, chunk: int
) -> torch.Tensor:
    b, h, t, _d = q.size()
    q, k, v = (x.view(b, h, t // chunk, chunk, -1) for x in (q, k, v))
    s = (q @ k.transpose(-1, -2)).masked_fill(~below(chunk, q.device), 0)
    return (q @ states + s @ v).view(b, h, t, -1)


def make_chunk_outputs(device: str, small: bool) -> Arguments:
    b, h, t, c, n = (1, 2, 64, 32, 32) if small else (4, 16, 4096, 128, 64)
    return (
        *(normal(device, b, h, t, c, dtype=BF16, scale=0.2) for _ in range(3)),
        normal(device, b, h, t // n, c, c, dtype=BF16, scale=0.2),
        n,
    )


CELLS.add(chunk_outputs, make_chunk_outputs, chunk_outputs_torch)
