"""Cases of ``benchmarks/cute_parts.py`` whose loops end with tiles, round each of them, or become dimensions of an ``hl.grid``
loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import helion.language as hl
from benchmarks.cute_parts_cases import Arguments, Calls, Case, made


def lower(low: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Multiply the lower triangle of ``low[M, M]`` by ``x[M, N]``."""
    m, n = x.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(0, tile_m.end):
            left = torch.where(tile_m.index[:, None] >= tile_k.index[None, :], low[tile_m, tile_k], 0.0).to(x.dtype)
            acc = hl.dot(left, x[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def upper(x: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Multiply ``x[M, N]`` by ``up[N, N]``, which has zeros below the diagonal: columns of a tile end K."""
    m, n = x.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(tile_n.end):
            acc = hl.dot(x[tile_m, tile_k], up[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def rounded_tiles(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiply ``x[M, K]`` by ``w[K, N]``, and round the matmul of each tile of K before it is added."""
    out = torch.empty([x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), w.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc += x[tile_m, tile_k] @ w[tile_k, tile_n]
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def tiles_of_each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply ``a[B, M, K]`` by ``b[B, K, N]`` with a loop over tiles for each index."""
    out = torch.empty([a.size(0), a.size(1), b.size(2)], dtype=a.dtype, device=a.device)
    for i in hl.grid(a.size(0)):
        for tile_m, tile_n in hl.tile([a.size(1), b.size(2)]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(a.size(2)):
                acc = torch.addmm(acc, a[i, tile_m, tile_k], b[i, tile_k, tile_n])
            out[i, tile_m, tile_n] = acc.to(a.dtype)
    return out


def heads_of_each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply ``a[B, M, H, K]`` by ``b[B, H, K, N]`` with three nested loops."""
    batch, m, heads, k = a.size()
    out = torch.empty([batch, m, heads, b.size(3)], dtype=a.dtype, device=a.device)
    for i in hl.grid(batch):
        for h in hl.grid(heads):
            for tile_m, tile_n in hl.tile([m, b.size(3)]):
                acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
                for tile_k in hl.tile(k):
                    acc = torch.addmm(acc, a[i, tile_m, h, tile_k], b[i, h, tile_k, tile_n])
                out[i, tile_m, h, tile_n] = acc.to(a.dtype)
    return out


def rows_of_each(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Normalize the rows of ``x[B, C, L]``, with a loop over tiles of rows for each index."""
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        for tile in hl.tile(x.size(1)):
            values = x[i, tile, :].to(torch.float32)
            mean = values.mean(-1, keepdim=True)
            spread = ((values - mean) * (values - mean)).mean(-1, keepdim=True)
            out[i, tile, :] = ((values - mean) * torch.rsqrt(spread + 1e-5) * weight[None, :]).to(x.dtype)
    return out


def _case(kernel: Callable[..., Any], exact: Callable[..., Any], *shapes: tuple[int, ...], triangle: int = -1) -> Case:
    """Return the case of ``kernel``, whose result is ``exact`` of its arguments; one of them may be a triangle."""

    def arguments() -> Arguments:
        given = [made(*shape, seed=at) for at, shape in enumerate(shapes)]
        return tuple(each.triu() if at == triangle else each for at, each in enumerate(given))

    def library(*given: torch.Tensor) -> Calls:
        compiled = torch.compile(exact)
        return {"eager": lambda: exact(*given), "compiled": lambda: compiled(*given)}

    return Case(
        kernel=kernel,
        arguments=arguments,
        exact=lambda *given: exact(*(each.double() for each in given)),
        library=library,
    )


def ended_by_rows(m: int, n: int) -> Case:
    return _case(lower, lambda low, x: low.tril() @ x, (m, m), (m, n))


def ended_by_columns(m: int, n: int) -> Case:
    return _case(upper, torch.matmul, (m, n), (n, n), triangle=1)


def with_rounded_tiles(m: int, n: int, k: int) -> Case:
    return _case(rounded_tiles, torch.matmul, (m, k), (k, n))


def in_each(batch: int, m: int, n: int, k: int) -> Case:
    return _case(tiles_of_each, torch.matmul, (batch, m, k), (batch, k, n))


def heads_in_each(batch: int, heads: int, m: int, n: int, k: int) -> Case:
    def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.transpose(1, 2) @ b).transpose(1, 2)

    return _case(heads_of_each, exact, (batch, m, heads, k), (batch, heads, k, n))


def normalized_in_each(batch: int, channels: int, length: int) -> Case:
    def exact(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight)

    return _case(rows_of_each, exact, (batch, channels, length), (length,))
