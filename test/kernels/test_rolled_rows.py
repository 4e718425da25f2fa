"""Rows that are walked in chunks against eager and fp64: softmax and variance merge what would be passes of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import helion
import helion.language as hl


def reduced(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile, :])
    return out


def mapped(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = f(x[tile, :])
    return out


#: By whether shapes are static.
REDUCED = {static: helion.kernel(reduced, static_shapes=static) for static in (True, False)}
MAPPED = {static: helion.kernel(mapped, static_shapes=static) for static in (True, False)}

TO_NUMBERS: dict[str, Callable[..., Any]] = {
    "logsumexp": lambda v: torch.logsumexp(v, -1),
    "powers of 2": lambda v: torch.exp2((v - v.amax(-1, keepdim=True)) * 0.7).sum(-1),
    "var": lambda v: v.var(-1),
    "std": lambda v: v.std(-1),
    "mean and var": lambda v: torch.var_mean(v, -1)[0] - torch.var_mean(v, -1)[1],
    "var of softmax": lambda v: torch.softmax(v, -1).var(-1),
}
TO_ROWS: dict[str, Callable[..., Any]] = {
    "softmax": lambda v: torch.softmax(v, -1),
    "log_softmax": lambda v: torch.log_softmax(v, -1),
    "layer_norm": lambda v: F.layer_norm(v, [v.size(-1)]),
    "layer_norm of softmax": lambda v: F.layer_norm(torch.softmax(v, -1), [v.size(-1)]),
}
FUNCTIONS = {**TO_NUMBERS, **TO_ROWS}
#: Of the largest result, times 1 where eager is no worse.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-9}


def run(name: str, x: torch.Tensor, rows: int, chunk: int | None, static: bool = True) -> torch.Tensor:
    f = FUNCTIONS[name]
    kernel = (MAPPED if name in TO_ROWS else REDUCED)[static]
    return kernel.bind((x, f)).compile_config({"block_sizes": [rows], "reduction_loops": [chunk]})(x, f)


def worst(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, as a part of the largest result."""
    return ((found.double() - exact).abs().max() / exact.abs().max()).item()


def check(name: str, x: torch.Tensor, rows: int, chunk: int, static: bool = True) -> None:
    exact = FUNCTIONS[name](x.double())
    eager = worst(FUNCTIONS[name](x), exact)
    assert worst(run(name, x, rows, chunk, static), exact) <= max(TOLERANCE[x.dtype], 2 * eager)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("n", "chunk"), [(63, 16), (1000, 64), (1000, 256), (4097, 1024)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_against_fp64(name: str, n: int, chunk: int, dtype: torch.dtype) -> None:
    x = torch.randn(5, n, generator=torch.Generator().manual_seed(n)) * 3 + 1
    check(name, x.to(dtype), 2, chunk)


@given(
    name=st.sampled_from(list(FUNCTIONS)),
    n=st.integers(20, 700),
    m=st.integers(1, 9),
    chunk=st.sampled_from([8, 16, 32, 64, 128]),
    rows=st.sampled_from([1, 2, 4, 8]),
    dtype=st.sampled_from(list(TOLERANCE)),
    static=st.booleans(),
    offset=st.sampled_from([0.0, 1.0, -40.0]),
    scale=st.sampled_from([0.1, 1.0, 8.0]),
    seed=st.integers(0, 2**16),
)
def test_random_rows(
    name: str,
    n: int,
    m: int,
    chunk: int,
    rows: int,
    dtype: torch.dtype,
    static: bool,
    offset: float,
    scale: float,
    seed: int,
) -> None:
    x = torch.randn(m, n, generator=torch.Generator().manual_seed(seed)) * scale + offset
    check(name, x.to(dtype), rows, chunk, static)


def strange(n: int) -> dict[str, torch.Tensor]:
    """Rows with infinities and nan, by what is strange."""
    inf, nan = math.inf, math.nan

    def row(*changes: tuple[Any, float], start: float | None = None) -> torch.Tensor:
        made = torch.randn(n, generator=torch.Generator().manual_seed(7)) if start is None else torch.full((n,), start)
        for where, value in changes:
            made[where] = value
        return made

    return {
        "all -inf": row(start=-inf),
        "all inf": row(start=inf),
        "all nan": row(start=nan),
        "one nan": row((3, nan)),
        "nan at the end": row((-1, nan)),
        "one inf": row((5, inf)),
        "two inf in a lane": row((0, inf), (16, inf)),
        "inf and -inf": row((0, inf), (16, -inf)),
        "-inf to begin with": row((slice(0, 20), -inf)),
        "-inf to end with": row((slice(n - 7, n), -inf)),
        "every other -inf": row((slice(0, n, 2), -inf)),
        "one number": row((-3, 2.0), start=-inf),
        "far down": row((slice(0, 17), -inf), start=-1000.0),
        "the same everywhere": row(start=3.7),
        "an outlier first": row((0, 1e4)),
        "subnormal": row() * 1e-40,
    }


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_infinities_and_nan(name: str, rows: int) -> None:
    """A row gives what it gives in eager, and what it gives when it is held at once."""
    cases = strange(63)
    x = torch.stack(list(cases.values()))
    held, looped, eager = run(name, x, rows, None), run(name, x, rows, 16), FUNCTIONS[name](x)
    for at, case in enumerate(cases):
        torch.testing.assert_close(looped[at], held[at], equal_nan=True, rtol=2e-5, atol=2e-5, msg=f"{case}, held")
        torch.testing.assert_close(looped[at], eager[at], equal_nan=True, rtol=2e-5, atol=2e-5, msg=f"{case}, eager")


@pytest.mark.parametrize("case", ["far", "an outlier first", "a far chunk first"])
@pytest.mark.parametrize("n", [1000, 4097])
def test_variance_far_from_zero(n: int, case: str) -> None:
    """Within 2e-5 of the variance, whatever the first chunk is; its share of 257 chunks bounds what cancels."""
    x = torch.randn(8, n, generator=torch.Generator().manual_seed(n)) + 1e4
    x[:, : {"far": 0, "an outlier first": 1, "a far chunk first": 64}[case]] = 0.0
    exact = x.double().var(-1)
    for chunk in (16, 64, 256):
        assert ((run("var", x, 2, chunk).double() - exact).abs() / exact).max() < 2e-5


def test_deviation_of_equal_values() -> None:
    """No sum of squares is rounded to a negative number."""
    values = torch.tensor([0.1, 3.7, -1e4, 1e-3, 12345.678])
    assert torch.all(run("std", values[:, None].expand(5, 100).contiguous(), 1, 16) <= 1e-6 * values.abs())


def test_a_sum_that_shares_its_pass_with_a_variance() -> None:
    """It is infinite where the row has an infinity, though the variance is nan."""
    x = torch.randint(-50, 50, (4, 300), generator=torch.Generator().manual_seed(0)).float()
    x[2, 7] = x[3, 0] = math.inf
    f: Callable[..., Any] = lambda v: torch.where(v.var(-1) > 1e9, 0.0, v.sum(-1))  # noqa: E731
    found = REDUCED[True].bind((x, f)).compile_config({"block_sizes": [1], "reduction_loops": [32]})(x, f)
    torch.testing.assert_close(found, x.sum(-1))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_shorter_than_a_chunk(name: str) -> None:
    """With dynamic shapes a chunk can cover a row that is shorter than the one it was chosen for."""
    f = FUNCTIONS[name]
    long, short = torch.randn(3, 1000), torch.randn(3, 77) + 5
    kernel = (MAPPED if name in TO_ROWS else REDUCED)[False]
    bound = kernel.bind((long, f))
    compiled = bound.compile_config({"block_sizes": [2], "reduction_loops": [256]})
    torch.testing.assert_close(compiled(short, f), f(short), rtol=1e-4, atol=1e-5)


def places(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    high, low = (torch.empty([x.size(0)], dtype=torch.int64, device=x.device) for _ in range(2))
    least = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for t in hl.tile(x.size(0)):
        high[t] = torch.argmax(x[t, :], dim=1)
        least[t], low[t] = torch.min(x[t, :], 1)
    return high, low, least


@pytest.mark.parametrize("chunk", [None, 8, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_places_of_extremes(dtype: torch.dtype, chunk: int | None) -> None:
    """Of equal elements the first counts, a nan is more than any number, and rows may hold nothing but infinities."""
    x = (torch.randn(9, 50) * 3).round()
    if dtype.is_floating_point:
        x[0], x[1], x[2, 33], x[2, 7] = -torch.inf, torch.inf, torch.nan, torch.nan
    x = x.to(dtype)
    kernel = helion.kernel(places, config=helion.Config(block_sizes=[4], reduction_loops=[chunk]))
    high, low, least = kernel(x)
    assert torch.equal(high, x.argmax(1)) and torch.equal(low, x.argmin(1))
    torch.testing.assert_close(least, x.amin(1), equal_nan=True, rtol=0, atol=0)
