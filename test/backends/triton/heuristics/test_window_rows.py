"""Tiles of filters whose rows share loads."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl


def columns_filtered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) - 4, x.size(1)], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile(out.size()):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for tap in hl.static_range(5):
            acc = acc + x[rows.index + tap, columns].to(torch.float32) * w[tap]
        out[rows, columns] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize("gpu", ["h100", "h200", "a100"])
def test_rows_of_windows_share_threads(gpu: str) -> None:
    weights = tensor(5, dtype=torch.float32)
    seed = helion.kernel(columns_filtered).bind((tensor(4100, 4096), weights), target=gpu).seeds[0]
    rows, columns = seed.config["block_sizes"]
    assert "rows of a window share loads" in seed.reason
    assert rows in (4, 8, 16) and columns >= 32 * seed.config["num_warps"]
    narrow = helion.kernel(columns_filtered).bind((tensor(4100, 8), weights), target=gpu).seeds[0]
    assert "share loads" not in narrow.reason, "no warp has an element of each row"
