"""Matmul followed by layer normalization of its rows, in one kernel.

`hl.specialize` makes N a compile-time constant. One program can then hold whole output rows in its accumulator and
reduce over them without a round trip through memory.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def matmul_layernorm(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """Compute `layer_norm(x[M, K] @ y[K, N], weight[N], bias[N])`, accumulated and normalized in fp32."""
    m, k = x.size()
    assert k == y.size(0), f"cannot multiply: x has {k} columns, y has {y.size(0)} rows"
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        variance, mean = torch.var_mean(acc, dim=-1, keepdim=True, correction=0)
        normalised = (acc - mean) * torch.rsqrt(variance + eps)
        out[tile_m, :] = normalised * weight[:].to(torch.float32) + bias[:].to(torch.float32)
    return out


def reference(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x @ y, [y.size(1)], weight, bias, eps)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([77, 130], device=DEVICE) + 0.5
    y = torch.randn([130, 63], device=DEVICE) + 0.25
    weight = torch.randn([63], device=DEVICE) + 1
    bias = torch.randn([63], device=DEVICE)
    return [
        ("fp32", matmul_layernorm, (x, y, weight, bias)),
        ("bf16", matmul_layernorm, (x.bfloat16(), y.bfloat16(), weight.bfloat16(), bias.bfloat16())),
        ("fp16 with fp32 weights", matmul_layernorm, (x.half(), y.half(), weight, bias)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
