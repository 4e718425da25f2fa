"""Decoding with latent keys: all heads share one row of the cache for each position, whose first dimensions are the values.

The other dimensions hold the rotary part of the keys. A model with 512 latent and 64 rotary dimensions has scores over 576.
The cute backend loads a block of rows once for both products.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from comparison import beside_torch, randn

import helion
import helion.language as hl


@helion.kernel()
def latent_decode(q: torch.Tensor, cache: torch.Tensor, wide: hl.constexpr) -> torch.Tensor:
    """Return attention of `q[B, H, D]` with rows `cache[B, S, D]`, whose first `wide` dimensions are the values."""
    batch, heads, dims = q.size()
    dims = hl.specialize(dims)
    out = torch.empty([batch, heads, wide], dtype=q.dtype, device=q.device)
    for b, tile_h in hl.tile([batch, heads], block_size=[1, None]):
        query, turned_query = q[b.begin, tile_h, :wide], q[b.begin, tile_h, wide:]
        highest = hl.full([tile_h], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_h], dtype=torch.float32)
        acc = hl.zeros([tile_h, wide], dtype=torch.float32)
        for tile_n in hl.tile(cache.size(1)):
            row = cache[b.begin, tile_n, :wide]
            scores = hl.dot(turned_query, cache[b.begin, tile_n, wide:].T, acc=hl.dot(query, row.T))
            scores = scores * (1 / math.sqrt(dims))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(row.dtype), row, acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, tile_h, :] = acc / total[:, None]
    return out


def reference(q: torch.Tensor, cache: torch.Tensor, wide: int) -> torch.Tensor:
    q, k = q[:, None], cache[:, None]
    return torch.nn.functional.scaled_dot_product_attention(q, k, k[..., :wide])[:, 0]


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    return [
        (latent_decode, (randn(2, 16, 160, mean=0.0), randn(2, 200, 160), 128)),
        (latent_decode, (randn(1, 20, 576, mean=0.0), randn(1, 100, 576), 512)),
    ]


def main() -> None:
    for kernel, args in cases():
        beside_torch(kernel, reference, args)


if __name__ == "__main__":
    main()
