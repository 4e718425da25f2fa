"""Matmul followed by layer normalization of its rows, for rows too wide for registers.

The first loop over N merges the statistics of each tile into the row's by Chan's update, which cannot cancel. It
stores its tile to the output as the difference from the first tile's mean, which keeps the significant digits of
numbers far from zero. The second loop normalizes.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def matmul_layernorm_tiled(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """Compute `layer_norm(x[M, K] @ y[K, N], weight[N], bias[N])`; mean and variance are those of the fp32 result."""
    m, k = x.size()
    assert k == y.size(0), f"cannot multiply: x has {k} columns, y has {y.size(0)} rows"
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m in hl.tile(m):
        shift = hl.zeros([tile_m], dtype=torch.float32)
        mean = hl.zeros([tile_m], dtype=torch.float32)
        deviations = hl.zeros([tile_m], dtype=torch.float32)  # sum of squared distances from the mean
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            # `begin` columns were merged before this tile; the last tile may be narrower than its block.
            width = tile_n.end - tile_n.begin
            tile_mean = torch.sum(acc, dim=-1) / width
            shift = torch.where(tile_n.begin == 0, tile_mean, shift)
            out[tile_m, tile_n] = acc - shift[:, None]
            centred = acc - tile_mean[:, None]
            distance = tile_mean - mean
            mean = mean + distance * width / tile_n.end
            correction = distance * distance * tile_n.begin * width / tile_n.end
            deviations = deviations + torch.sum(centred * centred, dim=-1) + correction
        scale = torch.rsqrt(deviations / n + eps)
        offset = (shift - mean) * scale
        for tile_n in hl.tile(n):
            normalised = out[tile_m, tile_n].to(torch.float32) * scale[:, None] + offset[:, None]
            out[tile_m, tile_n] = normalised * weight[tile_n].to(torch.float32) + bias[tile_n].to(torch.float32)
    return out


def reference(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x @ y, [y.size(1)], weight, bias, eps)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([77, 130], device=DEVICE) + 0.5
    y = torch.randn([130, 300], device=DEVICE) + 0.25
    weight = torch.randn([300], device=DEVICE) + 1
    bias = torch.randn([300], device=DEVICE)
    # Rows with a mean of about 30 times their standard deviation.
    far = (x.abs().bfloat16(), (y * 0.03 + 1).bfloat16(), weight.bfloat16(), bias.bfloat16())
    return [
        ("fp32", matmul_layernorm_tiled, (x, y, weight, bias)),
        ("bf16", matmul_layernorm_tiled, (x.bfloat16(), y.bfloat16(), weight.bfloat16(), bias.bfloat16())),
        ("bf16, far from zero", matmul_layernorm_tiled, far),
        ("fp16 with fp32 weights", matmul_layernorm_tiled, (x.half(), y.half(), weight, bias)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
