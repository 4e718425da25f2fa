"""Causal attention whose scores are capped: `cap * tanh(score / cap)`."""

from __future__ import annotations

import math
from typing import Any

import torch
from comparison import beside_torch, randn

import helion
import helion.language as hl


@helion.kernel()
def capped_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: hl.constexpr) -> torch.Tensor:
    """Return causal attention of `[B, H, M, D]` tensors with capped scores."""
    batch, heads, m, _ = q.size()
    dims = hl.specialize(q.size(3))
    out = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        query = q[b.begin, h.begin, tile_m, :]
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(tile_m.end):
            scores = cap * torch.tanh(hl.dot(query, k[b.begin, h.begin, tile_n, :].T) * (dims**-0.5 / cap))
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = acc / total[:, None]
    return out


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: float) -> torch.Tensor:
    scores = cap * torch.tanh(q @ k.mT / math.sqrt(q.size(3)) / cap)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return torch.softmax(scores.masked_fill(~seen, -math.inf), -1) @ v


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    return [(capped_attention, (randn(1, 2, 130, 64, mean=0.0), randn(1, 2, 130, 64), randn(1, 2, 130, 64), 20.0))]


def main() -> None:
    for kernel, args in cases():
        beside_torch(kernel, reference, args)


if __name__ == "__main__":
    main()
