"""A projection, its residual and the norm after it in one kernel: a cluster of CTAs holds whole rows in registers.

`acc[tile_m, n]` has all columns, so the epilogue may reduce them. The CTAs of a cluster exchange their partial
reductions of each row. There are three outputs: the normalized rows, the projection with the residual, and one number
per row for the backward.
"""

from __future__ import annotations

from typing import Any

import torch
from common import report

import helion
import helion.language as hl
from helion.testing import DEVICE


@helion.kernel(backend="cute")
def residual_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute `h = x[M, K] @ weight[K, N] + residual[M, N]`; return `rms_norm(h) * gain[N]`, `h` and the factor of each
    row."""
    m, k = x.size()
    n = hl.specialize(weight.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    hidden = torch.empty([m, n], dtype=x.dtype, device=x.device)
    factor = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], weight[tile_k, :])
        acc = acc + residual[tile_m, :]
        scale = torch.rsqrt(torch.mean(acc * acc, dim=-1) + eps)
        out[tile_m, :] = (acc * scale[:, None] * gain[:]).to(x.dtype)
        hidden[tile_m, :] = acc.to(x.dtype)
        factor[tile_m] = scale
    return out, hidden, factor


def reference(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = x @ weight + residual
    factor = torch.rsqrt(hidden.square().mean(1) + eps)
    return hidden * factor[:, None] * gain, hidden, factor


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([250, 328], device=DEVICE, dtype=torch.bfloat16)
    weight = torch.randn([328, 520], device=DEVICE, dtype=torch.bfloat16) * 0.05
    residual = torch.randn([250, 520], device=DEVICE, dtype=torch.bfloat16) + 0.5
    gain = torch.randn([520], device=DEVICE, dtype=torch.bfloat16) + 1
    return [(residual_rms_norm, (x, weight, residual, gain))]


def main() -> None:
    for kernel, args in cases():
        report(kernel, reference, args)


if __name__ == "__main__":
    main()
