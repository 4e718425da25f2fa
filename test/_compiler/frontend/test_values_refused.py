"""Errors about values of the wrong kind: they name the value, its kind and the remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

FORMS = pytest.mark.parametrize("static_shapes", (True, False))


def top(x: torch.Tensor, k: hl.constexpr) -> torch.Tensor:
    out = torch.empty([x.size(0), 2])
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.topk(x[tile, :], k, -1)[0]
    return out


def unrolled(x: torch.Tensor, n: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        acc = x[tile]
        for i in hl.static_range(n):
            acc = acc + i
        out[tile] = acc
    return out


def scaled(x: torch.Tensor, gain: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * gain[tile]
    return out


def dropped(x: torch.Tensor, seed: Any) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * hl.rand([tile], seed=seed)
    return out


def unrolled_on_the_host(xs: list[torch.Tensor]) -> None:
    for i in hl.static_range(len(xs)):
        for tile in hl.tile(xs[i].size(0)):
            xs[i][tile] = xs[i][tile] * 2


def of_each(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> None:
    for x, y in zip(xs, ys, strict=True):
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile] - y[tile]


def added(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(1)
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(out, [0], x[tile, 0])
    return out


def until_an_item(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    stop = n.item()
    out = torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :stop].sum(-1)
    return out


def until_a_number(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, 1:n].sum(-1)
    return out


X, M, PAIR = torch.ones(4), torch.ones(4, 12), [torch.ones(4), torch.ones(5)]
REMEDY = r"hl\.specialize .* loop over hl\.tile of it, .* torch\.where"


@FORMS
@pytest.mark.parametrize(
    ("fn", "args", "message"),
    (
        (top, (M, 2.0), r"k of torch\.topk must be an integer .*, got 2\.0: pass an int, as in k=2\.$"),
        (top, (M, True), r"k of torch\.topk must be an integer .*, got True: pass an int, as in k=1\.$"),
        (unrolled, (X, 2.0), r"hl\.static_range needs integer bounds, got 2\.0; pass int\(2\.0\)\.$"),
        (scaled, (X, 2.0), r"'gain' is a number \(float\) in this call, .* pass a tensor\.$"),
        (dropped, (X, "a"), r"A seed must be an integer, got 'a' of type str\.$"),
        (
            unrolled_on_the_host,
            (PAIR,),
            r"hl\.static_range may only be .* A loop in host code takes range\(\.\.\.\)\.$",
        ),
        (of_each, (PAIR, PAIR), r"For tensors of several shapes, call the kernel once for each\.$"),
        (added, (M, X), r"got 0 besides integers, which select one element; the value has more dimensions"),
        (until_an_item, (M, torch.tensor(5)), rf"the slice :n\.item\(\), .*{REMEDY}"),
        (until_a_number, (M, 5), rf"the slice 1:n, .*{REMEDY}"),
    ),
)
def test_a_value_of_the_wrong_kind(fn: Any, args: tuple[Any, ...], message: str, static_shapes: bool) -> None:
    with pytest.raises(exc.Base) as caught:
        helion.kernel(fn, static_shapes=static_shapes).bind(args)
    assert re.search(message, caught.value.message)
    assert "While processing" in str(caught.value)


def lengths(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(len(x)):
        out[tile, :] = x[tile, :] * len(x) + len(y)
    return out


def length_of_none(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(len(x)):
        out[tile] = x[tile] * len(y)
    return out


@FORMS
def test_the_length_of_a_tensor_in_device_code(static_shapes: bool) -> None:
    kernel = helion.kernel(lengths, static_shapes=static_shapes)
    for n in (1, 4, 63, 1000):
        x, y = torch.randn(n, 5), torch.empty(n + 2)
        torch.testing.assert_close(kernel(x, y), x * n + n + 2)
    with pytest.raises(exc.TypeInferenceError, match=r"len\(\) of a 0-d tensor"):
        helion.kernel(length_of_none, static_shapes=static_shapes).bind((X, torch.tensor(1.0)))
