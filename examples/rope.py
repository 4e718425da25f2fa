"""Rotary position embedding: rotate pairs of features by an angle that grows with the position.

In one layout a pair is a feature of the first half and one of the second, loaded by constant slices. In the other it
is two neighbours, separated by `hl.split` and joined by `hl.join`.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: hl.constexpr = False) -> torch.Tensor:
    """Rotate `x[B, S, H, D]` by the angles with `cos[S, D // 2]` and `sin[S, D // 2]`, in fp32."""
    batch, length, heads, features = x.size()
    half = hl.specialize(features // 2)
    assert features % 2 == 0, f"{features} features do not form pairs"
    assert cos.size(1) == half, f"cos has {cos.size(1)} columns for {half} pairs"
    assert sin.size(1) == half, f"sin has {sin.size(1)} columns for {half} pairs"
    out = torch.empty([batch, length, heads, features], dtype=x.dtype, device=x.device)
    x_pairs = x.view(batch, length, heads, half, 2)
    out_pairs = out.view(batch, length, heads, half, 2)
    for tile_b, tile_s, tile_h in hl.tile([batch, length, heads], block_size=[1, None, None]):
        b = tile_b.begin
        cosine = cos[tile_s, :][:, None, :].to(torch.float32)
        sine = sin[tile_s, :][:, None, :].to(torch.float32)
        if interleaved:
            first, second = hl.split(x_pairs[b, tile_s, tile_h, :, :].to(torch.float32))
            turned = hl.join(first * cosine - second * sine, second * cosine + first * sine)
            out_pairs[b, tile_s, tile_h, :, :] = turned
        else:
            first = x[b, tile_s, tile_h, :half].to(torch.float32)
            second = x[b, tile_s, tile_h, half:].to(torch.float32)
            out[b, tile_s, tile_h, :half] = first * cosine - second * sine
            out[b, tile_s, tile_h, half:] = second * cosine + first * sine
    return out


def reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    cos, sin = cos[:, None, :], sin[:, None, :]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([2, 33, 3, 24], device=DEVICE) + 0.5
    angles = torch.arange(33, device=DEVICE)[:, None] * 10000.0 ** -torch.linspace(0, 1, 12, device=DEVICE)
    cos, sin = angles.cos(), angles.sin()
    return [
        ("fp32", rope, (x, cos, sin)),
        ("bf16", rope, (x.bfloat16(), cos, sin)),
        ("fp16, one head", rope, (x[:, :, :1].half(), cos.half(), sin.half())),
        ("interleaved, fp32", rope, (x, cos, sin, True)),
        ("interleaved, bf16", rope, (x.bfloat16(), cos.bfloat16(), sin.bfloat16(), True)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
