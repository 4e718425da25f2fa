"""Root-mean-square norm whose configs come from a table next to this file, chosen by the length of a row.

`_helion_aot_row_norm_cuda_sm90.py` is the table for Hopper. `HELION_AOT_MODE=collect python row_norm.py` tunes the
calls of `main()` on your GPU and writes its table.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.aot_kernel(static_shapes=False)
def row_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Divide each row of `x[M, N]` by its root mean square and scale by `weight[N]`."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        scale = torch.rsqrt(torch.mean(row * row, dim=-1) + eps)
        out[tile, :] = (row * scale[:, None] * weight[:].to(torch.float32)).to(out.dtype)
    return out


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, [x.size(-1)], weight, eps)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    x, weight = torch.randn([9, 9000], device=DEVICE) + 2, torch.randn([9000], device=DEVICE) + 1
    return [
        ("bf16, short rows", row_norm, (x[:, :63].bfloat16(), weight[:63].bfloat16())),
        ("bf16, longer rows", row_norm, (x[:, :4097].bfloat16(), weight[:4097].bfloat16())),
        ("fp32, long rows", row_norm, (x, weight)),
    ]


def main() -> None:
    run_cases(cases(), reference)
    for n in (1000, 4096, 16384, 131072):
        x = torch.empty([4096, n], dtype=torch.bfloat16, device="meta")
        config = row_norm.bind((x, x[0]), target="h200").default_config()
        print(f"{n} columns on an H200: {config.block_sizes=}, {config.reduction_loops=}, {config.num_warps=}")


if __name__ == "__main__":
    main()
