"""Causal convolution of each channel along the sequence, with bias and SiLU, as before the scan of a state-space layer.

A tile of positions loads its inputs once for each tap, shifted by one. Masked loads give the zeros before the sequence.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def causal_conv1d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, silu: bool) -> torch.Tensor:
    """Compute the convolution of `x[B, S, C]` along S with `weight[C, W]` and add `bias[C]`; the last tap is at the position itself."""
    batch, length, channels = x.size()
    taps = hl.specialize(weight.size(1))
    out = torch.empty_like(x)
    for tile_b, tile_s, tile_c in hl.tile([batch, length, channels], block_size=[1, None, None]):
        acc = hl.zeros([tile_s, tile_c], dtype=torch.float32) + bias[tile_c].to(torch.float32)[None, :]
        for tap in hl.static_range(taps):
            at = tile_s.index + (tap - taps + 1)
            value = hl.load(x, [tile_b.begin, at, tile_c], extra_mask=(at >= 0)[:, None])
            acc = acc + value.to(torch.float32) * weight[tile_c, tap].to(torch.float32)[None, :]
        out[tile_b.begin, tile_s, tile_c] = acc * torch.sigmoid(acc) if silu else acc
    return out


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, silu: bool) -> torch.Tensor:
    length, taps = x.size(1), weight.size(1)
    padded = torch.nn.functional.pad(x, (0, 0, taps - 1, 0))
    out = sum((padded[:, tap : tap + length] * weight[:, tap] for tap in range(taps)), start=bias.expand_as(x))
    return torch.nn.functional.silu(out) if silu else out


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([2, 37, 45], device=DEVICE) + 0.5
    weight, bias = torch.randn([45, 4], device=DEVICE), torch.randn([45], device=DEVICE)
    return [
        ("four taps, fp32", causal_conv1d, (x, weight, bias, True)),
        (
            "three taps, bf16",
            causal_conv1d,
            (x.bfloat16(), weight[:, 1:].contiguous().bfloat16(), bias.bfloat16(), True),
        ),
        ("shorter than the taps, fp16", causal_conv1d, (x[:, :2].half(), weight.half(), bias.half(), False)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
