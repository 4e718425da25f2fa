"""Softmax of attention scores that are scaled and masked when they are loaded.

One mask serves all heads. Masked scores are replaced by a large negative number, not by minus infinity, so that a
fully masked row is uniform and not NaN.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def scaled_masked_softmax(
    scores: torch.Tensor, masked: torch.Tensor, scale: float = 1.0, fill: float = -10000.0
) -> torch.Tensor:
    """Compute the softmax over the last dimension of `scale * scores[H, M, N]`, with `fill` where boolean `masked[M,
    N]` is set."""
    heads, m, n = scores.size()
    assert masked.size(0) == m and masked.size(1) == n, f"masked must be {m} by {n}"
    out = torch.empty_like(scores)
    for tile_h, tile_m in hl.tile([heads, m]):
        scaled = scores[tile_h, tile_m, :].to(torch.float32) * scale
        row = torch.where(masked[tile_m, :][None, :, :], fill, scaled)
        raised = torch.exp(row - torch.amax(row, dim=-1, keepdim=True))
        out[tile_h, tile_m, :] = raised / torch.sum(raised, dim=-1, keepdim=True)
    return out


def reference(scores: torch.Tensor, masked: torch.Tensor, scale: float = 1.0, fill: float = -10000.0) -> torch.Tensor:
    return torch.softmax(torch.where(masked, fill, scores * scale), dim=-1)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    scores = torch.randn([3, 21, 301], device=DEVICE) * 2 + 1
    masked = torch.rand([21, 301], device=DEVICE) < 0.3
    masked[5] = True
    causal = torch.ones([21, 77], dtype=torch.bool, device=DEVICE).triu(1)
    return [
        ("fp32", scaled_masked_softmax, (scores, masked, 0.25)),
        ("bf16", scaled_masked_softmax, (scores.bfloat16(), masked, 0.5)),
        ("fp16, causal, 77 columns", scaled_masked_softmax, (scores[:, :, :77].half(), causal)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
