"""Matmul followed by root-mean-square normalization of its rows, in one kernel.

The output rows stay in the accumulator until they are normalized. `hl.dot` names its accumulator explicitly.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def matmul_rms_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Compute `rms_norm(x[M, K] @ y[K, N], weight[N])`, accumulated and normalized in fp32."""
    m, k = x.size()
    assert k == y.size(0), f"cannot multiply: x has {k} columns, y has {y.size(0)} rows"
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, :], acc=acc)
        scale = torch.rsqrt(torch.mean(acc * acc, dim=-1) + eps)
        out[tile_m, :] = acc * scale[:, None] * weight[:].to(torch.float32)
    return out


def reference(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x @ y, [y.size(1)], weight, eps)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([77, 130], device=DEVICE) + 0.5
    y = torch.randn([130, 63], device=DEVICE) + 0.25
    weight = torch.randn([63], device=DEVICE) + 1
    return [
        ("fp32", matmul_rms_norm, (x, y, weight)),
        ("bf16", matmul_rms_norm, (x.bfloat16(), y.bfloat16(), weight.bfloat16())),
        ("fp16, y transposed", matmul_rms_norm, (x.half(), y.t().contiguous().t().half(), weight.half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
