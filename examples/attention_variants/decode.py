"""One query for each sequence against its cache: `[B, S, G, D]` keys and values, of which each sequence has a length."""

from __future__ import annotations

import math
from typing import Any

import torch
from comparison import beside_torch, randn

import helion
import helion.language as hl
from helion.testing import DEVICE


@helion.kernel()
def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return attention of `q[B, H, D]` with `lengths[B]` keys of each sequence. Heads that share keys are rows of one tile."""
    batch, heads, _ = q.size()
    groups, dims = k.size(2), hl.specialize(q.size(2))
    shared = hl.specialize(heads // groups)
    queries = q.view(batch, groups, shared, dims)
    out = torch.empty_like(queries)
    for b, g, tile_h in hl.tile([batch, groups, shared], block_size=[1, 1, None]):
        query, length = queries[b.begin, g.begin, tile_h, :], lengths[b.begin]
        highest = hl.full([tile_h], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_h], dtype=torch.float32)
        acc = hl.zeros([tile_h, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(query, k[b.begin, tile_n, g.begin, :].T) * (1 / math.sqrt(dims))
            scores = torch.where((tile_n.index < length)[None, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, tile_n, g.begin, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, g.begin, tile_h, :] = acc / total[:, None]
    return out.view(q.size())


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    shared = q.size(1) // k.size(2)
    k, v = (x.transpose(1, 2).repeat_interleave(shared, 1) for x in (k, v))
    seen = (torch.arange(k.size(2), device=q.device) < lengths[:, None])[:, None, None, :]
    return torch.nn.functional.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=seen)[:, :, 0]


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    lengths = torch.tensor([300, 77], dtype=torch.int32, device=DEVICE)
    return [(decode, (randn(2, 8, 64, mean=0.0), randn(2, 300, 2, 64), randn(2, 300, 2, 64), lengths))]


def main() -> None:
    for kernel, args in cases():
        beside_torch(kernel, reference, args)


if __name__ == "__main__":
    main()
