"""bf16 matmul with a bias and GELU, as one warp-specialized kernel of the cute backend."""

from __future__ import annotations

from typing import Any

import torch
from common import report

import helion
import helion.language as hl
from helion.testing import DEVICE


@helion.kernel(backend="cute")
def bias_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return `gelu(x[M, K] @ weight[N, K].T + bias[N])` in the type of `x`, accumulated in fp32."""
    m, k = x.size()
    n, k2 = weight.size()
    assert k == k2, f"cannot multiply: x has {k} columns, weight has {k2}"
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], weight[tile_n, tile_k].T)
        out[tile_m, tile_n] = torch.nn.functional.gelu(acc + bias[tile_n]).to(x.dtype)
    return out


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x, weight = (torch.randn([rows, 328], device=DEVICE, dtype=torch.bfloat16) for rows in (250, 136))
    return [(bias_gelu, (x, weight, torch.randn([136], device=DEVICE, dtype=torch.bfloat16) * 5))]


def main() -> None:
    for kernel, args in cases():
        report(kernel, reference, args)


if __name__ == "__main__":
    main()
