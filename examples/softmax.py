"""Row softmax written three ways, from one line to an online algorithm.

A full slice `x[tile, :]` is a reduction over the row. The config decides whether the row stays in registers or
becomes a loop. The two-pass version has an explicit loop, which rescales its running sum whenever the running maximum
grows.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def softmax(x: torch.Tensor) -> torch.Tensor:
    """Compute the softmax over the last dimension of `x[M, N]`, by PyTorch's own function."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.nn.functional.softmax(x[tile, :], dim=-1)
    return out


@helion.kernel()
def softmax_decomposed(x: torch.Tensor) -> torch.Tensor:
    """Compute the same in steps: subtract the row maximum, exponentiate in fp32, divide by the sum."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        shifted = torch.exp(row - torch.amax(row, dim=-1, keepdim=True))
        out[tile, :] = shifted / torch.sum(shifted, dim=-1, keepdim=True)
    return out


@helion.kernel()
def softmax_two_pass(x: torch.Tensor) -> torch.Tensor:
    """Compute the same for rows of any length: one pass finds maximum and sum together, a second one stores."""
    m, n = x.size()
    out = torch.empty_like(x)
    block_m = hl.register_block_size(m)
    block_n = hl.register_block_size(n)
    for tile_m in hl.tile(m, block_size=block_m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block_n):
            values = x[tile_m, tile_n].to(torch.float32)
            raised = torch.maximum(highest, torch.amax(values, dim=1))
            partial = torch.sum(torch.exp(values - raised[:, None]), dim=1)
            total = total * torch.exp(highest - raised) + partial
            highest = raised
        for tile_n in hl.tile(n, block_size=block_n):
            values = x[tile_m, tile_n].to(torch.float32)
            out[tile_m, tile_n] = torch.exp(values - highest[:, None]) / total[:, None]
    return out


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softmax(x, dim=-1)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([48, 1000], device=DEVICE) * 2 - 5
    return [
        ("one line, fp32", softmax, (x,)),
        ("one line, bf16, 63 columns", softmax, (x[:, :63].bfloat16(),)),
        ("decomposed, fp32, 77 columns", softmax_decomposed, (x[:, :77],)),
        ("decomposed, fp16", softmax_decomposed, (x.half(),)),
        ("two passes, fp32", softmax_two_pass, (x,)),
        ("two passes, bf16, 77 columns", softmax_two_pass, (x[:, :77].bfloat16(),)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
