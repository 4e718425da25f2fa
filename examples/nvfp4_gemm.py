"""Matmul of two matrices in NVFP4: e2m1 numbers of 4 bits, an e4m3 scale for each 16 of them along K.

A number times its scale has 6 bits of mantissa, so bf16 holds it exactly and the dot multiplies bf16 tiles on any GPU.
Two fp32 scales of whole matrices go to the accumulator.
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
def nvfp4_gemm(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    whole: torch.Tensor,
) -> torch.Tensor:
    """Compute bf16 `x @ weight.T`, `[M, N]`, of uint8 `x[M, K / 2]` and `weight[N, K / 2]`, two e2m1 numbers in a byte.

    `x_scale[M, K / 16]` and `weight_scale[N, K / 16]` are e4m3; fp32 `whole[1]` is the product of the scales of both
    matrices.
    """
    m, pairs = x.size()
    n = weight.size(0)
    assert weight.size(1) == pairs, f"x has {pairs} bytes along K, weight {weight.size(1)}"
    assert x_scale.size(1) * GROUP == weight_scale.size(1) * GROUP == 2 * pairs, "a scale belongs to 16 numbers"
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(pairs):
            group = tile_k.index // (GROUP // 2)
            left = scaled(x[tile_m, tile_k], x_scale[tile_m, group])
            right = scaled(weight[tile_n, tile_k], weight_scale[tile_n, group])
            for half in hl.static_range(2):  # even and odd columns: the sum over K may have any order
                acc = hl.dot(left[half], right[half].t(), acc=acc)
        out[tile_m, tile_n] = (acc * whole[0]).to(out.dtype)
    return out


def scaled(packed: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bf16 numbers of the low and of the high halves of a tile of bytes; a kernel calls this."""
    low, high = hl.float4_e2m1fn_x2_to_float32(packed)
    factor = scale.to(torch.float32)
    return (low * factor).to(torch.bfloat16), (high * factor).to(torch.bfloat16)


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the NVFP4 form of `x[M, K]`: packed `[M, K / 2]`, scales `[M, K / 16]` and `[1]`."""
    groups = x.float().unflatten(1, (-1, GROUP))
    largest = groups.abs().amax(-1)
    whole = (largest.amax() / (NUMBERS[-1] * torch.finfo(torch.float8_e4m3fn).max)).view(1)
    scale = (largest / NUMBERS[-1] / whole).to(torch.float8_e4m3fn)
    numbers = torch.tensor(NUMBERS, device=x.device)
    given = groups / (scale.float() * whole).clamp(min=1e-30)[..., None]
    codes = (given.abs()[..., None] - numbers).abs().argmin(-1) + 8 * (given < 0)
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8).flatten(1), scale, whole


def widened(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the numbers `[M, K]` of packed ones, but for the scale of the matrix."""
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).unflatten(1, (-1, GROUP)).long()
    numbers = torch.tensor([*NUMBERS, *(-number for number in NUMBERS)], dtype=scale.dtype, device=packed.device)
    return (numbers[codes] * scale[..., None]).flatten(1)


def reference(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    whole: torch.Tensor,
) -> torch.Tensor:
    return widened(x, x_scale) @ widened(weight, weight_scale).t() * whole


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)

    def made(m: int, n: int, groups: int) -> tuple[torch.Tensor, ...]:
        x, x_scale, x_whole = quantise(torch.randn([m, groups * GROUP], device=DEVICE) + 0.5)
        weight, weight_scale, weight_whole = quantise(torch.randn([n, groups * GROUP], device=DEVICE) + 0.25)
        return x, x_scale, weight, weight_scale, x_whole * weight_whole

    return [
        ("35 x 19 x 112", nvfp4_gemm, made(35, 19, 7)),
        ("one row", nvfp4_gemm, made(1, 40, 4)),
        ("one group", nvfp4_gemm, made(18, 33, 1)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
