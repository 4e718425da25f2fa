"""Matmul with a fused epilogue.

The epilogue is an ordinary Python function traced into the kernel. It receives the fp32 accumulator and the output
tile. It may capture tensors, here a bias that it indexes with that tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases

Epilogue = Callable[[torch.Tensor, tuple[Any, Any]], torch.Tensor]


@helion.kernel()
def matmul(x: torch.Tensor, y: torch.Tensor, epilogue: Epilogue = lambda acc, tile: acc) -> torch.Tensor:
    """Compute `epilogue(x[M, K] @ y[K, N], (tile_m, tile_n))`, accumulated in fp32."""
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = epilogue(acc, (tile_m, tile_n))
    return out


def bias_relu(bias: torch.Tensor) -> Epilogue:
    """Return an epilogue that adds `bias[N]` to each row and clips below at 0."""

    def epilogue(acc: torch.Tensor, tile: tuple[Any, Any]) -> torch.Tensor:
        return torch.relu(acc + bias[tile[1]])

    return epilogue


def reference(x: torch.Tensor, y: torch.Tensor, epilogue: Epilogue = lambda acc, tile: acc) -> torch.Tensor:
    return epilogue(x @ y, (slice(None), slice(None)))


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([77, 130], device=DEVICE) + 0.5
    y = torch.randn([130, 63], device=DEVICE) + 0.25
    transposed = torch.randn([63, 130], device=DEVICE).half().t()
    bias = torch.randn([63], device=DEVICE) * 10 - 15
    return [
        ("fp32", matmul, (x, y)),
        ("bf16", matmul, (x.bfloat16(), y.bfloat16())),
        ("fp16, y transposed", matmul, (x.half(), transposed)),
        ("bf16, bias and relu", matmul, (x.bfloat16(), y.bfloat16(), bias_relu(bias.bfloat16()))),
        ("fp32, bias and relu", matmul, (x, y, bias_relu(bias))),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
