"""Functions that move lanes, scans, and while loops: against eager at sizes that are no powers of two."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion import exc


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if not dtype.is_floating_point:
        low = 0 if dtype in (torch.uint8, torch.bool) else -9
        return torch.randint(low, 9, shape, generator=generator).to(dtype)
    return (torch.randn(shape, generator=generator) - 1).to(dtype)


@helion.kernel
def rows(x: torch.Tensor, f: Callable[..., Any], out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        out[tile, :] = f(x[tile, :])
    return out


MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flip": lambda v: torch.flip(v, [1]),
    "flip of exp": lambda v: torch.exp(v).flip(-1) - v,
    "flip twice": lambda v: v.flip(1).flip([-1]),
    "softmax of flip": lambda v: torch.softmax(v.flip(1), -1),
    "flip of softmax": lambda v: torch.softmax(v, -1).flip(1),
    "roll by 1": lambda v: torch.roll(v, 1, 1),
    "roll by -2": lambda v: v.roll(-2, -1),
    "roll far": lambda v: torch.roll(torch.exp(v), 40, 1),
    "roll and sum": lambda v: v - torch.roll(torch.exp(v), 3, 1).cumsum(1),
    "sort": lambda v: torch.sort(v)[0],
    "sort down": lambda v: torch.sort(v, dim=1, descending=True).values,
    "argsort": lambda v: torch.argsort(v, stable=True),
    "indices of sort": lambda v: torch.sort(v, dim=-1, stable=True).indices,
    "cumsum": lambda v: torch.cumsum(v, 1),
    "cumsum of exp": lambda v: torch.exp(v).cumsum(-1),
    "cumsum of cumsum": lambda v: v.cumsum(1).cumsum(1),
    "cumprod": lambda v: torch.cumprod(v * 0.5 + 1, dim=1),
    "gather": lambda v: torch.gather(v, 1, torch.argsort(v, stable=True)),
    "sum of flip": lambda v: v.flip(1).sum(-1, keepdim=True) + torch.cos(v).flip(1).amax(-1, keepdim=True) + v,
    "max of roll": lambda v: (-v.abs() - 1).roll(1, 1).amax(-1, keepdim=True) * v,
    "normalize": lambda v: F.normalize(v),
    "normalize by 1": lambda v: F.normalize(v, p=1.0, dim=-1),
}


@pytest.mark.parametrize("width", [1, 7, 16, 37])
@pytest.mark.parametrize("name", MOVES)
def test_moves_along_a_whole_row(name: str, width: int) -> None:
    f = MOVES[name]
    x = sample(5, width)
    eager = f(x)
    bound = rows.bind((x, f, torch.empty_like(eager)))
    rng = random.Random(width)
    configs = [bound.conservative_config(), *(bound.config_spec.random(rng) for _ in range(2))]
    for config in configs:
        result = bound.compile_config(config)(x, f, torch.empty_like(eager))
        torch.testing.assert_close(result, eager, rtol=1e-4, atol=1e-4, msg=lambda m, c=config: f"{c}: {m}")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.uint8, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["flip", "roll by 1", "sort", "sort down", "argsort", "gather", "cumsum"])
def test_moves_of_other_dtypes(name: str, dtype: torch.dtype) -> None:
    f = MOVES[name]
    x = sample(5, 37, dtype=dtype)
    eager = f(x)
    bound = rows.bind((x, f, torch.empty_like(eager)))
    result = bound.compile_config(bound.conservative_config())(x, f, torch.empty_like(eager))
    tolerance = 5e-2 if dtype.is_floating_point and name == "cumsum" else 0
    torch.testing.assert_close(result, eager, rtol=tolerance, atol=tolerance)


def test_sort_of_special_values() -> None:
    x = torch.tensor([[math.inf, 0.0, -0.0, -math.inf, 1e-45, -1.0, math.nan, 3.0, 3.0, -math.nan, 1e38]])
    for name in ("sort", "sort down", "indices of sort"):
        eager = MOVES[name](x)
        bound = rows.bind((x, MOVES[name], torch.empty_like(eager)))
        result = bound.compile_config(bound.conservative_config())(x, MOVES[name], torch.empty_like(eager))
        torch.testing.assert_close(result, eager, rtol=0, atol=0, equal_nan=True)


@helion.kernel
def wider(x: torch.Tensor, f: Callable[..., Any], out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile, :])
    return out


WIDER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cat": lambda v: torch.cat([v, torch.exp(v)], 1),
    "cat of three": lambda v: torch.cat([v, v[:, None, :].sum(-1), -v], dim=-1),
    "stack": lambda v: torch.stack([v, v * 2, v * 3], 1),
    "stack last": lambda v: torch.stack([v, torch.cos(v)], -1),
    "topk": lambda v: torch.topk(v, 3, dim=1)[0],
    "topk indices": lambda v: v.topk(4, 1).indices,
    "smallest": lambda v: torch.topk(v, 2, largest=False).values,
    "last": lambda v: v[:, -1],
    "part": lambda v: v[:, 1:4],
    "part from the end": lambda v: torch.exp(v)[..., -3:],
    "every other": lambda v: v[:, None, ::2],
    "sum of a part": lambda v: torch.exp(v[:, 1:4]).sum(-1, keepdim=True) + v[:, 1:2],
    "narrow": lambda v: v.narrow(1, 1, 3) + v.select(1, 0)[:, None],
    "repeat": lambda v: v.repeat(1, 3),
    "repeat in a new dimension": lambda v: v[:, None].repeat(1, 2, 2),
    "repeat interleaved": lambda v: torch.repeat_interleave(v, 3, dim=1),
    "pad": lambda v: F.pad(v, (1, 2)),
    "pad with a value": lambda v: F.pad(v[:, None], (0, 3, 1, 0), value=-2.0),
    "cropped": lambda v: F.pad(torch.exp(v), (-1, 2)),
    "diagonal": lambda v: v[:, :3, None] * torch.eye(3),
    "sums of cat": lambda v: torch.cat([torch.exp(v), v], 1).sum(-1, keepdim=True),
    "maximum of stack": lambda v: torch.stack([-v.abs() - 1, -v.abs() - 2, -v.abs() - 3], 1).amax((1, 2)),
}


@pytest.mark.parametrize("width", [5, 16, 37])
@pytest.mark.parametrize("name", WIDER)
def test_moves_that_change_the_shape(name: str, width: int) -> None:
    f = WIDER[name]
    x = sample(5, width)
    eager = f(x)
    bound = wider.bind((x, f, torch.empty_like(eager)))
    rng = random.Random(width)
    for config in [bound.conservative_config(), *(bound.config_spec.random(rng) for _ in range(2))]:
        result = bound.compile_config(config)(x, f, torch.empty_like(eager))
        torch.testing.assert_close(result, eager, rtol=1e-4, atol=1e-4)


@helion.kernel
def triangles(x: torch.Tensor, k: hl.constexpr) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = torch.empty_like(x), torch.empty_like(x)
    for a in hl.tile(x.size(0)):
        low[a, :] = torch.tril(x[a, :], k)
        high[a, :] = torch.triu(x[a, :], diagonal=k)
    return low, high


@helion.kernel
def tiled_triangles(x: torch.Tensor, k: hl.constexpr) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = torch.empty_like(x), torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        low[a, b] = x[a, b].tril(k)
        high[a, b] = x[a, b].triu(k)
    return low, high


@pytest.mark.parametrize("kernel", [triangles, tiled_triangles], ids=lambda k: k.name)
def test_triangles_follow_the_places_in_the_tensor_or_are_refused(kernel: helion.Kernel) -> None:
    x = sample(21, 13)
    for k in (0, 1, -2):
        for size in (4, 8):
            try:
                bound = kernel.bind((x, k))
            except exc.BaseError as error:
                assert "tril" in str(error)
                continue
            count = len(bound.conservative_config()["block_sizes"])
            low, high = bound.compile_config({"block_sizes": [size] * count})(x, k)
            assert torch.equal(low, x.tril(k)), (k, size)
            assert torch.equal(high, x.triu(k)), (k, size)


# --- while loops --------------------------------------------------------------------------------------------------------


@helion.kernel
def collatz(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        n = x[i]
        steps = 0
        while n > 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        out[i] = steps
    return out


@helion.kernel
def newton(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Iterates until every lane in range has converged; lanes out of range must not keep it from ending."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        root = v * 0 + 1
        error = ((root * root - v).abs() / v).amax()
        while error > limit:
            root = (root + v / root) * 0.5
            error = ((root * root - v).abs() / v).amax()
        out[tile] = root
    return out


@helion.kernel
def swapped(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty([2, x.size(0)])
    for tile in hl.tile(x.size(0)):
        a, b = x[tile], x[tile] * 2
        k = 0
        while k < n and n > 0:
            a, b = b, a
            k = k + 1
        out[0, tile] = a
        out[1, tile] = b
    return out


def run(kernel: helion.Kernel, *args: Any, **config: Any) -> Any:
    bound = kernel.bind(args)
    return bound.compile_config(config or bound.conservative_config())(*args)


def test_while_loops() -> None:
    x = torch.tensor([1, 2, 3, 6, 7, 9, 27])
    assert torch.equal(run(collatz, x), torch.tensor([0, 1, 7, 8, 16, 19, 111]))
    y = sample(37).abs() + 0.5
    torch.testing.assert_close(run(newton, y, 1e-6, block_sizes=[8]), y.sqrt())
    for n in (0, 1, 4, 5):
        expected = torch.stack([y * 2, y] if n % 2 else [y, y * 2])
        torch.testing.assert_close(run(swapped, y, n, block_sizes=[16]), expected)


# --- merged dimensions --------------------------------------------------------------------------------------------------


@helion.kernel
def merged(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    flat, moved = torch.empty([x.size(0), 32]), torch.empty([x.size(0), 8, 4])
    split = torch.empty([x.size(0), 2, 2, 8])
    for tile in hl.tile(x.size(0)):
        v = x[tile, :, :]
        flat[tile, :] = v.reshape(tile, -1) + v.flatten(1)
        moved[tile, :, :] = v.movedim(1, 2)
        split[tile, :, :, :] = v.unflatten(1, (2, 2))
    return flat, moved, split


def test_merged_and_moved_dimensions() -> None:
    x = sample(5, 4, 8)
    flat, moved, split = merged(x)
    torch.testing.assert_close(flat, 2 * x.flatten(1))
    torch.testing.assert_close(moved, x.transpose(1, 2))
    torch.testing.assert_close(split, x.view(5, 2, 2, 8))


@helion.kernel
def sums_of_pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([y.size(1)])
    block = hl.register_block_size(y.size(0))
    for column in hl.tile(y.size(1)):
        acc = hl.zeros([column])
        for tile in hl.tile(y.size(0), block_size=block):
            begin = tile.begin * 2
            left = x[begin : begin + block * 2]
            pairs = torch.stack([y[tile, column], y[tile, column] + 1], dim=1)
            right = pairs.reshape(tile.block_size * 2, column.block_size)
            acc = acc + (left[:, None] * right).sum(0) + torch.exp(right * 0).sum(0)
        out[column] = acc
    return out


def test_reductions_over_merged_tiles_leave_out_what_is_out_of_range() -> None:
    x, y = sample(26), sample(13, 7)
    right = torch.stack([y, y + 1], 1).reshape(26, 7)
    expected = (x[:, None] * right).sum(0) + 26
    bound = sums_of_pairs.bind((x, y))
    for sizes in ([4, 8], [16, 4], [1, 1], [8, 2]):
        result = bound.compile_config({"block_sizes": sizes})(x, y)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


# --- scans that begin with lanes out of range ---------------------------------------------------------------------------


def linear(left: Any, right: Any) -> Any:
    return left[0] * right[0], left[1] * right[0] + right[1]


@helion.kernel
def backward_recurrence(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(b)
    for tile in hl.tile(a.size(0)):
        _, out[tile, :] = hl.associative_scan(linear, (a[tile, :], b[tile, :]), dim=1, reverse=True)
    return out


@pytest.mark.parametrize("width", [1, 5, 16, 37])
def test_reversed_scans(width: int) -> None:
    a, b = sample(5, width) * 0.3 + 1, sample(5, width)
    expected = b.clone()
    for at in reversed(range(width - 1)):
        expected[:, at] += expected[:, at + 1] * a[:, at]
    bound = backward_recurrence.bind((a, b))
    for result in (bound(a, b), bound.run_ref(a, b)):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@helion.kernel
def backward_maxima(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.associative_scan(torch.maximum, x[tile], dim=0, reverse=True)
    return out


def test_reversed_scans_along_a_tile() -> None:
    x = sample(37)
    result = backward_maxima.bind((x,)).compile_config({"block_sizes": [64]})(x)
    torch.testing.assert_close(result, x.flip(0).cummax(0)[0].flip(0))
