"""fp8 matmul with a scale per row of the left and per column of the right operand, like `torch._scaled_mm`."""

from __future__ import annotations

from typing import Any

import torch
from common import report

import helion
import helion.language as hl
from helion.testing import DEVICE


@helion.kernel(backend="cute")
def scaled_mm(x: torch.Tensor, y: torch.Tensor, x_scale: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    """Return bf16 `(x[M, K] * x_scale[M, 1]) @ (y[K, N] * y_scale[1, N])` of fp8 `x` and `y`, both contiguous along K."""
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = (acc * x_scale[tile_m][:, None] * y_scale[tile_n][None, :]).to(torch.bfloat16)
    return out


def reference(x: torch.Tensor, y: torch.Tensor, x_scale: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    return (x @ y) * x_scale[:, None] * y_scale


def quantised(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize rows to e4m3; return them and the fp32 scales, which map the maximum to the largest e4m3."""
    scale = values.abs().amax(1) / torch.finfo(torch.float8_e4m3fn).max
    return (values / scale[:, None]).to(torch.float8_e4m3fn), scale


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x, x_scale = quantised(torch.randn([250, 336], device=DEVICE))
    y, y_scale = quantised(torch.randn([136, 336], device=DEVICE))
    return [(scaled_mm, (x, y.t(), x_scale, y_scale))]


def main() -> None:
    for kernel, args in cases():
        report(kernel, reference, args)


if __name__ == "__main__":
    main()
