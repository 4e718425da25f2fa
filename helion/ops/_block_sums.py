"""Sums over the blocks of rows for which the programs of a backward pass have added up gradients of a weight."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

#: Columns of a program, and lines that it adds up at a time.
COLUMNS, LINES = 32, 64


@helion.kernel(static_shapes=False)
def block_sums_kernel(partial: torch.Tensor, dtype: hl.constexpr) -> torch.Tensor:
    """Add up the blocks of `partial[P, B, N]`; return `[P, N]` of a dtype."""
    blocks = partial.size(1)
    weights, n = hl.specialize((partial.size(0), partial.size(2)))
    out = torch.empty([weights, n], dtype=dtype, device=partial.device)
    for tile_w, tile_n in hl.tile([weights, n], block_size=[1, COLUMNS]):
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile_b in hl.tile(blocks):
            total = total + torch.sum(partial[tile_w.begin, tile_b, tile_n], dim=0)
        out[tile_w.begin, tile_n] = total
    return out
