"""Matmuls of gathered rows: embeddings, experts and adapters."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, normal

CELLS = Cells()


@helion.kernel
def embed_project(ids: torch.Tensor, table: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """`table[ids] @ w` of `ids[T]`: a factorized embedding."""
    t = ids.size(0)
    k, n = w.size()
    out = torch.empty([t, n], dtype=table.dtype, device=table.device)
    for tile_t, tile_n in hl.tile([t, n]):
        row = ids[tile_t]
        acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, table[row, tile_k], w[tile_k, tile_n])
        out[tile_t, tile_n] = acc.to(table.dtype)
    return out


CELLS.add(
    embed_project,
    lambda device, small: (
        torch.randint(0, 101 if small else 50257, [37 if small else 16384], device=device),
        normal(device, *((101, 40) if small else (50257, 128)), dtype=BF16),
        normal(device, *((40, 65) if small else (128, 1024)), dtype=BF16),
    ),
    lambda i, t, w: t[i] @ w,
)


def make_groups(device: str, small: bool) -> Arguments:
    tokens, groups = (60, 5) if small else (8192, 16)
    picks = torch.rand([tokens, groups]).topk(2, -1).indices
    order = torch.argsort(picks.reshape(-1), stable=True)
    offsets = torch.zeros([groups + 1], dtype=torch.int64)
    offsets[1:] = torch.bincount(picks.reshape(-1), minlength=groups).cumsum(0)
    return (order // 2).to(device), offsets.to(device)


@helion.kernel
def routed_swiglu(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, tokens: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """`silu(x gate[e]) * (x up[e])` of the tokens of each of the top-2 experts, in the order of experts."""
    rows = tokens.size(0)
    e, k, n = gate.size()
    out = torch.empty([rows, n], dtype=x.dtype, device=x.device)
    for tile_e, tile_n in hl.tile([e, n], block_size=[1, None]):
        at = tile_e.begin
        for tile_m in hl.tile(offsets[at], offsets[at + 1]):
            row = tokens[tile_m]
            a = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            b = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                v = x[row, tile_k]
                a = torch.addmm(a, v, gate[at, tile_k, tile_n])
                b = torch.addmm(b, v, up[at, tile_k, tile_n])
            out[tile_m, tile_n] = (F.silu(a) * b).to(x.dtype)
    return out


def routed_swiglu_torch(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, tokens: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    parts = []
    for g in range(gate.size(0)):
        v = x[tokens[offsets[g] : offsets[g + 1]]]
        parts.append(F.silu(v @ gate[g]) * (v @ up[g]))
    return torch.cat(parts)


def make_routed(device: str, small: bool) -> Arguments:
    tokens, offsets = make_groups(device, small)
    n, k, h = (60, 40, 33) if small else (8192, 2048, 1024)
    e = offsets.size(0) - 1
    return (
        normal(device, n, k, dtype=BF16),
        normal(device, e, k, h, dtype=BF16, scale=0.03),
        normal(device, e, k, h, dtype=BF16, scale=0.03),
        tokens,
        offsets,
    )


CELLS.add(routed_swiglu, make_routed, routed_swiglu_torch)


@helion.kernel
def many_adapters(
    x: torch.Tensor, base: torch.Tensor, down: torch.Tensor, up: torch.Tensor, which: torch.Tensor
) -> torch.Tensor:
    """`x @ w + (x @ down[a]) @ up[a]` where each sequence of `x[B, T, K]` has an adapter `a = which[b]`."""
    b, t, k = x.size()
    _, _, r = down.size()
    n = base.size(1)
    r = hl.specialize(r)
    out = torch.empty([b, t, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_t, tile_n in hl.tile([b, t, n], block_size=[1, None, None]):
        bi = tile_b.begin
        a = which[bi]
        acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
        low = hl.zeros([tile_t, r], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[bi, tile_t, tile_k]
            acc = torch.addmm(acc, rows, base[tile_k, tile_n])
            low = torch.addmm(low, rows, down[a, tile_k, :])
        acc = hl.dot(low.to(x.dtype), up[a, :, tile_n], acc=acc)
        out[bi, tile_t, tile_n] = acc.to(x.dtype)
    return out


def many_adapters_torch(
    x: torch.Tensor, base: torch.Tensor, down: torch.Tensor, up: torch.Tensor, which: torch.Tensor
) -> torch.Tensor:
    return x @ base + (x @ down[which]) @ up[which]


def make_many_adapters(device: str, small: bool) -> Arguments:
    b, t, k, n, r, count = (3, 33, 48, 65, 16, 4) if small else (16, 512, 2048, 2048, 16, 8)
    return (
        normal(device, b, t, k, dtype=BF16),
        normal(device, k, n, dtype=BF16, scale=0.02),
        normal(device, count, k, r, dtype=BF16, scale=0.02),
        normal(device, count, r, n, dtype=BF16, scale=0.1),
        torch.randint(0, count, [b], device=device),
    )


CELLS.add(many_adapters, make_many_adapters, many_adapters_torch)
