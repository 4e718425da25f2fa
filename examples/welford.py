"""Layer normalization of long rows by Welford's online statistics.

The first loop merges each tile's mean and sum of squared deviations into the row's by Chan's pairwise update, which
cannot cancel. A second loop, with its own block size, normalizes.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def welford(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Normalize each row of `x[M, N]`, then scale by `weight[N]` and shift by `bias[N]`."""
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        mean = hl.zeros([tile_m], dtype=torch.float32)
        deviations = hl.zeros([tile_m], dtype=torch.float32)  # sum of squared distances from the mean
        for tile_n in hl.tile(n):
            # `begin` elements were merged before this tile; the last tile may be shorter than its block.
            width = tile_n.end - tile_n.begin
            values = x[tile_m, tile_n].to(torch.float32)
            tile_mean = torch.sum(values, dim=-1) / width
            centred = values - tile_mean[:, None]
            distance = tile_mean - mean
            mean = mean + distance * width / tile_n.end
            correction = distance * distance * tile_n.begin * width / tile_n.end
            deviations = deviations + torch.sum(centred * centred, dim=-1) + correction
        scale = torch.rsqrt(deviations / n + eps)
        for tile_n in hl.tile(n):
            normalised = (x[tile_m, tile_n].to(torch.float32) - mean[:, None]) * scale[:, None]
            out[tile_m, tile_n] = normalised * weight[tile_n].to(torch.float32) + bias[tile_n].to(torch.float32)
    return out


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, [x.size(-1)], weight, bias, eps)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([48, 1000], device=DEVICE) + 10
    weight = torch.randn([1000], device=DEVICE) + 1
    bias = torch.randn([1000], device=DEVICE)
    return [
        ("fp32", welford, (x, weight, bias)),
        ("bf16", welford, (x.bfloat16(), weight.bfloat16(), bias.bfloat16())),
        ("fp16, 77 columns", welford, (x[:, :77].half(), weight[:77].half(), bias[:77].half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
