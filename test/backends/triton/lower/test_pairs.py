"""Neighbouring elements that a kernel loads and stores one by one: one access for both, where no other comes between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.execute.interpreter.races import detect_races


def products(x, y):
    """Products of complex numbers, of which ``y`` has one for each column."""
    m, n, _ = x.size()
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile([m, n]):
        a, b = x[tile_m, tile_n, 0], x[tile_m, tile_n, 1]
        c, d = y[tile_n, 0][None, :], y[tile_n, 1][None, :]
        out[tile_m, tile_n, 1] = a * d + b * c
        out[tile_m, tile_n, 0] = a * c - b * d
    return out


def _products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.view_as_complex(x.contiguous()) * torch.view_as_complex(y.contiguous()))


def in_place(x, y):
    """The second element is loaded after a store to the tensor, and stored after a load."""
    for tile in hl.tile(x.size(0)):
        x[tile, 2] = x[tile, 2] + y[tile, 0]
        x[tile, 3] = x[tile, 3] * x[tile, 2] + y[tile, 1]
    return x


def _in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, 2] += y[:, 0]
    x[:, 3] = x[:, 3] * x[:, 2] + y[:, 1]
    return x


def twice(x, y):
    """An element is stored twice, and the last one remains."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a = x[tile, 0]
        out[tile, 0] = a
        out[tile, 0] = a + y[tile, 0]
        out[tile, 1] = a - y[tile, 1]
        out[tile, 2] = x[tile, 2]
        out[tile, 3] = x[tile, 3]
    return out


def _twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[:, 0] + y[:, 0], x[:, 0] - y[:, 1], x[:, 2], x[:, 3]], dim=1)


def across_a_fence(x, y):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, 0] = x[tile, 0]
        hl.inline_triton("tl.debug_barrier()", args=(), output_like=None)
        out[tile, 1] = x[tile, 1] + y[tile, 0]
    return out


def _across_a_fence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[:, 0], x[:, 1] + y[:, 0]], dim=1)


def made(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(shape)


#: Kernel, reference, arguments, loads and stores of pairs.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...], int, int]] = {
    "complex": (products, _products, (made(7, 37, 2), made(37, 2)), 2, 1),
    "rows at odd addresses": (products, _products, (made(7, 37, 3)[..., :2], made(37, 2)), 1, 1),
    "loads and stores in turn": (in_place, _in_place, (made(37, 4), made(37, 2)), 2, 0),
    "across a fence": (across_a_fence, _across_a_fence, (made(37, 2), made(37, 2)), 0, 0),
    "stored twice": (twice, _twice, (made(37, 4), made(37, 2)), 2, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_pairs_are_accessed_at_once(name: str) -> None:
    fn, reference, args, loads, stores = CASES[name]
    kernel = helion.kernel(fn, static_shapes=True)
    expected = reference(*args)
    text = kernel.bind(args).to_triton_code()
    assert (text.count("tl.split("), text.count("tl.join(")) == (loads, stores)
    with detect_races():
        result = kernel(*args)
    assert torch.allclose(result, expected, rtol=1e-6, atol=1e-6)
