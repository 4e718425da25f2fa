"""Sizes made of a block size: ``arange``, slices with bounds of the device, reshapes and allocations."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


def run(function: Callable[..., torch.Tensor], *args: object, sizes: list[int], static: bool = True) -> torch.Tensor:
    config = helion.Config(block_sizes=sizes)
    return helion.kernel(function, config=config, static_shapes=static)(*args)


def interleave(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) * 2], device=x.device)
    for t in hl.tile(x.size(0)):
        pairs = torch.stack([x[t], -x[t]], dim=1).reshape(t.block_size * 2)
        out[t.begin * 2 : (t.begin + t.block_size) * 2] = pairs
    return out


def joined(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) * 2], device=x.device)
    for t in hl.tile(x.size(0)):
        s = t.begin
        out[2 * s : 2 * s + 2 * t.block_size] = hl.join(x[t], -x[t]).reshape(2 * t.block_size)
    return out


def stacked_first(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) * 2], device=x.device)
    for t in hl.tile(x.size(0)):
        rows = torch.stack([x[t], -x[t]], dim=0)
        out[t.begin * 2 : t.begin * 2 + 2 * t.block_size] = rows.permute(1, 0).reshape(2 * t.block_size)
    return out


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("function", [interleave, joined, stacked_first], ids=lambda f: f.__name__)
def test_pairs_of_a_ragged_tile(function: Callable[..., torch.Tensor], static: bool) -> None:
    x = torch.randn(21)
    assert torch.equal(run(function, x, sizes=[8], static=static), torch.stack([x, -x], 1).reshape(-1))


def next_number(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t.id * t.block_size : (t.id + 1) * t.block_size] = x[t.begin : t.begin + t.block_size] + 1
    return out


def thrice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0) // 3):
        b = t.begin * 3
        out[b : b + 3 * t.block_size] = x[b : b + t.block_size * 3] + 1
    return out


def bounds(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t.begin : t.end] = x[t.begin : t.end] + 1
    return out


def in_halves(x: torch.Tensor) -> torch.Tensor:
    size = hl.register_block_size(2, x.size(0))
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0), block_size=size):
        for u in hl.tile(t.begin, t.end, block_size=size // 2):
            out[u] = x[u] + 1
    return out


def made_equal(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        size = t.block_size
        half = hl.zeros([helion.cdiv(size, 2)]) + hl.full([size // 2], 0.5)
        ones = torch.stack([half, half], dim=1).reshape(size) + hl.full([size + 1 - 1], 0.5)
        out[t] = x[t] + ones + hl.zeros([size * 2 // 2])
    return out


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("function", [next_number, thrice, bounds, in_halves, made_equal], ids=lambda f: f.__name__)
def test_one_more(function: Callable[..., torch.Tensor], static: bool) -> None:
    x = torch.randn(21)
    torch.testing.assert_close(run(function, x, sizes=[4], static=static), x + 1)


def pair_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([(x.size(0) + 1) // 2], device=x.device)
    size = hl.register_block_size(x.size(0))
    for t in hl.tile(x.size(0), block_size=size):
        b = t.begin
        out[b // 2 : b // 2 + size // 2] = x[t].exp().reshape(size // 2, 2).sum(1)
    return out


def pair_sums_by_bounds(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([(x.size(0) + 1) // 2], device=x.device)
    for t in hl.tile(x.size(0)):
        out[t.begin // 2 : (t.begin + t.block_size) // 2] = x[t].exp().reshape(-1, 2).sum(-1)
    return out


@pytest.mark.parametrize("function", [pair_sums, pair_sums_by_bounds], ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", [21, 22])
def test_half_a_tile(function: Callable[..., torch.Tensor], n: int) -> None:
    """The lane behind the last element of an odd number holds 0, as loads do, whatever was computed there."""
    x = torch.randn(n)
    padded = torch.cat([x.exp(), torch.zeros(n % 2)])
    torch.testing.assert_close(run(function, x, sizes=[8]), padded.reshape(-1, 2).sum(1))


def test_half_a_tile_has_two_elements_at_least() -> None:
    x = torch.randn(22)
    torch.testing.assert_close(run(pair_sums, x, sizes=[1]), x.exp().reshape(-1, 2).sum(1))


def whole_half(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([2], device=x.device)
    for t in hl.tile(x.size(0)):
        hl.atomic_add(out, [hl.arange(2)], x[t].exp().reshape(t.block_size // 2, 2).sum(0))
    return out


def test_sums_over_lanes_that_nobody_can_tell_apart() -> None:
    with pytest.raises(exc.ShapeMismatch, match="reduce before reshaping"):
        helion.kernel(whole_half).bind((torch.randn(21),))


def packed_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], device=x.device)
    size = hl.register_block_size(2, y.size(0))
    for m, n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([m, n])
        for k in hl.tile(y.size(0), block_size=size):
            a = x[m, k.begin // 2 : k.begin // 2 + size // 2]
            both = torch.stack([a, a], dim=2).reshape(m.block_size, size)
            acc = torch.addmm(acc, both, y[k, n])
        out[m, n] = acc
    return out


def unpacked_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], device=x.device)
    for m, n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([m, n])
        for k in hl.tile(x.size(1)):
            a = x[m, k]
            both = torch.stack([a, a], dim=2).reshape(m.block_size, k.block_size * 2)
            acc = acc + hl.dot(both, y[k.begin * 2 : k.begin * 2 + k.block_size * 2, n])
        out[m, n] = acc
    return out


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("function", [packed_product, unpacked_product], ids=lambda f: f.__name__)
def test_products_over_derived_sizes(function: Callable[..., torch.Tensor], static: bool) -> None:
    x, y = torch.randn(20, 25), torch.randn(50, 18)
    got = run(function, x, y, sizes=[16, 16, 16], static=static)
    torch.testing.assert_close(got, x.repeat_interleave(2, 1) @ y, rtol=1e-4, atol=1e-4)


def windows(x: torch.Tensor, k: int) -> torch.Tensor:
    out = torch.empty([x.size(0)], device=x.device)
    for i in hl.grid(x.size(0)):
        out[i] = x[i : i + 8].sum() + x[k : k + 4].sum()
    return out


def every_second(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) // 2], device=x.device)
    for t in hl.tile(x.size(0) // 2):
        out[t] = x[t.begin * 2 : t.begin * 2 + t.block_size * 2 : 2]
    return out


@pytest.mark.parametrize("static", [True, False])
def test_moving_slices(static: bool) -> None:
    x = torch.randn(24)
    sums = torch.stack([x[i : i + 8].sum() for i in range(24)]) + x[3:7].sum()
    torch.testing.assert_close(helion.kernel(windows, static_shapes=static)(x, 3), sums)
    assert torch.equal(run(every_second, x, sizes=[8], static=static), x[::2])


def arange_forms(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lanes = torch.empty([x.size(0)], dtype=torch.int64, device=x.device)
    places = torch.empty_like(lanes)
    wide = torch.empty([x.size(0) * 2], dtype=torch.int64, device=x.device)
    for t in hl.tile(x.size(0)):
        lanes[t] = torch.arange(0, t.block_size * 2, step=2)
        places[t] = hl.arange(t.begin, t.begin + t.block_size, dtype=torch.int64)
        i = torch.arange(t.begin * 2, t.begin * 2 + t.block_size * 2)
        hl.store(wide, [i], i * 3, extra_mask=i < x.size(0) * 2)
    return lanes, places, wide


@pytest.mark.parametrize("static", [True, False])
def test_arange(static: bool) -> None:
    lanes, places, wide = run(arange_forms, torch.zeros(21), sizes=[8], static=static)
    assert torch.equal(lanes, torch.arange(21) % 8 * 2)
    assert torch.equal(places, torch.arange(21))
    assert torch.equal(wide, torch.arange(42) * 3)


def constant_arange(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 8], device=x.device)
    for t in hl.tile(x.size(0)):
        steps = torch.arange(1, 25, step=3) + torch.arange(start=0, end=8, dtype=torch.float32)
        out[t, :] = x[t][:, None] + (steps + torch.arange(0, 1, 0.125))[None, :]
    return out


def test_constant_arange() -> None:
    x = torch.randn(5)
    steps = torch.arange(1, 25, step=3) + torch.arange(8) + torch.arange(0, 1, 0.125)
    torch.testing.assert_close(helion.kernel(constant_arange)(x), x[:, None] + steps)


def unknown_length(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        first = n[0]
        out[t] = x[t] + hl.arange(first, first * 2).sum()
    return out


def test_lengths_that_depend_on_data() -> None:
    with pytest.raises(exc.ShapeSpecializingCall):
        helion.kernel(unknown_length).bind((torch.randn(8), torch.ones(1, dtype=torch.int32)))


def sums_of_blocks(x: torch.Tensor) -> torch.Tensor:
    block = hl.register_block_size(x.size(0))
    partial = torch.empty([2, -(-x.size(0) // block), 2], device=x.device)
    for tile in hl.tile(x.size(0), block_size=block):
        partial[0, tile.id, 0] = x[tile].sum()
        partial[1, tile.id, 0] = x[tile].abs().sum()
        partial[0, tile.id, 1] = float(1 + -x.size(0) % block)
        partial[1, tile.id, 1] = float((3 - x.size(0)) // block)
    return partial


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("size", "block"), [(21, 8), (24, 8), (61, 32)])
def test_numbers_of_blocks_round_down_as_in_python(size: int, block: int, static: bool) -> None:
    x = torch.randn(size) + 0.5
    parts = x.split(block)
    numbers = [torch.tensor([1.0 + -size % block, (3.0 - size) // block][i]).expand(len(parts)) for i in range(2)]
    sums = [torch.stack([p.sum() for p in parts]), torch.stack([p.abs().sum() for p in parts])]
    expected = torch.stack([torch.stack(pair, 1) for pair in zip(sums, numbers, strict=True)])
    torch.testing.assert_close(run(sums_of_blocks, x, sizes=[block], static=static), expected)


def test_sizes_of_views_with_dynamic_shapes() -> None:
    @helion.kernel(static_shapes=False)
    def products(z: torch.Tensor, x: torch.Tensor, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = torch.view_as_real(z)
        first, second, rest = x.split([3, 4, last], dim=1)
        out, sums = torch.empty([z.size(0)]), torch.empty([x.size(0), 3])
        for t in hl.tile(z.size(0)):
            real, imag = hl.split(pairs[t, :])
            out[t] = real * imag
        for t in hl.tile(x.size(0)):
            sums[t, :] = first[t, :] + second[t, 1:] + rest[t, :].sum(-1)[:, None]
        return out, sums

    for n, last in ((5, 2), (1, 1), (64, 17)):
        z, x = torch.randn(3 * n, dtype=torch.complex64)[n:], torch.randn(n, 7 + last)
        out, sums = products(z, x, last)
        torch.testing.assert_close(out, z.real * z.imag)
        torch.testing.assert_close(sums, x[:, :3] + x[:, 4:7] + x[:, 7:].sum(1, keepdim=True))


def test_a_size_of_the_host_is_fixed_by_a_view() -> None:
    @helion.kernel(static_shapes=False)
    def pairs(x: torch.Tensor) -> torch.Tensor:
        of_two = x.as_strided([x.size(0) // 2, 2], [2, 1])
        out = torch.empty([of_two.size(0)])
        for t in hl.tile(of_two.size(0)):
            first, second = hl.split(of_two[t, :])
            out[t] = first * second
        return out

    with pytest.raises(
        exc.ShapeMismatch,
        match=r"known at run time only: make that tensor by a view to this number, as in x.view\(-1, 2\)",
    ):
        pairs(torch.ones(10))


def neighbors(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before, after, inner = x[:, :-1], x[:, 1:], x[:, 1:-1]
    left, right = x[:, :-2], x[:, 2:]
    steps, bends = torch.empty_like(after), torch.empty_like(inner)
    for tile in hl.tile(x.size(0)):
        steps[tile, :] = after[tile, :] - before[tile, :]
        bends[tile, :] = left[tile, :] - 2 * inner[tile, :] + right[tile, :]
    return steps, bends


def test_slices_without_ends_have_sizes_that_follow_from_the_argument() -> None:
    kernel = helion.kernel(neighbors, static_shapes=False)
    for size in (40, 63, 100, 4, 3, 2, 40):
        x = torch.randn(9, size)
        torch.testing.assert_close(kernel(x), (x.diff(), x[:, :-2] - 2 * x[:, 1:-1] + x[:, 2:]))


def part_of_heads(x: torch.Tensor, gains: torch.Tensor, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows, width = gains.size(0), hl.specialize(gains.size(1))
    heads = x.view(rows, -1, 2, width)
    some, last = heads[:, start : start + count], heads.narrow(1, heads.size(1) - count, count)
    first, second = (torch.empty([rows, count, width], device=x.device) for _ in range(2))
    for tile, head in hl.tile([rows, count]):
        first[tile, head, :] = some[tile, head, 1, :] * gains[tile, :][:, None, :]
        second[tile, head, :] = last[tile, head, 0, :] * gains[tile, :][:, None, :]
    return first, second


def test_slices_from_a_number_keep_the_sizes_of_other_dimensions() -> None:
    kernel = helion.kernel(part_of_heads, static_shapes=False)
    for rows, heads, start, count in ((7, 5, 2, 2), (33, 9, 0, 4), (5, 4, -3, 1), (3, 3, 1, 2)):
        x, gains = torch.randn(rows, heads * 2 * 8), torch.randn(rows, 8)
        whole = x.view(rows, heads, 2, 8)
        first, second = kernel(x, gains, start, count)
        torch.testing.assert_close(first, whole[:, start : start + count, 1] * gains[:, None])
        torch.testing.assert_close(second, whole[:, heads - count :, 0] * gains[:, None])


def every_third(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = x.size()
    sums = torch.empty([rows], device=x.device)
    moved = torch.empty_like(y)
    for tile in hl.tile(rows):
        lanes = hl.arange(columns)[None, :]
        sums[tile] = torch.where(lanes % 3 == 0, x[tile, :], 0.0).sum(-1)
    for tile in hl.tile(y.size(0)):
        moved[tile] = y[tile] + hl.arange(columns).sum()
    return sums, moved


def test_arange_of_a_size_known_at_launch_needs_no_load_before() -> None:
    kernel = helion.kernel(every_third, static_shapes=False)
    for size in (63, 1000, 1, 2, 4097):
        x, y = torch.randn(7, size), torch.randn(9)
        sums, moved = kernel(x, y)
        torch.testing.assert_close(sums, x[:, ::3].sum(-1))
        torch.testing.assert_close(moved, y + size * (size - 1) / 2)


def halves(x: torch.Tensor) -> torch.Tensor:
    even, odd = x[:, ::2], x[:, 1::2]
    out = torch.empty_like(even)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = even[tile, :] * odd[tile, :]
    return out


def test_parts_that_may_differ_have_a_remedy() -> None:
    with pytest.raises(exc.ShapeMismatch, match=r"make the parts with one number, as in x\.narrow"):
        helion.kernel(halves, static_shapes=False)(torch.randn(4, 40))
    assert helion.kernel(halves)(torch.randn(4, 40)).shape == (4, 20)


def scaled_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.size(1)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        out[tile, :] = row / math.sqrt(n) + n.bit_length() + row.sum(-1)[:, None]
    return out


@pytest.mark.parametrize("size", [63, 100])
def test_a_number_joins_the_key_after_a_tile_has_its_size(size: int) -> None:
    kernel = helion.kernel(scaled_rows, static_shapes=False)
    for rows in (5, 9):
        x = torch.randn(rows, size)
        expected = x / size**0.5 + size.bit_length() + x.sum(-1, keepdim=True)
        torch.testing.assert_close(kernel(x), expected)
    few, many = torch.randn(5, size), torch.randn(9, size)
    assert kernel.bind((few,)) is kernel.bind((many,)) is not kernel.bind((torch.randn(5, size + 1),))


def test_sizes_that_differ_are_still_refused_with_a_number_of_the_key() -> None:
    def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = x[tile, :] * math.sqrt(x.size(1)) + y[tile, :]
        return out

    with pytest.raises(exc.ShapeMismatch, match="Shapes do not match"):
        helion.kernel(mixed, static_shapes=False)(torch.randn(4, 40), torch.randn(4, 41))
