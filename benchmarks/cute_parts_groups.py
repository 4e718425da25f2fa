"""Cases of ``benchmarks/cute_parts.py`` of experts: gradients of their matrices, and blocks of rows that have one each."""

from __future__ import annotations

import itertools
from typing import Any

import torch

import helion.language as hl
from benchmarks.cute_parts_cases import BF16, Arguments, Calls, Case, made
from benchmarks.workloads.products import aligned_experts
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


def blocks(
    x: torch.Tensor, w: torch.Tensor, expert_of: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """Compute ``x[rows, K] @ w[expert, K, N]`` of each block of 128 rows, with a bias of its expert and a residual."""
    (rows, k), n = x.size(), w.size(2)
    out = torch.empty([rows, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([rows, n], block_size=[128, None]):
        expert = expert_of[tile_m.id]
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[expert, tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = (acc + bias[expert, tile_n][None, :] + residual[tile_m, tile_n]).to(x.dtype)
    return out


def of_blocks_of_experts(rows: int, experts: int, k: int, n: int, tokens: int = 0, **changes: Any) -> Case:
    """Return the case of blocks of rows with an expert each, of ``rows`` of ``tokens`` that an index picks, if given."""
    size = 64 if tokens else 128
    generator = torch.Generator().manual_seed(rows)
    expert_of = torch.randint(experts, (-(-rows // size),), generator=generator, device="cpu").to(torch.int32)

    def arguments() -> Arguments:
        numbers = expert_of.to(torch.get_default_device())
        if tokens:
            picked = torch.randint(tokens, (rows,), generator=generator, device="cpu").to(numbers.device)
            return made(tokens, k), made(experts, n, k, seed=1), picked, numbers
        return made(rows, k), made(experts, k, n, seed=1), numbers, made(experts, n, seed=2), made(rows, n, seed=3)

    def exact(*given: Any) -> torch.Tensor:
        x, w = (each.double() for each in given[:2])
        x, w = (x[given[2]], w.transpose(1, 2)) if tokens else (x, w)
        found = torch.cat([part @ w[e] for part, e in zip(x.split(size), expert_of.tolist(), strict=True)])
        of_row = expert_of.repeat_interleave(size)[:rows].to(found.device)
        return found if tokens else found + given[3].double()[of_row] + given[4].double()

    def library(*given: Any) -> Calls:
        return {}

    kernel = aligned_experts.fn if tokens else blocks
    return Case(kernel=kernel, arguments=arguments, exact=exact, library=library, **changes)
