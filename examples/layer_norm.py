"""Layer normalization, forward, with weight and bias.

There are two dependent reductions over the same row, computed in fp32 for every input dtype. The mean is subtracted
before squaring, so rows far from zero lose no precision.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Normalize each row of `x[M, N]`, then scale by `weight[N]` and shift by `bias[N]`."""
    m, n = x.size()
    assert weight.size(0) == n, f"weight has {weight.size(0)} elements, rows have {n}"
    assert bias.size(0) == n, f"bias has {bias.size(0)} elements, rows have {n}"
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        centred = row - torch.mean(row, dim=-1, keepdim=True)
        variance = torch.mean(centred * centred, dim=-1, keepdim=True)
        normalised = centred * torch.rsqrt(variance + eps)
        out[tile, :] = normalised * weight[:].to(torch.float32) + bias[:].to(torch.float32)
    return out


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, [x.size(-1)], weight, bias, eps)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([48, 1000], device=DEVICE) + 10
    weight = torch.randn([1000], device=DEVICE) + 1
    bias = torch.randn([1000], device=DEVICE)
    return [
        ("fp32", layer_norm, (x, weight, bias)),
        ("fp32, 63 columns, eps 0.1", layer_norm, (x[:, :63], weight[:63], bias[:63], 0.1)),
        ("bf16", layer_norm, (x.bfloat16(), weight.bfloat16(), bias.bfloat16())),
        ("fp16 with fp32 weights", layer_norm, (x[:, :77].half(), weight[:77], bias[:77])),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
