"""fp8 matmul with block scales: 1 by 128 elements of the left operand, 128 by 128 of the right one share a scale."""

from __future__ import annotations

from typing import Any

import torch
from common import report

import helion
import helion.language as hl
from helion.testing import DEVICE

BLOCK = 128


@helion.kernel(backend="cute")
def blockwise_scaled_mm(
    x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, weight_scale: torch.Tensor
) -> torch.Tensor:
    """Return bf16 `x[M, K] @ weight[N, K].T` of fp8 blocks times `x_scale[M, K / 128]` and `weight_scale[N / 128, K /
    128]`."""
    m, k = x.size()
    n, k2 = weight.size()
    assert k == k2, f"cannot multiply: x has {k} columns, weight has {k2}"
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=BLOCK):
            part = hl.dot(x[tile_m, tile_k], weight[tile_n, tile_k].T)
            columns = weight_scale[tile_n.index // BLOCK, tile_k.id]
            acc += part * x_scale[tile_m, tile_k.id][:, None] * columns[None, :]
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


def reference(x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    (n, k), block = weight.shape, BLOCK
    rows = x_scale.repeat_interleave(block, 1)[:, :k]
    blocks = weight_scale.repeat_interleave(block, 0)[:n].repeat_interleave(block, 1)[:, :k]
    return (x * rows) @ (weight * blocks).t()


def quantised(values: torch.Tensor, lines: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize to e4m3 blocks of ``lines`` by 128; return them and the fp32 scales, which map the maximum to the
    largest e4m3."""
    (rows, k), block = values.shape, BLOCK
    padded = torch.nn.functional.pad(values, (0, -k % block, 0, -rows % lines))
    blocks = padded.unflatten(1, (-1, block)).unflatten(0, (-1, lines))
    scale = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
    scaled = (blocks / scale[:, None, :, None]).flatten(2, 3).flatten(0, 1)
    return scaled[:rows, :k].to(torch.float8_e4m3fn).contiguous(), scale


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x, x_scale = quantised(torch.randn([250, 336], device=DEVICE), 1)
    weight, weight_scale = quantised(torch.randn([136, 336], device=DEVICE), BLOCK)
    return [(blockwise_scaled_mm, (x, weight, x_scale, weight_scale))]


def main() -> None:
    for kernel, args in cases():
        report(kernel, reference, args)


if __name__ == "__main__":
    main()
