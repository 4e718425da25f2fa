"""Attention of fp8 queries, keys and values with one scale per head; both dots multiply e4m3 numbers.

Weights are at most 1, and e4m3 has 2 to 4 bits of mantissa from 2^-6 on. So the exponent of each weight is 8 larger:
weights from 2^-14 on keep their precision. The sum of the weights grows by the same factor.

Keys of `v` are contiguous in memory (`turned`): tensor cores of Hopper take fp8 operands in this order alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from comparison import beside_torch, randn

import helion
import helion.language as hl

#: Binary exponent that is added to weights: 2^8 is below the largest e4m3 number, 448.
RAISED_BY = 8


@helion.kernel()
def fp8_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    causal: hl.constexpr = False,
) -> torch.Tensor:
    """Compute bf16 `softmax(q @ k.T / sqrt(D)) @ v` of e4m3 `q[H, M, D]`, `k[H, N, D]` and `v[H, N, D]`.

    Each has fp32 scales `[H]`. With `causal`, which needs M == N, query i sees keys 0 to i.
    """
    heads, m, n = q.size(0), q.size(1), k.size(1)
    dims = hl.specialize(q.size(2))
    assert m == n or not causal, f"causal attention needs as many queries as keys, got {m} and {n}"
    out = torch.empty([heads, m, dims], dtype=torch.bfloat16, device=q.device)
    factor = math.log2(math.e) / math.sqrt(dims)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        head = tile_h.begin
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        scale = q_scale[head] * k_scale[head] * factor
        end = n
        if causal:
            end = tile_m.end
        for tile_n in hl.tile(end):
            scores = hl.dot(q[head, tile_m, :], k[head, tile_n, :].t(), out_dtype=torch.float32) * scale
            if causal:
                scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, dim=1))
            weights = torch.exp2(scores - raised[:, None] + RAISED_BY)
            shrink = torch.exp2(highest - raised)
            total = total * shrink + torch.sum(weights, dim=1)
            acc = hl.dot(weights.to(v.dtype), v[head, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[head, tile_m, :] = (acc / total[:, None] * v_scale[head]).to(out.dtype)
    return out


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `x[H, S, D]` in e4m3, and the scale of each head."""
    scale = x.abs().amax((1, 2)) / torch.finfo(torch.float8_e4m3fn).max
    return (x / scale[:, None, None]).to(torch.float8_e4m3fn), scale


def turned(x: torch.Tensor) -> torch.Tensor:
    """Return `x[H, S, D]` with contiguous elements along S."""
    return x.mT.contiguous().mT


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    causal: bool = False,
) -> torch.Tensor:
    q, k, v = (x * scale[:, None, None] for x, scale in ((q, q_scale), (k, k_scale), (v, v_scale)))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    (q, q_scale), (k, k_scale), (v, v_scale) = (quantise(randn(2, 320, 64, mean=at)) for at in (0.0, 0.25, 1.0))
    (few, few_scale), scales = quantise(randn(2, 45, 64, mean=0.0)), (k_scale, v_scale)
    return [
        (fp8_attention, (few, k, turned(v), few_scale, *scales)),
        (fp8_attention, (q, k, turned(v), q_scale, *scales)),
    ]


def main() -> None:
    for kernel, args in cases():
        beside_torch(kernel, reference, args)
    (x, scale), one = quantise(randn(1, 64, 64)), torch.ones(1)
    out = fp8_attention(x, x, x, scale, scale, one.to(scale), causal=True)
    assert torch.equal(out[0, 0], x[0, 0].to(out.dtype)), "the first query sees the first key alone"
    print("causal: the first row is the first value")


if __name__ == "__main__":
    main()
