"""Addition of a residual and layer normalization of the sum, in one kernel.

There are two dependent reductions over a row that is also stored. The row stays in registers, or each pass over it
adds it again.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def fused_add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `layer_norm(x + residual, weight[N], bias[N])` and `x + residual` of `x[M, N]` and `residual[M, N]`."""
    m, n = x.size()
    assert residual.size() == x.size(), "x and residual must have the same shape"
    assert weight.size(0) == n, f"weight has {weight.size(0)} elements, rows have {n}"
    assert bias.size(0) == n, f"bias has {bias.size(0)} elements, rows have {n}"
    out = torch.empty_like(x)
    added = torch.empty_like(residual)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32) + residual[tile, :].to(torch.float32)
        added[tile, :] = row
        centred = row - torch.mean(row, dim=-1, keepdim=True)
        variance = torch.mean(centred * centred, dim=-1, keepdim=True)
        normalised = centred * torch.rsqrt(variance + eps)
        out[tile, :] = normalised * weight[:].to(torch.float32) + bias[:].to(torch.float32)
    return out, added


def reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    added = x + residual
    return torch.nn.functional.layer_norm(added, [x.size(-1)], weight, bias, eps), added


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([33, 301], device=DEVICE) + 5
    residual = torch.randn([33, 301], device=DEVICE) * 3
    weight = torch.randn([301], device=DEVICE) + 1
    bias = torch.randn([301], device=DEVICE)
    short = tuple(t[..., :77] for t in (x, residual, weight, bias))
    return [
        ("fp32", fused_add_layer_norm, (x, residual, weight, bias)),
        ("bf16", fused_add_layer_norm, tuple(t.bfloat16() for t in (x, residual, weight, bias))),
        ("fp16, 77 columns, eps 0.1", fused_add_layer_norm, (*(t.half() for t in short), 0.1)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
