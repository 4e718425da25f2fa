"""Loops that differ in numbers alone: which are joined, and what that gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import program_of, tensor

import helion
import helion.language as hl
from helion import exc
from helion._compiler.rewrites.fuse_loops import digits_of, fusible_loops


def padded_3x3(x, w):
    """3 by 3 over `x[B, H, W, C]` with zeros around it, which no memory holds."""
    b, h, wide, c = x.size()
    f = w.size(3)
    pixels = b * h * wide
    out = torch.empty([pixels, f], dtype=torch.float32, device=x.device)
    flat = x.view(-1, c)
    for tile_p, tile_f in hl.tile([pixels, f]):
        image, row, column = tile_p.index // (h * wide), tile_p.index // wide % h, tile_p.index % wide
        acc = hl.zeros([tile_p, tile_f], dtype=torch.float32)
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                y, z = row + dy - 1, column + dx - 1
                inside = (y >= 0) & (y < h) & (z >= 0) & (z < wide)
                at = torch.where(inside, (image * h + y) * wide + z, 0)
                for tile_c in hl.tile(c):
                    taken = hl.load(flat, [at, tile_c], extra_mask=inside[:, None])
                    acc = hl.dot(taken, w[dy, dx, tile_c, tile_f], acc=acc)
        out[tile_p, tile_f] = acc
    return out.view(b, h, wide, f)


def dilated(x, w):
    """5 taps, 2 apart, along `x[B, T, C]`, every third output."""
    b, t, c = x.size()
    steps, f = (t - 8 + 2) // 3, w.size(2)
    out = torch.empty([b * steps, f], dtype=torch.float32, device=x.device)
    flat = x.view(-1, c)
    for tile_m, tile_f in hl.tile([b * steps, f]):
        first = tile_m.index // steps * t + tile_m.index % steps * 3
        acc = hl.zeros([tile_m, tile_f], dtype=torch.float32)
        for tap in hl.static_range(5):
            for tile_c in hl.tile(c):
                acc = hl.dot(flat[first + 2 * tap, tile_c], w[tap, tile_c, tile_f], acc=acc)
        out[tile_m, tile_f] = acc
    return out.view(b, steps, f)


def shifted_channels(x, w):
    """Halves of the channels, one behind the other, with work on each tile, and a bias that is read before the loops."""
    m, c = x.size(0), x.size(1) // 2
    out = torch.empty([m, w.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32) + w[0, tile_n][None, :]
        for half in hl.static_range(2):
            for tile_c in hl.tile(c):
                rows = torch.relu(x[tile_m, tile_c.index + half * c])
                acc = hl.dot(rows, w[tile_c.index + half * c, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def two_products(x, w):
    """Other tensors in the second loop."""
    m, c = x.size()
    out = torch.empty([m, c], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, c]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_c in hl.tile(c):
            acc = hl.dot(x[tile_m, tile_c], w[tile_c, tile_n], acc=acc)
        for tile_c in hl.tile(c):
            acc = hl.dot(w[tile_m, tile_c], x[tile_c, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def stored_between(x, w):
    """What the first loop came to is stored."""
    m, c = x.size()
    out = torch.empty([2, m, c], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, c]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for half in hl.static_range(2):
            for tile_c in hl.tile(c):
                acc = hl.dot(x[tile_m, tile_c], w[tile_c, tile_n], acc=acc)
            out[half, tile_m, tile_n] = acc
    return out


def _values(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    stream = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=stream) + 0.25 for shape in shapes)


def _padded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), padding=1).permute(0, 2, 3, 1)


def _dilated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv1d(x.mT, w.permute(2, 1, 0), dilation=2, stride=3).mT


def _halves(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) @ w + w[0]


Case = tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...], list[int]]
CASES: dict[str, Case] = {
    "zeros around": (padded_3x3, _padded, _values((2, 5, 7, 32), (3, 3, 32, 20)), [16, 16, *[16] * 9]),
    "dilated": (dilated, _dilated, _values((2, 41, 48), (5, 48, 17)), [16, 16, *[16] * 5]),
    "halves": (shifted_channels, _halves, _values((33, 64), (64, 20)), [16, 32, 32, 32]),
}


@pytest.mark.parametrize("name", CASES)
def test_joined_loops_give_the_same(name: str) -> None:
    fn, reference, args, sizes = CASES[name]
    bound = helion.kernel(fn, static_shapes=True).bind(args)
    config = helion.Config(block_sizes=sizes, fuse_loops=True)
    assert bound.to_triton_code(config).count("tl.dot(") == 1
    expected = reference(*(arg.double() for arg in args))
    result = bound.compile_config(config)(*args)
    assert (result.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("fn", [two_products, stored_between])
def test_other_loops_stay(fn: Callable[..., Any]) -> None:
    assert fusible_loops(program_of(fn, tensor(64, 64), tensor(64, 64))) is None


@pytest.mark.parametrize(
    ("sizes", "joined"), [([32, 16, 16, 16], True), ([16, 16, 16, 32], False), ([16, 16, 32, 32], False)]
)
def test_tiles_of_all_loops_are_the_same_and_whole(sizes: list[int], joined: bool) -> None:
    args = tensor(33, 96, dtype=torch.float32), tensor(96, 20, dtype=torch.float32)
    bound = helion.kernel(shifted_channels, static_shapes=True).bind(args)
    full = bound.config_spec.normalize(helion.Config(block_sizes=sizes, fuse_loops=True))
    assert full["fuse_loops"] is joined


def test_a_kernel_without_such_loops_has_no_key() -> None:
    bound = helion.kernel(two_products, static_shapes=True).bind((tensor(64, 64), tensor(64, 64)))
    with pytest.raises(exc.InvalidConfig, match=r"fuse_loops.*differ only in constants"):
        bound.to_triton_code(helion.Config(fuse_loops=True))


@pytest.mark.parametrize(
    ("numbers", "count"),
    [([0, 1, 2, 30, 31, 32, 60, 61, 62], 2), ([5, 7, 9, 11], 1), ([3, 3, 3], 0), ([0, 1, 4, 9], None), ([7], 0)],
)
def test_digits(numbers: list[int], count: int | None) -> None:
    digits = digits_of(numbers)
    assert (None if digits is None else len(digits)) == count
    for at, number in enumerate(numbers if digits is not None else []):
        found = sum(d.factor * (at // d.divisor % d.modulus) for d in digits or ())
        assert numbers[0] + found == number


def test_predicted_memory_is_that_of_the_binary() -> None:
    args = tensor(32, 28, 28, 256), tensor(3, 3, 256, 256)
    bound = helion.kernel(padded_3x3, static_shapes=True).bind(args, target="h200")
    assert bound.default_config()["fuse_loops"]
    real, predicted = bound.resources(), bound.seeds[0].predicted
    assert real.shared_bytes <= predicted.shared_bytes <= 1.1 * real.shared_bytes + 2048
    assert real.spill_bytes == 0


def test_a_product_behind_loops_that_are_joined() -> None:
    """Facts of the loop that all are count the dots that are left."""

    def twice(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = w.size(1)
        out, third = torch.empty([x.size(1), n]), torch.empty([x.size(1), v.size(1)])
        for a in hl.tile(x.size(1)):
            acc = hl.zeros([a, n])
            for c in hl.tile(x.size(0)):
                acc = hl.dot(x[c, a].T, w[c, :], acc=acc)
            for c in hl.tile(x.size(0)):
                acc = hl.dot(x[c, a].T, w[c, :], acc=acc)
            out[a, :] = acc
            third[a, :] = hl.dot(acc, v[:, :])
        return out, third

    x, w, v = torch.randn(64, 17), torch.randn(64, 20), torch.randn(20, 8)
    got = helion.kernel(twice)(x, w, v)
    expected = 2 * x.T @ w
    torch.testing.assert_close(got, (expected, expected @ v), rtol=1e-2, atol=1e-2)
    facts = helion.kernel(twice).bind((x, w, v)).facts
    left = facts.after("fuse_loops").facts
    assert [fact.number for fact in left.matmuls] == [0, 1]
    assert {each.dot for each in left.staged} <= {0, 1} and left.matmuls[1].consumes == (0,)
