"""Matrix and vector in NVFP4: e2m1 numbers of 4 bits, an e4m3 scale for each 16 of them, and one fp32 scale.

The weights of a language model in this format take 4.5 bits each, and a matrix times a vector reads them once. Two
numbers of neighbouring columns share a byte, the first in its low half.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases

GROUP = 16
#: The numbers of e2m1 without sign, in the order of their codes.
NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@helion.kernel()
def nvfp4_gemv(weight: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Compute `weight @ x`, `[M]` in the dtype of `x[G * 16]`.

    `weight[M, G, 8]` is uint8, two e2m1 numbers in a byte, `scale[M, G]` e4m3, and `whole[1]` scales all in fp32.
    """
    m, groups = scale.size()
    half = hl.specialize(weight.size(2))
    assert weight.size(1) == groups and 2 * half == GROUP, "a scale belongs to 16 numbers of 8 bytes"
    pairs = x.view(groups, half, 2)
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_g in hl.tile(groups):
            low, high = hl.float4_e2m1fn_x2_to_float32(weight[tile_m, tile_g, :])
            first = pairs[tile_g, :, 0].to(torch.float32)
            second = pairs[tile_g, :, 1].to(torch.float32)
            sums = torch.sum(low * first[None, :, :] + high * second[None, :, :], dim=-1)
            acc = acc + torch.sum(sums * scale[tile_m, tile_g].to(torch.float32), dim=1)
        out[tile_m] = (acc * whole[0]).to(out.dtype)
    return out


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the NVFP4 form of `x[M, G * 16]`: packed `[M, G, 8]`, scales `[M, G]` and `[1]`."""
    groups = x.float().unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(-1)
    whole = (largest.amax() / (NUMBERS[-1] * torch.finfo(torch.float8_e4m3fn).max)).view(1)
    scale = (largest / NUMBERS[-1] / whole).to(torch.float8_e4m3fn)
    numbers = torch.tensor(NUMBERS, device=x.device)
    scaled = groups / (scale.float() * whole).clamp(min=1e-30)[..., None]
    codes = (scaled.abs()[..., None] - numbers).abs().argmin(-1) + 8 * (scaled < 0)
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8), scale, whole


def widened(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the numbers `[M, G * 16]` of packed ones, but for the scale of all."""
    codes = torch.stack([weight & 15, weight >> 4], dim=-1).flatten(2).long()
    numbers = torch.tensor([*NUMBERS, *(-number for number in NUMBERS)], dtype=scale.dtype, device=weight.device)
    return (numbers[codes] * scale[..., None]).flatten(1)


def reference(weight: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    return (widened(weight, scale) @ x) * whole


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    weight, scale, whole = quantise(torch.randn([37, 7 * GROUP], device=DEVICE) + 0.25)
    x = torch.randn([7 * GROUP], device=DEVICE) + 0.5
    return [
        ("bf16", nvfp4_gemv, (weight, scale, x.bfloat16(), whole)),
        ("fp16", nvfp4_gemv, (weight, scale, x.half(), whole)),
        ("fp32, one row", nvfp4_gemv, (weight[:1], scale[:1], x, whole)),
    ]


def main() -> None:
    run_cases(cases(), reference)
    weight = torch.randn([64, 256], device=DEVICE)
    packed, scale, whole = quantise(weight)
    error = (widened(packed, scale.float()) * whole - weight).norm() / weight.norm()
    print(f"{8 * (packed.nbytes + scale.nbytes) / weight.numel()} bits a weight, relative error {error:.3f}")


if __name__ == "__main__":
    main()
