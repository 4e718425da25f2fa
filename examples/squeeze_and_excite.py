"""Squeeze-and-excitation: scale the channels of an image by gates computed from their means.

One program holds all channels of an image. A loop over pixels finds the means, two small layers turn them into gates,
and a second loop scales. A vector times a small matrix is a broadcast multiplication and a sum.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def squeeze_and_excite(x: torch.Tensor, squeeze: torch.Tensor, excite: torch.Tensor) -> torch.Tensor:
    """Compute `x * sigmoid(relu(means @ squeeze) @ excite)`, gates per image and channel, with the means over pixels.

    `x[B, C, H, W]`, `squeeze[C, R]`, `excite[R, C]`; means and layers in fp32.
    """
    batch, channels, height, width = x.size()
    assert squeeze.size(0) == channels, f"squeeze has {squeeze.size(0)} rows, x {channels} channels"
    assert excite.size(1) == channels, f"excite has {excite.size(1)} columns, x {channels} channels"
    channels = hl.specialize(channels)
    pixels = height * width
    images = x.reshape(batch, channels, pixels)
    out = torch.empty_like(images)
    for image in hl.grid(batch):
        sums = hl.zeros([channels], dtype=torch.float32)
        for tile_p in hl.tile(pixels):
            sums += torch.sum(images[image, :, tile_p].to(torch.float32), dim=-1)
        hidden = torch.relu(torch.sum((sums / pixels)[:, None] * squeeze[:, :].to(torch.float32), dim=0))
        gates = torch.sigmoid(torch.sum(hidden[:, None] * excite[:, :].to(torch.float32), dim=0))
        for tile_p in hl.tile(pixels):
            out[image, :, tile_p] = images[image, :, tile_p].to(torch.float32) * gates[:, None]
    return out.view(batch, channels, height, width)


def reference(x: torch.Tensor, squeeze: torch.Tensor, excite: torch.Tensor) -> torch.Tensor:
    gates = torch.sigmoid(torch.relu(x.mean((2, 3)) @ squeeze) @ excite)
    return x * gates[:, :, None, None]


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([3, 24, 9, 7], device=DEVICE) + 0.5
    squeeze = torch.randn([24, 6], device=DEVICE)
    excite = torch.randn([6, 24], device=DEVICE)
    return [
        ("fp32", squeeze_and_excite, (x, squeeze, excite)),
        ("bf16, fp32 weights", squeeze_and_excite, (x.bfloat16(), squeeze, excite)),
        ("fp16, 20 channels", squeeze_and_excite, (x[:, :20].half(), squeeze[:20].half(), excite[:, :20].half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
