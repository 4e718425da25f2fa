"""Concatenation of two matrices along their columns.

In one kernel a loop over the output selects each element from its matrix by masked loads. In the other every program
copies the rows of both matrices, one after the other.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def concatenate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute `torch.cat([x[M, K], y[M, N]], dim=1)` in one loop over the output."""
    m, k = x.size()
    m2, n = y.size()
    assert m == m2, f"x has {m} rows, y has {m2}"
    out = torch.empty([m, k + n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m, tile_n in hl.tile([m, k + n]):
        column = tile_n.index
        left = hl.load(x, [tile_m, column], extra_mask=(column < k)[None, :])
        right = hl.load(y, [tile_m, column - k], extra_mask=(column >= k)[None, :])
        out[tile_m, tile_n] = torch.where((column < k)[None, :], left, right)
    return out


@helion.kernel()
def concatenate_by_copies(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute the same with an inner loop for each input."""
    m, k = x.size()
    m2, n = y.size()
    assert m == m2, f"x has {m} rows, y has {m2}"
    out = torch.empty([m, k + n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m in hl.tile(m):
        for tile_k in hl.tile(k):
            out[tile_m, tile_k] = x[tile_m, tile_k]
        for tile_n in hl.tile(n):
            out[tile_m, tile_n + k] = y[tile_m, tile_n]
    return out


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y], dim=1)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([45, 77], device=DEVICE) + 0.5
    y = torch.randn([45, 130], device=DEVICE) - 0.5
    return [
        ("fp32", concatenate, (x, y)),
        ("bf16, fp32", concatenate, (x.bfloat16(), y)),
        ("copies, fp16", concatenate_by_copies, (x.half(), y.half())),
        ("copies, fp32, transposed", concatenate_by_copies, (x[:, :45].t(), y)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
