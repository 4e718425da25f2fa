"""Gradients of sorted elements, and of kernels that draw four random numbers."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.experimental import backward


def scored(x: torch.Tensor, w: torch.Tensor, down: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.sort(x[tile, :], -1, descending=down)[0].to(torch.float32) * w[:]
    return out


def reordered(x: torch.Tensor, w: torch.Tensor, down: hl.constexpr) -> torch.Tensor:
    """Order rows of another tensor, and use the places themselves."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values, places = torch.sort(x[tile, :], -1, descending=down)
        other = torch.sin(x[tile, :])
        out[tile, :] = torch.gather(other, 1, places) * w[:] + values * places
    return out


def scored_by_torch(x: torch.Tensor, w: torch.Tensor, down: bool) -> torch.Tensor:
    return (torch.sort(x, -1, descending=down)[0].float() * w).to(x.dtype)


def reordered_by_torch(x: torch.Tensor, w: torch.Tensor, down: bool) -> torch.Tensor:
    values, places = torch.sort(x, -1, descending=down)
    return torch.gather(torch.sin(x), 1, places) * w + values * places


@pytest.mark.parametrize("down", (True, False))
@pytest.mark.parametrize("n", (1, 13, 63, 128))
@pytest.mark.parametrize(("kernel", "by_torch"), ((scored, scored_by_torch), (reordered, reordered_by_torch)))
def test_gradients_of_sorted_elements(kernel, by_torch, n: int, down: bool) -> None:
    x, w = (torch.randn(5, n, requires_grad=True), torch.randn(n, requires_grad=True))
    given = torch.randn(5, n)
    helion.kernel(kernel).differentiable()(x, w, down).backward(given)
    expected = torch.autograd.grad(by_torch(x, w, down), (x, w), given)
    torch.testing.assert_close((x.grad, w.grad), expected)


def test_the_backward_of_a_sort_is_a_gather() -> None:
    given, x, w = torch.ones(5, 64), torch.randn(5, 64), torch.randn(64)
    _, source, _ = backward(helion.kernel(scored), given, x, w, True, return_code=True)
    assert "torch.gather(" in source and "hl.arange" not in source, source


def stably(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.sort(x[tile, :], -1, stable=True)[0]
    return out


def test_a_stable_sort_has_no_derivative() -> None:
    x = torch.randn(5, 8, requires_grad=True)
    with pytest.raises(exc.AutodiffNotSupported, match=r"torch\.sort with stable=True; call it without stable"):
        helion.kernel(stably).differentiable()(x).sum().backward()


def four(x: torch.Tensor, seed: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a, b, c, d = hl.rand4x(seed, tile.index)
        out[tile] = torch.sin(x[tile]) * (a + b * c) + d
    return out


@pytest.mark.parametrize("static_shapes", (True, False))
def test_four_random_numbers_are_constants(static_shapes: bool) -> None:
    kernel, x = helion.kernel(four, static_shapes=static_shapes), torch.randn(1000, requires_grad=True)
    kernel.differentiable()(x, 3).sum().backward()
    factor = kernel(torch.full((1000,), torch.pi / 2), 3) - kernel(torch.zeros(1000), 3)
    torch.testing.assert_close(x.grad, torch.cos(x.detach()) * factor)
