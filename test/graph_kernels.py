"""Kernels that stand in graphs of torch, in tests and in other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import helion
import helion.language as hl


@helion.kernel
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        scale = torch.rsqrt(torch.mean(row * row, dim=-1) + eps)
        out[tile, :] = (row * scale[:, None] * weight[:].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel(static_shapes=False)
def add_scaled(x: torch.Tensor, y: torch.Tensor, scale: float = 1.0, shift: int = 0) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + y[tile] * scale + shift
    return out


@helion.kernel(static_shapes=False)
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    assert y.size(0) == k, "sizes do not match"
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(out.dtype)
    return out


@helion.kernel(static_shapes=False)
def add_into(out: torch.Tensor, x: torch.Tensor) -> None:
    for tile in hl.tile(out.size(0)):
        out[tile] = out[tile] + x[tile]


@helion.kernel(static_shapes=False)
def scale_and_return(x: torch.Tensor, factor: float) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] * factor
    return x


@helion.kernel(static_shapes=False)
def several(x: torch.Tensor) -> dict[str, Any]:
    total = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    doubled = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        total[tile] = row.sum(-1)
        doubled[tile, :] = row * 2
    return {"total": total, "pair": (doubled, None), "name": "both", "count": [3, x]}


@helion.kernel(static_shapes=False)
def total_and_double(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    doubled = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        total[tile] = row.sum(-1)
        doubled[tile, :] = row * 2
    return total, doubled


@helion.kernel(static_shapes=False)
def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    out = torch.empty([x.size(0) * 2], dtype=x.dtype, device=x.device)
    halves = out.view(2, x.size(0))
    for tile in hl.tile(x.size(0)):
        halves[0, tile] = x[tile] + 1
        halves[1, tile] = x[tile] - 1
    return halves[0], halves[1], out, x[1:], out


@helion.kernel(static_shapes=False)
def total_of(parts: list[torch.Tensor], weights: tuple[float, int], bias: torch.Tensor | None = None) -> torch.Tensor:
    out = torch.empty_like(parts[0])
    for tile in hl.tile(out.size(0)):
        acc = parts[0][tile] * weights[0]
        acc = acc + parts[1][tile] * weights[1]
        if bias is not None:
            acc = acc + bias[tile]
        out[tile] = acc
    return out


@helion.kernel(static_shapes=False)
def named(self: torch.Tensor, input: torch.Tensor, dim: int, size: int, out: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(self)
    for tile in hl.tile(self.size(0)):
        result[tile] = self[tile] + input[tile] * dim + size + out[tile]
    return result


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@helion.kernel(static_shapes=False)
def pair(x: torch.Tensor, y: torch.Tensor | None = None) -> Pair:
    first, second = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile] * 2
        first[tile] = value
        second[tile] = value + 1 if y is None else x[tile] + y[tile] + 1
    return Pair(first, second)


@helion.kernel(static_shapes=False)
def convert(x: torch.Tensor, dtype: torch.dtype, mode: str, flag: bool, power: hl.constexpr) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        value = x[tile]
        if flag:
            value = -value
        if mode == "square":
            value = value * value
        for _ in hl.static_range(power):
            value = value + 1
        out[tile] = value.to(dtype)
    return out


@helion.kernel(static_shapes=False)
def apply(x: torch.Tensor, fn: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = fn(x[tile])
    return out


@helion.kernel(static_shapes=False)
def noise(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + torch.rand_like(x[tile])
    return out


@helion.kernel(static_shapes=False)
def branches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.size(0) > 16:
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile] * 2
        return y
    out = torch.empty([y.size(0) + 1], device=y.device)
    for tile in hl.tile(y.size(0)):
        out[tile] = y[tile]
    out[-1] = 0
    return out


@helion.kernel(static_shapes=False)
def add(x: torch.Tensor, number: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + number
    return out


def shifted(v: torch.Tensor) -> torch.Tensor:
    return v * 2 + 1
