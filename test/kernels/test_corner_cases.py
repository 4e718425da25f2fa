"""Combinations that are easy to get wrong: tiles reduced along their own dimension, squares, partial sums, ragged rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._testing import check


def verify(kernel: helion.Kernel, reference: Callable[..., Any], *args: Any, **config: Any) -> None:
    """The conservative config, or the given one, and two random ones where none is given."""
    bound = kernel.bind(args)
    rng = random.Random(0)
    configs = [config] if config else [bound.conservative_config(), *(bound.config_spec.random(rng) for _ in range(2))]
    for one in configs:
        check(f"{kernel.name} with {one}", bound.compile_config(one), reference, args, rtol=2e-4)


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) - 2).to(dtype)


# --- reductions along the dimension of a tile ---------------------------------------------------------------------------


@helion.kernel
def partial(x: torch.Tensor, f: Callable[..., Any], count: int) -> torch.Tensor:
    """One number per tile of 8 rows."""
    out = torch.full([count], -1.0)
    for tile in hl.tile(x.size(0), block_size=8):
        out[tile.id] = f(x[tile, :])
    return out


@helion.kernel
def partial_rows(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    """One row per tile of 8 rows."""
    out = torch.full([3, x.size(1)], -1.0)
    for tile in hl.tile(x.size(0), block_size=8):
        out[tile.id, :] = f(x[tile, :])
    return out


WHOLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum of exp": lambda v: torch.exp(v).sum(),
    "mean": lambda v: v.mean(),
    "mean of exp": lambda v: torch.exp(v).mean(),
    "maximum": lambda v: (-v.abs() - 1).amax(),
    "minimum": lambda v: (v.abs() + 1).amin(),
    "var": lambda v: v.var(),
    "norm": lambda v: (v + 1).norm(),
    "logsumexp": lambda v: torch.logsumexp(v, (0, 1)),
    "sum of sums of cos": lambda v: torch.cos(v.sum(-1)).sum(),
    "maximum of means": lambda v: (-v.abs() - 1).mean(0).amax(),
    "any": lambda v: (v == 0).any().float(),
    "all": lambda v: (v < 5).all().float(),
}
ALONG_ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum of exp": lambda v: torch.exp(v).sum(0),
    "mean": lambda v: v.mean(0),
    "maximum": lambda v: (-v.abs() - 1).amax(0),
    "argmax": lambda v: (-v.abs() - 1).argmax(0),
    "std": lambda v: v.std(0, correction=0),
    "softmax": lambda v: torch.softmax(v, 0).amax(0),
    "centred": lambda v: (v - v.mean(0)).abs().sum(0),
    "centred twice": lambda v: (v - v.mean(0) - v.mean(1)[:, None]).abs().amax(0),
    "normalized": lambda v: (v / v.sum(dim=0, keepdim=True)).prod(0),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_tiles_count_their_rows_in_range(name: str) -> None:
    f = WHOLE[name]
    verify(partial, lambda x, f, count: torch.stack([f(p).to(x.dtype) for p in x.split(8)]), sample(21, 7), f, 3)
    verify(partial, lambda x, f, count: torch.stack([f(p).to(x.dtype) for p in x.split(8)]), sample(2, 5), f, 1)


@pytest.mark.parametrize("name", ALONG_ROWS)
def test_columns_of_tiles_count_their_rows_in_range(name: str) -> None:
    f = ALONG_ROWS[name]
    verify(partial_rows, lambda x, f: torch.stack([f(p).to(x.dtype) for p in x.split(8)]), sample(21, 7), f)


# --- one size for two dimensions ----------------------------------------------------------------------------------------


@helion.kernel
def square(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(1)])
    for i in hl.grid(x.size(0)):
        out[i, :] = f(x[i, :, :])
    return out


SQUARES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda v: torch.exp(v).sum(-1),
    "columns": lambda v: torch.exp(v).sum(0),
    "maxima of rows": lambda v: (-v.abs() - 1).amax(-1),
    "minima of columns": lambda v: (v.abs() + 1).amin(0),
    "transposed": lambda v: torch.exp(v.t()).sum(0) + v.T.amax(-1),
    "symmetric": lambda v: torch.cos(v + v.t()).sum(-1),
    "outer": lambda v: torch.exp(v.mean(0)[:, None] - v.mean(1)[None, :]).sum(-1),
    "diagonal": lambda v: torch.where(torch.arange(v.shape[0])[:, None] == torch.arange(v.shape[1]), v, 0.0).sum(0),
    "softmax both ways": lambda v: (torch.softmax(v, 0) + torch.softmax(v, 1)).sum(1),
}


@pytest.mark.parametrize("name", SQUARES)
def test_both_dimensions_of_a_square(name: str) -> None:
    f = SQUARES[name]
    for size in (5, 8):
        verify(square, lambda x, f: torch.stack([f(v) for v in x]), sample(3, size, size), f)


@helion.kernel
def blocks_on_the_diagonal(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0), block_size=8):
        v = x[tile, tile]
        out[tile, tile] = v + v.T * (tile.index[:, None] == tile.index[None, :])
    return out


@helion.kernel
def symmetrize(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] + x[b, a].T
    return out


def test_a_tile_twice_in_one_subscript() -> None:
    def expected(x):
        out = torch.zeros_like(x)
        for at in range(0, x.size(0), 8):
            part = x[at : at + 8, at : at + 8]
            out[at : at + 8, at : at + 8] = part + torch.diag(part.diagonal())
        return out

    verify(blocks_on_the_diagonal, expected, sample(21, 21))
    verify(symmetrize, lambda x: x + x.T, sample(21, 21))


# --- shapes of 1 --------------------------------------------------------------------------------------------------------


@helion.kernel
def add_rows_of_one(x: torch.Tensor, row: torch.Tensor, column: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] + row[a, b] * column[a, b] + one[a, b] + one[0, 0]
    return out


@helion.kernel
def store_into_one(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b]
    return out


@helion.kernel
def scalars_and_broadcasts(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([4, x.size(0), x.size(1)])
    for a, b in hl.tile(x.size()):
        out[0, a, b] = x[a, 0][:, None]
        out[1, a, b] = x[0, b]
        out[2, a, b] = x[0, 0]
        out[3, a, b] = x[a, b][None, :, :]
    return out


def test_dimensions_of_one() -> None:
    verify(
        add_rows_of_one, lambda x, r, c, o: x + r * c + 2 * o, sample(9, 21), sample(1, 21), sample(9, 1), sample(1, 1)
    )
    with pytest.raises(exc.ShapeMismatch):
        store_into_one.bind((sample(9, 21), torch.empty(1, 21)))

    def expected(x):
        shape = x.shape
        return torch.stack([x[:, :1].expand(shape), x[:1].expand(shape), x[0, 0].expand(shape), x])

    verify(scalars_and_broadcasts, expected, sample(9, 21))


# --- loops over whole rows inside loops ---------------------------------------------------------------------------------


@helion.kernel
def planes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Whole rows inside a device loop, with a number from one pass in the next."""
    out = torch.empty_like(x)
    for a in hl.tile(x.size(0)):
        shift = hl.zeros([a])
        for j in hl.grid(x.size(1)):
            v = x[a, j, :] + shift[:, None]
            v = torch.exp(v - v.amax(-1, keepdim=True))
            total = v.sum(-1)
            out[a, j, :] = v / total[:, None] * weight[:]
            shift = shift + 1 / total
    return out


@helion.kernel
def whole_rows_then_tiles(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a in hl.tile(x.size(0)):
        high = x[a, :].amax(-1)
        total = torch.exp(x[a, :] - high[:, None]).sum(-1)
        for b in hl.tile(x.size(1)):
            out[a, b] = torch.exp(x[a, b] - high[:, None]) / total[:, None]
    return out


@helion.kernel
def two_whole_dimensions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a in hl.tile(x.size(0)):
        total = torch.cos(y[a, :]).sum(-1, keepdim=True) + y[a, :].amin(-1, keepdim=True)
        v = x[a, :] * total
        out[a, :] = (
            v - v.mean(-1, keepdim=True) + torch.exp(v - total * x[a, :].amax(-1, keepdim=True)).amin(-1)[:, None]
        )
    return out


def test_whole_rows_inside_other_code() -> None:
    def planed(x, weight):
        out, shift = torch.empty_like(x), torch.zeros_like(x[:, 0, 0])
        for j in range(x.size(1)):
            v = x[:, j] + shift[:, None]
            v = torch.exp(v - v.amax(-1, keepdim=True))
            out[:, j] = v / v.sum(-1, keepdim=True) * weight
            shift = shift + 1 / v.sum(-1)
        return out

    verify(planes, planed, sample(5, 3, 21), sample(21))
    verify(whole_rows_then_tiles, lambda x: torch.softmax(x, -1), sample(5, 37))

    def both(x, y):
        total = torch.cos(y).sum(-1, keepdim=True) + y.amin(-1, keepdim=True)
        v = x * total
        low = torch.exp(v - total * x.amax(-1, keepdim=True)).amin(-1, keepdim=True)
        return v - v.mean(-1, keepdim=True) + low

    verify(two_whole_dimensions, both, sample(5, 21) / 30, sample(5, 13))


# --- bounds from tensors ------------------------------------------------------------------------------------------------


@helion.kernel
def segments(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Sums and maxima of consecutive segments of ``values``."""
    out = torch.empty([offsets.size(0) - 1, 3])
    for i in hl.grid(offsets.size(0) - 1):
        begin, end = offsets[i], offsets[i + 1]
        total = hl.zeros([1])
        high = hl.full([1], float("-inf"))
        count = 0
        for tile in hl.tile(begin, end):
            v = values[tile]
            total += torch.exp(v).sum(-1)
            high = torch.maximum(high, (-v.abs() - 1).amax(-1))
            count += tile.end - tile.begin
        out[i, 0] = total.sum(0)
        out[i, 1] = high.amax(0)
        out[i, 2] = count
    return out


@helion.kernel
def ranges(x: torch.Tensor, bounds: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros([x.size(0), 5])
    for tile in hl.tile(x.size(0)):
        a, b, c, d, e = 0.0, 0.0, 0, 0, 0
        for i in range(n):
            a = a + x[i]
        for i in range(1, n):
            b = b + x[i]
        for i in range(0, n, 2):
            c = c + i
        for i in range(bounds[0], bounds[1]):
            d = d + i * i
        for i in hl.grid(bounds[0], bounds[1], step=3):
            e = e + i
        out[tile, 0] = a
        out[tile, 1] = b
        out[tile, 2] = c
        out[tile, 3] = d
        out[tile, 4] = e
    return out


def test_bounds_from_tensors() -> None:
    values, offsets = sample(77), torch.tensor([0, 5, 5, 37, 38, 77])

    def segmented(values, offsets):
        rows = []
        for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            v = values[low:high]
            top = (-v.abs() - 1).amax() if len(v) else torch.tensor(-math.inf, dtype=values.dtype)
            rows.append(torch.stack([torch.exp(v).sum(), top, torch.tensor(float(len(v)), dtype=values.dtype)]))
        return torch.stack(rows)

    for sizes in ([4], [16], [128]):
        verify(segments, segmented, values, offsets, block_sizes=sizes)
    for n in (0, 1, 2, 7):
        for low, high in [(2, 9), (4, 4), (5, 2)]:
            row = [sum(range(0, n, 2)), sum(i * i for i in range(low, high)), sum(range(low, high, 3))]

            def ranged(x, bounds, n, row=row):
                first = torch.stack([x[:n].sum(), x[1 : max(n, 1)].sum()])
                return torch.cat([first, torch.tensor(row, dtype=x.dtype)]).expand(x.size(0), 5)

            verify(ranges, ranged, sample(9), torch.tensor([low, high]), n, block_sizes=[4])


@helion.kernel
def downwards(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros([2, x.size(0)])
    for tile in hl.tile(x.size(0)):
        a = hl.zeros([tile])
        for i in range(5, 0, -1):
            a = a * 2 + i
        b = hl.zeros([tile])
        for i in range(n, 0, -2):
            b = b * 2 + i
        out[0, tile] = a
        out[1, tile] = b
    return out


def test_ranges_that_count_down_are_computed_or_refused() -> None:
    for n in (1, 4, 5):
        try:
            bound = downwards.bind((torch.empty(3), n))
        except exc.BaseError as error:
            assert "While processing" in str(error)
            continue
        result = bound.compile_config(bound.conservative_config())(torch.empty(3), n)
        a = b = 0.0
        for i in range(5, 0, -1):
            a = a * 2 + i
        for i in range(n, 0, -2):
            b = b * 2 + i
        assert torch.equal(result, torch.tensor([[a], [b]]).expand(2, 3))


# --- constants ----------------------------------------------------------------------------------------------------------


@helion.kernel
def extremes(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 6], dtype=torch.float64)
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        out[tile, 0] = torch.where(v > 0, float("inf"), -math.inf)
        out[tile, 1] = torch.where(v > 0, float("nan"), v)
        out[tile, 2] = torch.clamp(v, max=torch.finfo(v.dtype).max, min=torch.finfo(v.dtype).tiny)
        out[tile, 3] = v * torch.finfo(torch.float32).eps + math.pi
        out[tile, 4] = hl.full([tile], torch.iinfo(torch.int32).max, dtype=torch.int64) + 1
        out[tile, 5] = v.to(torch.float64) * 1e-300
    return out


def test_extreme_constants() -> None:
    x = sample(9) + 2

    def expected(x):
        x = x.float()
        one = torch.where(x > 0, math.inf, -math.inf).double()
        two = torch.where(x > 0, math.nan, x).double()
        three = x.clamp(min=torch.finfo(torch.float32).tiny).double()
        four = (x * torch.finfo(torch.float32).eps + math.pi).double()
        return torch.stack([one, two, three, four, torch.full_like(four, 2.0**31), x.double() * 1e-300], 1)

    bound = extremes.bind((x,))
    result = bound.compile_config(bound.conservative_config())(x)
    torch.testing.assert_close(result, expected(x), rtol=1e-6, atol=0, equal_nan=True)


# --- what one loop leaves for the next iteration ------------------------------------------------------------------------


@helion.kernel
def stateful(x: torch.Tensor, k: int) -> torch.Tensor:
    out = torch.empty([x.size(0), 4])
    for a in hl.tile(x.size(0)):
        acc = hl.zeros([a])
        kept = acc + 1
        last = acc
        copied = acc
        for j in hl.grid(x.size(1)):
            v = x[a, j]
            previous = last
            last = v
            if j > k:
                acc = acc + previous * v
                kept = previous
            elif j == k:
                copied = last
            for _ in range(2):
                acc, kept = acc + kept, kept
        out[a, 0] = acc
        out[a, 1] = kept
        out[a, 2] = last
        out[a, 3] = copied
    return out


def test_state_that_moves_between_names() -> None:
    def expected(x, k):
        acc = torch.zeros_like(x[:, 0])
        kept, last, copied = acc + 1, acc, acc
        for j in range(x.size(1)):
            v, previous = x[:, j], last
            last = v
            if j > k:
                acc, kept = acc + previous * v, previous
            elif j == k:
                copied = last
            acc = acc + 2 * kept
        return torch.stack([acc, kept, last, copied], 1)

    for k in (-1, 0, 3, 100):
        verify(stateful, expected, sample(5, 7), k)


@helion.kernel
def many_carried(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 6])
    for t in hl.tile(x.size(0)):
        a, b, c = x[t, 0], x[t, 1], x[t, 2]
        d, e, f = a, a, b
        for j in hl.grid(x.size(1)):
            d, e, f = e, f, d
            a, d = d, a + x[t, j]
            if x[0, j] < -2:
                b, c = c, b
                e = a
            else:
                f = b
                c, f = f, c
        out[t, 0] = a
        out[t, 1] = b
        out[t, 2] = c
        out[t, 3] = d
        out[t, 4] = e
        out[t, 5] = f
    return out


def test_many_names_change_places() -> None:
    def expected(x):
        a, b, c = x[:, 0], x[:, 1], x[:, 2]
        d, e, f = a, a, b
        for j in range(x.size(1)):
            d, e, f = e, f, d
            a, d = d, a + x[:, j]
            if x[0, j] < -2:
                b, c = c, b
                e = a
            else:
                f = b
                c, f = f, c
        return torch.stack([a, b, c, d, e, f], 1)

    for width in (3, 4, 9):
        verify(many_carried, expected, sample(5, width))


@helion.kernel
def agreeing_branches(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([2, x.size(0)])
    for tile in hl.tile(x.size(0)):
        a, b = x[tile], x[tile] * 2
        if x[0] > 0:
            a = b
            c = b
        else:
            a = b
            c = b
        out[0, tile] = a
        out[1, tile] = c
    return out


@helion.kernel
def agreeing_numbers(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([3, x.size(0)])
    for tile in hl.tile(x.size(0)):
        a, n = 1.0, 5
        if x[0] > 0:
            a, n, k = 2.5, 7, 3
        elif x[0] > -100:
            a, n, k = 2.5, 7, 3
        else:
            a, n, k = 2.5, 7, 3
        out[0, tile] = a
        out[1, tile] = n
        out[2, tile] = x[tile] * k
    return out


def test_both_branches_agree() -> None:
    verify(agreeing_branches, lambda x: torch.stack([x * 2, x * 2]), sample(5))
    verify(agreeing_numbers, lambda x: torch.stack([x * 0 + 2.5, x * 0 + 7, x * 3]), sample(5))


@helion.kernel
def numbers_that_meet(x: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
    """Branches and loops that leave an integer here and a float there."""
    out = torch.empty([x.size(0), 5])
    for i in hl.grid(x.size(0)):
        if kinds[i] > 2:
            scale = kinds[i]
        else:
            scale = 0.5
        factor = 2
        if kinds[i] == 1:
            factor = 2.5
        flag = True
        if kinds[i] == 0:
            flag = 3
        total = 1
        for j in hl.grid(4):
            total = total + x[i]
        rate = 1
        for j in hl.grid(3):
            rate = rate / 2
        out[i, 0] = scale
        out[i, 1] = factor
        out[i, 2] = flag
        out[i, 3] = total
        out[i, 4] = rate
    return out


def test_integers_and_floats_meet_without_loss_or_are_refused() -> None:
    x, kinds = sample(5), torch.arange(5)
    try:
        bound = numbers_that_meet.bind((x, kinds))
    except exc.BaseError as error:
        assert "Variable" in str(error)
        return
    rows = [
        torch.tensor([0.5 if k <= 2 else float(k) for k in range(5)]),
        torch.tensor([2.5 if k == 1 else 2.0 for k in range(5)]),
        torch.tensor([3.0 if k == 0 else 1.0 for k in range(5)]),
        1 + 4 * x,
        torch.full((5,), 0.125),
    ]
    result = bound.compile_config(bound.conservative_config())(x, kinds)
    torch.testing.assert_close(result, torch.stack(rows, 1))


# --- loops that do not begin at 0 ---------------------------------------------------------------------------------------


@helion.kernel(static_shapes=False)
def numbers_of_tiles(x: torch.Tensor, begin: int, factor: int) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(begin, begin + x.size(0), block_size=4):
        out[tile.index - begin] = hl.zeros([tile], dtype=torch.int64) + tile.id * factor
    return out


def test_the_number_of_a_tile_is_its_begin_in_blocks() -> None:
    def reference(x: torch.Tensor, begin: int, factor: int) -> torch.Tensor:
        return (begin + torch.arange(10) // 4 * 4) // 4 * factor

    for begin, factor in ((6, 1), (-7, 1), (2**30 + 2, 64)):
        for kernel in (numbers_of_tiles, helion.kernel(numbers_of_tiles.fn)):
            check(f"{begin}", kernel, reference, (torch.empty(10), begin, factor))
