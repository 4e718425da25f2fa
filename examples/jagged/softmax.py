"""Softmax over the rows of each segment, for each column: weights of the members of a set, as in pooling by attention.

Maximum and sum come from one loop over the rows, which rescales the sum whenever the maximum rises. A second loop
writes the results.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def jagged_softmax(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Compute the softmax over the rows of each segment of `x[T, N]`; segment b ends at row `offsets[b + 1]`."""
    segments, n = offsets.size(0) - 1, x.size(1)
    out = torch.empty_like(x)
    for tile_b, tile_n in hl.tile([segments, n], block_size=[1, None]):
        begin, end = offsets[tile_b.begin], offsets[tile_b.begin + 1]
        highest = hl.full([tile_n], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile in hl.tile(begin, end):
            values = x[tile, tile_n].to(torch.float32)
            raised = torch.maximum(highest, torch.amax(values, dim=0))
            total = total * torch.exp(highest - raised) + torch.sum(torch.exp(values - raised[None, :]), dim=0)
            highest = raised
        for tile in hl.tile(begin, end):
            out[tile, tile_n] = torch.exp(x[tile, tile_n].to(torch.float32) - highest[None, :]) / total[None, :]
    return out


def reference(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.softmax(0) for part in x.split(offsets.diff().tolist())])


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([101, 31], device=DEVICE) * 3 + 0.5
    offsets = torch.tensor([0, 13, 13, 60, 61, 101], device=DEVICE)
    return [
        ("fp32", jagged_softmax, (x, offsets)),
        ("bf16, int32", jagged_softmax, (x.bfloat16(), offsets.int())),
        ("one segment, fp16", jagged_softmax, (x.half(), offsets[[0, -1]])),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
