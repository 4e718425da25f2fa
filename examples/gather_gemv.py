"""Matrix-vector products with matrices selected by an index, as in a mixture of experts for one token.

The index is a scalar in the first kernel, with one matrix per program. It is a tensor in the second, which gathers a
block of several matrices at once.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def gather_gemv(matrices: torch.Tensor, chosen: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Compute fp32 `matrices[chosen[t]] @ x` for each t, of `matrices[E, N, K]`, `chosen[T]` and `x[K]`."""
    _, n, k = matrices.size()
    count = chosen.size(0)
    out = torch.empty([count, n], dtype=torch.float32, device=x.device)
    for tile_t, tile_n in hl.tile([count, n], block_size=[1, None]):
        expert = chosen[tile_t.begin]
        acc = hl.zeros([tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            products = matrices[expert, tile_n, tile_k].to(torch.float32) * x[tile_k][None, :]
            acc += torch.sum(products, dim=-1)
        out[tile_t.begin, tile_n] = acc
    return out


@helion.kernel()
def gather_gemv_blocked(matrices: torch.Tensor, chosen: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Compute the same for a tile of choices at a time."""
    _, n, k = matrices.size()
    count = chosen.size(0)
    out = torch.empty([count, n], dtype=torch.float32, device=x.device)
    for tile_t, tile_n in hl.tile([count, n]):
        experts_of_tile = chosen[tile_t]
        acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            products = matrices[experts_of_tile, tile_n, tile_k].to(torch.float32) * x[tile_k]
            acc += torch.sum(products, dim=-1)
        out[tile_t, tile_n] = acc
    return out


def reference(matrices: torch.Tensor, chosen: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return matrices[chosen.long()] @ x


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    matrices = torch.randn([8, 31, 77], device=DEVICE) + 0.5
    chosen = torch.tensor([7, 0, 3, 3, 5], dtype=torch.int32, device=DEVICE)
    x = torch.randn([77], device=DEVICE) + 0.25
    return [
        ("fp32", gather_gemv, (matrices, chosen, x)),
        ("bf16", gather_gemv, (matrices.bfloat16(), chosen.long(), x.bfloat16())),
        ("blocked, fp32", gather_gemv_blocked, (matrices, chosen, x)),
        ("blocked, fp16", gather_gemv_blocked, (matrices.half(), chosen[:2], x.half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
