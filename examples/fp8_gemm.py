"""Matmul of fp8 matrices with one scale per row of the left and per column of the right operand.

The dot multiplies e4m3 or e5m2 values and accumulates in fp32; the scales are applied once, to the accumulator.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def fp8_gemm(x: torch.Tensor, y: torch.Tensor, x_scale: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    """Compute fp16 `(x[M, K] * x_scale[M, None]) @ (y[K, N] * y_scale[N])` of fp8 `x` and `y` and fp32 scales."""
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    out = torch.empty([m, n], dtype=torch.float16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        scaled = acc * x_scale[tile_m][:, None] * y_scale[tile_n][None, :]
        out[tile_m, tile_n] = scaled.to(torch.float16)
    return out


def quantise(x: torch.Tensor, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return fp8 values and the fp32 scales that map the maximum of each slice along `dim` to the largest number of
    `dtype`."""
    scale = x.abs().amax(dim, keepdim=True) / torch.finfo(dtype).max
    return (x / scale).to(dtype), scale.squeeze(dim)


def reference(x: torch.Tensor, y: torch.Tensor, x_scale: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    return (x @ y) * x_scale[:, None] * y_scale


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([33, 77], device=DEVICE) + 0.5
    y = torch.randn([77, 31], device=DEVICE) - 0.25

    def quantised(x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        (x8, x_scale), (y8, y_scale) = quantise(x, 1, dtype), quantise(y, 0, dtype)
        return x8, y8, x_scale, y_scale

    transposed = y.t().contiguous().t()  # Hopper's fp8 tensor cores need both operands K-major
    return [
        ("e4m3", fp8_gemm, quantised(x, y, torch.float8_e4m3fn)),
        ("e4m3, y transposed", fp8_gemm, quantised(x, transposed, torch.float8_e4m3fn)),
        ("e5m2", fp8_gemm, quantised(x, y, torch.float8_e5m2)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
