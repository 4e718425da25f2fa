"""Short lines of a grid become rows of tiles of several lines, in kernels that multiply matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl


def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """3 x 3 convolution of `x[B, H + 2, W + 2, C]`, with a line of pixels in each program."""
    b, height, width, c = x.size()
    h, wide, n = height - 2, width - 2, w.size(3)
    out = torch.empty([b, h, wide, n], dtype=x.dtype, device=x.device)
    for image, row, places, cols in hl.tile([b, h, wide, n], block_size=[1, 1, None, None]):
        bi, ri = image.begin, row.begin
        acc = hl.zeros([places, cols], dtype=torch.float32)
        for i, j in hl.grid([3, 3]):
            for inner in hl.tile(c):
                acc = hl.dot(x[bi, ri + i, places.index + j, inner], w[i, j, inner, cols], acc=acc)
        out[bi, ri, places, cols] = acc.to(out.dtype)
    return out


def convolved_by_grid(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The same with ``hl.grid`` over images and lines."""
    b, height, width, c = x.size()
    h, wide, n = height - 2, width - 2, w.size(3)
    out = torch.empty([b, h, wide, n], dtype=x.dtype, device=x.device)
    for bi, ri in hl.grid([b, h]):
        for places, cols in hl.tile([wide, n]):
            acc = hl.zeros([places, cols], dtype=torch.float32)
            for i in hl.static_range(3):
                for j in hl.static_range(3):
                    for inner in hl.tile(c):
                        acc = hl.dot(x[bi, ri + i, places.index + j, inner], w[i, j, inner, cols], acc=acc)
            out[bi, ri, places, cols] = acc.to(out.dtype)
    return out


def convolved_reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.conv2d(x.double().permute(0, 3, 1, 2), w.double().permute(3, 2, 0, 1))
    return y.permute(0, 2, 3, 1)


def edged(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Products of the line above, zero above the first one, times a scale of each image, added to the line."""
    b, h, wide, c = x.size()
    out = torch.empty([b, h, wide, w.size(1)], dtype=x.dtype, device=x.device)
    for image, row, places, cols in hl.tile([b, h, wide, w.size(1)], block_size=[1, 1, None, None]):
        bi, above = image.begin, row.begin - 1
        inside = (places.index >= 0) & (above >= 0)
        acc = hl.zeros([places, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            part = hl.load(x, [bi, above, places.index, inner], extra_mask=inside[:, None])
            acc = hl.dot(part, w[inner, cols], acc=acc)
        out[bi, row.begin, places, cols] = (acc * scale[bi] + row.begin).to(x.dtype)
    return out


def edged_reference(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    x, w, scale = x.double(), w.double(), scale.double()
    above = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    return above @ w * scale[:, None, None, None] + torch.arange(x.size(1))[None, :, None, None]


def projected(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A linear layer with a sequence in each program."""
    b, t, c = x.size()
    n = w.size(1)
    out = torch.empty([b, t, n], dtype=x.dtype, device=x.device)
    for batch, rows, cols in hl.tile([b, t, n], block_size=[1, None, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[batch.begin, rows, inner], w[inner, cols], acc=acc)
        out[batch.begin, rows, cols] = (acc + bias[cols]).to(x.dtype)
    return out


def to_patches(x: torch.Tensor, w: torch.Tensor, side: int) -> torch.Tensor:
    """Products of `x[B, side * side, C]` with `w[P, C, N]`, by lines of an image of patches."""
    b, c, p, n = x.size(0), x.size(2), w.size(0), w.size(2)
    out = torch.empty([b, side, p, side, n], dtype=x.dtype, device=x.device)
    for image, line, at, places, cols in hl.tile([b, side, p, side, n], block_size=[1, 1, 1, None, None]):
        bi, li, pi = image.begin, line.begin, at.begin
        acc = hl.zeros([places, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[bi, li * side + places.index, inner], w[pi, inner, cols], acc=acc)
        out[bi, li, pi, places, cols] = acc.to(x.dtype)
    return out


def bound(function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    return helion.kernel(function, **settings).bind(args, target="sm_90")


def program(function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    return bound(function, *args, **settings)._analysis.program


def axes(function: Callable[..., Any], *args: Any, **settings: Any) -> list[int]:
    return [axis.block for axis in program(function, *args, **settings).roots[0].axes]


def image(b: int, h: int, w: int, c: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(b, h, w, c).to(dtype)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    rounding = 2e-2 if got.dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(got.double(), want.double(), rtol=rounding, atol=rounding)


# --- joined lines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("function", [convolved, convolved_by_grid])
@pytest.mark.parametrize("wide", [2, 7, 63])
def test_lines_of_images_are_joined(function: Callable[..., Any], wide: int, static: bool) -> None:
    x, w = image(3, 5, wide + 2, 20), torch.randn(3, 3, 20, 12)
    assert axes(function, x, w, static_shapes=static) == [2, 3]
    kernel = helion.kernel(function, static_shapes=static, dot_precision="ieee")
    close(kernel(x, w), convolved_reference(x, w))


@pytest.mark.parametrize("block", [1, 16, 64])
def test_tiles_of_any_size_have_the_right_lines(block: int) -> None:
    x, w = image(2, 6, 9, 16, torch.bfloat16), torch.randn(3, 3, 16, 24).to(torch.bfloat16)
    kernel = helion.kernel(convolved, config=helion.Config(block_sizes=[block, 16, 16]))
    close(kernel(x, w), convolved_reference(x, w))


@pytest.mark.parametrize("static", [True, False])
def test_scalars_of_lines_become_rows(static: bool) -> None:
    x, w, scale = image(3, 4, 11, 20), torch.randn(20, 12), torch.randn(3)
    assert axes(edged, x, w, scale, static_shapes=static) == [2, 3]
    kernel = helion.kernel(edged, static_shapes=static, dot_precision="ieee")
    close(kernel(x, w, scale), edged_reference(x, w, scale))


def test_an_axis_of_the_weights_stays_one() -> None:
    x, w = image(2, 1, 25, 20)[:, 0], torch.randn(3, 20, 12)
    assert axes(to_patches, x, w, 5) == [2, 3, 4]
    want = torch.einsum("blsc,pcn->blpsn", x.double().unflatten(1, (5, 5)), w.double())
    close(helion.kernel(to_patches, dot_precision="ieee")(x, w, 5), want)


def test_a_kernel_serves_lines_of_other_lengths() -> None:
    kernel = helion.kernel(convolved, static_shapes=False, dot_precision="ieee")
    w = torch.randn(3, 3, 16, 12)
    for sizes in ((2, 5, 9), (3, 4, 30), (1, 9, 140), (2, 3, 3)):
        x = image(*sizes, 16)
        close(kernel(x, w), convolved_reference(x, w))
    by_side = helion.kernel(to_patches, dot_precision="ieee", static_shapes=False)
    for side in (4, 7, 3):
        x, weight = torch.randn(2, side * side, 16), torch.randn(2, 16, 8)
        want = torch.einsum("blsc,pcn->blpsn", x.double().unflatten(1, (side, side)), weight.double())
        close(by_side(x, weight, side), want)


def test_rows_in_memory_order_are_one_dimension() -> None:
    x, w, bias = torch.randn(3, 50, 24), torch.randn(24, 16), torch.randn(16)
    made = program(projected, x, w, bias)
    assert {tensor.name: tensor.shape for tensor in made.tensors} == {
        "x": (150, 24),
        "w": (24, 16),
        "out": (150, 16),
        "bias": (16,),
    }
    close(helion.kernel(projected, dot_precision="ieee")(x, w, bias), x.double() @ w.double() + bias.double())


def test_rows_with_gaps_keep_their_dimensions() -> None:
    x, w, bias = torch.randn(3, 60, 24)[:, :50], torch.randn(24, 16), torch.randn(16)
    made = program(projected, x, w, bias)
    assert {tensor.name: tensor.shape for tensor in made.tensors}["x"] == (3, 50, 24)
    assert [axis.block for axis in made.roots[0].axes] == [1, 2]
    close(helion.kernel(projected, dot_precision="ieee")(x, w, bias), x.double() @ w.double() + bias.double())


def test_long_lines_are_joined_only_in_memory_order() -> None:
    x, w, bias = torch.randn(3, 200, 24), torch.randn(24, 16), torch.randn(16)
    assert axes(projected, x, w, bias) == [1, 2]
    assert axes(projected, torch.randn(3, 240, 24)[:, :200], w, bias) == [0, 1, 2]


@pytest.mark.parametrize("backend", ["triton", "cute"])
def test_both_backends_have_tiles_of_joined_rows(backend: str) -> None:
    x, w = torch.randn(5, 50, 64).to(torch.bfloat16), torch.randn(64, 96).to(torch.bfloat16)
    bias = torch.randn(96).to(torch.bfloat16)
    kernel = helion.kernel(projected, backend=backend)
    assert kernel.bind((x, w, bias), target="sm_90").backend == backend
    close(kernel(x, w, bias), x.double() @ w.double() + bias.double())


def test_orders_of_the_grid_as_written_are_accepted() -> None:
    x, w = image(2, 5, 9, 16), torch.randn(3, 3, 16, 12)
    config = helion.Config(block_sizes=[16, 16, 16], loop_orders=[[3, 2, 0, 1], [0, 1]])
    close(helion.kernel(convolved, config=config, dot_precision="ieee")(x, w), convolved_reference(x, w))


def test_checked_kernels_check_joined_lines() -> None:
    x, w = image(2, 5, 9, 16), torch.randn(3, 3, 16, 12)
    close(helion.kernel(convolved, checked=True, dot_precision="ieee")(x, w), convolved_reference(x, w))


def test_gradients_of_joined_lines() -> None:
    x, w = image(2, 5, 8, 16).requires_grad_(), torch.randn(3, 3, 16, 12, requires_grad=True)
    grad = torch.randn(2, 3, 6, 12)
    kernel = helion.kernel(convolved_by_grid, dot_precision="ieee").differentiable()
    found = torch.autograd.grad(kernel(x, w), (x, w), grad)
    wanted = torch.autograd.grad(convolved_reference(x, w), (x, w), grad.double())
    for got, want in zip(found, wanted, strict=True):
        close(got, want)


def test_a_backend_that_loads_no_rows_by_themselves_keeps_lines_apart() -> None:
    x, w = image(2, 5, 9, 64, torch.bfloat16), torch.randn(3, 3, 64, 64).to(torch.bfloat16)
    assert axes(convolved_by_grid, x, w, backend="cute") == [0, 1, 2, 3]
    assert axes(convolved_by_grid, x, w, backend="triton") == [2, 3]


# --- refusals -------------------------------------------------------------------------------------------------------------


def of_own_weights(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, t, c = x.size()
    out = torch.empty([b, t, w.size(2)], dtype=x.dtype, device=x.device)
    for batch, rows, cols in hl.tile([b, t, w.size(2)], block_size=[1, None, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[batch.begin, rows, inner], w[batch.begin, inner, cols], acc=acc)
        out[batch.begin, rows, cols] = acc.to(x.dtype)
    return out


def of_own_depth(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, t, c = x.size()
    out = torch.empty([b, t, w.size(1)], dtype=x.dtype, device=x.device)
    for batch, rows, cols in hl.tile([b, t, w.size(1)], block_size=[1, None, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(0, c - batch.begin):
            acc = hl.dot(x[batch.begin, rows, inner], w[inner, cols], acc=acc)
        out[batch.begin, rows, cols] = acc.to(x.dtype)
    return out


def with_a_count(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    b, t, c = x.size()
    out = torch.empty([b, t, w.size(1)], dtype=x.dtype, device=x.device)
    count = torch.zeros([b], device=x.device)
    for batch, rows, cols in hl.tile([b, t, w.size(1)], block_size=[1, None, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[batch.begin, rows, inner], w[inner, cols], acc=acc)
        out[batch.begin, rows, cols] = acc.to(x.dtype)
        hl.atomic_add(count, [batch.begin], acc.sum(0).sum(0))
    return out, count


def of_the_last_tile(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, t, c = x.size()
    out = torch.empty([b, t, w.size(1)], dtype=x.dtype, device=x.device)
    for batch, rows, cols in hl.tile([b, t, w.size(1)], block_size=[1, None, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[batch.begin, rows, inner], w[inner, cols], acc=acc)
        out[batch.begin, rows, cols] = (acc + rows.begin).to(x.dtype)
    return out


def of_pixels(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, c, pixels = x.size()
    out = torch.empty([b, w.size(0), pixels], dtype=x.dtype, device=x.device)
    for batch, filters, places in hl.tile([b, w.size(0), pixels], block_size=[1, None, None]):
        acc = hl.zeros([filters, places], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(w[filters, inner], x[batch.begin, inner, places], acc=acc)
        out[batch.begin, filters, places] = acc.to(x.dtype)
    return out


def of_own_branch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, t, c = x.size()
    out = torch.empty([b, t, w.size(1)], dtype=x.dtype, device=x.device)
    for batch, rows, cols in hl.tile([b, t, w.size(1)], block_size=[1, None, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        if batch.begin > 0:
            for inner in hl.tile(c):
                acc = hl.dot(x[batch.begin, rows, inner], w[inner, cols], acc=acc)
        out[batch.begin, rows, cols] = acc.to(x.dtype)
    return out


def of_own_weights_by_tile(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, t, c = x.size()
    out = torch.empty([b, t, w.size(2)], dtype=x.dtype, device=x.device)
    for batch, rows, cols in hl.tile([b, t, w.size(2)], block_size=[1, None, None]):
        acc = hl.zeros([batch, rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = torch.baddbmm(acc, x[batch, rows, inner], w[batch, inner, cols])
        out[batch, rows, cols] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize("static", [True, False])
def test_an_axis_that_is_a_dimension_of_tiles_stays_one(static: bool) -> None:
    x, w = torch.randn(3, 20, 24), torch.randn(3, 24, 16)
    assert axes(of_own_weights_by_tile, x, w, static_shapes=static) == [0, 1, 2]
    kernel = helion.kernel(of_own_weights_by_tile, static_shapes=static, dot_precision="ieee")
    close(kernel(x, w), x.double() @ w.double())


@pytest.mark.parametrize("function", [of_own_depth, with_a_count, of_the_last_tile, of_own_branch])
def test_lines_with_an_effect_of_their_own_stay_apart(function: Callable[..., Any]) -> None:
    assert axes(function, torch.randn(3, 20, 24), torch.randn(24, 16)) == [0, 1, 2]


def test_products_of_matrices_stay_apart() -> None:
    assert axes(of_own_weights, torch.randn(3, 20, 24), torch.randn(3, 24, 16)) == [0, 1, 2]


def test_lines_of_neighbors_in_memory_stay_apart() -> None:
    assert axes(of_pixels, torch.randn(3, 24, 20), torch.randn(16, 24)) == [0, 1, 2]


@pytest.mark.parametrize("length", [110, 128, 256, 1000])
def test_lines_that_fill_tiles_stay_apart(length: int) -> None:
    x, w, bias = torch.randn(2, length, 24), torch.randn(24, 16), torch.randn(16)
    assert axes(projected, x, w, bias) == [0, 1, 2]


def test_lines_of_one_tile_are_loaded_as_boxes() -> None:
    assert axes(convolved, image(2, 5, 112, 16), torch.randn(3, 3, 16, 12)) == [0, 1, 2, 3]
    assert axes(edged, image(2, 5, 64, 16), torch.randn(16, 12), torch.randn(2)) == [0, 1, 2, 3]


@pytest.mark.parametrize("fn", [convolved, convolved_by_grid])
def test_lines_of_the_smallest_tile_are_joined_for_many_taps(fn: Callable[..., Any]) -> None:
    x, w = image(2, 5, 66, 16), torch.randn(3, 3, 16, 12)
    assert axes(fn, x, w) == [2, 3]
    torch.testing.assert_close(helion.kernel(fn)(x, w).double(), convolved_reference(x, w), atol=1e-4, rtol=1e-4)


def test_more_rows_than_indices_have_bits_stay_apart() -> None:
    x, w = torch.empty(1 << 20, 50, 4096, device="meta"), torch.empty(4096, 16, device="meta")
    made = program(projected, x, w, torch.empty(16, device="meta"), index_dtype=torch.int64)
    assert [axis.block for axis in made.roots[0].axes] == [1, 2]
