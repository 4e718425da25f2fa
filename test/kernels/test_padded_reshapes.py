"""Reshapes of whole dimensions that lie in more lanes than they have elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

#: Elements keep their lanes in the first ones; they move in the others.
SHAPES = ((3, 128), (24, 8), (7, 8), (2, 24), (24, 2), (16, 3), (12, 12), (5, 7))


def normalized(x: torch.Tensor, shape: hl.constexpr) -> torch.Tensor:
    """Groups of a row, and the row again."""
    n = hl.specialize(x.size(1))
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        v = x[t, :].to(torch.float32).reshape(t, *shape)
        centred = v - v.mean(-1, keepdim=True)
        out[t, :] = (centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1)).reshape(t, n).to(x.dtype)
    return out


def normalized_eager(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    v = x.to(torch.float32).reshape(x.size(0), *shape)
    centred = v - v.mean(-1, keepdim=True)
    return (centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1)).reshape(x.shape).to(x.dtype)


def along_groups(x: torch.Tensor, shape: hl.constexpr) -> torch.Tensor:
    """Reductions over the dimension that has lanes without elements, of values that are not 0 there."""
    hl.specialize(x.size(1))
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        v = (x[t, :] - 5).view(t, *shape)
        out[t, :] = (v / v.sum(1, keepdim=True) + v.amax(1)[:, None, :] + v.amin(2)[:, :, None]).flatten(1)
    return out


def along_groups_eager(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    v = (x - 5).view(x.size(0), *shape)
    return (v / v.sum(1, keepdim=True) + v.amax(1)[:, None, :] + v.amin(2)[:, :, None]).flatten(1)


def turned(x: torch.Tensor, shape: hl.constexpr) -> torch.Tensor:
    hl.specialize(x.size(1))
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :].unflatten(1, shape).transpose(1, 2).reshape(t, -1)
    return out


def turned_eager(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return x.unflatten(1, shape).transpose(1, 2).reshape(x.shape)


def stored(x: torch.Tensor, shape: hl.constexpr) -> torch.Tensor:
    """Loaded flat and stored in groups, loaded in groups and stored flat."""
    a, b = shape
    hl.specialize(x.size(1))
    apart = torch.empty([x.size(0), a, b], dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        apart[t, :, :] = torch.exp(x[t, :]).reshape(t, a, b)
    hl.barrier()
    for t in hl.tile(x.size(0)):
        out[t, :] = (apart[t, :, :] + 1).reshape(t.block_size, a * b)
    return out


def stored_eager(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return x.exp() + 1


KERNELS = (
    (normalized, normalized_eager),
    (along_groups, along_groups_eager),
    (turned, turned_eager),
    (stored, stored_eager),
)


@pytest.mark.parametrize(("function", "reference"), KERNELS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_in_groups(function: Any, reference: Callable[..., torch.Tensor], shape: tuple[int, int]) -> None:
    x = torch.randn(5, shape[0] * shape[1]) + 0.5
    static = shape[0] % 2 == 0
    torch.testing.assert_close(helion.kernel(function, static_shapes=static)(x, shape), reference(x, shape))


@pytest.mark.parametrize(("function", "reference"), KERNELS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", ["checked", "eager", "half"])
def test_other_modes(function: Any, reference: Callable[..., torch.Tensor], mode: str) -> None:
    dtype = torch.bfloat16 if mode == "half" else torch.float32
    kernel = helion.kernel(
        function, checked=mode == "checked", ref_mode=helion.RefMode.EAGER if mode == "eager" else helion.RefMode.OFF
    )
    for shape in ((3, 16), (5, 6)):
        x = (torch.randn(5, shape[0] * shape[1]) + 0.5).to(dtype)
        expected = reference(x.double(), shape).to(dtype) if mode == "half" else reference(x, shape)
        tolerance = 5e-2 if mode == "half" else 1e-5
        torch.testing.assert_close(kernel(x, shape), expected, rtol=tolerance, atol=tolerance)


def test_rows_that_are_reshaped_are_not_walked_in_chunks() -> None:
    for shape in ((3, 128), (4, 128), (128, 3)):
        x = torch.randn(5, shape[0] * shape[1])
        bound = helion.kernel(normalized).bind((x, shape))
        slots = len(bound.config_spec.default_config()["reduction_loops"])
        for size in (None, 16):
            for at in range(slots):
                loops = [size if i == at else None for i in range(slots)]
                run = bound.compile_config({"block_sizes": [4], "reduction_loops": loops})
                torch.testing.assert_close(run(x, shape), normalized_eager(x, shape))


@pytest.mark.parametrize("shape", [(3, 128), (16, 3), (2, 24)])
def test_they_compile_for_gpus(shape: tuple[int, int]) -> None:
    x = torch.empty(64, shape[0] * shape[1], dtype=torch.bfloat16, device="meta")
    for target in ("h200", "gfx942"):
        assert helion.kernel(normalized).bind((x, shape), target=target).resources().fits


def multiplied(x: torch.Tensor, w: torch.Tensor, shape: hl.constexpr) -> torch.Tensor:
    a, b = shape
    out = torch.empty([x.size(0), a, w.size(1)], dtype=torch.float32, device=x.device)
    for t in hl.tile(x.size(0), block_size=1):
        out[t, :, :] = hl.dot(x[t, :].reshape(a, b), w[:, :])[None, :, :]
    return out


@pytest.mark.parametrize("shape", [(3, 16), (3, 128), (5, 24), (16, 3)])
def test_products_of_groups(shape: tuple[int, int]) -> None:
    x, w = torch.randn(2, shape[0] * shape[1]) + 0.5, torch.randn(shape[1], 17) + 0.5
    kernel = helion.kernel(multiplied, dot_precision="ieee")
    torch.testing.assert_close(kernel(x, w, shape), x.view(2, *shape) @ w)


@pytest.mark.parametrize("shape", [(24, 8), (16, 8), (5, 4), (7, 9), (12, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_product_may_need_more_lanes_than_a_reshape_leaves(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, w = torch.randn(2, shape[0] * shape[1]).to(dtype), torch.randn(shape[1], 17).to(dtype)
    bound = helion.kernel(multiplied, dot_precision="ieee").bind((x, w, shape), target="h200")
    expected = x.double().view(2, *shape) @ w.double()
    torch.testing.assert_close(bound(x, w, shape).double(), expected, rtol=1e-4, atol=1e-4)


def test_rows_of_many_groups() -> None:
    x = torch.randn(5, 35 * 35)
    torch.testing.assert_close(helion.kernel(normalized)(x, (35, 35)), normalized_eager(x, (35, 35)))


@pytest.mark.parametrize("target", ["a100", "h200", "gfx942"])
def test_merged_rows_do_not_spill(target: str) -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
        for t in hl.tile(x.size(0)):
            out[t] = x[t, :, :].flatten(1).sum(-1)
        return out

    bound = helion.kernel(kernel).bind((torch.empty(30, 5, 110, device="meta"),), target=target)
    assert bound.resources(bound.seeds[0].config).spill_bytes == 0


@pytest.mark.parametrize("groups", [3, -1])
def test_a_size_of_the_run_is_named(groups: int) -> None:
    def kernel(x: torch.Tensor, groups: int) -> torch.Tensor:
        out = torch.empty_like(x)
        for t in hl.tile(x.size(0)):
            out[t, :] = x[t, :].reshape(t, groups, 16).reshape(t, 48)
        return out

    with pytest.raises(exc.ShapeMismatch, match=r"x_size_1 is known at run time only; mark it with hl\.specialize"):
        helion.kernel(kernel, static_shapes=False).bind((torch.randn(5, 48), hl.constexpr(groups)))


def test_gradients_of_groups() -> None:
    for shape in ((3, 8), (3, 5)):
        x = (torch.randn(5, shape[0] * shape[1]) + 0.5).requires_grad_()
        kernel = helion.kernel(normalized).differentiable()
        (mine,) = torch.autograd.grad(kernel(x, shape).sin().sum(), x)
        (theirs,) = torch.autograd.grad(normalized_eager(x, shape).sin().sum(), x)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
