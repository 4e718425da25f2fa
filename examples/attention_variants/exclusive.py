"""Exclusive self-attention (XSA): causal attention without the component of its result along the position's own value."""

from __future__ import annotations

import math
from typing import Any

import torch
from comparison import beside_torch, randn

import helion
import helion.language as hl


@helion.kernel()
def exclusive_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return causal attention of `[B, H, M, D]` tensors, each row orthogonal to its row of `v`."""
    batch, heads, m, _ = q.size()
    dims = hl.specialize(q.size(3))
    scale = 1 / math.sqrt(dims)
    out = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        query = q[b.begin, h.begin, tile_m, :]
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(tile_m.end):
            scores = hl.dot(query, k[b.begin, h.begin, tile_n, :].T) * scale
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        acc = acc / total[:, None]
        own = v[b.begin, h.begin, tile_m, :].to(torch.float32)
        along = (acc * own).sum(-1) / torch.clamp((own * own).sum(-1), min=1e-12)
        out[b.begin, h.begin, tile_m, :] = acc - along[:, None] * own
    return out


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    result = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return result - (result * v).sum(-1, keepdim=True) / (v * v).sum(-1, keepdim=True) * v


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    return [(exclusive_attention, (randn(1, 2, 130, 64, mean=0.0), randn(1, 2, 130, 64), randn(1, 2, 130, 64)))]


def main() -> None:
    for kernel, args in cases():
        beside_torch(kernel, reference, args)


if __name__ == "__main__":
    main()
