"""Full attention of a vision transformer, which reads queries, keys and values where one projection has stored them."""

from __future__ import annotations

import math
from typing import Any

import torch
from comparison import beside_torch, randn

import helion
import helion.language as hl


@helion.kernel()
def packed_attention(qkv: torch.Tensor) -> torch.Tensor:
    """Return attention `[B, S, H, D]` of `qkv[B, S, 3, H, D]`."""
    batch, m, _, heads, _ = qkv.size()
    dims = hl.specialize(qkv.size(4))
    out = torch.empty([batch, m, heads, dims], dtype=qkv.dtype, device=qkv.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        query = qkv[b.begin, tile_m, 0, h.begin, :]
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(m):
            scores = hl.dot(query, qkv[b.begin, tile_n, 1, h.begin, :].T) * (1 / math.sqrt(dims))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(qkv.dtype), qkv[b.begin, tile_n, 2, h.begin, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, tile_m, h.begin, :] = acc / total[:, None]
    return out


def reference(qkv: torch.Tensor) -> torch.Tensor:
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    return [(packed_attention, (randn(2, 197, 3, 2, 64),))]


def main() -> None:
    for kernel, args in cases():
        beside_torch(kernel, reference, args)


if __name__ == "__main__":
    main()
