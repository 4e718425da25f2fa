"""Matmul of a floating-point matrix and a packed 4-bit one.

One byte holds two weights of neighbouring rows: the even row in the low, the odd row in the high four bits. Shifts on
int8 sign-extend both halves. The first kernel multiplies twice; the second interleaves the halves to multiply once.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def int4_gemm(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Compute `x[M, K] @ (weight[K, N] * scale[N])`. Weights from -8 to 7 are packed in int8 `packed[K // 2, N]`; the
    accumulator is fp32."""
    m, k = x.size()
    pairs, n = packed.size()
    assert k == 2 * pairs, f"x has {k} columns, {pairs} packed rows hold {2 * pairs}"
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    x_pairs = x.view(m, pairs, 2)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(pairs):
            both = packed[tile_k, tile_n]
            even = ((both << 4) >> 4).to(x.dtype)
            odd = (both >> 4).to(x.dtype)
            acc = hl.dot(x_pairs[tile_m, tile_k, 0], even, acc=acc)
            acc = hl.dot(x_pairs[tile_m, tile_k, 1], odd, acc=acc)
        out[tile_m, tile_n] = acc * scale[tile_n][None, :]
    return out


@helion.kernel()
def int4_gemm_interleaved(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Compute the same with one dot over the rows of `weight` in their original order."""
    m, k = x.size()
    pairs, n = packed.size()
    assert k == 2 * pairs, f"x has {k} columns, {pairs} packed rows hold {2 * pairs}"
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    x_pairs = x.view(m, pairs, 2)
    block_k = hl.register_block_size(pairs)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(pairs, block_size=block_k):
            both = packed[tile_k, tile_n]
            halves = hl.join((both << 4) >> 4, both >> 4)  # [block_k, tile_n, 2]
            weight = halves.permute(0, 2, 1).reshape(block_k * 2, tile_n.block_size)
            columns = x_pairs[tile_m, tile_k, :].reshape(tile_m.block_size, block_k * 2)
            acc = hl.dot(columns, weight.to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc * scale[tile_n][None, :]
    return out


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Pack `weight[K, N]`, integers from -8 to 7, into int8 `[K // 2, N]`."""
    return ((weight[1::2] << 4) | (weight[::2] & 15)).to(torch.int8)


def reference(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    weight = torch.stack([(packed << 4) >> 4, packed >> 4], dim=1).flatten(0, 1)
    return (x @ weight.to(x.dtype)) * scale


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([19, 70], device=DEVICE) + 0.5
    packed = pack(torch.randint(-8, 8, [70, 33], device=DEVICE, dtype=torch.int32))
    scale = torch.rand([33], device=DEVICE) + 0.5
    return [
        ("bf16", int4_gemm, (x.bfloat16(), packed, scale)),
        ("fp32", int4_gemm, (x, packed, scale)),
        ("interleaved, bf16", int4_gemm_interleaved, (x.bfloat16(), packed, scale)),
        ("interleaved, fp16", int4_gemm_interleaved, (x.half(), packed, scale)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
