"""Decoding with latent keys: all heads share one row of the cache for each position, whose first dimensions are the values.

The other dimensions hold the rotary part of the keys. A model with 512 latent and 64 rotary dimensions has scores over 576.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from comparison import beside_torch, randn

import helion
import helion.language as hl


@helion.kernel()
def latent_decode(
    latent_q: torch.Tensor, rotary_q: torch.Tensor, latent: torch.Tensor, rotary: torch.Tensor
) -> torch.Tensor:
    """Return attention of `latent_q[B, H, L]` and `rotary_q[B, H, R]` with a cache of `latent[B, S, L]` and `rotary[B, S, R]`.
    The result has the latent dimensions."""
    batch, heads, _ = latent_q.size()
    wide, turned = hl.specialize(latent_q.size(2)), hl.specialize(rotary_q.size(2))
    scale = 1 / math.sqrt(wide + turned)
    out = torch.empty_like(latent_q)
    for b, tile_h in hl.tile([batch, heads], block_size=[1, None]):
        query, turned_query = latent_q[b.begin, tile_h, :], rotary_q[b.begin, tile_h, :]
        highest = hl.full([tile_h], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_h], dtype=torch.float32)
        acc = hl.zeros([tile_h, wide], dtype=torch.float32)
        for tile_n in hl.tile(latent.size(1)):
            row = latent[b.begin, tile_n, :]
            scores = hl.dot(turned_query, rotary[b.begin, tile_n, :].T, acc=hl.dot(query, row.T)) * scale
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(row.dtype), row, acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, tile_h, :] = acc / total[:, None]
    return out


def reference(
    latent_q: torch.Tensor, rotary_q: torch.Tensor, latent: torch.Tensor, rotary: torch.Tensor
) -> torch.Tensor:
    q, k = torch.cat([latent_q, rotary_q], -1), torch.cat([latent, rotary], -1)
    q, k, v = q[:, None], k[:, None], latent[:, None]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    queries = randn(2, 16, 128, mean=0.0), randn(2, 16, 32, mean=0.0)
    return [(latent_decode, (*queries, randn(2, 200, 128), randn(2, 200, 32)))]


def main() -> None:
    for kernel, args in cases():
        beside_torch(kernel, reference, args)


if __name__ == "__main__":
    main()
