"""Attention whose scores pass through a user's function.

The function is traced into the kernel, as an epilogue is. It gets the scores of a tile and the indices of batch,
head, query and key. It may capture tensors, here a slope per head. Returning minus infinity masks a key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases

ScoreMod = Callable[[torch.Tensor, Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]


def unchanged(score: torch.Tensor, b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return score


@helion.kernel()
def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: ScoreMod = unchanged
) -> torch.Tensor:
    """Compute `softmax(score_mod(query @ key.T / sqrt(D), b, h, q, k)) @ value`; a fully masked query gives 0.

    `query[B, H, M, D]`, `key[B, G, N, D]` and `value[B, G, N, D]` with H a multiple of G: H / G heads share keys.
    """
    batch, heads, m, _ = query.size()
    groups, n = key.size(1), key.size(2)
    head_dim = hl.specialize(query.size(3))
    assert key.size() == value.size(), "key and value must have the same shape"
    assert heads % groups == 0, f"{heads} heads do not share {groups} groups of keys evenly"
    out = torch.empty([batch, heads, m, head_dim], dtype=query.dtype, device=query.device)
    scale = 1 / math.sqrt(head_dim)
    for tile_b, tile_h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        b, h = tile_b.begin, tile_h.begin
        group = h // (heads // groups)
        # Finite, so that a tile without a visible key does not subtract infinity from infinity.
        highest = hl.full([tile_m], -1e30, dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, head_dim], dtype=torch.float32)
        queries = query[b, h, tile_m, :]
        for tile_n in hl.tile(n):
            scores = hl.dot(queries, key[b, group, tile_n, :].T) * scale
            scores = score_mod(scores, b, h, tile_m.index[:, None], tile_n.index[None, :])
            raised = torch.maximum(highest, torch.amax(scores, dim=-1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + torch.sum(weights, dim=-1)
            values = value[b, group, tile_n, :]
            acc = hl.dot(weights.to(values.dtype), values, acc=acc * shrink[:, None])
            highest = raised
        out[b, h, tile_m, :] = acc / torch.where(total == 0, 1.0, total)[:, None]
    return out


def causal(score: torch.Tensor, b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.where(q >= k, score, float("-inf"))


def softcap(score: torch.Tensor, b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return 5 * torch.tanh(score / 5)


def sliding_alibi(slopes: torch.Tensor, window: int) -> ScoreMod:
    """Subtract `slopes[h]` per position of distance, and mask keys `window` or more positions back."""

    def modify(score: torch.Tensor, b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        visible = (q - k < window) & (k <= q)
        return torch.where(visible, score - slopes[h] * (q - k), float("-inf"))

    return modify


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: ScoreMod = unchanged
) -> torch.Tensor:
    share = query.size(1) // key.size(1)
    key, value = key.repeat_interleave(share, dim=1), value.repeat_interleave(share, dim=1)
    scores = query @ key.transpose(2, 3) / math.sqrt(query.size(3))
    b, h, q, k = (
        torch.arange(size, device=query.device).view([-1 if d == dim else 1 for d in range(4)])
        for dim, size in enumerate(scores.size())
    )
    return torch.softmax(score_mod(scores, b, h, q, k), dim=-1).nan_to_num(nan=0.0) @ value


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    q = torch.randn([1, 4, 45, 32], device=DEVICE) + 0.5
    k = torch.randn([1, 2, 77, 32], device=DEVICE) + 0.25
    v = torch.randn([1, 2, 77, 32], device=DEVICE) + 1
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=DEVICE)
    half, brain = (tuple(x.to(dtype) for x in (q, k, v)) for dtype in (torch.float16, torch.bfloat16))
    return [
        ("fp32, unchanged", flex_attention, (q, k, v)),
        ("fp32, causal", flex_attention, (q, k, v, causal)),
        ("fp16, soft cap", flex_attention, (*half, softcap)),
        ("bf16, sliding window", flex_attention, (*brain, sliding_alibi(slopes, 20))),
        ("fp32, queries without keys", flex_attention, (q, k[:, :, :13], v[:, :, :13], sliding_alibi(slopes, 7))),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
