"""Dimensions that are one: tiles of a constant size, tensors of a registered size, and tiles that broadcast by themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


def single(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for b, c in hl.tile(x.size()):
        acc = hl.zeros([b, c])
        for n in hl.tile(w.size(0), block_size=1):
            acc = acc + w[n, c] * x[b, c]
        out[b, c] = acc
    return out


def single_in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for b, c in hl.tile(x.size()):
        acc = hl.zeros([b, c])
        for n in hl.tile(w.size(0), block_size=1):
            acc += w[n, c] * x[b, c]
        out[b, c] = acc
    return out


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("function", [single, single_in_place], ids=lambda f: f.__name__)
def test_a_tile_of_one_broadcasts(function: Callable[..., torch.Tensor], static: bool) -> None:
    x, w = torch.randn(17, 33), torch.randn(5, 33)
    kernel = helion.kernel(function, config=helion.Config(block_sizes=[16, 32]), static_shapes=static)
    torch.testing.assert_close(kernel(x, w), x * w.sum(0), rtol=1e-4, atol=1e-4)


def four(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0), block_size=4):
        out[t] = x[t] + torch.arange(4) + hl.zeros([4])
    return out


def four_summed(x: torch.Tensor) -> torch.Tensor:
    """Lanes out of range of the last tile leave what they are added to as it was."""
    out = torch.empty([4], device=x.device)
    for _ in hl.grid(1):
        acc = hl.zeros([4])
        for t in hl.tile(x.size(0), block_size=4):
            acc = acc + x[t].exp()
        out[:] = acc
    return out


def four_in_place(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([4], device=x.device)
    for _ in hl.grid(1):
        acc = hl.zeros([4])
        for t in hl.tile(x.size(0), block_size=4):
            acc += x[t].exp()
        out[:] = acc
    return out


def split_in_two(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) // 2], device=x.device)
    for t in hl.tile(x.size(0), block_size=4):
        pairs = x[t].reshape(2, 2).sum(1)
        out[t.begin // 2 : t.begin // 2 + 2] = pairs
    return out


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("n", [11, 12])
def test_a_tile_of_four_is_four(n: int, static: bool) -> None:
    x = torch.randn(n)
    lanes = torch.arange(n) % 4
    assert torch.equal(helion.kernel(four, static_shapes=static)(x), x + lanes)
    sums = torch.cat([x.exp(), torch.zeros(-n % 4)]).reshape(-1, 4).sum(0)
    for function in (four_summed, four_in_place):
        torch.testing.assert_close(helion.kernel(function, static_shapes=static)(x), sums)
    if n % 2 == 0:
        torch.testing.assert_close(helion.kernel(split_in_two, static_shapes=static)(x), x.reshape(-1, 2).sum(1))


def product_of_sixteen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], device=x.device)
    for m, n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([m, n])
        for k in hl.tile(x.size(1), block_size=16):
            acc = hl.dot(x[m, k], y[k.begin : k.begin + 16, n], acc=acc)
        out[m, n] = acc
    return out


def test_products_of_a_constant_size() -> None:
    x, y = torch.randn(20, 40), torch.randn(40, 18)
    torch.testing.assert_close(helion.kernel(product_of_sixteen)(x, y), x @ y, rtol=1e-4, atol=1e-4)


def registered(x: torch.Tensor) -> torch.Tensor:
    size = hl.register_block_size(x.size(1))
    ones = torch.ones([x.size(0), size], device=x.device)
    out = torch.empty_like(x)
    for a in hl.tile(x.size(0)):
        for t in hl.tile(x.size(1), block_size=size):
            out[a, t] = x[a, t] + ones[a, :] + hl.zeros([a, size])
    return out


@pytest.mark.parametrize("static", [True, False])
def test_a_tensor_of_a_registered_size(static: bool) -> None:
    x = torch.randn(11, 13)
    kernel = helion.kernel(registered, config=helion.Config(block_sizes=[4, 8]), static_shapes=static)
    assert torch.equal(kernel(x), x + 1)


def covered(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([3, x.size(0)], device=x.device)
    for a in hl.tile(3):
        for t in hl.tile(x.size(0)):
            out[:, t] = x[t][None, :] + a.index[:, None]
    return out


def test_a_tile_of_a_whole_dimension_is_stored_where_all_is_selected() -> None:
    x = torch.randn(9)
    assert torch.equal(helion.kernel(covered)(x), x + torch.arange(3)[:, None])


def by_rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(a)
    for i, j in hl.tile(a.size()):
        v = a[i, j]
        out[i, j] = (v + b[i]) * b[i].expand_as(v)
    return out


def by_places(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(a)
    for i, j in hl.tile(a.size()):
        for k in hl.tile(b.size(0)):
            out[i, j] = a[i, j] + b[k]
    return out


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("shape", [(9, 13), (9, 9), (1, 5)])
def test_a_smaller_value_finds_its_tile(shape: tuple[int, int], static: bool) -> None:
    a, b = torch.randn(shape), torch.randn(shape[0])
    kernel = helion.kernel(by_rows, static_shapes=static)
    torch.testing.assert_close(kernel(a, b), (a + b[:, None]) * b[:, None])


def test_a_value_that_has_no_place() -> None:
    with pytest.raises(exc.ShapeMismatch, match=r"write b\[i\]\[:, None\]"):
        helion.kernel(by_places).bind((torch.randn(9, 13), torch.randn(9)))


def copied(dst: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    for i in hl.grid(dst.size(0)):
        dst[i] = v
        dst[i, 0] = s
    return dst


@pytest.mark.parametrize("static", [True, False])
def test_a_host_tensor_is_stored_as_a_whole(static: bool) -> None:
    v, s = torch.randn(5), torch.tensor(3.0)
    want = v.expand(4, 5).clone()
    want[:, 0] = 3.0
    assert torch.equal(helion.kernel(copied, static_shapes=static)(torch.zeros(4, 5), v, s), want)


def copied_to_rows(dst: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    for i in hl.tile(dst.size(0)):
        dst[i, :] = v
    return dst


def test_a_host_tensor_of_another_rank() -> None:
    with pytest.raises(exc.RankMismatch, match="the dimensions that the subscript selects"):
        helion.kernel(copied_to_rows).bind((torch.zeros(4, 5), torch.zeros(5)))


def in_chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Linear attention: a state that is carried from chunk to chunk, of one batch at a time."""
    out = torch.empty_like(v)
    width = q.size(2)
    for b in hl.tile(q.size(0), block_size=1):
        state = hl.zeros([width, width])
        for t in hl.tile(q.size(1), block_size=4):
            queries, keys, values = (x[b, t, :].squeeze(0) for x in (q, k, v))
            before = t.index[:, None] >= t.index[None, :]
            out[b, t, :] = (queries @ state + torch.where(before, queries @ keys.T, 0.0) @ values)[None]
            state = state + keys.T @ values
    return out


def test_a_tile_of_one_is_squeezed() -> None:
    q, k, v = (torch.randn(2, 10, 8) for _ in range(3))
    want = torch.tril(q @ k.transpose(1, 2)) @ v
    torch.testing.assert_close(helion.kernel(in_chunks)(q, k, v), want, rtol=1e-4, atol=1e-4)


def half_added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    half = hl.specialize(x.size(1) // 2)
    for i in hl.tile(x.size(0)):
        out[i, :half] = x[i, :half] + y[i, :]
    return out


def half_stored(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    half = hl.specialize(x.size(1) // 2)
    for i in hl.tile(x.size(0)):
        out[i, :half] = y[i, :]
    return out


def half_multiplied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    half = hl.specialize(x.size(1) // 2)
    for i in hl.tile(x.size(0)):
        out[i, :half] = torch.matmul(x[i, :half], y[:, :])
    return out


@pytest.mark.parametrize("function", [half_added, half_stored, half_multiplied], ids=lambda f: f.__name__)
def test_a_size_of_the_run_beside_a_constant_is_named(function: Callable[..., torch.Tensor]) -> None:
    message = r"y_size_\d \(4 in this call, as y\.size\(1\)\) is known at run time only: mark it"
    with pytest.raises(exc.ShapeMismatch, match=message):
        helion.kernel(function, static_shapes=False).bind((torch.randn(6, 8), torch.randn(4, 4)))


def test_two_different_sizes_of_the_run_are_named() -> None:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in hl.tile(x.size(0)):
            out[i, :] = x[i, :] + y[i, :]
        return out

    with pytest.raises(exc.ShapeMismatch, match="in this call x_size_1 is 8 and y_size_1 is 7"):
        helion.kernel(kernel, static_shapes=False).bind((torch.randn(5, 8), torch.randn(5, 7)))
