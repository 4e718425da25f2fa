"""Any legal config gives the eager result: a sample of random configs of kernels at sizes that do not divide tiles."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion import exc
from helion._testing import check, map_tensors
from helion.backends.triton.execute.interpreter.races import detect_races


@helion.kernel
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], -1)
    return out


@helion.kernel
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].float()
        variance, mean = torch.var_mean(v, -1, correction=0, keepdim=True)
        out[tile, :] = (v - mean) * torch.rsqrt(variance + eps) * weight[:] + bias[:]
    return out


@helion.kernel
def in_place(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        v = x[tile, :]
        x[tile, :] = torch.exp(v - v.amax(-1, keepdim=True)) * v.sum(-1, keepdim=True)
    return x


@helion.kernel
def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = torch.broadcast_tensors(x, y)
    out = torch.empty(x.shape, dtype=x.dtype)
    for a, b, c in hl.tile(x.size()):
        out[a, b, c] = F.gelu(x[a, b, c]) + y[a, b, c]
    return out


@helion.kernel
def transpose(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(1), x.size(0)], dtype=x.dtype)
    for a, b in hl.tile(x.size()):
        out[b, a] = x[a, b].t() + a.index + b.index[:, None]
    return out


@helion.kernel
def matmul(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype)
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[a, c], y[c, b])
        out[a, b] = F.relu(acc + bias[b])
    return out


@helion.kernel
def bmm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(1), y.size(2)])
    for a, b, c in hl.tile(out.size()):
        acc = hl.zeros([a, b, c])
        for d in hl.tile(x.size(2)):
            acc = torch.baddbmm(acc, x[a, b, d], y[a, d, c])
        out[a, b, c] = acc
    return out


@helion.kernel
def matmul_softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    n = hl.specialize(y.size(1))
    out = torch.empty([x.size(0), n])
    for a in hl.tile(x.size(0)):
        acc = hl.zeros([a, n])
        for c in hl.tile(x.size(1)):
            acc = hl.dot(x[a, c], y[c, :], acc=acc)
        out[a, :] = torch.softmax(acc, -1)
    return out


@helion.kernel
def two_pass(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    block = hl.register_block_size(x.size(1))
    for a in hl.tile(x.size(0)):
        high = hl.full([a], float("-inf"))
        total = hl.zeros([a])
        for b in hl.tile(x.size(1), block_size=block):
            v = x[a, b]
            raised = torch.maximum(high, v.amax(-1))
            total = total * torch.exp(high - raised) + torch.exp(v - raised[:, None]).sum(-1)
            high = raised
        for b in hl.tile(x.size(1), block_size=block):
            out[a, b] = torch.exp(x[a, b] - high[:, None]) / total[:, None]
    return out


@helion.kernel
def block_accumulator(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    block = hl.register_block_size(x.size(1))
    for a in hl.tile(x.size(0)):
        best = hl.full([a, block], float("-inf"))
        for b in hl.tile(x.size(1), block_size=block):
            best = torch.maximum(best, x[a, b])
        out[a] = best.amax(-1)
    return out


@helion.kernel
def inner_tiles(x: torch.Tensor) -> torch.Tensor:
    """Two inner dimensions at once, with a carried value and a branch."""
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        total = hl.zeros([a])
        for b, c in hl.tile([x.size(1), x.size(2)]):
            part = torch.cos(x[a, b, c]).sum(-1).sum(-1)
            if c.begin == 0:
                total = total + part
            else:
                total = total + part * 1.0
        out[a] = total
    return out


@helion.kernel
def two_roots(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = torch.empty_like(x), torch.empty([y.size(0)])
    for a, b in hl.tile(x.size()):
        first[a, b] = x[a, b] * 2
    for a in hl.tile(y.size(0)):
        second[a] = y[a, :].amax(-1)
    return first, second


@helion.kernel
def small_loops(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a in hl.tile(x.size(0)):
        for j in hl.grid(x.size(1)):
            low, high = x[a, j], x[a, 0]
            for _ in range(3):
                low, high = high, low + high
            out[a, j] = low
    return out


@helion.kernel
def tiles_of_tiles(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for outer in hl.tile(x.size(0)):
        for inner in hl.tile(outer.begin, outer.end):
            out[inner, :] = x[inner, :] - x[inner, :].mean(-1, keepdim=True)
    return out


@helion.kernel
def gather(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty([index.size(0), x.size(1)])
    for a, b in hl.tile(out.size()):
        out[a, b] = hl.load(x, [index[a], b], extra_mask=(index[a] > 1)[:, None])
    return out


def _tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) - 2).to(dtype)


@dataclass(frozen=True)
class Case:
    kernel: helion.Kernel
    args: tuple[Any, ...]
    reference: Callable[..., Any]


def _small_loops(x: torch.Tensor) -> torch.Tensor:
    low, high = x, x[:, :1].expand_as(x)
    for _ in range(3):
        low, high = high, low + high
    return low


INDEX = torch.tensor([3, 0, 8, 8, 1, 4, 2])
CASES = {
    "softmax": Case(softmax, (_tensor(7, 77),), lambda x: torch.softmax(x, -1)),
    "softmax, bf16": Case(softmax, (_tensor(5, 63, dtype=torch.bfloat16),), lambda x: torch.softmax(x, -1)),
    "layer_norm": Case(
        layer_norm,
        (_tensor(5, 77), _tensor(77), _tensor(77), 1e-5),
        lambda x, w, b, eps: F.layer_norm(x, [x.size(-1)], w, b, eps),
    ),
    "in place": Case(
        in_place,
        (_tensor(7, 37),),
        lambda x: torch.exp(x - x.amax(-1, keepdim=True)) * x.sum(-1, keepdim=True),
    ),
    "pointwise": Case(pointwise, (_tensor(3, 1, 21), _tensor(5, 1)), lambda x, y: F.gelu(x) + y),
    "transpose": Case(transpose, (_tensor(13, 21),), lambda x: x.t() + torch.arange(13) + torch.arange(21)[:, None]),
    "matmul": Case(
        matmul,
        (_tensor(13, 37, dtype=torch.float16), _tensor(37, 21, dtype=torch.float16), _tensor(21)),
        lambda x, y, b: F.relu(x @ y + b),
    ),
    "bmm": Case(bmm, (_tensor(3, 9, 21), _tensor(3, 21, 7)), lambda x, y: x @ y),
    "matmul_softmax": Case(matmul_softmax, (_tensor(9, 37), _tensor(37, 20)), lambda x, y: torch.softmax(x @ y, -1)),
    "two_pass": Case(two_pass, (_tensor(5, 77),), lambda x: torch.softmax(x, -1)),
    "block_accumulator": Case(block_accumulator, (_tensor(5, 77).abs().neg() - 1,), lambda x: x.amax(-1)),
    "inner_tiles": Case(inner_tiles, (_tensor(5, 7, 11),), lambda x: torch.cos(x).sum((1, 2))),
    "two_roots": Case(two_roots, (_tensor(7, 13), _tensor(5, 21)), lambda x, y: (x * 2, y.amax(-1))),
    "small_loops": Case(small_loops, (_tensor(13, 5),), _small_loops),
    "tiles_of_tiles": Case(tiles_of_tiles, (_tensor(37, 7),), lambda x: x - x.mean(-1, keepdim=True)),
    "gather": Case(gather, (_tensor(9, 21), INDEX), lambda x, i: torch.where((i > 1)[:, None], x[i], 0.0)),
}
CONFIGS = 10


def with_subtiles(spec: Any, config: helion.Config, rng: random.Random) -> helion.Config:
    """A search tries subtiles for long sums on some targets only, and they are legal everywhere."""
    if True in config["flatten_loops"]:  # which leaves no columns to split
        return config
    return spec.normalize({**config, "epilogue_subtile": rng.choice((None, 2, 4))})


@pytest.mark.parametrize("name", CASES)
def test_random_configs(name: str) -> None:
    case = CASES[name]
    bound = case.kernel.bind(case.args)
    spec = bound.config_spec
    rng = random.Random(sum(map(ord, name)))
    configs = [with_subtiles(spec, spec.random(rng), rng) for _ in range(CONFIGS)]
    for config in configs:
        assert spec.normalize(config) == config
        args = map_tensors(case.args, torch.Tensor.clone)
        half = any(isinstance(a, torch.Tensor) and a.itemsize == 2 for a in args)
        with detect_races():
            check(
                f"{name} with {config}", bound.compile_config(config), case.reference, args, rtol=2e-2 if half else 2e-4
            )


@pytest.mark.parametrize("name", CASES)
def test_the_whole_range_of_block_sizes(name: str) -> None:
    """Smallest and largest tiles, every mapping of programs, and chunks of every size."""
    case = CASES[name]
    bound = case.kernel.bind(case.args)
    base = bound.conservative_config()
    rolled = len(base["reduction_loops"])
    candidates: list[dict[str, Any]] = [{"block_sizes": [size] * len(base["block_sizes"])} for size in (1, 2, 8, 64)]
    candidates += [{"pid_type": kind} for kind in ("xyz", "persistent_blocked", "persistent_interleaved")]
    candidates += [{"reduction_loops": [chunk] * rolled} for chunk in (8, 16, 64) if rolled]
    candidates += [{"static_ranges": [True] * len(base["static_ranges"])}] if base["static_ranges"] else []
    candidates += [{"loop_orders": [o[::-1] for o in base["loop_orders"]]}] if base["loop_orders"] else []
    candidates += [{"l2_groupings": [4] * len(base["l2_groupings"])}] if base.get("l2_groupings") else []
    candidates += [{"flatten_loops": [True] * len(base["flatten_loops"])}] if base["flatten_loops"] else []
    candidates += [{"epilogue_subtile": n, "block_sizes": [64] * len(base["block_sizes"])} for n in (2, 4)]
    run = 0
    for candidate in candidates:
        try:
            function = bound.compile_config({**base, **candidate})
        except exc.InvalidConfig:
            continue  # no xyz grid of one dimension, say
        args = map_tensors(case.args, torch.Tensor.clone)
        half = any(isinstance(a, torch.Tensor) and a.itemsize == 2 for a in args)
        with detect_races():
            check(f"{name} with {candidate}", function, case.reference, args, rtol=2e-2 if half else 2e-4)
        run += 1
    assert run >= len(candidates) // 2 - 1
