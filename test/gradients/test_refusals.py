"""What has no derivative is refused by name, with the line and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion.experimental import backward

REFUSED: list[Any] = []


def refused(text: str, line: str, *arguments: Any) -> Callable[[Any], Any]:
    """Register a kernel that is refused with ``text`` for ``line``; results have the shape of the first argument."""

    def register(fn: Any) -> Any:
        REFUSED.append(pytest.param(helion.kernel(fn), text, line, arguments, id=fn.__name__))
        return fn

    return register


X = torch.randn(8, 16)


@refused("an op of kind 'inline'", 'hl.inline_triton("{0} + 1.0"', X)
def inline(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = hl.inline_triton("{0} + 1.0", (x[tile],), x[tile])
    return out


@refused("writes into its argument 'x'", "", X)
def in_place(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size()):
        x[tile] = x[tile] * 2
    return x


@refused("hl.atomic_max", "hl.atomic_max(out, [tile, 0], x[tile, 0])", X)
def atomic_maximum(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        hl.atomic_max(out, [tile, 0], x[tile, 0])
    return out


@refused("the value that an atomic operation returns", "before = hl.atomic_add(", X)
def atomic_value(x: torch.Tensor) -> torch.Tensor:
    total = x.new_zeros(x.size())
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        before = hl.atomic_add(total, [*tile], x[tile])
        out[tile] = before * 2
    return out


@refused("a scan other than a sum or a product", "torch.cummax(x[tile, :], 1)", X)
def running_maxima(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cummax(x[tile, :], 1)[0]
    return out


@refused("torch.sort with stable=True", "torch.sort(x[tile, :], 1, stable=True)", X)
def ordered(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.sort(x[tile, :], 1, stable=True)[0]
    return out


@refused("its bound is known on the device only", "for _ in hl.grid(counts[0]):", X, torch.tensor([3]))
def carried_in_a_loop_of_device_bounds(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        state = x[tile, 0] * 1.0
        for _ in hl.grid(counts[0]):
            state = torch.sin(state)
        out[tile, :] = state[:, None] + x[tile, :]
    return out


@refused(
    "it has several axes: write a loop for each of them", "for tile_n, tile_k in hl.tile([16, 8], block_size=4):", X
)
def carried_in_a_loop_of_two_axes(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        state = x[tile, 0] * 1.0
        for tile_n, tile_k in hl.tile([16, 8], block_size=4):
            state = torch.sin(state) + x[tile, tile_n].sum(1) + x[tile_k, 0].sum()
        out[tile, :] = state[:, None] + x[tile, :]
    return out


@refused("an op of kind 'while'", "while count < 3:", X)
def repeated(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile, :]
        count = 0
        while count < 3:
            value = value * 2
            count = count + 1
        out[tile, :] = value
    return out


@refused("storing into the same elements of 'out'", "out[tile_m, 0] = x[tile_m, tile_n].sum(1)", X)
def stored_by_several(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, 0] = x[tile_m, tile_n].sum(1)
    return out


@refused("writing 'out' in several places", "out[tile, :] = out_of_x + y", X, X[0])
def stored_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :8] = x[tile, :8]
        out_of_x = x[tile, :]
        out[tile, :] = out_of_x + y[:]
    return out


@refused("reading elements of a tensor that the same kernel writes", "out[tile, 8:]", X)
def read_back(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :8] = x[tile, :8] + out[tile, 8:]
    return out


@refused("may leave a part of 'out'", "for tile in hl.tile(4):", X)
def written_in_part(x: torch.Tensor) -> torch.Tensor:
    out = x * 3
    for tile in hl.tile(4):
        out[tile, :] = x[tile, :] * 2
    return out


@refused("torch.lgamma", "torch.lgamma(x[tile])", X.abs())
def gammas(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.lgamma(x[tile])
    return out


@refused("bitcast", "out[tile] = x[tile].half().view(torch.bfloat16).float()", X)
def bits(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile].half().view(torch.bfloat16).float()
    return out


@pytest.mark.parametrize("kernel, text, line, arguments", REFUSED)
def test_refused(kernel: helion.Kernel, text: str, line: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(helion.exc.AutodiffNotSupported, match=re.escape(text)) as caught:
        backward(kernel, torch.ones_like(arguments[0]), *arguments)
    assert line in str(caught.value)
    assert "; " in str(caught.value).split("\n")[0]


@pytest.mark.parametrize("kernel, text, line, arguments", REFUSED)
def test_refused_by_autograd(kernel: helion.Kernel, text: str, line: str, arguments: tuple[Any, ...]) -> None:
    leaves = [a.clone().requires_grad_() if a.is_floating_point() else a for a in arguments]
    with pytest.raises(helion.exc.AutodiffNotSupported, match=re.escape(text)):
        kernel.differentiable()(*leaves)
