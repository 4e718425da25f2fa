"""Four neighbouring elements that a kernel loads and stores one by one: one access of a thread for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from helion.backends.assembly import by_width
from helion.backends.triton.execute.interpreter.races import detect_races

CONFIG = helion.Config(block_sizes=[128], num_warps=4, num_stages=1)


def products(x, y):
    """Products of quaternions."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a, b, c, d = (x[tile, i].to(torch.float32) for i in range(4))
        e, f, g, h = (y[tile, i].to(torch.float32) for i in range(4))
        out[tile, 3] = a * h + b * g - c * f + d * e
        out[tile, 0] = a * e - b * f - c * g - d * h
        out[tile, 1] = a * f + b * e + c * h - d * g
        out[tile, 2] = a * g - b * h + c * e + d * f
    return out


def _products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (a, b, c, d), (e, f, g, h) = x.float().unbind(1), y.float().unbind(1)
    rows = [a * e - b * f - c * g - d * h, a * f + b * e + c * h - d * g]
    rows += [a * g - b * h + c * e + d * f, a * h + b * g - c * f + d * e]
    return torch.stack(rows, 1).to(x.dtype)


def last_four(x, y):
    """Elements 4 to 7 of rows, and 1 to 3, which begin no four."""
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        total = x[tile, 1] + 2 * x[tile, 2] + 3 * x[tile, 3]
        for i in hl.static_range(4):
            total += x[tile, 4 + i] * (4 + i) * y[tile, i]
        out[tile] = total
    return out


def _last_four(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[:, 1] + 2 * x[:, 2] + 3 * x[:, 3] + sum(x[:, 4 + i] * (4 + i) * y[:, i] for i in range(4))


def turned(x, y):
    """The elements of a thread are along the first dimension, and rows along the last."""
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(1)):
        a, b, c, d = (x[i, tile] for i in range(4))
        out[0, tile], out[1, tile], out[2, tile], out[3, tile] = a + b, b * y[2, tile], c - d, d
    return out


def _turned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[0] + x[1], x[1] * y[2], x[2] - x[3], x[3]])


def in_place(x, y):
    """The first two elements are stored, then loaded again before the others are stored."""
    for tile in hl.tile(x.size(0)):
        a, b = x[tile, 0], x[tile, 1]
        x[tile, 0] = a + y[tile, 0]
        x[tile, 1] = b + a
        x[tile, 2] = x[tile, 2] * x[tile, 0]
        x[tile, 3] = x[tile, 3] + x[tile, 1]
    return x


def _in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b, c, d = x.unbind(1)
    return torch.stack([a + y[:, 0], b + a, c * (a + y[:, 0]), d + b + a], 1)


def stored_twice(x, y):
    """The second store of the first element remains, and precedes none of the others."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, 0] = y[tile, 0]
        out[tile, 1] = x[tile, 1]
        out[tile, 2] = x[tile, 2]
        out[tile, 0] = x[tile, 0]
        out[tile, 3] = x[tile, 3]
    return out


def _stored_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.clone()


def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(0, 9, shape).to(dtype)


Case = tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...], int, int]
#: Kernel, reference, arguments, splits of loads and joins of stores: three for an access of four elements.
CASES: dict[str, Case] = {
    "fp32": (products, _products, (made(300, 4), made(300, 4)), 6, 3),
    "bf16": (products, _products, (made(300, 4, dtype=torch.bfloat16), made(300, 4, dtype=torch.bfloat16)), 6, 3),
    "bytes": (products, _products, (made(300, 4, dtype=torch.int8), made(300, 4, dtype=torch.int8)), 6, 3),
    "fp64 is 16 bytes in pairs": (products, _products, (made(300, 4).double(), made(300, 4).double()), 4, 2),
    "rows of six": (products, _products, (made(300, 6)[:, :4], made(300, 4)), 5, 3),
    "rows of eight": (last_four, _last_four, (made(300, 8), made(300, 4)), 7, 0),
    "rows of ten and five": (last_four, _last_four, (made(300, 10)[:, :8], made(300, 5)[:, :4]), 3, 0),
    "along the first dimension": (turned, _turned, (made(300, 4).T, made(300, 4).T), 3, 3),
    "in place": (in_place, _in_place, (made(300, 4), made(300, 4)), 4, 2),
    "stored twice": (stored_twice, _stored_twice, (made(300, 4), made(300, 4)), 3, 2),
}


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_fours_are_accessed_at_once(name: str, static: bool) -> None:
    fn, reference, args, loads, stores = CASES[name]
    bound = helion.kernel(fn, static_shapes=static).bind(args)
    expected = reference(*args)
    text = bound.to_triton_code(CONFIG)
    if static:
        assert (text.count("tl.split("), text.count("tl.join(")) == (loads, stores)
    with detect_races():
        result = bound.compile_config(CONFIG)(*args)
    assert torch.allclose(result.double(), expected.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_a_thread_takes_sixteen_bytes_without_shared_memory(target: str) -> None:
    args = tensor(100000, 4, dtype=torch.float32), tensor(100000, 4, dtype=torch.float32)
    bound = helion.kernel(products).bind(args, target=target)
    ((_, code),) = bound.variant.compiled.assembled(bound.config_spec.normalize(CONFIG)).items()
    assert sum((by_width(part) for part in code.by_depth()), by_width(())) == {("load", 16): 2, ("store", 16): 1}


@pytest.mark.parametrize(("block", "splits"), [(64, 4), (128, 6), (256, 6)])
def test_fewer_elements_than_threads_stay_pairs(block: int, splits: int) -> None:
    bound = helion.kernel(products).bind((tensor(1000, 4, dtype=torch.float32), tensor(1000, 4, dtype=torch.float32)))
    config = helion.Config(block_sizes=[block], num_warps=4, num_stages=1)
    assert bound.to_triton_code(config).count("tl.split(") == splits
