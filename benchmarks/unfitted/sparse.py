"""Sparse rows, bins and segments."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .cell import BF16, FP64, Arguments, Cells, high, normal, offsets_of

CELLS = Cells()


@helion.kernel
def csr_softmax(offsets: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Softmax over the edges of each node, for each head of `scores[E, H]`."""
    n = offsets.size(0) - 1
    heads = hl.specialize(scores.size(1))
    out = torch.empty_like(scores)
    for node in hl.grid(n):
        begin, end = offsets[node], offsets[node + 1]
        top = hl.full([heads], float("-inf"), dtype=torch.float32)
        total = hl.zeros([heads], dtype=torch.float32)
        for edges in hl.tile(begin, end):
            v = scores[edges, :].to(torch.float32)
            new = torch.maximum(top, v.amax(0))
            total = total * torch.exp(top - new) + torch.exp(v - new[None, :]).sum(0)
            top = new
        for edges in hl.tile(begin, end):
            v = scores[edges, :].to(torch.float32)
            out[edges, :] = (torch.exp(v - top[None, :]) / total[None, :]).to(scores.dtype)
    return out


def csr_softmax_torch(offsets: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    n = offsets.size(0) - 1
    rows = torch.repeat_interleave(torch.arange(n, device=scores.device), offsets.diff(), output_size=scores.size(0))
    s = high(scores)
    top = torch.full([n, s.size(1)], float("-inf"), dtype=s.dtype, device=s.device)
    top = top.scatter_reduce(0, rows[:, None].expand_as(s), s, "amax")
    e = torch.exp(s - top[rows])
    total = torch.zeros_like(top).index_add(0, rows, e)
    return (e / total[rows]).to(scores.dtype)


def make_csr_softmax(device: str, small: bool) -> Arguments:
    off = offsets_of(23 if small else 50000, 0, 31)
    return off.to(device), normal(device, int(off[-1]), 8)


CELLS.add(csr_softmax, make_csr_softmax, csr_softmax_torch)


@helion.kernel
def csr_matvec(offsets: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`A @ x` in fp64 with a sparse A in CSR, several rows a program."""
    n = offsets.size(0) - 1
    out = torch.empty([n], dtype=x.dtype, device=x.device)
    for rows in hl.tile(n):
        start = offsets[rows]
        acc = hl.zeros([rows], dtype=torch.float64)
        for k in hl.jagged_tile(offsets[rows.index + 1] - start):
            at = start[:, None] + k.index[None, :]
            acc += (values[at] * x[columns[at]]).sum(1)
        out[rows] = acc
    return out


def csr_matvec_torch(
    offsets: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    n = offsets.size(0) - 1
    rows = torch.repeat_interleave(torch.arange(n, device=x.device), offsets.diff(), output_size=columns.size(0))
    return torch.zeros([n], dtype=x.dtype, device=x.device).index_add(0, rows, values * x[columns])


def make_csr_matvec(device: str, small: bool) -> Arguments:
    n = 63 if small else 200_000
    off = offsets_of(n, 0, 41)
    e = int(off[-1])
    return (
        off.to(device),
        torch.randint(0, n, [e], device=device, dtype=torch.int32),
        normal(device, e, dtype=FP64),
        normal(device, n, dtype=FP64),
    )


CELLS.add(csr_matvec, make_csr_matvec, csr_matvec_torch)


@helion.kernel
def histogram2d(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, bins: int) -> torch.Tensor:
    """Weighted counts of pairs in `[0, 1)` squared, in `bins * bins` cells."""
    counts = torch.zeros([bins * bins], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        i = torch.clamp((x[tile] * bins).to(torch.int32), 0, bins - 1)
        j = torch.clamp((y[tile] * bins).to(torch.int32), 0, bins - 1)
        hl.atomic_add(counts, [i * bins + j], w[tile])
    return counts.view(bins, bins)


def histogram2d_torch(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, bins: int) -> torch.Tensor:
    at = (x * bins).long().clamp(0, bins - 1) * bins + (y * bins).long().clamp(0, bins - 1)
    return torch.zeros([bins * bins], dtype=w.dtype, device=x.device).index_add(0, at, w).view(bins, bins)


def make_histogram2d(device: str, small: bool) -> Arguments:
    n = 4097 if small else 4_000_001
    return (
        torch.rand([n], device=device),
        torch.rand([n], device=device),
        torch.rand([n], device=device),
        9 if small else 64,
    )


CELLS.add(histogram2d, make_histogram2d, histogram2d_torch)


@helion.kernel
def scatter_mean(ids: torch.Tensor, x: torch.Tensor, groups: int) -> torch.Tensor:
    """Mean of the rows of each group; groups without rows are 0."""
    n, d = x.size()
    total = torch.zeros([groups, d], dtype=torch.float32, device=x.device)
    count = torch.zeros([groups], dtype=torch.float32, device=x.device)
    out = torch.empty([groups, d], dtype=x.dtype, device=x.device)
    for rows in hl.tile(n):
        hl.atomic_add(count, [ids[rows]], 1.0)
    for rows, columns in hl.tile([n, d]):
        hl.atomic_add(total, [ids[rows], columns], x[rows, columns].to(torch.float32))
    hl.barrier()
    for g, columns in hl.tile([groups, d]):
        out[g, columns] = (total[g, columns] / torch.clamp(count[g], min=1.0)[:, None]).to(x.dtype)
    return out


def scatter_mean_torch(ids: torch.Tensor, x: torch.Tensor, groups: int) -> torch.Tensor:
    total = torch.zeros([groups, x.size(1)], dtype=high(x).dtype, device=x.device).index_add(0, ids, high(x))
    count = torch.bincount(ids, minlength=groups).clamp(min=1)
    return (total / count[:, None]).to(x.dtype)


def make_scatter_mean(device: str, small: bool) -> Arguments:
    n, c, g = (77, 33, 9) if small else (100_000, 128, 5000)
    return torch.randint(0, g, [n], device=device), normal(device, n, c, dtype=BF16), g


CELLS.add(scatter_mean, make_scatter_mean, scatter_mean_torch)


@helion.kernel
def bucketize(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Number of sorted edges at or below each element, as uint8: a loop over the edges."""
    out = torch.empty(x.size(), dtype=torch.uint8, device=x.device)
    e = edges.size(0)
    for rows, columns in hl.tile(x.size()):
        v = x[rows, columns]
        count = hl.zeros([rows, columns], dtype=torch.int32)
        for i in range(e):
            count += (v >= edges[i]).to(torch.int32)
        out[rows, columns] = count.to(torch.uint8)
    return out


def bucketize_torch(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    return torch.bucketize(x, edges, right=True).to(torch.uint8)


CELLS.add(
    bucketize,
    lambda device, small: (
        normal(device, *((63, 77) if small else (4096, 4096))),
        torch.linspace(-2, 2, 33, device=device),
    ),
    bucketize_torch,
)
