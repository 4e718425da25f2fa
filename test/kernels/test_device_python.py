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


# --- conditional expressions --------------------------------------------------------------------------------------------


def by_number(x: torch.Tensor, n: int, flag: bool, scale: float) -> torch.Tensor:
    """Chained, on a counter and a number of the run; on a bool argument; on a constant of each iteration."""
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        v = x[t]
        for i in range(5):
            v = v * 2 if i < n else v + 1 if i == n else v - 0.5 if i > 3 else 0.25
        for i in hl.static_range(3):
            v = v + 1 if i != 1 else v * scale
        out[t] = v * (1.0 if flag else scale)
    return out


def by_number_eager(x: torch.Tensor, n: int, flag: bool, scale: float) -> torch.Tensor:
    for i in range(5):
        x = x * 2 if i < n else x + 1 if i == n else x - 0.5 if i > 3 else torch.full_like(x, 0.25)
    return ((x + 1) * scale + 1) * (1.0 if flag else scale)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("n", [0, 2, 4, 9])
def test_conditional_expressions_on_numbers(n: int, static: bool) -> None:
    kernel, x = helion.kernel(by_number, static_shapes=static), torch.randn(37) + 1
    for flag in (True, False):
        expected = by_number_eager(x, n, flag, 0.75)
        torch.testing.assert_close(kernel(x, n, flag, 0.75), expected)
        torch.testing.assert_close(helion.kernel(by_number, ref_mode=helion.RefMode.EAGER)(x, n, flag, 0.75), expected)
        torch.testing.assert_close(helion.kernel(by_number, checked=True)(x, n, flag, 0.75), expected)


def by_value(x: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    """One of two loads, from inside a function and a comprehension; an index past the end is not read."""
    out = torch.empty_like(x)

    def signed(v: Any, total: Any) -> Any:
        return -v if total < 0 else v

    for t in hl.grid(x.size(0)):
        last = limits[t]
        first = x[t, last] if last < x.size(1) else 7.0
        parts = [x[t, :] * k if last > k else x[t, :] for k in range(3)]
        out[t, :] = signed(sum(parts), x[t, :].sum()) + first
    return out


@pytest.mark.parametrize("checked", [True, False])
def test_conditional_expressions_on_loaded_values(checked: bool) -> None:
    x, limits = torch.randn(6, 11) + 0.2, torch.tensor([0, 3, 10, 11, 100, 2])
    expected = []
    for row, last in zip(x, limits.tolist(), strict=True):
        total = sum(row * k if last > k else row for k in range(3))
        expected.append((-total if row.sum() < 0 else total) + (row[last] if last < 11 else 7.0))
    kernel = helion.kernel(by_value, checked=checked)
    torch.testing.assert_close(kernel(x, limits), torch.stack(expected))


def by_config(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = x[t] * (2.0 if t.block_size >= 16 and t.begin >= 0 else 3.0) + (1 if t.block_size > 8 else 5)
    return out


@pytest.mark.parametrize("size", [8, 16])
def test_conditional_expressions_on_block_sizes(size: int) -> None:
    x = torch.randn(37)
    kernel = helion.kernel(by_config, config=helion.Config(block_sizes=[size]))
    torch.testing.assert_close(kernel(x), x * 2 + 1 if size == 16 else x * 3 + 5)


# --- getattr and hasattr ------------------------------------------------------------------------------------------------


class Activation:
    kind = "relu"


ACTIVATION = Activation()


def by_name(x: torch.Tensor, name: str, other: hl.constexpr) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=getattr(torch, "float" + "32"), device=getattr(x, "device"))  # noqa: B009
    for t in hl.tile(x.size(0)):
        v = getattr(torch, other)(x[t]) + getattr(torch.nn.functional, ACTIVATION.kind)(x[t])
        for each in ("abs", name):
            v = v + getattr(x[t], each)() if hasattr(x[t], each) else v - 1
        out[t] = v + getattr(ACTIVATION, "bias", 0) + getattr(t, "begin") * 0  # noqa: B009
    return out


@pytest.mark.parametrize("eager", [True, False])
def test_attributes_by_name(eager: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = helion.kernel(by_name, ref_mode=helion.RefMode.EAGER if eager else helion.RefMode.OFF)
    x = torch.randn(21)
    base = x.cos() + x.relu() + x.abs()
    torch.testing.assert_close(kernel(x, "exp", "cos"), base + x.exp())
    torch.testing.assert_close(kernel(x, "no_such_method", "cos"), base - 1)
    monkeypatch.setattr(ACTIVATION, "bias", 2.5, raising=False)
    torch.testing.assert_close(kernel(x, "exp", "cos"), base + x.exp() + 2.5)
    monkeypatch.setattr(ACTIVATION, "kind", "silu", raising=False)
    torch.testing.assert_close(kernel(x, "exp", "sin"), x.sin() + torch.nn.functional.silu(x) + x.abs() + x.exp() + 2.5)


def test_an_attribute_that_is_not_there() -> None:
    with pytest.raises(exc.TypeInferenceError, match="getattr: module 'torch' has no attribute 'no_such_function'"):
        helion.kernel(by_name).bind((torch.randn(9), "exp", "no_such_function"))


def one_of_two(x: torch.Tensor, counts: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty([x.size(0), 6])
    for i in hl.grid(x.size(0)):
        v, count = x[i], counts[i]
        out[i, 0] = v or 7.0
        out[i, 1] = v and 7.0
        out[i, 2] = count and v
        out[i, 3] = n or count or v
        chosen = 5.0
        if (count and v > 0) or i == 2:
            chosen = v or n or 3.0
        out[i, 4] = chosen
        out[i, 5] = v > 0 and count > 0
    return out


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("static", [True, False])
def test_and_and_or_of_numbers_give_one_of_them(static: bool, n: int) -> None:
    x, counts = torch.tensor([-3.0, 0.0, 2.0, 0.0, 1.0]), torch.tensor([1, 0, 0, 4, 2])
    pairs = list(enumerate(zip(x.tolist(), counts.tolist(), strict=True)))
    expected = [
        [v or 7, v and 7, c and v, n or c or v, (v or n or 3) if (c and v > 0) or i == 2 else 5, v > 0 and c > 0]
        for i, (v, c) in pairs
    ]
    found = helion.kernel(one_of_two, static_shapes=static)(x, counts, n)
    assert torch.equal(found, torch.tensor(expected, dtype=torch.float32))


@helion.kernel(config=helion.Config(block_sizes=[4]))
def of_the_config(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        more = t.block_size - 4
        if more or t.block_size > 100:
            out[t] = 0
        else:
            out[t] = x[t] * (t.block_size or 7) + (more and 3) + (more or 50) + ((t.block_size > 2) and 900)
    return out


def test_and_and_or_of_numbers_of_the_config() -> None:
    assert of_the_config(torch.ones(6)).tolist() == [954.0] * 6
