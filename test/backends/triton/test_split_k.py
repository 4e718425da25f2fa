"""Loops whose sums and extrema several programs share: what is split, what it gives, and what its kernels take."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import program_of, space_of, tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.rewrite import Declined
from helion._compiler.rewrites.split_k.legality import accumulation_loop
from helion._testing import map_tensors


def plain(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def biased(x, y, bias, rest):
    """The sum begins with a bias; a residual and a function follow it, and so does a sum over the rows of the right operand."""
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = bias[tile_n][None, :].float() + hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc += torch.matmul(x[tile_m, tile_k], y[tile_k, tile_n]).float()
        index = tile_m.index[:, None] + 2 * tile_n.index[None, :]
        out[tile_m, tile_n] = torch.relu(acc) + rest[tile_m, tile_n] * index
    return out


def batched(x, y):
    b, m, k = x.size()
    out = torch.empty([b, m, y.size(2)], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([b, m, y.size(2)]):
        acc = hl.zeros([tile_b, tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], y[tile_b, tile_k, tile_n])
        out[tile_b, tile_m, tile_n] = acc
    return out


def gridded(x, y):
    """One matrix a program, whose rows and columns are held at once."""
    b, m, k = x.size()
    m, n = hl.specialize(m), hl.specialize(y.size(2))
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for i in hl.grid(b):
        acc = hl.zeros([m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[i, :, tile_k], y[i, tile_k, :])
        out[i, :, :] = acc
    return out


def each_matrix(x, y):
    b, m, k = x.size()
    out = torch.empty([b, m, y.size(2)], dtype=x.dtype, device=x.device)
    for i, tile_m, tile_n in hl.tile([b, m, y.size(2)], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[i.begin, tile_m, tile_k], y[i.begin, tile_k, tile_n])
        out[i.begin, tile_m, tile_n] = acc
    return out


def whole_rows(x, y):
    """The columns are held at once, and reduced behind the loop."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m, :] = torch.softmax(acc, -1)
    return out


def normed(x, y):
    """Two sums in one loop: the product, and the squares of the rows of the left operand."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        squares = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            acc = torch.addmm(acc, rows, y[tile_k, :])
            squares += (rows.float() * rows.float()).sum(-1)
        out[tile_m, :] = acc * torch.rsqrt(squares / k + 1e-6)[:, None]
    return out


def integers(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.int32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.int32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def interleaved(x, y):
    """Two dots and a sum follow each other in each step."""
    m, k = x.size()
    pairs, rows = x.view(m, k // 2, 2), y.view(k // 2, 2, y.size(1))
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k // 2):
            acc = hl.dot(pairs[tile_m, tile_k, 0], rows[tile_k, 0, tile_n], acc=acc)
            acc = hl.dot(pairs[tile_m, tile_k, 1], rows[tile_k, 1, tile_n], acc=acc)
            acc = acc + pairs[tile_m, tile_k, 0].float().sum(-1)[:, None]
        out[tile_m, tile_n] = acc
    return out


def operands(dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple((torch.randn(shape) + 0.25).to(dtype) for shape in shapes)


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.double() @ y.double()


def _biased(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    index = torch.arange(x.size(0))[:, None] + 2 * torch.arange(y.size(1))[None, :]
    return torch.relu(product(x, y) + bias.double()) + rest.double() * index


def _normed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return product(x, y) * torch.rsqrt((x.double() ** 2).mean(-1, keepdim=True) + 1e-6)


def _interleaved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return product(x, y) + x[:, ::2].double().sum(1, keepdim=True)


def _softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(product(x, y), -1)


#: Kernel, reference, arguments, tiles.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...], list[int]]] = {
    "plain": (plain, product, operands(torch.float32, (63, 1000), (1000, 130)), [32, 64, 64]),
    "one row": (plain, product, operands(torch.bfloat16, (1, 4097), (4097, 63)), [16, 32, 128]),
    "one column": (plain, product, operands(torch.float32, (40, 257), (257, 1)), [16, 16, 16]),
    "whole tiles": (plain, product, operands(torch.float16, (64, 512), (512, 64)), [32, 32, 32]),
    "short": (plain, product, operands(torch.float32, (33, 1), (1, 33)), [16, 16, 16]),
    "biased": (biased, _biased, operands(torch.float32, (50, 300), (300, 70), (70,), (50, 70)), [16, 32, 32]),
    "batched": (batched, product, operands(torch.float32, (3, 33, 200), (3, 200, 40)), [1, 16, 32, 32]),
    "gridded": (gridded, product, operands(torch.float32, (3, 33, 200), (3, 200, 40)), [32]),
    "each matrix": (each_matrix, product, operands(torch.float32, (3, 33, 200), (3, 200, 40)), [16, 32, 32]),
    "whole rows": (whole_rows, _softmax, operands(torch.float32, (33, 200), (200, 48)), [16, 32]),
    "normed": (normed, _normed, operands(torch.float32, (33, 200), (200, 48)), [16, 32]),
    "interleaved": (interleaved, _interleaved, operands(torch.float32, (33, 200), (200, 48)), [16, 32, 16]),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_in_parts_are_right(name: str) -> None:
    fn, reference, args, sizes = CASES[name]
    for parts in (2, 16):
        kernel = helion.kernel(fn, static_shapes=True, config=helion.Config(block_sizes=sizes, split_k=parts))
        result, expected = kernel(*args), reference(*args)
        scale = expected.abs().max()
        error = 2**-7 if result.dtype == torch.bfloat16 else 2**-9 if result.dtype == torch.float16 else 1e-5
        assert (result.double() - expected).abs().max() <= error * scale, parts
        assert torch.equal(result, kernel(*args))


def test_sums_of_integers_are_exact() -> None:
    x = torch.randint(-128, 128, (40, 1000), dtype=torch.int8)
    y = torch.randint(-128, 128, (1000, 33), dtype=torch.int8)
    kernel = helion.kernel(integers, static_shapes=True, config=helion.Config(block_sizes=[16, 32, 64], split_k=8))
    assert torch.equal(kernel(x, y), (x.long() @ y.long()).int())


def test_every_config_gives_the_product() -> None:
    """Parts beside every other key of the space, which may take the parts away."""
    x, y = operands(torch.float32, (50, 300), (300, 70))
    kernel, rng = helion.kernel(plain, static_shapes=True), random.Random(0)
    bound = kernel.bind((x, y))
    space, seen = bound.config_spec, 0
    for _ in range(8):
        asked = {field.key: field.random(rng) for field in space.fields}
        sizes = [rng.choice((16, 32)) for _ in range(3)]
        config = space.repair(
            {**asked, "block_sizes": sizes, "split_k": rng.choice((2, 4, 64)), "flatten_loops": [False]}
        )
        seen += config["split_k"] > 1
        torch.testing.assert_close(bound.compile_config(config)(x, y).double(), product(x, y), rtol=1e-4, atol=1e-3)
    assert seen >= 6


# --- the config --------------------------------------------------------------------------------------------------------


@functools.cache
def space() -> Any:
    return space_of(plain, tensor(256, 4096), tensor(4096, 256), static_shapes=True)


def column_extent(x):
    m, n = x.size()
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for tile_n in hl.tile(n):
        high = hl.full([tile_n], float("-inf"), dtype=torch.float32)
        low = hl.full([tile_n], 7.0, dtype=torch.float32)
        for tile_m in hl.tile(m):
            high = torch.maximum(high, x[tile_m, tile_n].float().amax(0))
            low = torch.minimum(low, x[tile_m, tile_n].float().amin(0))
        out[tile_n] = high - low
    return out


def column_squares(x):
    m, n = x.size()
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for tile_n in hl.tile(n):
        acc = hl.full([tile_n], 1.0, dtype=torch.float32)
        for tile_m in hl.tile(m):
            acc = acc + (x[tile_m, tile_n].float() ** 2).sum(0)
        out[tile_n] = torch.sqrt(acc)
    return out


def row_maxima(x):
    m, n = x.size()
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.full([tile_m], -2147483648, dtype=torch.int32)
        for tile_n in hl.tile(n):
            acc = torch.maximum(acc, x[tile_m, tile_n].to(torch.int32).amax(1))
        out[tile_m] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize(("m", "parts"), [(63, 2), (1025, 8)])
def test_sums_and_extrema_without_a_product_are_right(m: int, parts: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(m, 37) + 3
    x[m // 2, 5] = float("nan")
    numbers = torch.randint(-900, -100, (5, m), dtype=torch.int64)
    wide = x.double()
    for fn, args, expected, sizes in (
        (column_extent, x, wide.amax(0) - wide.amin(0).clamp(max=7.0), [16, 8]),
        (column_squares, x, (1 + wide.square().sum(0)).sqrt(), [32, 4]),
        (row_maxima, numbers, numbers.amax(1), [2, 4]),
    ):
        bound = helion.kernel(fn).bind((args,))
        config = {"block_sizes": sizes, "split_k": parts}
        assert "_helion_parts_0" in bound.to_triton_code(config)
        result = bound.compile_config(config)(args)
        torch.testing.assert_close(result.double(), expected.double(), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_what_parts_go_with() -> None:
    tiles = {"block_sizes": [64, 64, 64], "split_k": 8}
    config = space().normalize(helion.Config(**tiles, epilogue_subtile=2, pid_type="xyz", range_flattens=[None, True]))
    assert config["split_k"] == 8
    assert (config["epilogue_subtile"], config["pid_type"], config["range_flattens"]) == (None, "flat", [None, None])
    # 4096 elements are 32 tiles of 128, and 2 of 2048
    for size, most in ((128, 32), (2048, 2)):
        assert space().normalize(helion.Config(block_sizes=[64, 64, size], split_k=64))["split_k"] == most
    whole = space().normalize(helion.Config(block_sizes=[64, 64, 64], split_k=4, flatten_loops=[True]))
    assert whole["split_k"] == 1 or whole["flatten_loops"] == [False]


@pytest.mark.parametrize("value", [0, 3, 128, True, None, "2"])
def test_counts_that_are_refused(value: object) -> None:
    with pytest.raises(exc.InvalidConfig, match="split_k"):
        space().normalize(helion.Config(block_sizes=[64, 64, 64], split_k=value))


def user_splits(x, y):
    m, k = x.size()
    out = torch.zeros([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n, outer in hl.tile([m, y.size(1), k]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for inner in hl.tile(outer.begin, outer.end):
            acc = torch.addmm(acc, x[tile_m, inner], y[inner, tile_n])
        hl.atomic_add(out, [tile_m, tile_n], acc)
    return out


def doubled(x, y):
    """What the loop carries is no sum."""
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc * 2, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def running(x, y):
    """Each sum so far is read on its way."""
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        top = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            top = top + torch.relu(acc)
        out[tile_m, tile_n] = acc + top
    return out


def read_between(x, y):
    """The sum between two terms is read."""
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            first = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            acc = torch.addmm(first, x[tile_m, tile_k], y[tile_k, tile_n]) + torch.relu(first)
        out[tile_m, tile_n] = acc
    return out


def mixed(x, y):
    """Sums and maxima of one value do not combine by either."""
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            acc = torch.maximum(acc, x[tile_m, tile_k].float().sum(-1)[:, None])
        out[tile_m, tile_n] = acc
    return out


def stored_inside(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    seen = torch.empty([m, k], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            seen[tile_m, tile_k] = x[tile_m, tile_k].float()
        out[tile_m, tile_n] = acc
    return out


def two_loops(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        for tile_k in hl.tile(k):
            acc += x[tile_m, tile_k].float().sum(-1)[:, None]
        out[tile_m, tile_n] = acc
    return out


def of_tiles(x, y):
    """Which tile it was is part of the result."""
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc + tile_m.id
    return out


def added(x, y):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + 1
    return out


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (user_splits, "bounds depend on data"),
        (doubled, "other values than sums"),
        (running, "other values than sums"),
        (read_between, "other values than sums"),
        (mixed, "other values than sums"),
        (stored_inside, "more than accumulate"),
        (two_loops, "after that of a matmul"),
        (of_tiles, "has tile outside of the loop"),
        (added, "not a grid loop around one loop"),
    ],
)
def test_sums_that_are_not_split(fn: Callable[..., Any], why: str) -> None:
    with pytest.raises(Declined, match=why):
        accumulation_loop(program_of(fn, tensor(64, 256), tensor(256, 64), static_shapes=True))
    with pytest.raises(exc.InvalidConfig, match=f"split_k.*{why}"):
        space_of(fn, tensor(64, 256), tensor(256, 64), static_shapes=True).normalize(helion.Config(split_k=2))


def test_grids_whose_size_changes_are_not_split() -> None:
    bound = helion.kernel(plain, static_shapes=False).bind((torch.empty(64, 256), torch.empty(256, 64)))
    space, asked = bound.config_spec, helion.Config(block_sizes=[16, 16, 16], split_k=2)
    assert space.normalize(asked) == space.normalize(helion.Config(block_sizes=[16, 16, 16]))
    (said,) = space.adjusted(asked)
    assert str(said) == "split_k=2 is dropped: the sizes of the grid differ from call to call"
    with pytest.raises(exc.InvalidConfig, match="split_k must be a power of two, got 3"):
        space.normalize(helion.Config(block_sizes=[16, 16, 16], split_k=3))


def diagonal(x, y):
    """Blocks on the diagonal of x x^T: the lanes of one tile, along two dimensions."""
    m, k = x.size()
    out = torch.zeros([m, m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m, block_size=256):
        acc = hl.zeros([tile, tile], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile, tile_k], x[tile, tile_k].t())
        out[tile, tile] = acc
    return out


def counted(x, y):
    """Each tile adds 1 to the number of tiles of its columns, which stands below the product."""
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m + 1, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[64, 64]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
        hl.atomic_add(out, [m, tile_n], torch.full_like(y[0, tile_n], 1.0))
    return out


def mirrored(x, y):
    """Rows of a tile are stored, and read again in reverse order."""
    m, k = x.size()
    stored = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    out = torch.empty_like(stored)
    for tile_m, tile_n in hl.tile([m, y.size(1)], block_size=[64, 64]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        stored[tile_m, tile_n] = acc
        out[tile_m, tile_n] = stored[tile_m.index // 64 * 64 + 63 - tile_m.index % 64, tile_n]
    return out


def accumulated(x, y):
    """What is stored is added to what was there."""
    m, k = x.size()
    out = torch.ones([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)], block_size=[64, 64]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] += acc
    return out


def centred(x, y):
    """Each group of 32 rows of a tile has its mean taken away."""
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)], block_size=[64, 64]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        groups = acc.reshape(2, 32, 64)
        out[tile_m, tile_n] = (groups - groups.mean(1, keepdim=True)).reshape(64, 64)
    return out


def _diagonal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    tile = torch.arange(x.size(0)) // 256
    return torch.where(tile[:, None] == tile, x.double() @ x.double().t(), 0.0)


def _counted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([product(x, y), torch.full([1, y.size(1)], -(-x.size(0) // 64))])


def _mirrored(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return product(x, y).unflatten(0, (-1, 64)).flip(1).flatten(0, 1)


def _centred(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    groups = product(x, y).unflatten(0, (-1, 32))
    return (groups - groups.mean(1, keepdim=True)).flatten(0, 1)


@pytest.mark.parametrize(
    ("fn", "reference", "sides", "split"),
    [
        (diagonal, _diagonal, (257, 65), False),
        (diagonal, _diagonal, (40, 65), True),
        (counted, _counted, (65, 65), False),
        (mirrored, _mirrored, (128, 65), False),
        (centred, _centred, (128, 128), False),
        (accumulated, lambda x, y: product(x, y) + 1, (65, 65), True),
        (accumulated, lambda x, y: product(x, y) + 1, (1, 65), True),
    ],
)
def test_what_depends_on_the_lanes_of_a_tile_stays_in_it(
    fn: Callable[..., Any], reference: Callable[..., torch.Tensor], sides: tuple[int, int], split: bool
) -> None:
    x, y = operands(torch.float32, (sides[0], 100), (100, sides[1]))
    kernel = helion.kernel(fn, static_shapes=True, config=helion.Config(block_sizes=[32], split_k=2))
    expected = reference(x, y)
    assert (kernel(x, y).double() - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert ("_helion_parts" in kernel.bind((x, y)).to_triton_code()) is split


def to_a_number(x, y, first: int, last: int):
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(first, last):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def of_some_rows(x, y, first: int, last: int):
    out = torch.zeros([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([first, 0], [last, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


@pytest.mark.parametrize("fn", [to_a_number, of_some_rows])
def test_bounds_that_are_arguments(fn: Callable[..., Any]) -> None:
    x, y = operands(torch.float32, (33, 77), (77, 20))
    config = helion.Config(block_sizes=[16, 16, 16])
    for static in (True, False):
        kernel = helion.kernel(fn, static_shapes=static, config=config)
        for first, last in ((0, 33), (3, 30), (5, 5)):
            picked = slice(first, last)
            if fn is to_a_number:
                expected = product(x[:, picked], y[picked])
            else:
                expected = torch.zeros(33, 20, dtype=torch.float64)
                expected[picked] = product(x[picked], y)
            assert torch.allclose(kernel(x, y, first, last).double(), expected, atol=1e-4)


def up_to_a_number(x, y, last: int):
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(last):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def test_parts_of_a_loop_whose_end_is_an_argument() -> None:
    x, y = operands(torch.float32, (33, 77), (77, 20))
    kernel = helion.kernel(
        up_to_a_number, static_shapes=True, config=helion.Config(block_sizes=[16, 16, 16], split_k=4)
    )
    for last in (77, 50, 1, 0):
        assert torch.allclose(kernel(x, y, last).double(), product(x[:, :last], y[:last]), atol=1e-4)


# --- the kernels -------------------------------------------------------------------------------------------------------


def test_operands_are_read_in_boxes() -> None:
    """The tiles of a part lie in the tensor as those of the whole sum do, so descriptors move them."""
    bound = helion.kernel(plain, static_shapes=True).bind((tensor(256, 4096), tensor(4096, 256)), target="sm_90")
    text = bound.to_triton_code(
        {"block_sizes": [64, 128, 64], "split_k": 8, "indexing": "tensor_descriptor", "num_stages": 3}
    )
    first, second = text.split("@triton.jit")[1:]
    assert first.count(".load([") == 2 and "mask" not in first and "dot" not in second
    assert "offset_3 * (8 * _BLOCK_SIZE_2)" in first and "minimum" not in first


@pytest.mark.parametrize("target", ["sm_90", "sm_80", "sm_100", "gfx942"])
def test_kernels_compile_without_spills(target: str) -> None:
    args = tensor(250, 16400), tensor(16400, 250)
    bound = helion.kernel(plain, static_shapes=True).bind(args, target=target)
    bound.set_config({"block_sizes": [64, 64, 64], "split_k": 32, "num_warps": 4, "num_stages": 3})
    taken = bound.resources()
    assert taken.fits and taken.spill_bytes == 0


def test_fake_tensors_meet_no_parts() -> None:
    kernel = helion.kernel(plain, static_shapes=True, config=helion.Config(block_sizes=[32, 32, 32], split_k=4))
    args = operands(torch.float32, (64, 256), (256, 64))
    expected = kernel(*args)
    with FakeTensorMode() as mode:
        made = kernel(*map_tensors(args, mode.from_tensor))
    assert made.shape == expected.shape
    compiled = torch.compile(lambda *given: kernel(*given) + 1, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*args), expected + 1)


def test_memory_of_parts_is_nobody_elses() -> None:
    """What a launch makes for itself is no tensor that it overwrites, so that nobody is told of it."""
    bound = helion.kernel(plain, static_shapes=True).bind(operands(torch.float32, (64, 256), (256, 64)))
    text = bound.to_triton_code({"block_sizes": [32, 32, 32], "split_k": 4})
    assert "overwrites" not in text and text.count("_helion_parts_0 = torch.empty(16384, ") == 1
