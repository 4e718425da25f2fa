"""Kernels of users whose blocks of K have factors, in the ways that they can be written, with arguments and a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import helion
import helion.language as hl

E4M3 = torch.float8_e4m3fn
BLOCK = 128


@helion.kernel(backend="cute", static_shapes=True)
def by_id(a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
    """`sa[M, K / 128]`, `sb[K / 128, N / 128]`, tiles of a fixed size."""
    m, k = a.size()
    n = b.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=a.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, 128]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=128):
            part = hl.dot(a[tile_m, tile_k], b[tile_k, tile_n])
            acc = acc + part * sa[tile_m, tile_k.id][:, None] * sb[tile_k.id, tile_n.id]
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def by_begin(a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
    """The same with tiles that a config chooses; factors are multiplied first."""
    m, k = a.size()
    n = b.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=a.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            factor = sa[tile_m, tile_k.begin // 128] * sb[tile_k.begin // 128, tile_n.begin // 128]
            acc += hl.dot(a[tile_m, tile_k], b[tile_k, tile_n]) * factor[:, None]
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def gathered(a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
    """`b[N, K]`, `sb[N / 128, K / 128]`, of which each column picks its own; `sa[K / 128, M]`."""
    m, k = a.size()
    n = b.size(0)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=a.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=128):
            part = hl.dot(a[tile_m, tile_k], b[tile_n, tile_k].T)
            acc += part * sa[tile_k.id, tile_m][:, None] * sb[tile_n.index // 128, tile_k.id][None, :]
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def expanded(a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
    """`sb[K / 128, N]`, a factor for each column of a block."""
    m, k = a.size()
    n = b.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=a.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=128):
            part = hl.dot(a[tile_m, tile_k], b[tile_k, tile_n])
            acc = torch.addcmul(acc, part, sa[tile_m, tile_k.id].unsqueeze(-1) * sb[tile_k.id, tile_n][None, :])
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def nested(a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
    """A loop over blocks around one over the tiles of a block."""
    m, k = a.size()
    n = b.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=a.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for block in range(k // 128):
            part = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(block * 128, (block + 1) * 128):
                part = hl.dot(a[tile_m, tile_k], b[tile_k, tile_n], acc=part)
            acc += part * sa[tile_m, block][:, None] * sb[block, tile_n.begin // 128]
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def nested_grid(a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
    """The same by hl.grid, with `b[N, K]` and `sb[N / 128, K / 128]`, and blocks that are one tile."""
    m, k = a.size()
    n = b.size(0)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=a.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, 128]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for block in hl.grid(k // 128):
            part = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(block * 128, block * 128 + 128, block_size=128):
                part = hl.dot(a[tile_m, tile_k], b[tile_n, tile_k].T, acc=part)
            acc += part * (sa[tile_m, block] * sb[tile_n.id, block])[:, None]
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def normed(a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
    """Whole rows, normalised: `sb[K / 128, N]`."""
    m, k = a.size()
    n = b.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=a.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=128):
            part = hl.dot(a[tile_m, tile_k], b[tile_k, :])
            acc += part * sa[tile_m, tile_k.id][:, None] * sb[tile_k.id, :][None, :]
        inverse = torch.rsqrt((acc * acc).sum(-1, keepdim=True) / n + 1e-6)
        out[tile_m, :] = (acc * inverse).to(torch.bfloat16)
    return out


@dataclass(frozen=True, kw_only=True)
class Case:
    kernel: Any
    b_lines_k: bool = False
    """Whether B and its factors have N first."""
    rows_last: bool = False
    """Whether the factors of A have M last."""
    whole_blocks: bool = False
    columns: bool = False
    """Whether each column has a factor."""
    rms: bool = False


CASES = {
    "by_id": Case(kernel=by_id),
    "by_begin": Case(kernel=by_begin),
    "gathered": Case(kernel=gathered, b_lines_k=True, rows_last=True),
    "expanded": Case(kernel=expanded, columns=True),
    "nested": Case(kernel=nested, whole_blocks=True),
    "nested_grid": Case(kernel=nested_grid, b_lines_k=True, whole_blocks=True),
    "normed": Case(kernel=normed, columns=True, rms=True),
}


def arguments(case: Case, m: int, n: int, k: int, dtype: torch.dtype = E4M3) -> tuple[torch.Tensor, ...]:
    """Operands away from zero, and factors that differ from line to line and from block to block."""
    generator = torch.Generator().manual_seed(m + 3 * n + 7 * k)
    a = (torch.randn(m, k, generator=generator) + 0.5).to(dtype)
    b = torch.randn(n, k, generator=generator).to(dtype)
    blocks = -(-k // BLOCK)
    sa = torch.rand(m, blocks, generator=generator) + 0.25
    sb = torch.rand(n if case.columns else -(-n // BLOCK), blocks, generator=generator) + 0.25
    rows = sa.t().contiguous() if case.rows_last else sa
    return (a, b, rows, sb) if case.b_lines_k else (a, b.t(), rows, sb.t().contiguous())


def reference(case: Case, a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> torch.Tensor:
    """In fp64."""
    b, sb = (b, sb) if case.b_lines_k else (b.t(), sb.t())
    sa = sa.t() if case.rows_last else sa
    k, n = a.shape[1], b.shape[0]
    rows = sa.double().repeat_interleave(BLOCK, 1)[:, :k]
    columns = sb.double().repeat_interleave(BLOCK, 1)[:, :k]
    columns = columns if case.columns else columns.repeat_interleave(BLOCK, 0)[:n]
    sums = (a.double() * rows) @ (b.double() * columns).t()
    return sums * torch.rsqrt(sums.square().mean(-1, keepdim=True) + 1e-6) if case.rms else sums


def moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """On `device`, with its strides."""
    found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return found.copy_(tensor)


def baselines(case: Case, a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> dict[str, Any]:
    """torch's product of scaled blocks, where each has a factor, and what torch.compile makes of a product in bfloat16 of
    what the operands stand for."""
    right, columns = (b.t(), sb.t()) if case.b_lines_k else (b, sb)
    rows, k = sa.t() if case.rows_last else sa, a.shape[1]

    def dequantized() -> torch.Tensor:
        left = a.to(torch.bfloat16) * rows.repeat_interleave(BLOCK, 1)[:, :k].to(torch.bfloat16)
        wide = columns.repeat_interleave(BLOCK, 0)[:k].to(torch.bfloat16)
        wide = wide if case.columns else wide.repeat_interleave(BLOCK, 1)[:, : right.shape[1]]
        out = left @ (right.to(torch.bfloat16) * wide)
        return torch.nn.functional.rms_norm(out, out.shape[-1:], eps=1e-6) if case.rms else out

    found: dict[str, Any] = {"compile": torch.compile(dequantized, dynamic=False)}
    if not case.columns:
        left, blocks = rows.t().contiguous().t(), columns.t().contiguous().t()
        how = {"scale_a": left, "scale_b": blocks, "out_dtype": torch.bfloat16}
        found["scaled_mm"] = lambda: torch._scaled_mm(a, right, **how)
    return found
