"""Four neighbouring elements that a kernel loads and stores one by one: one access of a thread for all."""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Callable
from pathlib import Path
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


def crossed(x, y):
    """A store that moves down to its pair, and a load of the same element that may not move up to its own."""
    for tile in hl.tile(x.size(0)):
        y[tile, 2] = x[tile, 0]
        third = y[tile, 3]
        y[tile, 3] = third + 1
        y[tile, 0] = y[tile, 2] + third
    return y


def _crossed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[:, 0] + y[:, 3], y[:, 1], x[:, 0], y[:, 3] + 1], 1)


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
    "crossed": (crossed, _crossed, (made(300, 4), made(300, 4)), 0, 1),
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


def drawn(seed: int) -> tuple[str, int]:
    """Return a kernel that loads and stores the elements of rows in a random order, with its reference."""
    draw = random.Random(seed)
    width, lines, count = draw.choice([4, 6, 8]), ["v0 = {x0}"], 1
    for _ in range(draw.randrange(2, 5)):
        name, loads = draw.choice("xy"), draw.random() < 0.5
        turn = []
        for at in draw.sample(range(width), width):
            if loads:
                turn.append(f"v{count} = {{{name}{at}}}")
                count += 1
            else:
                turn.append(f"{{{name}{at}}} = v{draw.randrange(count)} + v{draw.randrange(count)}")
        places = sorted(draw.randrange(len(lines) + 1) for _ in turn) if loads else [len(lines)] * len(turn)
        for more, (place, line) in enumerate(zip(places, turn, strict=True)):
            lines.insert(max(1, place) + more, line)
    lines.append(f"{{y0}} = v0 + v{draw.randrange(count)}")  # a store in any case
    order = {f"v{n}": next(at for at, line in enumerate(lines) if line.startswith(f"v{n} = ")) for n in range(count)}
    kept = [
        line for at, line in enumerate(lines) if all(order[v] < at for v in re.findall(r"v\d+", line.split(" = ")[1]))
    ]
    places = {f"{name}{at}": f"{name}[tile, {at}]" for name in "xy" for at in range(width)}
    rows = {key: text.replace("tile", ":") for key, text in places.items()}
    body = "".join(f"        {line.format(**places)}\n" for line in kept)
    other = "".join(f"    {line.format(**rows)}{'.clone()' if line.startswith('v') else ''}\n" for line in kept)
    return (
        "import helion.language as hl\n"
        f"def kernel(x, y):\n    for tile in hl.tile(x.size(0)):\n{body}    return x, y\n"
        f"def reference(x, y):\n    x, y = x.clone(), y.clone()\n{other}    return x, y\n"
    ), width


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_accesses_gives_the_same(seed: int, tmp_path: Path) -> None:
    source, width = drawn(seed)
    path = tmp_path / f"drawn_{seed}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, y = (torch.randint(0, 9, (130, width), dtype=torch.int32) for _ in range(2))
    expected = module.reference(x, y)
    result = helion.kernel(module.kernel).bind((x, y)).compile_config(CONFIG)(x, y)
    assert all(torch.equal(got, want) for got, want in zip(result, expected, strict=True))
