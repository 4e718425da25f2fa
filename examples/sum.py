"""Sum of each row: one reduction over a full slice.

Lanes beyond the end of a row count as 0 without an explicit mask, and half types accumulate in fp32.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def row_sum(x: torch.Tensor) -> torch.Tensor:
    """Compute `x[M, N].sum(-1)` in the dtype of `x`."""
    m, _ = x.size()
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    for tile in hl.tile(m):
        out[tile] = x[tile, :].sum(-1)
    return out


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x = torch.randn([77, 1000], device=DEVICE) + 0.5
    return [
        ("fp32", row_sum, (x,)),
        ("bf16, 63 columns", row_sum, (x[:, :63].bfloat16(),)),
        ("fp16 transposed", row_sum, (x.half().t(),)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
