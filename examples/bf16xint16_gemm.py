"""Matmul of a bf16 and an int16 matrix.

The integers are loaded as int16 and become bf16 in registers just before the dot. bf16 has 8 significant bits, so
integers up to 256 in magnitude are exact and larger ones are rounded.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def bf16xint16_gemm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute bf16 `x[M, K] @ y[K, N]` of bf16 `x` and int16 `y`, accumulated in fp32."""
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n].to(torch.bfloat16), acc=acc)
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@helion.kernel()
def int16xbf16_gemm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute the same with int16 `x` and bf16 `y`."""
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k].to(torch.bfloat16), y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    dtype = torch.promote_types(x.dtype, y.dtype)
    return x.to(dtype) @ y.to(dtype)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    floats = (torch.randn([77, 130], device=DEVICE) + 0.5).bfloat16()
    integers = torch.randint(-200, 257, [130, 63], device=DEVICE, dtype=torch.int16)
    return [
        ("bf16 times int16", bf16xint16_gemm, (floats, integers)),
        ("bf16 times int16, transposed", bf16xint16_gemm, (integers.t().bfloat16(), integers)),
        ("int16 times bf16", int16xbf16_gemm, (integers.t(), floats.t())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
