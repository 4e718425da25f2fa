"""A statement that is followed, forgotten and followed again gives what it gives when followed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor
from trials import check_trials

import helion
import helion.language as hl

SIZES = [1, 2]


class Box:
    width = 3


def extended(items: list[int], n: int) -> list[int]:
    items.append(n)
    return items


def containers(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    sizes, table, seen = [n], {"a": n}, {n}
    sizes.append(n + 1)
    sizes[0] += 1
    table["b"] = len(sizes)
    seen.add(len(table))
    extended(sizes, 7)
    if n > 1:
        sizes.pop()
        del table["a"]
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * len(sizes) + sum(sizes) + table["b"] + len(seen)
    return out


def outside(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    Box.width = n + Box.width
    sizes = SIZES
    sizes.append(n)
    with torch.no_grad():
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * Box.width + len(SIZES)
    return out


def views(x: torch.Tensor, n: int) -> torch.Tensor:
    y = torch.zeros(4, 8, dtype=x.dtype, device=x.device)
    y.t_()
    first, *others = [y, y * 2, y + 1]
    others[0].unsqueeze_(0)
    for tile in hl.tile(y.size(0)):
        first[tile, :] = others[0][0, tile, :] + x[0]
    return first


def in_a_host_loop(x: torch.Tensor, n: int) -> torch.Tensor:
    now, then, scale, made = x, torch.empty_like(x), 1, []
    for step in range(n):
        for tile in hl.tile(x.size(0)):
            then[tile] = now[tile] * scale + step
        now, then = then, now
        scale = scale + len(made) + 1
        made.append(step)
        for tile in hl.tile(x.size(0)):
            now[tile] = now[tile] + 1
    return now


def lists_in_device_code(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        parts = [x[tile]]
        parts.append(parts[0] * 2)
        count = 0
        while count < n:
            inner = [count]
            inner.append(count + 1)
            count = inner[1]
            hl.atomic_add(out, [tile], parts[1] + count)
    return out


@pytest.mark.parametrize(
    "fn", [containers, outside, views, in_a_host_loop, lists_in_device_code], ids=lambda f: f.__name__
)
def test_forgotten_trials(fn: Callable[..., Any]) -> None:
    for static in (True, False):
        check_trials(helion.kernel(fn, static_shapes=static), (tensor(64, dtype=torch.float32), 3))
