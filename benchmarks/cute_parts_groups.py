"""Cases of ``benchmarks/cute_parts.py`` with groups of K: gradients of the matrices of experts."""

from __future__ import annotations

import itertools
from typing import Any

import torch

import helion.language as hl
from benchmarks.cute_parts_cases import BF16, Arguments, Calls, Case, made
from helion.ops.kernels.experts import grouped_matmul_backward_kernel


def decayed(x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Compute ``x[rows].T @ grad[rows] + w / 8`` of the rows of each group, counted from its first one."""
    groups, m, n = w.size()
    out = torch.empty([groups, m, n], dtype=torch.float32, device=x.device)
    for g in hl.grid(groups):
        start, end = offsets[g], offsets[g + 1]
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(end - start):
                acc = hl.dot(x[start + tile_k.index, tile_m].T, grad[start + tile_k.index, tile_n], acc=acc)
            out[g, tile_m, tile_n] = acc + w[g, tile_m, tile_n].to(torch.float32) * 0.125
    return out


def of_experts(
    *sizes: int,
    m: int = 2048,
    n: int = 1024,
    first: int = 0,
    decay: bool = False,
    dtype: torch.dtype = BF16,
    **changes: Any,
) -> Case:
    """Return the case of the gradients of matrices (m, n), of groups of these sizes, from row ``first`` on.

    Rows of no group are NaN: the K tile of the last one must not read them.
    """
    bounds = list(itertools.accumulate(sizes, initial=first))

    def arguments() -> Arguments:
        x, grad = (made(bounds[-1] + 70, columns, seed=columns, dtype=dtype) for columns in (m, n))
        for each in (x, grad):
            each[:first], each[bounds[-1] :] = torch.nan, torch.nan
        offsets = torch.tensor(bounds, dtype=torch.int32)
        return (x, grad, offsets, made(len(sizes), m, n)) if decay else (grad, x, offsets, dtype)

    def exact(*given: Any) -> torch.Tensor:
        x, grad = given[:2] if decay else given[1::-1]
        found = [x[a:b].double().t() @ grad[a:b].double() for a, b in itertools.pairwise(bounds)]
        return torch.stack(found) + (given[3].double() * 0.125 if decay else 0.0)

    def library(*given: Any) -> Calls:
        x, grad = given[:2] if decay else given[1::-1]
        if decay or first:
            return {}
        rows, ends = x[: bounds[-1]], given[2][1:]
        return {
            "cublas": lambda: [x[a:b].t() @ grad[a:b] for a, b in itertools.pairwise(bounds) if a < b],
            "grouped_mm": lambda: torch._grouped_mm(rows.t(), grad[: bounds[-1]], offs=ends),
        }

    kernel = decayed if decay else grouped_matmul_backward_kernel.fn
    return Case(kernel=kernel, arguments=arguments, exact=exact, library=library, **changes)
