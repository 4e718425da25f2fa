"""Scaled dot-product attention in one pass over the keys, full or causal.

The scores of a tile of queries never reach memory. Each tile of keys raises the running row maximum, and the
accumulator is rescaled (online softmax). Exponentials are base 2, with the change of base folded into the scale of
the scores.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: hl.constexpr = False) -> torch.Tensor:
    """Compute `softmax(q @ k.T / sqrt(D)) @ v` of `q[..., M, D]` with `k[..., N, D]` and `v[..., N, D]`.

    With `causal`, which needs M == N, query i sees keys 0 to i. Tiles of keys that no query sees are skipped.
    """
    m = q.size(-2)
    n = k.size(-2)
    head_dim = hl.specialize(q.size(-1))
    assert k.size() == v.size(), "k and v must have the same shape"
    assert m == n or not causal, f"causal attention needs as many queries as keys, got {m} and {n}"
    queries = q.reshape([-1, m, head_dim])
    keys = k.reshape([-1, n, head_dim]).transpose(1, 2)
    values = v.reshape([-1, n, head_dim])
    out = torch.empty_like(queries)
    scale = math.log2(math.e) / math.sqrt(head_dim)
    for tile_b, tile_m in hl.tile([queries.size(0), m]):
        highest = hl.full([tile_b, tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_b, tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_b, tile_m, head_dim], dtype=torch.float32)
        query = queries[tile_b, tile_m, :]
        end = n
        if causal:
            end = tile_m.end
        for tile_n in hl.tile(end):
            scores = hl.dot(query, keys[tile_b, :, tile_n]) * scale
            if causal:
                seen = tile_m.index[:, None] >= tile_n.index[None, :]
                scores = torch.where(seen[None, :, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, dim=-1))
            weights = torch.exp2(scores - raised[:, :, None])
            shrink = torch.exp2(highest - raised)
            total = total * shrink + torch.sum(weights, dim=-1)
            tile_values = values[tile_b, tile_n, :]
            acc = hl.dot(weights.to(tile_values.dtype), tile_values, acc=acc * shrink[:, :, None])
            highest = raised
        out[tile_b, tile_m, :] = acc / total[:, :, None]
    return out.view(q.size())


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    q = torch.randn([1, 2, 45, 32], device=DEVICE) + 0.5
    k = torch.randn([1, 2, 77, 32], device=DEVICE) + 0.25
    v = torch.randn([1, 2, 77, 32], device=DEVICE) + 1
    return [
        ("fp32", attention, (q, k, v)),
        ("fp16", attention, (q.half(), k.half(), v.half())),
        ("bf16, causal", attention, (q.bfloat16(), k[:, :, :45].bfloat16(), v[:, :, :45].bfloat16(), True)),
        ("fp32, causal, 24 features", attention, (q[..., :24], k[:, :, :45, :24], v[:, :, :45, :24], True)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
