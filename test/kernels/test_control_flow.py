"""Loops that carry values, counters, branches that merge, functions, and several loops in one kernel."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._testing import check


def call(kernel: helion.Kernel, *args: Any, **config: Any) -> Any:
    bound = kernel.bind(args)
    return bound.compile_config(config or bound.conservative_config())(*args)


def verify(kernel: helion.Kernel, reference: Callable[..., Any], *args: Any, **config: Any) -> None:
    bound = kernel.bind(args)
    check(kernel.name, bound.compile_config(config or bound.conservative_config()), reference, args)


def sample(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) + 1


# --- carried values -----------------------------------------------------------------------------------------------------


@helion.kernel
def fibonacci(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a, b = hl.zeros([tile]), x[tile]
        for _ in hl.grid(n):
            a, b = b, a + b
        out[tile] = a
    return out


@helion.kernel
def rotation(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty([3, x.size(0)])
    for tile in hl.tile(x.size(0)):
        a, b, c = x[tile], x[tile] * 2, x[tile] * 3
        for i in range(n):
            a, b, c = b, c, a
            if i == 2:
                a, c = c, a
        out[0, tile] = a
        out[1, tile] = b
        out[2, tile] = c
    return out


@helion.kernel
def pure_swaps(x: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    out = torch.empty([2, x.size(0)])
    for tile in hl.tile(x.size(0)):
        a, b = x[tile], x[tile] * 2
        for i in hl.grid(signs.size(0)):
            if signs[i] > 0:
                a, b = b, a
        out[0, tile] = a
        out[1, tile] = b
    return out


@helion.kernel
def delayed(x: torch.Tensor) -> torch.Tensor:
    """What the iteration before computed is stored now."""
    out = torch.zeros_like(x)
    for a in hl.tile(x.size(0)):
        before = hl.zeros([a])
        for j in hl.grid(x.size(1)):
            out[a, j] = before
            before = x[a, j] + before * 0.5
    return out


@helion.kernel
def same_start(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([3, x.size(0)])
    for a in hl.tile(x.size(0)):
        start = hl.full([a], 1.5)
        low = start
        high = start
        for b in hl.tile(x.size(1)):
            low = torch.minimum(low, x[a, b].amin(-1))
            high = torch.maximum(high, x[a, b].amax(-1)) + start * 0
        out[0, a] = low
        out[1, a] = high
        out[2, a] = start
    return out


@helion.kernel
def nested_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        total = hl.zeros([a])
        for b in hl.tile(x.size(1)):
            best = hl.full([a], float("-inf"))
            for c in hl.tile(x.size(2)):
                v = x[a, b, c]
                best = torch.maximum(best, v.amax(-1).amax(-1))
                total = total + v.sum(-1).sum(-1)
            total = total + best * (b.end - b.begin)
        out[a] = total
    return out


@helion.kernel
def nested_with_one_block_of_columns(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    block = hl.register_block_size(x.size(1))
    for a in hl.tile(x.size(0)):
        total = hl.zeros([a])
        for b in hl.tile(x.size(1), block_size=block):
            total += x[a, b].sum(-1)
        square = hl.zeros([a])
        for b in hl.tile(x.size(1), block_size=block):
            centred = x[a, b] - (total / x.size(1))[:, None]
            square += (centred * centred).sum(-1)
        for c in hl.tile(x.size(1), block_size=block):
            out[a, c] = (x[a, c] - (total / x.size(1))[:, None]) * torch.rsqrt(square / x.size(1) + 1e-5)[:, None]
    return out


@helion.kernel
def partial_range(x: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        total = hl.zeros([a])
        for b in hl.tile(begin, end):
            total += torch.exp(x[a, b]).sum(-1)
        out[a] = total
    return out


@helion.kernel
def ragged(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for i in hl.grid(x.size(0)):
        total = hl.zeros([1])
        for b in hl.tile(0, ends[i]):
            total += torch.cos(x[i, b]).sum(-1)
        out[i] = total.sum(0)
    return out


@helion.kernel
def up_to_the_outer_tile(x: torch.Tensor) -> torch.Tensor:
    """Sums of the columns before the end of each row's tile."""
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        total = hl.zeros([a])
        for b in hl.tile(0, a.end):
            total += torch.where(b.index[None, :] <= a.index[:, None], torch.exp(x[a, b]), 0.0).sum(-1)
        out[a] = total
    return out


@helion.kernel
def tiles_of_a_tile(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for outer in hl.tile(x.size(0)):
        total = hl.zeros([1])
        for inner in hl.tile(outer.begin, outer.end):
            total += torch.cos(x[inner]).sum(0)
        for inner in hl.tile(outer.begin, outer.end):
            out[inner] = x[inner] + total
    return out


def test_carried_values() -> None:
    x = sample(21)
    numbers = [0, 1, 1, 2, 3, 5, 8, 13]
    for n in (0, 1, 2, 7):
        verify(fibonacci, lambda x, n: x * numbers[n], x, n, block_sizes=[8])
        verify(rotation, rotated, x, n, block_sizes=[8])
    y = sample(5, 7)

    def delay(x):
        out, before = torch.zeros_like(x), torch.zeros_like(x[:, 0])
        for j in range(x.size(1)):
            out[:, j] = before
            before = x[:, j] + before * 0.5
        return out

    verify(delayed, delay, y)
    verify(
        same_start,
        lambda x: torch.stack([x.amin(1).clamp(max=1.5), x.amax(1).clamp(min=1.5), torch.full_like(x[:, 0], 1.5)]),
        sample(5, 37), block_sizes=[4, 8],
    )  # fmt: skip


def rotated(x: torch.Tensor, n: int) -> torch.Tensor:
    a, b, c = x, x * 2, x * 3
    for i in range(n):
        a, b, c = b, c, a
        if i == 2:
            a, c = c, a
    return torch.stack([a, b, c])


def test_swaps_in_a_branch() -> None:
    for signs in ([1.0], [1, -1, 1, 1], [-1, -1], [1, 1]):
        swapped = sum(s > 0 for s in signs) % 2

        def expected(x, signs, swapped=swapped):
            return torch.stack([x * 2, x] if swapped else [x, x * 2])

        verify(pure_swaps, expected, sample(5), torch.tensor(signs))


def test_nested_loops() -> None:
    for sizes in ([2, 4, 8], [4, 8, 4]):

        def expected(x, width=sizes[1]):
            total = x.sum((1, 2))
            for part in x.split(width, 1):
                total = total + part.amax((1, 2)) * part.size(1)
            return total

        verify(nested_sums, expected, sample(5, 7, 11), block_sizes=sizes)
        verify(nested_sums, expected, -sample(5, 7, 11).abs() - 1, block_sizes=sizes)
    for sizes in ([8, 2], [32, 4], [1, 4]):
        verify(
            nested_with_one_block_of_columns,
            lambda x: (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt(),
            sample(5, 37), block_sizes=sizes,
        )  # fmt: skip


def test_ranges_of_loops() -> None:
    x = sample(5, 37)
    for begin, end in [(0, 37), (3, 30), (5, 5), (36, 37), (9, 3)]:
        verify(partial_range, lambda x, b, e: torch.exp(x[:, b:e]).sum(-1), x, begin, end, block_sizes=[2, 8])
    ends = torch.tensor([37, 0, 1, 8, 13])

    def cosines(x, ends):
        return torch.stack([torch.cos(x[i, : int(e)]).sum() for i, e in enumerate(ends)])

    verify(ragged, cosines, x, ends, block_sizes=[8])
    for sizes in ([8, 4], [4, 16], [16, 16]):
        verify(up_to_the_outer_tile, lambda x: torch.exp(x).tril().sum(-1), sample(21, 21), block_sizes=sizes)
    for sizes in ([16, 4, 8], [8, 8, 2]):

        def expected(x, width=sizes[0]):
            return torch.cat([p + torch.cos(p).sum() for p in x.split(width)])

        verify(tiles_of_a_tile, expected, sample(37), block_sizes=sizes)


# --- counters and flags -------------------------------------------------------------------------------------------------


@helion.kernel
def counters(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 4])
    for a in hl.tile(x.size(0)):
        tiles = 0
        weight = 1.0
        product = 1
        total = hl.zeros([a])
        for b in hl.tile(x.size(1), block_size=8):
            tiles = tiles + 1
            weight = weight / 2
            product *= 2
            total = total + x[a, b].sum(-1) * weight + product
        out[a, 0] = tiles
        out[a, 1] = weight
        out[a, 2] = product
        out[a, 3] = total
    return out


@helion.kernel
def counters_in_nested_loops(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 3], dtype=torch.int64)
    for i in hl.grid(x.size(0)):
        even = 0
        all_of_them = 0
        for j in hl.grid(x.size(1)):
            for k in range(j + 1):
                all_of_them += 1
                if (j + k) % 2 == 0:
                    even += k
        out[i, 0] = even
        out[i, 1] = all_of_them
        out[i, 2] = even + all_of_them
    return out


@helion.kernel
def first_flag(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        first = True
        best = hl.zeros([a])
        for b in hl.tile(x.size(1)):
            v = x[a, b].amax(-1)
            if first:
                best = v
            else:
                best = torch.maximum(best, v)
            first = False
        out[a] = best
    return out


@helion.kernel
def maximum_as_a_scalar(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for i in hl.grid(x.size(0)):
        best = -1000.0
        at = 0
        for j in hl.grid(x.size(1)):
            if x[i, j] > best:
                best = x[i, j]
                at = j
        out[i] = best + at
    return out


def test_counters() -> None:
    x = sample(5, 37)

    def expected(x):
        total, weight, product, tiles = torch.zeros(5, dtype=x.dtype), 1.0, 1, 0
        for part in x.split(8, 1):
            weight, product, tiles = weight / 2, product * 2, tiles + 1
            total = total + part.sum(-1) * weight + product
        ones = torch.ones_like(total)
        return torch.stack([ones * tiles, ones * weight, ones * product, total], 1)

    verify(counters, expected, x)
    even = sum(k for j in range(7) for k in range(j + 1) if (j + k) % 2 == 0)
    row = torch.tensor([even, 28, even + 28])
    assert torch.equal(call(counters_in_nested_loops, torch.empty(3, 7)), row.expand(3, 3))
    for sign in (1, -1):
        verify(first_flag, lambda x: x.amax(-1), sign * (x.abs() + 1), block_sizes=[2, 8])
    verify(maximum_as_a_scalar, lambda x: x.amax(-1) + x.argmax(-1), x)


# --- branches -----------------------------------------------------------------------------------------------------------


@helion.kernel
def branches(x: torch.Tensor, kinds: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        for b in hl.tile(x.size(1)):
            v = x[i, b]
            kind = kinds[i]
            if kind == 0:
                v = v * 2
                scale = 1.0
            elif kind == 1 or kind == 2:
                if n > 3:
                    v = torch.exp(v)
                else:
                    v = -v
                scale = 3
            elif 3 <= kind < 5 and not n == 7:
                scale = kind
            else:
                v, scale = v - 1, 0.5
            out[i, b] = v * scale
    return out


@helion.kernel
def branch_that_stores(x: torch.Tensor, limit: float) -> torch.Tensor:
    out = torch.zeros_like(x)
    for a in hl.tile(x.size(0)):
        total = x[a, :].sum()
        if total > limit:
            out[a, :] = x[a, :]
        if a.begin == 0:
            out[a, 0] = total
        else:
            pass
    return out


@helion.kernel
def branch_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        acc = hl.zeros([a])
        count = 0
        for j in hl.grid(x.size(1)):
            if j % 3 == 1:
                acc = acc + x[a, j]
                count = count + 1
            elif j == 5:
                acc = acc * 2
        out[a] = acc / count
    return out


@helion.kernel
def loop_in_a_branch(x: torch.Tensor, flag: bool) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        acc = hl.full([a], float("-inf"))
        if flag:
            for b in hl.tile(x.size(1)):
                acc = torch.maximum(acc, x[a, b].amax(-1))
        else:
            acc = x[a, :].sum(-1)
        out[a] = acc
    return out


def test_branches() -> None:
    x, kinds = sample(8, 21), torch.arange(8)

    def expected(x, kinds, n):
        rows = []
        for v, kind in zip(x, kinds.tolist(), strict=True):
            if kind == 0:
                rows.append(v * 2)
            elif kind in (1, 2):
                rows.append((torch.exp(v) if n > 3 else -v) * 3)
            elif kind in (3, 4) and n != 7:
                rows.append(v * kind)
            else:
                rows.append((v - 1) * 0.5)
        return torch.stack(rows)

    for n in (1, 3, 4, 7, 16):
        verify(branches, expected, x, kinds, n, block_sizes=[8])

    def stored(x, limit):
        out = torch.zeros_like(x)
        for at in range(0, 8, 2):
            total = x[at : at + 2].sum()
            if total > limit:
                out[at : at + 2] = x[at : at + 2]
            if at == 0:
                out[:2, 0] = total
        return out

    for limit in (0.0, 40.0, 1e9):
        verify(branch_that_stores, stored, x, limit, block_sizes=[2])

    def looped(x):
        acc = torch.zeros_like(x[:, 0])
        for j in range(x.size(1)):
            acc = acc + x[:, j] if j % 3 == 1 else acc * 2 if j == 5 else acc
        return acc / len(range(1, x.size(1), 3))

    verify(branch_in_a_loop, looped, x, block_sizes=[4])
    for flag in (True, False):
        verify(loop_in_a_branch, lambda x, f: x.amax(-1) if f else x.sum(-1), -x.abs() - 1, flag, block_sizes=[4, 8])


# --- names that come and go ---------------------------------------------------------------------------------------------


@helion.kernel
def temporaries(x: torch.Tensor) -> torch.Tensor:
    """``v`` means something else before, in and after the loop; ``w`` only lives in it."""
    out = torch.empty_like(x)
    for a in hl.tile(x.size(0)):
        v = x[a, 0]
        base = v * 2
        for b in hl.tile(x.size(1)):
            v = x[a, b] * 3
            w = v + base[:, None]
            out[a, b] = w
        v = base + 1
        w = v
        out[a, 0] = w
    return out


@helion.kernel
def tuple_of_state(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        state = (hl.zeros([a]), hl.zeros([a]))
        for b in hl.tile(x.size(1)):
            state = (state[0] + x[a, b].sum(-1), state[1] + 1)
        out[a] = state[0] / state[1]
    return out


@helion.kernel
def kept_tile(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for a in hl.tile(x.size(0)):
        kept = a
        for b in hl.tile(x.size(0)):
            kept = b
            out[b] = x[b]
        out[kept] = x[kept] * 2
    return out


@helion.kernel
def none_at_first(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        best = None
        for j in hl.grid(x.size(1)):
            if best is None:
                best = x[a, j]
            else:
                best = torch.maximum(best, x[a, j])
        out[a] = best
    return out


def test_temporaries() -> None:
    def expected(x):
        out = x * 3 + 2 * x[:, :1]
        out[:, 0] = 2 * x[:, 0] + 1
        return out

    verify(temporaries, expected, sample(5, 21), block_sizes=[2, 8])


@pytest.mark.parametrize("kernel", [tuple_of_state, kept_tile, none_at_first], ids=lambda k: k.name)
def test_other_objects_that_a_loop_rebinds_are_carried_or_refused(kernel: helion.Kernel) -> None:
    x = sample(5, 21) if kernel is not kept_tile else sample(21)
    expected = {
        tuple_of_state: lambda x: x.sum(-1) / len(x[0].split(4)),
        none_at_first: lambda x: x.amax(-1),
        kept_tile: lambda x: None,
    }[kernel]
    try:
        bound = kernel.bind((x,))
    except exc.BaseError as error:
        assert "While processing" in str(error)
        return
    assert kernel is not kept_tile
    config = {"block_sizes": [2, 4]} if kernel is tuple_of_state else {"block_sizes": [2]}
    torch.testing.assert_close(bound.compile_config(config)(x), expected(x))


@helion.kernel
def unrolled(x: torch.Tensor, weights: list[float]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        for weight in weights:
            v = v * weight + 1
        for i in hl.static_range(3):
            v = v + i
        for i, weight in enumerate((2.0, 3.0)):
            v = v + i * weight
        for first, second in zip([1, 2], [3, 4], strict=True):
            v = v + first * second
        out[tile] = v + sum([x[tile] * k for k in (1, 2)])
    return out


def test_unrolled_loops() -> None:
    def expected(x, weights):
        v = x
        for weight in weights:
            v = v * weight + 1
        return v + 3 + 3 + 11 + 3 * x

    verify(unrolled, expected, sample(37), [2.0, 0.5])
    verify(unrolled, expected, sample(37), [3.0, -0.5])
    verify(unrolled, expected, sample(37), [])


# --- functions ----------------------------------------------------------------------------------------------------------

SCALE = 2.5
TABLE = {"bias": 0.5, "pair": (1.0, 2.0)}
WEIGHT = torch.linspace(0.0, 1.0, 37)


def helper(v, k=2, *, shift=0.0):
    """Two returns, a branch on a constant, a global."""
    if k > 1:
        w = v * k
        return w * SCALE + shift
    return v + shift


def recursive(v, depth):
    return v if depth == 0 else recursive(v * 2, depth - 1) + 1


def several(v):
    return v + 1, v * 2, {"third": v - 1}


@helion.kernel
def calls_functions(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = helper(x[tile]) + helper(x[tile], 1) + helper(x[tile], k=3, shift=1.5)
        first, second, rest = several(v)
        square = lambda u: u * u  # noqa: E731
        v = first + square(second) * 0.01 + rest["third"] + recursive(v, 3)
        out[tile] = v * TABLE["bias"] + TABLE["pair"][1] + WEIGHT[tile]
    return out


def test_functions_and_captured_globals() -> None:
    def expected(x):
        v = x * 2 * SCALE + x + x * 3 * SCALE + 1.5
        v = v + 1 + (v * 2) ** 2 * 0.01 + v - 1 + v * 8 + 3
        return v * 0.5 + 2 + WEIGHT.to(x.dtype)

    verify(calls_functions, expected, sample(37), block_sizes=[8])


def test_a_captured_global_that_is_also_an_argument() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] + 2 * WEIGHT[tile]
        return out

    verify(kernel, lambda x: 3 * x, WEIGHT)
    verify(kernel, lambda x: x + 2 * WEIGHT.to(x.dtype), sample(37))


def test_a_captured_global_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = sample(37)
    for scale in (2.5, 3.5):
        monkeypatch.setitem(globals(), "SCALE", scale)
        expected = x * 2 * scale + x + x * 3 * scale + 1.5
        expected = expected + 1 + (expected * 2) ** 2 * 0.01 + expected - 1 + expected * 8 + 3
        try:
            result = call(calls_functions, x)
        except exc.BaseError as error:
            assert "SCALE" in str(error)
        else:
            torch.testing.assert_close(result, expected * 0.5 + 2 + WEIGHT)


@helion.kernel
def applies(x: torch.Tensor, function: Callable[..., torch.Tensor]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = function(x[tile], tile)
    return out


OTHER_MODULE = """
import torch

WEIGHT, TABLES = torch.linspace(2.0, 3.0, 37), {"bias": [torch.linspace(4.0, 5.0, 37)]}


def scaled(v, tile):
    return v * WEIGHT[tile] + TABLES["bias"][0][tile]
"""


def test_globals_of_a_function_of_another_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other_module.py").write_text(OTHER_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    other: Any = importlib.import_module("other_module")
    x = sample(37)
    bound = applies.bind((x, other.scaled))
    for _ in range(2):
        expected = x * other.WEIGHT + other.TABLES["bias"][0]
        torch.testing.assert_close(bound.compile_config(bound.conservative_config())(x, other.scaled), expected)
        torch.testing.assert_close(applies(x, other.scaled), expected)
        other.WEIGHT = torch.linspace(7.0, 9.0, 37)
        bound = applies.bind((x, other.scaled))


# --- several loops, several outputs -------------------------------------------------------------------------------------


@helion.kernel
def two_loops(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    first = torch.empty_like(x)
    second = torch.empty([y.size(0)])
    n = x.size(0)
    for tile in hl.tile(x.size(0)):
        v = x[tile] * 2
        first[tile] = v
    for tile in hl.tile(y.size(0)):
        v = y[tile, :].amax(-1)
        second[tile] = v
    total = n + 1
    return first, second, total


@helion.kernel
def three_loops(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([3, *x.size()])
    a, b, c = out[0], out[1], out[2]
    for i, j in hl.tile(x.size()):
        a[i, j] = x[i, j] + 1
    for i in hl.grid(x.size(0)):
        b[i, :] = x[i, :] * 2
    for tile in hl.tile(x.size(1)):
        c[:, tile] = x[:, tile] - x[:, tile].mean(0)[None, :]
    return out


def test_several_loops() -> None:
    for config in ({"block_sizes": [8, 4]}, {"block_sizes": [64, 2]}):
        first, second, total = call(two_loops, x := sample(37), y := -sample(5, 7).abs() - 1, **config)
        torch.testing.assert_close(first, x * 2)
        torch.testing.assert_close(second, y.amax(-1))
        assert total == 38
    for pid_type in ("flat", "persistent_blocked", "persistent_interleaved"):
        bound = two_loops.bind((x, y))
        config = {**bound.conservative_config().config, "pid_type": pid_type}
        torch.testing.assert_close(bound.compile_config(config)(x, y)[:2], (x * 2, y.amax(-1)))


def test_loops_over_views_of_one_tensor_are_computed_or_refused() -> None:
    x = sample(5, 7)
    try:
        result = call(three_loops, x)
    except exc.LoopDependencyError as error:
        assert "hl.barrier()" in str(error)
    else:
        torch.testing.assert_close(result, torch.stack([x + 1, x * 2, x - x.mean(0)]))


@helion.kernel
def statistics(x: torch.Tensor) -> dict[str, Any]:
    """Outputs in a dict, host code before and behind the loop."""
    m, n = x.shape
    if m > 100:
        raise_rows = 1
    else:
        raise_rows = 0
    results = {"sum": torch.empty([m]), "flags": torch.empty([m], dtype=torch.bool), "extra": [raise_rows]}
    total, flags = results["sum"], results["flags"]
    for tile in hl.tile(m):
        v = x[tile, :]
        total[tile] = v.sum(-1)
        flags[tile] = (v > 0).all(-1)
    results["extra"].append(n)
    for k in range(2):
        results["extra"].append(k)
    return results


def test_host_code_around_the_loop() -> None:
    x = sample(5, 7)
    results = call(statistics, x)
    torch.testing.assert_close(results["sum"], x.sum(-1))
    assert torch.equal(results["flags"], (x > 0).all(-1))
    assert results["extra"] == [0, 7, 0, 1]


def test_a_host_list_that_device_code_appends_to_is_refused_or_works() -> None:
    @helion.kernel
    def kernel(x):
        names = []
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            names.append(1)
            out[tile] = x[tile]
        return out, names

    with pytest.raises(exc.BaseError, match="append|names"):
        kernel.bind((sample(5),))


# --- helper functions that return early ---------------------------------------------------------------------------------


def early(v, s):
    if s > 0:
        return v
    return -v


def from_a_loop(v):
    for _ in hl.grid(3):
        return v * 2
    return v


def both_ways(v, s):
    if s > 0:
        return v
    else:
        return v - 1


@helion.kernel
def returns_early(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile], x[0])
    return out


@pytest.mark.parametrize("f", [early, both_ways], ids=lambda f: f.__name__)
def test_early_returns_are_merged_or_refused(f: Callable[..., Any]) -> None:
    for sign in (1.0, -1.0):
        x = sample(5)
        x[0] = sign
        try:
            result = call(returns_early, x, f)
        except exc.BaseError as error:
            assert "return" in str(error)
            assert "While processing" in str(error)
        else:
            torch.testing.assert_close(result, f(x, x[0]))


def test_a_return_in_a_device_loop_is_refused() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = from_a_loop(x[tile])
        return out

    with pytest.raises(exc.BaseError, match=r"(?s)return.*from_a_loop"):
        kernel.bind((sample(5),))


# --- what a kernel reads from its module --------------------------------------------------------------------------------


class Namespace:
    scale = 2.0


SETTINGS = {"bias": 1.0}
ACTIVATIONS = [torch.relu]


@helion.kernel
def reads_its_module(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = ACTIVATIONS[0](x[tile] * Namespace.scale + SETTINGS["bias"]) + WEIGHT[tile] * SCALE
    return out


def replace_item(items: list[Any], at: int, value: Any) -> None:
    """Undone by a second replacement: `setitem` is for mappings."""
    before = items[at]
    items[at] = value
    RESTORE.append(lambda: items.__setitem__(at, before))


RESTORE: list[Callable[[], None]] = []


@pytest.fixture(autouse=True)
def restore_items() -> Any:
    yield
    while RESTORE:
        RESTORE.pop()()


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a number": lambda m: m.setitem(globals(), "SCALE", 7.0),
    "a tensor": lambda m: m.setitem(globals(), "WEIGHT", torch.linspace(5.0, 6.0, 37)),
    "strides of a tensor": lambda m: m.setitem(globals(), "WEIGHT", torch.linspace(7.0, 8.0, 74)[::2]),
    "dtype of a tensor": lambda m: m.setitem(globals(), "WEIGHT", torch.linspace(8.0, 9.0, 37, dtype=torch.float64)),
    "an attribute": lambda m: m.setattr(Namespace, "scale", 5.0),
    "an item of a dict": lambda m: m.setitem(SETTINGS, "bias", -3.0),
    "an item of a list": lambda m: replace_item(ACTIVATIONS, 0, torch.cos),
    "a list": lambda m: m.setitem(globals(), "ACTIVATIONS", [torch.cos]),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_every_call_sees_the_current_globals(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or says that it cannot."""
    x = sample(37)
    call(reads_its_module, x)
    CHANGES[change](monkeypatch)
    expected = ACTIVATIONS[0](x * Namespace.scale + SETTINGS["bias"]) + WEIGHT * SCALE
    try:
        result = call(reads_its_module, x)
    except exc.BaseError as error:
        assert any(name in str(error) for name in ("Namespace", "SETTINGS", "ACTIVATIONS", "WEIGHT", "SCALE"))
    else:
        torch.testing.assert_close(result, expected.float(), rtol=1e-5, atol=1e-5)


# --- statements of the host and lists of the device ---------------------------------------------------------------------


@helion.kernel
def forms(x: torch.Tensor, n: int) -> torch.Tensor:
    try:
        size = x.size(0)
    except RuntimeError:
        size = 0
    else:
        size = size + 0
    finally:
        scale = 2.0
    out = torch.empty([2, size])
    for tile in hl.tile(size):
        sums = [hl.zeros([tile]), hl.zeros([tile])]
        for i in hl.static_range(2):
            sums[i] = sums[i] + x[tile] * (i + 1)
        if n > 2:
            factor = 1.5
        elif n > 1:
            factor = 2
        else:
            factor = -3
        out[0, tile], out[1, tile] = sums[0] * factor, sums[1] * scale
    return out


def test_host_try_lists_of_values_and_numbers_of_two_kinds() -> None:
    x = torch.randn(37)
    for n, factor in ((3, 1.5), (2, 2), (1, -3)):
        torch.testing.assert_close(forms(x, n), torch.stack([x * factor, x * 4]))


@helion.kernel
def list_of_another_loop(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        sums = [hl.zeros([tile])]
        for i in range(2):
            sums[0] = sums[0] + x[tile] * i
        out[tile] = sums[0]
    return out


def test_an_item_of_a_list_that_a_loop_would_carry_is_refused() -> None:
    with pytest.raises(exc.NonTensorSubscriptAssign):
        list_of_another_loop.bind((torch.randn(5),))


@helion.kernel
def by_index(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    out = torch.empty(x.shape.numel())
    rows = x.view(-1)
    for tile in hl.tile(out.size(0)):
        acc, sums = rows[tile] / x.shape.numel(), [hl.zeros([tile]), hl.zeros([tile])]
        for i in range(len(weights)):
            if i % 2 == 0:
                acc = acc + weights[i][tile]
            else:
                acc = acc * weights[i][tile]
            sums[i % 2] = sums[i % 2] + acc
        out[tile] = acc + sums[0] - sums[1]
    return out


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_range_over_a_sequence_is_unrolled(count: int) -> None:
    def reference(x, weights):
        acc, sums = x.view(-1) / x.numel(), [0.0, 0.0]
        for i, weight in enumerate(weights):
            acc = acc * weight if i % 2 else acc + weight
            sums[i % 2] = sums[i % 2] + acc
        return acc + sums[0] - sums[1]

    verify(by_index, reference, sample(5, 7), [sample(35) for _ in range(count)])


def test_a_range_of_unknown_length_cannot_index_a_sequence() -> None:
    def picks(x, weights, n):
        for tile in hl.tile(x.size(0)):
            for i in range(n):
                x[tile] = x[tile] + weights[i][tile]
        return x

    with pytest.raises(exc.InvalidSequenceSubscription, match="constant integer"):
        helion.kernel(picks).bind((sample(5), [sample(5)], 1))
