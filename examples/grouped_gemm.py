"""Grouped matmul: consecutive groups of rows, each with its own matrix.

Groups differ in size and are packed in one tensor, as the tokens of a mixture of experts are after sorting. In one
kernel the bounds of each group's loop are loaded. In the other the grid covers the largest group and masks the rest.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def grouped_gemm(x: torch.Tensor, y: torch.Tensor, offsets: torch.Tensor, longest: int) -> torch.Tensor:
    """Compute `x[offsets[g] : offsets[g + 1]] @ y[g]` of `x[rows, K]`, `y[G, K, N]`, with a loop over each group's
    rows.

    `offsets[G + 1]` starts with 0, ends with the number of rows and does not decrease. `longest` is not used.
    """
    rows, k = x.size()
    groups, k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    assert offsets.size(0) == groups + 1, f"{offsets.size(0)} offsets do not delimit {groups} groups"
    out = torch.empty([rows, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        group = tile_g.begin
        for tile_m in hl.tile(offsets[group], offsets[group + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[group, tile_k, tile_n])
            out[tile_m, tile_n] = acc
    return out


@helion.kernel()
def grouped_gemm_masked(x: torch.Tensor, y: torch.Tensor, offsets: torch.Tensor, longest: int) -> torch.Tensor:
    """Compute the same, in parallel over rows too, for groups of at most `longest` rows."""
    rows, k = x.size()
    groups, k2, n = y.size()
    assert k == k2, f"cannot multiply: x has {k} columns, y has {k2} rows"
    assert offsets.size(0) == groups + 1, f"{offsets.size(0)} offsets do not delimit {groups} groups"
    out = torch.empty([rows, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_g, tile_m, tile_n in hl.tile([groups, longest, n], block_size=[1, None, None]):
        group = tile_g.begin
        row = offsets[group] + tile_m.index
        inside = (row < offsets[group + 1])[:, None]
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, hl.load(x, [row, tile_k], extra_mask=inside), y[group, tile_k, tile_n])
        hl.store(out, [row, tile_n], acc, extra_mask=inside)
    return out


def reference(x: torch.Tensor, y: torch.Tensor, offsets: torch.Tensor, longest: int) -> torch.Tensor:
    bounds = offsets.tolist()
    return torch.cat([x[begin:end] @ y[g] for g, (begin, end) in enumerate(pairwise(bounds))])


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    offsets = torch.tensor([0, 13, 13, 30, 51], dtype=torch.int32, device=DEVICE)
    x = torch.randn([51, 45], device=DEVICE) + 0.5
    y = torch.randn([4, 45, 19], device=DEVICE) + 0.25
    return [
        ("fp32", grouped_gemm, (x, y, offsets, 21)),
        ("bf16", grouped_gemm, (x.bfloat16(), y.bfloat16(), offsets, 21)),
        ("masked, fp32", grouped_gemm_masked, (x, y, offsets, 21)),
        ("masked, fp16", grouped_gemm_masked, (x.half(), y.half(), offsets, 21)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
