"""Root-mean-square normalization, forward, with a weight.

One reduction over the row, which is then read again for the output: the pattern of most normalization kernels.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Divide each row of `x[M, N]` by its root mean square and scale by `weight[N]`."""
    m, n = x.size()
    assert weight.size(0) == n, f"weight has {weight.size(0)} elements, rows have {n}"
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        scale = torch.rsqrt(torch.mean(row * row, dim=-1) + eps)
        out[tile, :] = row * scale[:, None] * weight[:].to(torch.float32)
    return out


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, [x.size(-1)], weight, eps)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([48, 1000], device=DEVICE) + 2
    weight = torch.randn([1000], device=DEVICE) + 1
    return [
        ("fp32", rms_norm, (x, weight)),
        ("fp16, 63 columns", rms_norm, (x[:, :63].half(), weight[:63].half())),
        ("bf16 with fp32 weight", rms_norm, (x.bfloat16(), weight)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
