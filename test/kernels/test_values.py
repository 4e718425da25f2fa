"""Small kernels against eager PyTorch in double precision: whole rows, reductions of every kind, epilogues, dtypes.

Sizes do not divide tiles and means are not zero, so that a lane out of range that is read where it must not be shows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sampling import combinations

import helion
import helion.language as hl
from helion._testing import check

Row = Callable[[torch.Tensor], torch.Tensor]


def verify(
    kernel: helion.Kernel,
    reference: Callable[..., Any],
    args: tuple[Any, ...],
    config: dict[str, Any] | None = None,
    **tolerances: float,
) -> None:
    bound = kernel.bind(args)
    check(kernel.name, bound.compile_config(config or bound.conservative_config()), reference, args, **tolerances)


def call(kernel: helion.Kernel, *args: Any) -> Any:
    bound = kernel.bind(args)
    return bound.compile_config(bound.conservative_config())(*args)


def is_rollable(kernel: helion.Kernel, args: tuple[Any, ...]) -> bool:
    """Whether the config can walk over a whole dimension in chunks."""
    return bool(kernel.bind(args).conservative_config()["reduction_loops"])


def sample(*shape: int, dtype: torch.dtype = torch.float32, mean: float = 3.0, seed: int = 0) -> torch.Tensor:
    """Values of spread 1 around ``mean``; integers from -20 to 100."""
    generator = torch.Generator().manual_seed(seed + math.prod(shape))
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.3
    if not dtype.is_floating_point:
        low = 0 if dtype == torch.uint8 else -20
        return torch.randint(low, 100, shape, generator=generator).to(dtype)
    return (torch.randn(shape, generator=generator) + mean).to(dtype)


# --- rows to rows -------------------------------------------------------------------------------------------------------


@helion.kernel
def rows(x: torch.Tensor, f: Row, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = f(x[tile, :])
    return out


def rows_reference(x: torch.Tensor, f: Row, dtype: torch.dtype) -> torch.Tensor:
    return f(x)


def centre(v):
    return v - v.mean(-1, keepdim=True)


def standardize(v):
    variance, mean = torch.var_mean(v, dim=-1, correction=0, keepdim=True)
    return (v - mean) / torch.sqrt(variance + 1e-5)


def centre_three_times(v):
    for _ in (0, 1, 2):
        v = v - v.mean(-1)[:, None] + 1.5
    return v


def squared_softmax(v):
    return torch.softmax(v, -1) ** 2 / (torch.softmax(v, -1) ** 2).sum(-1, keepdim=True)


def clipped(v):
    return torch.clamp(v, v.amin(-1, keepdim=True) + 0.5, v.amax(-1, keepdim=True) - 0.5)


def geometric(v):
    return v / torch.exp(torch.log(v.abs() + 1).mean(-1, keepdim=True))


def one_minus_exp_sum(v):
    return torch.exp(-v) / (1 + torch.exp(-v).sum(-1, keepdim=True))


def masked_mean(v):
    positive = torch.where(v > 3, v, 0.0)
    count = (v > 3).sum(-1, keepdim=True)
    return v - positive.sum(-1, keepdim=True) / (count + 1)


def two_means(v):
    first = v.mean(-1, keepdim=True)
    second = torch.cos(v - first).mean(-1, keepdim=True)
    return v * second + torch.cos(first)


ROWS: dict[str, Row] = {
    "softmax": lambda v: torch.softmax(v, -1),
    "softmax of the function": lambda v: F.softmax(v, dim=1),
    "log_softmax": lambda v: torch.log_softmax(v, dim=-1),
    "softmin": lambda v: torch.softmax(-v, -1),
    "layer_norm": lambda v: F.layer_norm(v, [v.shape[-1]]),
    "rms_norm": lambda v: F.rms_norm(v, [v.shape[-1]], eps=1e-6),
    "normalized": lambda v: v / v.norm(dim=-1, keepdim=True),
    "normalized by 1": lambda v: v / torch.norm(v, p=1, dim=-1, keepdim=True),
    "sum of exp": lambda v: v - torch.exp(v).sum(-1, keepdim=True).log(),
    "prefix": lambda v: v * v.sum(dim=1, keepdim=True),
    "std": lambda v: v / v.std(dim=-1, keepdim=True),
    "max minus min": lambda v: v / (v.amax(-1, keepdim=True) - v.amin(-1, keepdim=True) + 1),
    "centre": centre,
    "standardize": standardize,
    "centre three times": centre_three_times,
    "squared softmax": squared_softmax,
    "clipped": clipped,
    "geometric": geometric,
    "one minus exp sum": one_minus_exp_sum,
    "masked mean": masked_mean,
    "two means": two_means,
}
SHAPES = [(1, 1), (3, 7), (5, 63), (2, 77), (3, 1000)]


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    for shape in SHAPES:
        if shape == (1, 1) and name == "std":
            continue  # nan
        verify(rows, rows_reference, (sample(*shape), ROWS[name], torch.float32), rtol=2e-4)


@pytest.mark.parametrize("name", ROWS)
def test_rows_in_chunks(name: str) -> None:
    """The same rows, walked in chunks that do not divide them, and held at once: both are right."""
    for width, chunk in combinations((63, 77), (8, 32), at=[*ROWS].index(name)):
        args = (sample(3, width), ROWS[name], torch.float32)
        assert is_rollable(rows, args)
        verify(rows, rows_reference, args, {"block_sizes": [2], "reduction_loops": [chunk]}, rtol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm", "standardize", "normalized"])
def test_rows_of_other_dtypes(name: str, dtype: torch.dtype) -> None:
    verify(rows, rows_reference, (sample(3, 77, dtype=dtype), ROWS[name], dtype))


def test_a_long_row() -> None:
    verify(rows, rows_reference, (sample(1, 4097), ROWS["softmax"], torch.float32))
    verify(rows, rows_reference, (sample(2, 4097), ROWS["standardize"], torch.float32), rtol=1e-4)


def test_one_column_has_no_spread() -> None:
    args = (sample(3, 1), lambda v: v.std(-1, keepdim=True), torch.float32)
    verify(rows, rows_reference, args)
    assert call(rows, *args).isnan().all()


# --- rows to numbers ----------------------------------------------------------------------------------------------------


@helion.kernel
def numbers(x: torch.Tensor, f: Row, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=dtype)
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile, :])
    return out


REDUCTIONS: dict[str, Row] = {
    "sum": lambda v: v.sum(-1),
    "torch.sum": lambda v: torch.sum(v, dim=1),
    "mean": lambda v: torch.mean(v, 1),
    "amax": lambda v: torch.amax(v, dim=-1),
    "amin": lambda v: v.amin(1),
    "max": lambda v: torch.max(v, -1).values,
    "max unpacked": lambda v: torch.max(v, dim=-1)[0],
    "min": lambda v: v.min(dim=1).values,
    "prod": lambda v: (v / 3).prod(-1),
    "var": lambda v: v.var(-1),
    "biased var": lambda v: torch.var(v, 1, unbiased=False),
    "var with correction": lambda v: torch.var(v, dim=-1, correction=2),
    "std": lambda v: v.std(dim=-1),
    "logsumexp": lambda v: torch.logsumexp(v, -1),
    "norm": lambda v: v.norm(dim=-1),
    "norm 1": lambda v: torch.norm(v, p=1, dim=-1),
    "norm 3": lambda v: torch.norm(v, p=3, dim=-1),
    "norm inf": lambda v: torch.norm(v, p=math.inf, dim=-1),
    "vector_norm": lambda v: torch.linalg.vector_norm(v, 2, dim=-1),
    "sum of squares": lambda v: (v * v).sum(-1),
    "sum of exp": lambda v: torch.exp(v).sum(-1),
    "sum of cos": lambda v: torch.cos(v).sum(-1),
    "amax of negative": lambda v: (-v.abs() - 1).amax(-1),
    "amin of positive": lambda v: (v.abs() + 1).amin(-1),
    "mean of reciprocal": lambda v: (1 / (v.abs() + 1)).mean(-1),
    "sum of transposed": lambda v: v.transpose(0, 1).sum(0),
    "sum of permuted": lambda v: v.permute(1, 0).sum(0),
    "sum kept": lambda v: v.sum(-1, keepdim=True).squeeze(-1),
    "max of sums": lambda v: (v.sum(-1, keepdim=True) - v).amax(-1),
    "sum of a constant": lambda v: torch.ones_like(v).sum(-1),
    "sum of a full": lambda v: torch.full_like(v, 2.5).sum(-1),
    "sum of ranks": lambda v: (v * torch.arange(v.shape[1])[None, :]).sum(-1),
    "dot of rows": lambda v: (v * v.mean(-1, keepdim=True)).sum(-1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str) -> None:
    for m, n in [(3, 7), (5, 63), (2, 77), (3, 1000)]:
        if name == "prod" and n > 100:
            continue
        verify(numbers, rows_reference, (sample(m, n), REDUCTIONS[name], torch.float32), rtol=1e-4)
    args = (sample(3, 77), REDUCTIONS[name], torch.float32)
    if is_rollable(numbers, args):
        verify(numbers, rows_reference, args, {"block_sizes": [4], "reduction_loops": [16]}, rtol=1e-4)


@pytest.mark.parametrize("width", [1, 2, 4097])
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "max", "prod", "logsumexp", "biased var", "norm"])
def test_reduction_of_odd_widths(name: str, width: int) -> None:
    if name == "prod" and width > 100:
        return
    verify(numbers, rows_reference, (sample(2, width), REDUCTIONS[name], torch.float32), rtol=1e-4)


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "prod", "logsumexp", "norm"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_reduction_of_other_floats(name: str, dtype: torch.dtype) -> None:
    x = sample(3, 63, dtype=dtype, mean=2.0 if name == "prod" else 3.0)
    if name == "prod":
        x = torch.where(x > 2, 3.375, -2.625).to(dtype)  # a product that half precision holds
    verify(numbers, rows_reference, (x, REDUCTIONS[name], dtype))


INDICES: dict[str, Row] = {
    "argmax": lambda v: torch.argmax(v, dim=-1),
    "argmin": lambda v: v.argmin(1),
    "max indices": lambda v: torch.max(v, -1).indices,
    "min indices": lambda v: v.min(-1)[1],
}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.uint8], ids=str)
def test_index_of_an_extremum(name: str, dtype: torch.dtype) -> None:
    for width in (1, 7, 63, 77):
        x = sample(5, width, dtype=dtype)  # integers repeat: the first one counts
        eager = INDICES[name](x)
        result = call(numbers, x, INDICES[name], torch.int64)
        picked = x.gather(1, result[:, None])
        assert torch.equal(picked, x.gather(1, eager[:, None]))
        first = (x == picked).int().argmax(1)
        assert torch.equal(result, first)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_index_of_an_extremum_beside_lanes_out_of_range(name: str) -> None:
    low = torch.full((3, 77), -math.inf if name == "argmax" else math.inf)
    assert torch.equal(call(numbers, low, INDICES[name], torch.int64), torch.zeros(3, dtype=torch.int64))
    limit = torch.full((3, 77), torch.iinfo(torch.int32).min if name == "argmax" else torch.iinfo(torch.int32).max)
    assert torch.equal(call(numbers, limit.int(), INDICES[name], torch.int64), torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("name", ["sum", "amax", "amin", "prod"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_reduction_of_integers(name: str, dtype: torch.dtype) -> None:
    x = sample(3, 63, dtype=dtype)
    if name == "prod":
        x = x.clamp(1, 2)
    f = {
        "sum": lambda v: v.sum(-1),
        "amax": lambda v: v.amax(-1),
        "amin": lambda v: v.amin(-1),
        "prod": lambda v: v.prod(-1),
    }[name]
    expected = f(x)
    verify(numbers, rows_reference, (x, f, expected.dtype))
    if dtype != torch.uint8:
        x = -x.clamp(1, 100) if name != "prod" else x  # all negative: a 0 out of range is not the maximum
        verify(numbers, rows_reference, (x, f, expected.dtype))


TRUTHS: dict[str, Row] = {
    "any": lambda v: v.any(-1),
    "all": lambda v: torch.all(v, dim=-1),
    "any of floats": lambda v: torch.any(v.float(), -1),
    "all positive": lambda v: (v.float() > 0).all(-1),
    "none": lambda v: ~v.any(-1),
    "amax": lambda v: v.amax(-1),
    "amin": lambda v: v.amin(-1),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_reduction_of_booleans(name: str) -> None:
    x = torch.stack(
        [torch.zeros(77), torch.ones(77), (torch.arange(77) == 76).float(), (torch.arange(77) != 3).float()]
    )
    verify(numbers, rows_reference, (x > 0, TRUTHS[name], torch.bool))


def test_sum_of_booleans_counts() -> None:
    x = sample(3, 77, dtype=torch.bool)
    verify(numbers, rows_reference, (x, lambda v: v.sum(-1), torch.int64))
    verify(numbers, rows_reference, (x, lambda v: v.sum(-1, dtype=torch.float32), torch.float32))


def test_nan_and_infinity() -> None:
    x = sample(4, 77)
    x[0, 5] = math.nan
    x[1, 7] = math.inf
    x[2, :] = -math.inf
    x[3, 76] = -math.inf
    for f in (*(REDUCTIONS[n] for n in ("sum", "amax", "amin", "max", "mean", "logsumexp")), INDICES["argmax"]):
        dtype = f(x).dtype
        expected = f(x.double()).to(dtype)
        for config in ({"block_sizes": [2]}, {"block_sizes": [4], "reduction_loops": [16]}):
            if "reduction_loops" in config and not is_rollable(numbers, (x, f, dtype)):
                continue
            actual = numbers.bind((x, f, dtype)).compile_config(config)(x, f, dtype)
            torch.testing.assert_close(actual, expected, equal_nan=True)
    softmax = call(rows, x, ROWS["softmax"], torch.float32)
    torch.testing.assert_close(softmax, torch.softmax(x, -1), equal_nan=True)


# --- the other dimension, both dimensions, three dimensions -------------------------------------------------------------


@helion.kernel
def columns(x: torch.Tensor, f: Row) -> torch.Tensor:
    out = torch.empty([x.size(1)])
    for tile in hl.tile(x.size(1)):
        out[tile] = f(x[:, tile])
    return out


@helion.kernel
def everything(x: torch.Tensor, f: Row) -> torch.Tensor:
    out = torch.empty([1])
    for _ in hl.grid(1):
        out[0] = f(x[:, :])
    return out


@helion.kernel
def matrices(x: torch.Tensor, f: Row) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile, :, :])
    return out


@helion.kernel
def middle(x: torch.Tensor, f: Row) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(2)])
    for a, b in hl.tile([x.size(0), x.size(2)]):
        out[a, b] = f(x[a, :, b])
    return out


ALONG: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "sum": lambda v, d: v.sum(d),
    "mean": lambda v, d: v.mean(d),
    "amax": lambda v, d: (-v).amax(d),
    "amin": lambda v, d: v.amin(d),
    "var": lambda v, d: v.var(d),
    "std": lambda v, d: v.std(d, correction=0),
    "logsumexp": lambda v, d: v.logsumexp(d),
    "norm": lambda v, d: v.norm(dim=d),
}


@pytest.mark.parametrize("name", ALONG)
def test_other_dimensions(name: str) -> None:
    f = ALONG[name]
    verify(columns, lambda x, f: f(x), (sample(63, 5), functools_free(f, 0)), rtol=1e-4)
    verify(middle, lambda x, f: f(x), (sample(3, 37, 5), functools_free(f, 1)), rtol=1e-4)
    verify(matrices, lambda x, f: f(x), (sample(3, 5, 7), functools_free(f, (1, 2))), rtol=1e-4)
    verify(matrices, lambda x, f: f(x), (sample(3, 5, 7), functools_free(f, (-1, -2))), rtol=1e-4)
    verify(everything, lambda x, f: f(x).reshape(1), (sample(5, 7), functools_free(f, (0, 1))), rtol=1e-4)


def functools_free(f: Callable[[torch.Tensor, Any], torch.Tensor], dim: Any) -> Row:
    return lambda v: f(v, dim)


def test_reductions_without_a_dimension() -> None:
    for f in (
        lambda v: v.sum(),
        lambda v: v.mean(),
        lambda v: v.amax(),
        lambda v: (-v).max(),
        lambda v: v.min(),
        lambda v: torch.var(v),
        lambda v: v.norm(),
        lambda v: torch.std(v, unbiased=False),
    ):
        verify(everything, lambda x, f: f(x).reshape(1), (sample(5, 7), f), rtol=1e-4)


@pytest.mark.parametrize("order", [(0, 2), (2, 0), (1,), (0, 1, 2)])
def test_two_steps_of_a_reduction(order: tuple[int, ...]) -> None:
    def f(v):
        return v.sum(-1).amax(-1) - v.amin(1).mean(-1)

    verify(matrices, lambda x, f: f(x), (sample(3, 5, 7).permute(*order, *({0, 1, 2} - {*order})), f), rtol=1e-4)


# --- reductions over tiles ----------------------------------------------------------------------------------------------


@helion.kernel
def tiled_sum(x: torch.Tensor, f: Row) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        total = hl.zeros([a])
        for b in hl.tile(x.size(1)):
            total += f(x[a, b]).sum(-1)
        out[a] = total
    return out


@helion.kernel
def tiled_max(x: torch.Tensor, f: Row) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        best = hl.full([a], float("-inf"))
        for b in hl.tile(x.size(1)):
            best = torch.maximum(best, f(x[a, b]).amax(-1))
        out[a] = best
    return out


@helion.kernel
def block_sum(x: torch.Tensor, f: Row) -> torch.Tensor:
    """The accumulator has the block's shape and is finished after the loop."""
    out = torch.empty([x.size(0)])
    block = hl.register_block_size(x.size(1))
    for a in hl.tile(x.size(0)):
        total = hl.zeros([a, block])
        for b in hl.tile(x.size(1), block_size=block):
            total += f(x[a, b])
        out[a] = total.sum(-1)
    return out


@helion.kernel
def block_max(x: torch.Tensor, f: Row) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    block = hl.register_block_size(x.size(1))
    for a in hl.tile(x.size(0)):
        best = hl.full([a, block], float("-inf"))
        for b in hl.tile(x.size(1), block_size=block):
            best = torch.maximum(best, f(x[a, b]))
        out[a] = best.amax(-1)
    return out


@helion.kernel
def block_product(x: torch.Tensor, f: Row) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    block = hl.register_block_size(x.size(1))
    for a in hl.tile(x.size(0)):
        total = hl.full([a, block], 1.0)
        for b in hl.tile(x.size(1), block_size=block):
            total = total * f(x[a, b])
        out[a] = total.prod(-1)
    return out


@helion.kernel
def block_last(x: torch.Tensor, f: Row) -> torch.Tensor:
    """Lanes keep what the last tile that has them gave, or what they had before."""
    out = torch.empty([x.size(0)])
    block = hl.register_block_size(x.size(1))
    for a in hl.tile(x.size(0)):
        last = hl.zeros([a, block])
        count = hl.zeros([a, block])
        for b in hl.tile(x.size(1), block_size=block):
            last = f(x[a, b])
            count = count + 1
        out[a] = (last * count).sum(-1)
    return out


TILED: dict[str, Row] = {
    "itself": lambda v: v,
    "negative": lambda v: -v.abs() - 1,
    "exp": lambda v: torch.exp(v * 0.1),
    "cos": lambda v: torch.cos(v),
    "reciprocal": lambda v: 1 / (v.abs() + 0.5),
    "shifted": lambda v: v + 5,
}
TILE_CONFIGS = ([4, 16], [2, 32], [8, 64])


@pytest.mark.parametrize("name", TILED)
def test_reductions_over_tiles(name: str) -> None:
    f = TILED[name]
    for width, sizes in combinations((7, 63, 77), TILE_CONFIGS, at=[*TILED].index(name)):
        x, config = sample(5, width), {"block_sizes": sizes}
        verify(tiled_sum, lambda x, f: f(x).sum(-1), (x, f), config)
        verify(tiled_max, lambda x, f: f(x).amax(-1), (x, f), config)


@pytest.mark.parametrize("name", TILED)
def test_accumulators_of_block_shape(name: str) -> None:
    f = TILED[name]
    for width, columns in combinations((7, 63, 77), (1, 4, 16, 32), at=[*TILED].index(name)):
        x, config = sample(5, width), {"block_sizes": [columns, 4]}
        verify(block_sum, lambda x, f: f(x).sum(-1), (x, f), config)
        verify(block_max, lambda x, f: f(x).amax(-1), (x, f), config)
    verify(block_product, lambda x, f: f(x).prod(-1), (sample(5, 13) / 3, f), {"block_sizes": [4, 4]}, rtol=1e-4)


@pytest.mark.parametrize("columns", [4, 16])
def test_the_last_tile_does_not_disturb_lanes_of_the_accumulator(columns: int) -> None:
    x = sample(3, 22)

    def expected(x, f):
        total = torch.zeros(x.size(0), dtype=x.dtype)
        for lane in range(columns):
            lanes = x[:, lane::columns]
            total += lanes[:, -1] * lanes.size(1)
        return total

    verify(block_last, expected, (x, TILED["itself"]), {"block_sizes": [columns, 2]})


@helion.kernel
def mean_of_tiles(x: torch.Tensor) -> torch.Tensor:
    """Tiles of a constant size, which no config changes."""
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size(), block_size=[4, 16]):
        v = x[a, b]
        out[a, b] = v - v.mean(-1, keepdim=True) + v.amax(-1)[:, None] - torch.var(v, -1, correction=0)[:, None]
    return out


def test_a_reduction_of_a_tile_counts_its_lanes_in_range() -> None:
    x = sample(5, 77)

    def expected(x):
        parts = x.split(16, dim=1)
        return torch.cat(
            [
                p - p.mean(-1, keepdim=True) + p.amax(-1, keepdim=True) - p.var(-1, correction=0, keepdim=True)
                for p in parts
            ],
            1,
        )

    verify(mean_of_tiles, expected, (x,), {"block_sizes": []}, rtol=1e-4)


@helion.kernel
def argmax_over_tiles(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    best_out = torch.empty([x.size(0)])
    index_out = torch.empty([x.size(0)], dtype=torch.int64)
    for a in hl.tile(x.size(0)):
        best = hl.full([a], float("-inf"))
        at = hl.zeros([a], dtype=torch.int64)
        for b in hl.tile(x.size(1)):
            v = x[a, b]
            high, where = torch.max(v, -1)
            better = high > best
            at = torch.where(better, where + b.begin, at)
            best = torch.where(better, high, best)
        best_out[a] = best
        index_out[a] = at
    return best_out, index_out


@pytest.mark.parametrize("sign", [1, -1])
def test_argmax_over_tiles(sign: int) -> None:
    x = sign * (sample(5, 77).abs() + 1)
    for sizes in TILE_CONFIGS:
        verify(argmax_over_tiles, lambda x: (x.amax(-1), x.argmax(-1)), (x,), {"block_sizes": sizes})


# --- epilogues ----------------------------------------------------------------------------------------------------------


def bias_and_relu(bias):
    return lambda acc, a, b: F.relu(acc + bias[b])


def scaled_per_row(scale):
    return lambda acc, a, b: acc * scale[a][:, None]


def residual(other):
    return lambda acc, a, b: acc + other[a, b]


def softplus_of_two(bias, scale):
    def epilogue(acc, a, b):
        return F.softplus(acc * scale[a, None] + bias[None, b])

    return epilogue


@helion.kernel
def map_tiles(x: torch.Tensor, epilogue: Callable[..., torch.Tensor]) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = epilogue(x[a, b], a, b)
    return out


def map_reference(x: torch.Tensor, epilogue: Callable[..., torch.Tensor]) -> torch.Tensor:
    return epilogue(x, slice(None), slice(None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_epilogues_that_capture_tensors(dtype: torch.dtype) -> None:
    x, bias, scale = sample(9, 37, dtype=dtype), sample(37, dtype=dtype), sample(9, dtype=dtype)
    for epilogue in (
        bias_and_relu(bias), scaled_per_row(scale), residual(sample(9, 37, dtype=dtype, seed=1)),
        softplus_of_two(bias, scale),
    ):  # fmt: skip
        verify(map_tiles, map_reference, (x, epilogue), rtol=2e-2 if dtype == torch.bfloat16 else 1e-5)
        verify(map_tiles, map_reference, (x, epilogue), {"block_sizes": [4, 16]}, rtol=2e-2)


def test_one_kernel_with_many_epilogues_does_not_mix_them_up() -> None:
    x = sample(5, 7)
    for scale in (1.0, 2.0, 3.0):
        verify(map_tiles, map_reference, (x, scale_by(scale)))
        verify(map_tiles, map_reference, (x, scale_by_pair((scale, 1.0))))
        verify(map_tiles, map_reference, (x, scale_by_dict({"scale": scale})))
        verify(map_tiles, map_reference, (x, scale_by_default(scale)))
        verify(map_tiles, map_reference, (x, scale_by_tensor(torch.tensor([scale]))))
        verify(map_tiles, map_reference, (x, nested(scale_by(scale))))


def scale_by(scale):
    return lambda acc, a, b: acc * scale


def scale_by_pair(pair):
    return lambda acc, a, b: acc * pair[0] + pair[1]


def scale_by_dict(names):
    return lambda acc, a, b: acc * names["scale"]


def scale_by_default(scale):
    def epilogue(acc, a, b, *, factor=scale):
        return acc * factor

    return epilogue


def scale_by_tensor(scale):
    return lambda acc, a, b: acc * scale[0]


def nested(inner):
    return lambda acc, a, b: inner(acc, a, b) + inner(acc + 1, a, b)


def test_the_same_tensor_as_argument_and_in_the_epilogue_at_first_only() -> None:
    x, y = sample(5, 7), sample(5, 7, seed=1)
    kernel = helion.kernel(map_tiles.fn)
    verify(kernel, map_reference, (x, residual(x)))
    verify(kernel, map_reference, (x, residual(y)))
    verify(kernel, map_reference, (y, residual(x)))


def test_activations() -> None:
    x = sample(3, 37, mean=0.0) * 3
    for f in (
        F.relu, F.gelu, F.silu, F.sigmoid, F.tanh, F.softplus, F.elu, F.leaky_relu, F.hardtanh, F.relu6, F.hardswish,
        F.hardsigmoid, F.mish, F.logsigmoid, torch.tanh, torch.erf, torch.sigmoid, torch.sin, torch.expm1, torch.square,
        torch.neg, torch.abs, torch.sign, torch.floor, torch.ceil, torch.trunc, torch.round, torch.frac,
    ):  # fmt: skip
        verify(rows, rows_reference, (x, f, torch.float32), rtol=1e-5)
    verify(rows, rows_reference, (x, gelu_tanh, torch.float32), rtol=1e-5)
    verify(rows, rows_reference, (x, leaky, torch.float32), rtol=1e-5)


def gelu_tanh(v):
    return F.gelu(v, approximate="tanh")


def leaky(v):
    return F.leaky_relu(v, 0.2) + F.elu(v, alpha=0.5) + F.softplus(v, beta=2.0, threshold=3.0)


def test_a_partial_function() -> None:
    args = (sample(3, 7), functools.partial(torch.softmax, dim=-1), torch.float32)
    try:
        verify(rows, rows_reference, args)
    except TypeError as error:
        assert "partial" in str(error)  # or refused by name


def test_composites_round_like_eager() -> None:
    """Half precision: a composite rounds where eager does, so results agree to the last bit or two."""
    for dtype in (torch.float16, torch.bfloat16):
        x = sample(5, 77, dtype=dtype, mean=0.5)
        for f in (
            F.silu, F.gelu, F.softplus, F.mish, F.hardswish, F.logsigmoid, F.elu,
            lambda v: torch.softmax(v, -1), lambda v: torch.log_softmax(v, -1), lambda v: F.layer_norm(v, [77]),
            lambda v: v * 0.1, lambda v: v / 3, lambda v: v + 0.125, lambda v: torch.exp(v) * v, lambda v: v * v + v,
            lambda v: torch.lerp(v, v * 2, 0.3), lambda v: torch.addcmul(v, v, v, value=0.5),
            lambda v: v.sum(-1, keepdim=True) * v, lambda v: v.mean(-1, keepdim=True) * v, lambda v: torch.rsqrt(v.abs() + 1),
            lambda v: v.clamp(-0.3, 0.7), lambda v: torch.where(v > 0.1, v, 0.3), lambda v: v**2, lambda v: v**0.5,
        ):  # fmt: skip
            actual, eager = call(rows, x, f, dtype), f(x)
            assert eager.dtype == dtype
            spacing = torch.finfo(dtype).eps * eager.abs().float().clamp(min=torch.finfo(dtype).tiny)
            error = (actual.float() - eager.float()).abs() / spacing
            assert error.nan_to_num(0).max() <= 1.01, (f, dtype, error.max())
