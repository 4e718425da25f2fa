"""Elementwise exponential of a tensor of any rank.

Device code is ordinary PyTorch: half types are computed in fp32 and rounded once, as in eager mode.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def exp(x: torch.Tensor) -> torch.Tensor:
    """Compute `torch.exp(x)`, with the strides of `x`."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.exp(x[tile])
    return out


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([77, 130], device=DEVICE) + 1
    return [
        ("fp32", exp, (x,)),
        ("fp16 transposed", exp, (x.half().t(),)),
        ("bf16 3-d", exp, (x.bfloat16().view(7, 11, 130),)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
