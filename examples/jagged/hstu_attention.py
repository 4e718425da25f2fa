"""Causal attention of sequences of different lengths with SiLU in place of softmax, as in HSTU recommenders.

Scores need no normalizer, so that a tile of keys adds to the result and nothing is rescaled. Keys of the next sequence
are masked, and so are queries past the end: a tile of a sequence may reach into the rows of the next one.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def hstu_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, scale: float, longest: int
) -> torch.Tensor:
    """Compute `silu(q @ k.T * scale) @ v / longest` of each sequence of `[T, H, D]`; sequence b ends at `offsets[b + 1]`."""
    sequences, heads = offsets.size(0) - 1, q.size(1)
    depth, width = hl.specialize((q.size(2), v.size(2)))
    out = torch.empty([q.size(0), heads, width], dtype=q.dtype, device=q.device)
    for tile_b, tile_h, tile_m in hl.tile([sequences, heads, longest], block_size=[1, 1, None]):
        head, begin = tile_h.begin, offsets[tile_b.begin]
        length = offsets[tile_b.begin + 1] - begin
        row = begin + tile_m.index
        inside = tile_m.index < length
        query = hl.load(q, [row, head, hl.arange(depth)], extra_mask=inside[:, None])
        acc = hl.zeros([tile_m, width], dtype=torch.float32)
        for tile_n in hl.tile(torch.minimum(length, length * 0 + tile_m.end)):
            key = k[begin + tile_n.index, head, :]
            scores = hl.dot(query, key.T) * scale
            seen = tile_m.index[:, None] >= tile_n.index[None, :]
            weights = torch.where(seen, scores * torch.sigmoid(scores), 0.0) / longest
            acc = hl.dot(weights.to(v.dtype), v[begin + tile_n.index, head, :], acc=acc)
        hl.store(out, [row, head, hl.arange(width)], acc.to(out.dtype), extra_mask=inside[:, None])
    return out


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, scale: float, longest: int
) -> torch.Tensor:
    found = []
    for rows in torch.arange(len(q), device=q.device).split(offsets.diff().tolist()):
        queries, keys, values = (t[rows].transpose(0, 1) for t in (q, k, v))
        weights = torch.nn.functional.silu(queries @ keys.mT * scale).tril() / longest
        found.append((weights @ values).transpose(0, 1))
    return torch.cat(found)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    offsets = torch.tensor([0, 23, 23, 60, 61, 101], device=DEVICE)
    q, k, v = (torch.randn([101, 2, 32], device=DEVICE) + 0.2 for _ in range(3))
    half = q.bfloat16(), k.bfloat16(), v.bfloat16(), offsets.int(), 0.2, 40
    narrow = q.half(), k.half(), v[..., :24].contiguous().half(), offsets, 0.2, 44
    return [
        ("fp32", hstu_attention, (q, k, v, offsets, 0.2, 40)),
        ("bf16, int32", hstu_attention, half),
        ("narrow values, fp16", hstu_attention, narrow),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
