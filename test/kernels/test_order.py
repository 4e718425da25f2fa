"""sort, topk, kthvalue and median: values, ties, nan, dtypes, long rows, gradients, refusals, and the size of their code."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8)


@helion.kernel
def rows(x: torch.Tensor, f: Callable[..., Any], out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        out[tile, :] = f(x[tile, :])
    return out


def sample(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows with ties, and for floats nan, infinities and zeros of both signs."""
    x = (torch.randn(5, n) * 9 + 20).to(dtype)
    if dtype.is_floating_point:
        x[0, n // 2], x[1, n // 3], x[2, n // 2], x[3, n // 4] = math.nan, -math.inf, math.inf, -0.0
    return x


def same(f: Callable[..., Any], x: torch.Tensor, eager: torch.Tensor) -> None:
    got = rows(x, f, torch.empty_like(eager))
    torch.testing.assert_close(got, eager, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("n", [37])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_topk(largest: bool, dtype: torch.dtype, n: int) -> None:
    x = sample(n, dtype)
    order = torch.sort(x, dim=1, descending=largest, stable=True)
    same(lambda v: torch.topk(v, 4, 1, largest)[0], x, order.values[:, :4])
    same(lambda v: torch.topk(v, 4, 1, largest).indices, x, order.indices[:, :4])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", [3, 99])
def test_kthvalue_from_either_end(k: int, dtype: torch.dtype) -> None:
    x = sample(101, dtype)
    order = torch.sort(x, dim=1, stable=True)
    same(lambda v: torch.kthvalue(v, k, 1, True)[0], x, order.values[:, k - 1 : k])
    same(lambda v: torch.kthvalue(v, k, 1, True).indices, x, order.indices[:, k - 1 : k])


@pytest.mark.parametrize("n", [300, 1500])
def test_sorts_in_steps(n: int) -> None:
    x = sample(n, torch.float32)
    for down in (True, False):
        order = torch.sort(x, dim=1, descending=down, stable=True)
        same(lambda v, down=down: torch.sort(v, descending=down)[0], x, order.values)
        same(lambda v, down=down: torch.argsort(v, descending=down), x, order.indices)
    same(lambda v: torch.median(v, 1, True)[0], x, x.median(1, True)[0])
    same(lambda v: torch.topk(v, 40)[0], x, x.topk(40)[0])
    missing = rows(x, lambda v: torch.median(v, 1, True)[1], torch.empty([5, 1], dtype=torch.int64))
    assert missing[0] == n // 2  # as eager: the first nan


def test_several_rows_are_sorted_apart() -> None:
    x = sample(700, torch.float32)
    eager = torch.sort(x, dim=1, stable=True)
    for f, wanted in ((lambda v: torch.sort(v)[0], eager.values), (lambda v: torch.flip(v, [1]), x.flip(1))):
        bound = rows.bind((x, f, torch.empty_like(wanted)))
        config = helion.Config(**{**bound.conservative_config(), "block_sizes": [4]})
        got = bound.compile_config(config)(x, f, torch.empty_like(wanted))
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("chunk", [None, 64, 256])
def test_topk_walks_over_a_row_in_chunks(chunk: int | None) -> None:
    x = sample(1000, torch.float32)
    f = lambda v: torch.topk(v, 3)[0]  # noqa: E731
    eager = torch.sort(x, dim=1, descending=True, stable=True).values[:, :3]
    bound = rows.bind((x, f, torch.empty_like(eager)))
    config = bound.conservative_config()
    loops = [chunk, *config["reduction_loops"][1:]]
    got = bound.compile_config(helion.Config(**{**config, "reduction_loops": loops}))(x, f, torch.empty_like(eager))
    torch.testing.assert_close(got, eager, rtol=0, atol=0, equal_nan=True)


def test_dynamic_rows() -> None:
    @helion.kernel(static_shapes=False)
    def best(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0), 2], dtype=x.dtype, device=x.device)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = torch.topk(x[tile, :], 2)[0]
        return out

    for n in (9, 31):
        x = torch.randn(21, n) + 1
        torch.testing.assert_close(best(x), x.topk(2)[0], rtol=0, atol=0)


def test_sort_of_a_tile_with_a_tail() -> None:
    @helion.kernel
    def tiles(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0), block_size=16):
            out[tile] = torch.sort(x[tile])[0] + torch.topk(x[tile], 1)[0]
        return out

    x = torch.randn(21) - 3
    eager = torch.cat([part.sort()[0] + part.max() for part in x.split(16)])
    torch.testing.assert_close(tiles(x), eager, rtol=0, atol=0)


@pytest.mark.parametrize("f", [lambda v: torch.topk(v, 3)[0], lambda v: torch.kthvalue(v, 3, 1, True)[0]])
def test_gradients(f: Callable[..., Any]) -> None:
    @helion.kernel
    def chosen(x: torch.Tensor, f: Callable[..., Any], out: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(out)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = f(torch.sin(x[tile, :]))
        return out

    # No two sines of a row are near each other: which of two equal ones is taken would be a matter of rounding.
    x = (torch.stack([torch.randperm(37) for _ in range(7)]) / 13 + 4).requires_grad_()
    eager = f(torch.sin(x))
    upstream = torch.randn_like(eager)
    got = chosen.differentiable()(x, f, torch.empty_like(eager.detach()))
    expected = torch.autograd.grad(eager, x, upstream)[0]
    torch.testing.assert_close(torch.autograd.grad(got, x, upstream)[0], expected)


# --- refusals ----------------------------------------------------------------------------------------------------------


def test_k_that_is_no_constant() -> None:
    @helion.kernel
    def best(x: torch.Tensor, k: int) -> torch.Tensor:
        out = torch.empty([x.size(0), 2], dtype=x.dtype)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = torch.topk(x[tile, :], k)[0]  # here
        return out

    text = "k of torch.topk must be a constant between 1 and 9, .*hl.constexpr(?s:.*)# here"
    with pytest.raises(exc.InvalidAPIUsage, match=text):
        best(torch.randn(5, 9), 2)


@pytest.mark.parametrize(
    "f, text",
    [
        (lambda v: torch.sort(v)[0], "torch.sort along a dimension of 20000 elements .*up to 16384.*torch.topk"),
        (lambda v: torch.topk(v, 33)[0], "torch.topk along a dimension of 20000 elements .*at most 32"),
        (lambda v: torch.median(v, 1, True)[0], "torch.median along a dimension of 20000 elements"),
        (lambda v: torch.kthvalue(v, 9000, 1, True)[0], "torch.kthvalue along a dimension of 20000 elements"),
    ],
)
def test_rows_that_no_sort_holds(f: Callable[..., Any], text: str) -> None:
    x = torch.empty(3, 20000)
    with pytest.raises(exc.UnsupportedTorchFunction, match=text):
        rows.bind((x, f, f(x)))


@pytest.mark.parametrize(
    "name, f",
    [
        ("flip", lambda v: v.flip(0)),
        ("cat", lambda v: torch.cat([v, v])),
        ("pad", lambda v: torch.nn.functional.pad(v, (1, 2))),
        ("repeat", lambda v: v.repeat(2)),
        ("median", lambda v: v - v.median()),
    ],
)
def test_lanes_of_a_tile_with_a_tail(name: str, f: Callable[..., Any]) -> None:
    @helion.kernel
    def tiles(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0), block_size=16):
            out[tile] = f(x[tile])
        return out

    with pytest.raises(exc.UnsupportedTorchFunction, match=f"{name} along"):
        tiles(torch.randn(21), f)


# --- the size of the code ----------------------------------------------------------------------------------------------

#: Instructions of PTX that ``ptxas`` translates in 3 s and less.
MOST_INSTRUCTIONS = 8000


@pytest.mark.parametrize(
    "f, n",
    [
        (lambda v: torch.topk(v, 5)[0], 1000),
        (lambda v: torch.topk(v, 5)[0], 4000),
        (lambda v: torch.topk(v, 5)[0], 32000),
        (lambda v: torch.sort(v)[0], 4096),
        (lambda v: torch.flip(v, [1]), 4096),
    ],
    ids=["topk 1000", "topk 4000", "topk 32000", "sort", "flip"],
)
def test_code_does_not_grow_with_the_row(f: Callable[..., Any], n: int) -> None:
    x = torch.empty(256, n, device="meta")
    bound = rows.bind((x, f, f(x)), target="h200")
    plan = bound._analysis.code(bound.default_config()).plan
    kernel = inspect.unwrap(bound.compile_config()).__globals__[plan.kernel_names[0]]
    ptx = compile_offline(kernel, **offline_signature(plan, bound.target)).asm["ptx"]
    assert sum(line.endswith(";") for line in ptx.splitlines()) < MOST_INSTRUCTIONS
