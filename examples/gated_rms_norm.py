"""Root-mean-square normalization of a gated row, the last step of state-space blocks.

The gate passes through SiLU and multiplies the row before its root mean square is taken. Both inputs are therefore
needed for the statistics as well as for the output.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def gated_rms_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Compute `rms_norm(x * silu(gate), weight[N])` of `x[M, N]` and `gate[M, N]`, in fp32 until the end."""
    m, n = x.size()
    assert gate.size() == x.size(), "x and gate must have the same shape"
    assert weight.size(0) == n, f"weight has {weight.size(0)} elements, rows have {n}"
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        opening = gate[tile, :].to(torch.float32)
        row = x[tile, :].to(torch.float32) * opening * torch.sigmoid(opening)
        scale = torch.rsqrt(torch.mean(row * row, dim=-1) + eps)
        out[tile, :] = row * scale[:, None] * weight[:].to(torch.float32)
    return out


def reference(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x * torch.nn.functional.silu(gate), [x.size(-1)], weight, eps)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([33, 301], device=DEVICE) + 2
    gate = torch.randn([33, 301], device=DEVICE) + 0.5
    weight = torch.randn([301], device=DEVICE) + 1
    return [
        ("fp32", gated_rms_norm, (x, gate, weight)),
        ("bf16", gated_rms_norm, (x.bfloat16(), gate.bfloat16(), weight.bfloat16())),
        ("fp16, 77 columns", gated_rms_norm, (x[:, :77].half(), gate[:, :77].half(), weight[:77].half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
