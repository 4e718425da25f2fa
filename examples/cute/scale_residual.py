"""bf16 matmul with scaled columns and a residual, which a separate warp loads."""

from __future__ import annotations

from typing import Any

import torch
from common import report

import helion
import helion.language as hl
from helion.testing import DEVICE


@helion.kernel(backend="cute")
def scale_residual(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Return `(x[M, K] @ weight[K, N]) * scale[N] + residual[M, N]` in the type of `residual`, accumulated in fp32."""
    m, k = x.size()
    k2, n = weight.size()
    assert k == k2, f"cannot multiply: x has {k} columns, weight has {k2} rows"
    out = torch.empty_like(residual)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], weight[tile_k, tile_n])
        out[tile_m, tile_n] = (acc * scale[tile_n] + residual[tile_m, tile_n]).to(out.dtype)
    return out


def reference(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return (x @ weight) * scale + residual


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([250, 328], device=DEVICE, dtype=torch.bfloat16)
    weight = torch.randn([328, 136], device=DEVICE, dtype=torch.bfloat16)
    scale = torch.rand([136], device=DEVICE) + 0.5
    residual = torch.randn([250, 136], device=DEVICE, dtype=torch.bfloat16) * 20
    return [(scale_residual, (x, weight, scale, residual))]


def main() -> None:
    for kernel, args in cases():
        report(kernel, reference, args)


if __name__ == "__main__":
    main()
