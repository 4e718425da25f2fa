"""Attention in a sliding window, with a sink for each head: a learned score that takes part in the softmax, and has no value."""

from __future__ import annotations

import math
from typing import Any

import torch
from comparison import beside_torch, randn

import helion
import helion.language as hl


@helion.kernel()
def window_with_sinks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor, window: hl.constexpr
) -> torch.Tensor:
    """Return attention of `[B, H, M, D]` tensors, of each query with the `window` keys up to its own. `sinks[H]` are fp32."""
    batch, heads, m, _ = q.size()
    dims = hl.specialize(q.size(3))
    scale = 1 / math.sqrt(dims)
    out = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        query = q[b.begin, h.begin, tile_m, :]
        highest = hl.full([tile_m], -1e30, dtype=torch.float32)  # finite, for blocks of which a query sees no key
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(tile_m.end):
            distance = tile_m.index[:, None] - tile_n.index[None, :]
            scores = hl.dot(query, k[b.begin, h.begin, tile_n, :].T) * scale
            scores = torch.where((distance >= 0) & (distance < window), scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        total = total + torch.exp(sinks[h.begin] - highest)
        out[b.begin, h.begin, tile_m, :] = acc / total[:, None]
    return out


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor, window: int) -> torch.Tensor:
    at = torch.arange(q.size(2), device=q.device)
    distance = at[:, None] - at
    scores = (q @ k.mT / math.sqrt(q.size(3))).masked_fill((distance < 0) | (distance >= window), -math.inf)
    sink = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1] @ v


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    tensors = randn(2, 2, 150, 64, mean=0.0), randn(2, 2, 150, 64), randn(2, 2, 150, 64)
    return [(window_with_sinks, (*tensors, randn(2, dtype=torch.float32), 50))]


def main() -> None:
    for kernel, args in cases():
        beside_torch(kernel, reference, args)


if __name__ == "__main__":
    main()
