"""A sum of rows of different lengths and a dense matrix: the rows lie one after the other, and end where they end.

A load with `extra_mask` reads no element of the next row. Elements that it leaves out are 0, which adds nothing.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def jagged_dense_add(values: torch.Tensor, offsets: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """Add `values[offsets[b] : offsets[b + 1]]` to the first elements of row b of `dense[B, N]`; no row is longer than N."""
    rows, n = dense.size()
    out = torch.empty_like(dense)
    for tile_b, tile_n in hl.tile([rows, n]):
        begin = offsets[tile_b]
        length = hl.load(offsets, [tile_b.index + 1]) - begin
        inside = tile_n.index[None, :] < length[:, None]
        own = hl.load(values, [begin[:, None] + tile_n.index[None, :]], extra_mask=inside)
        out[tile_b, tile_n] = dense[tile_b, tile_n] + own
    return out


def reference(values: torch.Tensor, offsets: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    out = dense.clone()
    for row, part in zip(out, values.split(offsets.diff().tolist()), strict=True):
        row[: len(part)] += part
    return out


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    lengths = torch.randint(0, 40, [23], device=DEVICE)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    values, dense = torch.randn(int(offsets[-1]), device=DEVICE) + 0.5, torch.randn([23, 39], device=DEVICE)
    return [
        ("fp32", jagged_dense_add, (values, offsets, dense)),
        ("bf16, int32", jagged_dense_add, (values.bfloat16(), offsets.int(), dense.bfloat16())),
        ("fp32 and fp16", jagged_dense_add, (values.half(), offsets, dense)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
