"""SwiGLU of two matmuls of one input: both accumulators stay in registers, and only their gated product is stored.

The cute backend refuses a kernel whose epilogue scans along rows; with `backend="auto"` it runs on another backend.
"""

from __future__ import annotations

from typing import Any

import torch
from common import report

import helion
import helion.language as hl
from helion import exc
from helion.testing import DEVICE


@helion.kernel(backend="cute")
def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return `silu(x[M, K] @ gate[K, N]) * (x @ up[K, N])` in the type of `x`, accumulated in fp32."""
    m, k = x.size()
    k2, n = gate.size()
    assert k == k2 and gate.size() == up.size(), "gate and up have as many rows as x has columns, and the same shape"
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        gated = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        value = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = x[tile_m, tile_k]
            gated = torch.addmm(gated, left, gate[tile_k, tile_n])
            value = torch.addmm(value, left, up[tile_k, tile_n])
        out[tile_m, tile_n] = (torch.nn.functional.silu(gated) * value).to(x.dtype)
    return out


@helion.kernel(backend="auto")
def rows_accumulated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return `cumsum(x[M, K] @ weight[K, N], 1)`: an epilogue in which each column depends on those before it."""
    m, k = x.size()
    _, n = weight.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], weight[tile_k, :])
        out[tile_m, :] = torch.cumsum(acc, dim=-1).to(x.dtype)
    return out


def reference(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x @ gate) * (x @ up)


def accumulated_reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x @ weight, 1)


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([250, 328], device=DEVICE, dtype=torch.bfloat16)
    gate, up = (torch.randn([328, 136], device=DEVICE, dtype=torch.bfloat16) * 0.1 for _ in range(2))
    return [(swiglu, (x, gate, up))]


def main() -> None:
    for kernel, args in cases():
        report(kernel, reference, args)
    _, (x, weight, _) = cases()[0]
    try:
        helion.kernel(rows_accumulated.fn, backend="cute").bind((x, weight))
    except exc.CuteUnsupported as refusal:
        print(f"refused: {refusal}")
    report(rows_accumulated, accumulated_reference, (x, weight))


if __name__ == "__main__":
    main()
