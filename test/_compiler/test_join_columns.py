"""Columns of several heads, or of several lines of a patch, become columns of one matmul."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import facts_of

import helion
import helion.language as hl

BF16 = torch.bfloat16


def heads(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A projection with a program for each head: all tensors have the columns of all heads in memory order."""
    t, c = x.size()
    h, d = w.size(1), w.size(2)
    out = torch.empty([t, h, d], dtype=x.dtype, device=x.device)
    for rows, head, cols in hl.tile([t, h, d], block_size=[None, 1, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[rows, inner], w[inner, head.begin, cols], acc=acc)
        out[rows, head.begin, cols] = (acc + bias[head.begin, cols][None, :]).to(x.dtype)
    return out


def heads_first(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same, with a scale of each head, and with heads before rows in the result."""
    t, c = x.size()
    h, d = w.size(1), w.size(2)
    out = torch.empty([h, t, d], dtype=x.dtype, device=x.device)
    for rows, head, cols in hl.tile([t, h, d], block_size=[None, 1, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[rows, inner], w[inner, head.begin, cols], acc=acc)
        out[head.begin, rows, cols] = (acc * bias[head.begin, 0] + head.begin).to(x.dtype)
    return out


def patches(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Rows of short lines as well: `x[B, L, C]` by `w[C, P, N]` to `[B, P, L, N]`."""
    b, length, c = x.size()
    p, n = w.size(1), w.size(2)
    out = torch.empty([b, p, length, n], dtype=x.dtype, device=x.device)
    for batch, part, rows, cols in hl.tile([b, p, length, n], block_size=[1, 1, None, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[batch.begin, rows, inner], w[inner, part.begin, cols], acc=acc)
        out[batch.begin, part.begin, rows, cols] = (acc + bias[part.begin, cols][None, :]).to(x.dtype)
    return out


def of_heads(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.einsum("tc,chd->thd", x.double(), w.double()) + bias.double()


def of_heads_first(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    found = torch.einsum("tc,chd->htd", x.double(), w.double()) * bias.double()[:, :1, None]
    return found + torch.arange(w.size(1))[:, None, None]


def of_patches(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.einsum("blc,cpn->bpln", x.double(), w.double()) + bias.double()[:, None]


def own_weights(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Weights with heads before channels: their columns are apart."""
    t, c = x.size()
    h, d = w.size(0), w.size(2)
    out = torch.empty([h, t, d], dtype=x.dtype, device=x.device)
    for rows, head, cols in hl.tile([t, h, d], block_size=[None, 1, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[rows, inner], w[head.begin, inner, cols], acc=acc)
        out[head.begin, rows, cols] = acc.to(x.dtype)
    return out


def own_rows(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Rows that are other ones for each head."""
    t, c = x.size()
    h, d = w.size(1), w.size(2)
    out = torch.empty([t, h, d], dtype=x.dtype, device=x.device)
    for rows, head, cols in hl.tile([t, h, d], block_size=[None, 1, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[rows, inner] + bias[head.begin, 0], w[inner, head.begin, cols], acc=acc)
        out[rows, head.begin, cols] = acc.to(x.dtype)
    return out


def normed(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A sum over the columns of a head."""
    t, c = x.size()
    h, d = w.size(1), w.size(2)
    out = torch.empty([h, t, d], dtype=x.dtype, device=x.device)
    for rows, head, cols in hl.tile([t, h, d], block_size=[None, 1, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[rows, inner], w[inner, head.begin, cols], acc=acc)
        out[head.begin, rows, cols] = (acc - acc.sum(1, keepdim=True)).to(x.dtype)
    return out


def counted(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The number of a program's tile, which is that of its head."""
    t, c = x.size()
    h, d = w.size(1), w.size(2)
    out = torch.empty([h, t, d], dtype=x.dtype, device=x.device)
    for rows, head, cols in hl.tile([t, h, d], block_size=[None, 1, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[rows, inner], w[inner, head.begin, cols], acc=acc)
        out[head.begin, rows, cols] = (acc + cols.id).to(x.dtype)
    return out


def transposed(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Columns that are rows of the result, with those of all heads between them."""
    t, c = x.size()
    h, d = w.size(1), w.size(2)
    out = torch.empty([d, h, t], dtype=x.dtype, device=x.device)
    for rows, head, cols in hl.tile([t, h, d], block_size=[None, 1, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(c):
            acc = hl.dot(x[rows, inner], w[inner, head.begin, cols], acc=acc)
        out[cols, head.begin, rows] = acc.T.to(x.dtype)
    return out


CASES: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], list[int]]] = {
    "heads": (heads, of_heads, [0, 2]),
    "heads first": (heads_first, of_heads_first, [0, 2]),
    "patches": (patches, of_patches, [2, 3]),
}


def given(name: str, columns: int, dtype: torch.dtype, length: int = 19) -> tuple[torch.Tensor, ...]:
    rows = (3, length, 33) if name == "patches" else (3 * length, 33)
    x, w, bias = torch.randn(rows), torch.randn(33, 5, columns), torch.randn(5, columns)
    return x.to(dtype), w.to(dtype), bias.to(dtype)


def axes(fn: Callable[..., Any], args: tuple[torch.Tensor, ...], **settings: Any) -> list[int]:
    program = helion.kernel(fn, **settings).bind(args)._analysis.program
    return [axis.block for axis in program.roots[0].axes]


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("columns", [16, 48, 96])
@pytest.mark.parametrize("name", CASES)
def test_joined_columns_are_right(name: str, columns: int, dtype: torch.dtype) -> None:
    fn, reference, left = CASES[name]
    args = given(name, columns, dtype)
    assert axes(fn, args) == left
    got, want = helion.kernel(fn)(*args).double(), reference(*args)
    assert (got - want).abs().max() <= (1e-5 if dtype == torch.float32 else 2e-2) * want.abs().max()


@pytest.mark.parametrize("name", CASES)
def test_columns_of_any_size_are_right(name: str) -> None:
    fn, reference, _ = CASES[name]
    kernel = helion.kernel(fn, static_shapes=False)
    for columns, length in ((48, 19), (31, 7), (17, 40)):
        args = given(name, columns, torch.float32, length)
        want = reference(*args)
        assert (kernel(*args).double() - want).abs().max() <= 1e-5 * want.abs().max()


def test_columns_of_sizes_that_are_not_known_are_joined_in_memory_order_alone() -> None:
    args = given("heads", 48, BF16)
    assert axes(heads, args, static_shapes=False) == [0, 2]
    assert axes(heads_first, args, static_shapes=False) == [0, 1, 2]


@pytest.mark.parametrize(("columns", "left"), [(16, [0, 2]), (24, [0, 1, 2]), (12, [0, 1, 2])])
def test_results_apart_have_lines_of_whole_sectors(columns: int, left: list[int]) -> None:
    assert axes(heads_first, given("heads", columns, BF16)) == left


@pytest.mark.parametrize("columns", [103, 128, 240])
def test_columns_that_fill_tiles_stay_apart(columns: int) -> None:
    assert axes(heads, given("heads", columns, BF16)) == [0, 1, 2]


@pytest.mark.parametrize("fn", [own_weights, own_rows, normed, counted, transposed], ids=lambda fn: fn.__name__)
def test_columns_that_depend_on_their_head_stay_apart(fn: Callable[..., Any]) -> None:
    x, w, bias = given("heads", 48, BF16)
    w = torch.randn(5, 33, 48).to(BF16) if fn is own_weights else w
    assert axes(fn, (x, w, bias)) == [0, 1, 2]


def test_parts_of_weights_stay_apart() -> None:
    """Every other head, and the first columns of each."""
    x, w, bias = given("heads", 96, BF16)
    assert axes(heads, (x, w[:, ::2], bias[::2])) == [0, 1, 2]
    assert axes(heads, (x, w[:, :, :48], bias[:, :48])) == [0, 1, 2]


def test_cute_takes_columns_in_memory_order() -> None:
    x, w, bias = (torch.empty(shape, dtype=BF16, device="meta") for shape in ((4096, 1024), (1024, 12, 64), (12, 64)))
    for backend in ("cute", "triton"):
        bound = helion.kernel(heads, backend=backend).bind((x, w, bias), target="h200")
        assert len(bound._analysis.program.roots[0].axes) == 2 and bound.default_config()["block_sizes"][1] >= 128


def test_lines_of_results_are_neighbors_in_facts() -> None:
    x, w, bias = (torch.empty(shape, dtype=BF16, device="meta") for shape in ((4096, 1024), (1024, 12, 96), (12, 96)))
    bound = helion.kernel(heads_first, backend="triton").bind((x, w, bias), target="h200")
    (store,) = [op for op in bound.facts.memory_ops if op.kind == "store"]
    assert store.inner_axis == 2 and store.aligned % 32 == 0
    assert bound.resources(bound.default_config()).spill_bytes == 0


def of_rest(x, out, size):
    size = hl.specialize(size)
    for rows, cols in hl.tile(x.size()):
        out[rows, 0, cols.index % size] = x[rows, cols]
    return out


def of_rest_of_size(x, out, size):
    size = hl.specialize(size)
    for rows, cols in hl.tile(x.size()):
        out[rows, 0, size % cols.index] = x[rows, cols]
    return out


def of_rest_of_pairs(x, out, size):
    size = hl.specialize(size)
    for rows, cols in hl.tile(x.size()):
        out[rows, 0, (cols.index * 2) % size] = x[rows, cols]
    return out


@pytest.mark.parametrize(
    ("fn", "size", "axis"),
    [
        (of_rest, 96, 1),
        (of_rest, 32, 1),
        (of_rest, 31, None),
        (of_rest_of_size, 96, None),
        (of_rest_of_pairs, 96, None),
    ],
)
def test_places_that_begin_again_after_two_sectors_are_neighbors(
    fn: Callable[..., Any], size: int, axis: int | None
) -> None:
    x, out = torch.empty(64, 960, dtype=BF16, device="meta"), torch.empty(64, 10, 96, dtype=BF16, device="meta")
    (store,) = [op for op in facts_of(fn, x, out, size).memory_ops if op.kind == "store"]
    assert store.inner_axis == axis
