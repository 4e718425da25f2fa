"""Matmul with a residual and gelu, whose epilogue runs in column subtiles.

An epilogue that loads matrices needs registers for its operands besides the accumulator. The config key
`epilogue_subtile` computes and stores it in 2 or 4 parts of the columns, so that fewer are live at once.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel(config=helion.Config(block_sizes=[64, 64, 32], num_warps=4, num_stages=3))
def matmul_residual_gelu(
    x: torch.Tensor, y: torch.Tensor, residual: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `pre = x[M, K] @ y[K, N] + residual[M, N] + bias[N]` and `gelu(pre)`, in the dtype of `x`."""
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    pre = torch.empty([m, n], dtype=x.dtype, device=x.device)
    out = torch.empty_like(pre)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        value = acc + residual[tile_m, tile_n].to(torch.float32) + bias[tile_n].to(torch.float32)
        pre[tile_m, tile_n] = value.to(pre.dtype)
        out[tile_m, tile_n] = torch.nn.functional.gelu(value, approximate="tanh").to(out.dtype)
    return pre, out


def in_parts(parts: int) -> helion.Kernel:
    """Return the kernel with an epilogue in so many parts of the 64 columns of a tile."""
    config = helion.Config(block_sizes=[64, 64, 32], num_warps=4, num_stages=3, epilogue_subtile=parts)
    return helion.kernel(matmul_residual_gelu.fn, config=config)


halves, quarters = in_parts(2), in_parts(4)


def reference(
    x: torch.Tensor, y: torch.Tensor, residual: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    pre = x @ y + residual + bias
    return pre, torch.nn.functional.gelu(pre, approximate="tanh")


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x, y = torch.randn([70, 37], device=DEVICE), torch.randn([37, 75], device=DEVICE) + 0.25
    args = x, y, torch.randn([70, 75], device=DEVICE), torch.randn([75], device=DEVICE)
    half = tuple(tensor.bfloat16() for tensor in args)
    return [
        ("whole, bf16", matmul_residual_gelu, half),
        ("halves, bf16", halves, half),
        ("quarters, bf16", quarters, half),
        ("quarters, fp16", quarters, tuple(tensor.half() for tensor in args)),
    ]


def main() -> None:
    run_cases(cases(), reference)
    args = cases()[0][2]
    for name, kernel in (("whole", matmul_residual_gelu), ("halves", halves), ("quarters", quarters)):
        source = kernel.bind(args).to_triton_code()
        print(f"{name}: {source.count('tl.store(')} stores")


if __name__ == "__main__":
    main()
