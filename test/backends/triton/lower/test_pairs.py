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


def every_second(x, y):
    """Rotations of neighbors, which host code selects as views."""
    out = torch.empty_like(x)
    even, odd, out_even, out_odd = x[:, ::2], x[:, 1::2], out[:, ::2], out[:, 1::2]
    for tile_m, tile_n in hl.tile(even.size()):
        a, b, c = even[tile_m, tile_n], odd[tile_m, tile_n], y[tile_n][None, :]
        out_odd[tile_m, tile_n] = a * c + b
        out_even[tile_m, tile_n] = a - b * c
    return out


def in_place_views(x, y):
    """The same in place, where rows are whole and one view is loaded by itself as well."""
    even, odd = x[:, ::2], x[:, 1::2]
    total = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        a, b = even[tile, :], odd[tile, :]
        even[tile, :] = a - b * y[:][None, :]
        odd[tile, :] = a * y[:][None, :] + b
        total[tile] = odd[tile, :].sum(-1)
    return x


def _every_second(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = x[:, ::2], x[:, 1::2]
    return torch.stack([a - b * y, a * y + b], dim=-1).flatten(1)


def bound_again(x, y):
    """Names of views are those of another tensor in the next launch."""
    out = torch.empty([2, x.size(0), x.size(1) // 2], dtype=x.dtype, device=x.device)
    even, odd = x[:, ::2], x[:, 1::2]
    for tile in hl.tile(x.size(0)):
        out[0, tile, :] = even[tile, :] * odd[tile, :]
    even, odd = y[:, ::2], y[:, 1::2]
    for tile in hl.tile(x.size(0)):
        out[1, tile, :] = even[tile, :] * odd[tile, :]
    return out


def _bound_again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[:, ::2] * x[:, 1::2], y[:, ::2] * y[:, 1::2]])


def items(x, y):
    """A loop over two tensors, whose views are items of lists."""
    first, second = [x[:, ::2], y[:, ::2]], [x[:, 1::2], y[:, 1::2]]
    out = torch.empty_like(first[0], memory_format=torch.contiguous_format)
    for tile in hl.tile(x.size(0)):
        total = hl.zeros([tile, out.size(1)])
        for i in range(2):
            total = total + first[i][tile, :] * second[1 - i][tile, :]
        out[tile, :] = total
    return out


def _items(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[:, ::2] * y[:, 1::2] + y[:, ::2] * x[:, 1::2]


def third_elements(x, y):
    """Views of every third element, and of the second and third of four, have no element next to each other's pair."""
    out = torch.empty_like(x)
    one, other, third = x[:, ::3], x[:, 1::3], x[:, 2::3]
    for tile in hl.tile(x.size(0)):
        out[tile, 0] = (one[tile, :] * other[tile, :] * third[tile, :]).sum(-1)
    return out[:, 0]


def _third_elements(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x[:, ::3] * x[:, 1::3] * x[:, 2::3]).sum(-1)


def shifted_views(x, y):
    """The elements of one view are before those of the other by one, but in pairs that begin at odd ones."""
    odd, even = x[:, 1:-1:2], x[:, 2::2]
    out = torch.empty_like(odd, memory_format=torch.contiguous_format)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = odd[tile, :] - even[tile, :]
    return out


def _shifted_views(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[:, 1:-1:2] - x[:, 2::2]


def views_of_two(x, y):
    """Views of two tensors."""
    out = torch.empty_like(x)
    even, odd = x[:, ::2], y[:, 1::2]
    for tile in hl.tile(x.size(0)):
        out[tile, 0] = (even[tile, :] * odd[tile, :]).sum(-1)
    return out[:, 0]


def _views_of_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x[:, ::2] * y[:, 1::2]).sum(-1)


def complex_matmul(x, y):
    """A product of matrices of complex numbers: both results are stored after the loop, operands are loaded one by one."""
    m, k, _ = x.size()
    n = y.size(1)
    out = torch.empty([m, n, 2], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        real, imag = hl.zeros([tile_m, tile_n]), hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(k):
            a, b = x[tile_m, tile_k, 0], x[tile_m, tile_k, 1]
            c, d = y[tile_k, tile_n, 0], y[tile_k, tile_n, 1]
            real = torch.addmm(real, a, c) - hl.dot(b, d)
            imag = hl.dot(b, c, acc=torch.addmm(imag, a, d))
        out[tile_m, tile_n, 1] = imag
        out[tile_m, tile_n, 0] = real
    return out


def _complex_matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.view_as_complex(x.contiguous()) @ torch.view_as_complex(y.contiguous()))


def partial_products(x, y):
    """Pairs of elements are stored in the loop that multiplies, and again after it."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n, 2], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n, 0] = acc
            out[tile_m, tile_n, 1] = -acc
        one, two = x[tile_m, 0], x[tile_m, 1]
        out[tile_m, tile_n, 0] = acc + one[:, None]
        out[tile_m, tile_n, 1] = acc - two[:, None]
    return out


def _partial_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([x @ y + x[:, :1], x @ y - x[:, 1:2]], -1)


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
    "every second element": (every_second, _every_second, (made(37, 70), made(35)), 1, 1),
    "views of a view": (every_second, _every_second, (made(9, 37, 72)[3][:, 1:-1], made(35)), 1, 1),
    "views in place": (in_place_views, _every_second, (made(37, 70), made(35)), 1, 1),
    "views of rows at odd addresses": (every_second, _every_second, (made(37, 71)[:, :70], made(35)), 0, 1),
    "names bound again": (bound_again, _bound_again, (made(37, 70), made(37, 70)), 2, 0),
    "items of lists": (items, _items, (made(37, 70), made(37, 70)), 2, 0),
    "results of matmuls": (complex_matmul, _complex_matmul, (made(37, 33, 2), made(33, 41, 2)), 0, 1),
    "partial results": (partial_products, _partial_products, (made(37, 34), made(34, 41)), 0, 1),
    "every third element": (third_elements, _third_elements, (made(37, 69), made(1)), 0, 0),
    "pairs that begin at odd elements": (shifted_views, _shifted_views, (made(37, 70), made(1)), 0, 0),
    "views of two tensors": (views_of_two, _views_of_two, (made(37, 70), made(37, 70)), 0, 0),
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
    assert torch.allclose(result, expected, rtol=1e-6, atol=1e-6 if result.dim() < 3 else 1e-5)
