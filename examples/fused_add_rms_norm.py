"""Addition of a residual and root-mean-square normalization of the sum, in one kernel.

The sum is needed twice: it is stored as the residual of the next block and normalized for this one.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `rms_norm(x + residual, weight[N])` and `x + residual` of `x[M, N]` and `residual[M, N]`."""
    m, n = x.size()
    assert residual.size() == x.size(), "x and residual must have the same shape"
    assert weight.size(0) == n, f"weight has {weight.size(0)} elements, rows have {n}"
    out = torch.empty_like(x)
    added = torch.empty_like(residual)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32) + residual[tile, :].to(torch.float32)
        added[tile, :] = row
        scale = torch.rsqrt(torch.mean(row * row, dim=-1) + eps)
        out[tile, :] = row * scale[:, None] * weight[:].to(torch.float32)
    return out, added


def reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    added = x + residual
    return torch.nn.functional.rms_norm(added, [x.size(-1)], weight, eps), added


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([33, 301], device=DEVICE) + 2
    residual = torch.randn([33, 301], device=DEVICE) * 3
    weight = torch.randn([301], device=DEVICE) + 1
    return [
        ("fp32", fused_add_rms_norm, (x, residual, weight)),
        ("bf16", fused_add_rms_norm, (x.bfloat16(), residual.bfloat16(), weight.bfloat16())),
        ("fp16, fp32 residual, 77 columns", fused_add_rms_norm, (x[:, :77].half(), residual[:, :77], weight[:77])),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
