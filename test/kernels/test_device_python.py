"""Python in device code: functions, comprehensions, assignments within expressions and to several targets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention

import helion
import helion.language as hl
from helion import exc


def comprehensions(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        parts = [x[t] * i for i in range(3)]
        by_number = {i: parts[i] + 1 for i in (0, 1, 2)}
        out[t] = sum(p for p in parts) + by_number[2] + max(i for i in {1, 5, 2}) - 6
    return out


def expressions(x: torch.Tensor) -> torch.Tensor:
    out, other = torch.empty_like(x), torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        a = (twice := x[t] * 2) + 1
        b = c = a + twice
        out[t] = other[t] = b + c - 3 * x[t] - 2
    return out - other + other


def functions(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)

    def scaled(v: Any, k: float = 2.0) -> Any:
        return v * k

    for t in hl.tile(x.size(0)):

        def more(v: Any) -> Any:
            part = v + x[t]  # noqa: B023 - walked where it is called
            return part * 2 - x[t]  # noqa: B023

        out[t] = (lambda v, w=1.0: more(scaled(v)) * w)(x[t])
    return out


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("function", [comprehensions, expressions, functions], ids=lambda f: f.__name__)
def test_five_times(function: Callable[..., torch.Tensor], static: bool) -> None:
    x = torch.randn(9)
    torch.testing.assert_close(helion.kernel(function, static_shapes=static)(x), x * 5)


def one_name(x: torch.Tensor) -> torch.Tensor:
    """A loop's variable may have been anything before."""
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        acc = hl.zeros([t])
        for i, k in enumerate([3.0, 4.0]):
            acc += i * k
        for i in range(3):
            acc += i
        for i in hl.tile(x.size(0)):
            acc += x[i].sum()
        out[t] = acc
    return out


def test_a_loop_takes_over_a_name() -> None:
    x = torch.randn(9)
    torch.testing.assert_close(helion.kernel(one_name)(x), (x.sum() + 7).expand(9))


def behind_a_condition(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        first = x[0]
        if first > 0 and (second := x[1]) > 0:
            out[t] = second
    return out


def test_an_assignment_that_may_not_happen() -> None:
    with pytest.raises(exc.StatementNotSupported, match="assign before"):
        helion.kernel(behind_a_condition).bind((torch.randn(9),))


def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = torch.empty([x.size(0)]), torch.empty([x.size(0)], dtype=torch.int32)
    for t in hl.tile(x.size(0)):
        v = x[t, :]
        lanes = torch.zeros_like(v, dtype=torch.int32) + hl.arange(x.size(1))
        values[t], places[t] = hl.reduce(
            lambda a, i, b, j: (torch.where(a > b, a, b), torch.where(a > b, i, j)), (v, lanes), dim=1, other=(-1e9, 0)
        )
    return values, places


def test_a_lambda_combines_several_values() -> None:
    x = torch.randn(9, 13)
    values, places = helion.kernel(largest)(x)
    assert torch.equal(values, x.amax(1)) and torch.equal(places.long(), x.argmax(1))


def modified(q: torch.Tensor, k: torch.Tensor, score: Any, mask: Any) -> torch.Tensor:
    out = torch.empty([q.size(0), k.size(0)])
    for m, n in hl.tile([q.size(0), k.size(0)]):
        zero = hl.zeros([], dtype=torch.int32)
        places = (zero, zero, m.index[:, None], n.index[None, :])
        v = score(hl.dot(q[m, :], k[n, :].T), *places)
        out[m, n] = torch.where(mask(*places), v, float("-inf"))
    return out


def scores(names: dict[str, torch.Tensor]) -> list[tuple[str, Callable[..., Any]]]:
    bias = names["bias"]
    return [
        ("identity", flex_attention._identity),
        ("lambda", lambda s, b, h, i, j: s + (j - i) * 0.5),
        ("closure", lambda s, b, h, i, j: s + bias[j]),
        ("partial", functools.partial(lambda w, s, b, h, i, j: torch.tanh(s / w) * w, 20.0)),
    ]


def masks() -> list[tuple[str, Callable[..., Any]]]:
    def window(b: Any, h: Any, i: Any, j: Any) -> Any:
        near = i - j < 5
        return near & (i >= j)

    return [("all", flex_attention.noop_mask), ("causal", lambda b, h, i, j: i >= j), ("window", window)]


@pytest.mark.parametrize("score", [0, 1, 2, 3])
@pytest.mark.parametrize("mask", [0, 1, 2])
def test_scores_and_masks_of_attention(score: int, mask: int) -> None:
    q, k, bias = torch.randn(20, 16), torch.randn(24, 16), torch.randn(24)
    _, of_score = scores({"bias": bias})[score]
    _, of_mask = masks()[mask]
    i, j, zero = torch.arange(20)[:, None], torch.arange(24)[None, :], torch.zeros((), dtype=torch.int64)
    want = torch.where(of_mask(zero, zero, i, j), of_score(q @ k.T, zero, zero, i, j), float("-inf"))
    torch.testing.assert_close(helion.kernel(modified)(q, k, of_score, of_mask), want, rtol=1e-3, atol=1e-3)
