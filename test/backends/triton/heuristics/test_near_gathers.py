"""Tiles of kernels whose computed subscripts reach neighbours."""

from __future__ import annotations

import torch
from harness import tensor

import helion
import helion.language as hl
from helion.backends.triton.heuristics.near_gathers import is_near


def blurred(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Nine taps along rows that are clamped."""
    b, h, n = x.size()
    out = torch.empty_like(x)
    for image, y, columns in hl.tile([b, h, n], block_size=[1, None, None]):
        acc = hl.zeros([y, columns], dtype=torch.float32)
        for tap in hl.static_range(9):
            at = torch.clamp(columns.index + (tap - 4), 0, n - 1)
            acc += x[image.begin, y, at].to(torch.float32) * w[tap]
        out[image.begin, y, columns] = acc.to(x.dtype)
    return out


def looked_up(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for y, columns in hl.tile(x.size()):
        out[y, columns] = x[y, at[columns]]
    return out


def test_windows_with_clamps_have_many_elements_of_few_warps() -> None:
    """Measurement ``near_gathers``: 8 x 64 in one warp takes 94 us, one run 106."""
    bound = helion.kernel(blurred).bind((tensor(16, 1080, 1920), tensor(9, dtype=torch.float32)), target="h200")
    first = bound.seeds[0]
    assert is_near(bound.facts) and "reach neighbours" in first.reason
    rows, columns = first.config["block_sizes"]
    assert first.config["num_warps"] == 1 and rows * columns in (256, 512) and columns >= 64
    assert first.config["flatten_loops"] == [False]


def test_indices_that_are_loaded_may_be_anywhere() -> None:
    at = tensor(4096, dtype=torch.int32)
    bound = helion.kernel(looked_up).bind((tensor(4096, 4096), at), target="h200")
    assert not is_near(bound.facts) and "reach neighbours" not in bound.seeds[0].reason
