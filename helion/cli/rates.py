"""Rates of a GPU that no data sheet has, each from two times of one kernel.

An experiment does less and more of one thing. The difference of the times is that of this thing alone. Predicted times are
made of these rates (``benchmarks/time_model.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .. import language as hl
from ..config import Config
from ..hardware import Target
from ..runtime.kernel import kernel

#: Elements of one program's tile, and its warps.
TILE, _WARPS = 4096, 8
#: Programs per SM of the experiments that keep all units busy.
_RESIDENT = 4
#: Bytes of a table that every L2 cache holds, and of one that none holds.
_SMALL_BYTES, _LARGE_BYTES = 2**21, 2**30
#: Bytes between two entries of a table that are read one after the other, at least.
_APART = 4096
#: Rows and columns of a product.
_SIDE = 8192

_WIDE = Config(block_sizes=[TILE], num_warps=_WARPS)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Two amounts of something, in ``unit``: ``run`` makes a function that does an amount, 1 of which is ``of`` units."""

    name: str
    unit: str
    less: int
    more: int
    of: float
    run: Callable[[int], Callable[[], Any]]


@kernel(config=Config(num_warps=4), ignore_warnings=["GradientNotRecorded"])
def _started(out: torch.Tensor) -> torch.Tensor:
    for program in hl.grid(out.size(0)):
        out[program] = 0.0
    return out


_started_wide = kernel(_started.fn, config=Config(num_warps=_WARPS), settings=_started.settings)


@kernel(config=_WIDE, ignore_warnings=["GradientNotRecorded"])
def _copied(source: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(source.size(0)):
        out[tile] = source[tile]
    return out


@kernel(config=_WIDE, static_shapes=False, ignore_warnings=["GradientNotRecorded"])
def _summed(source: torch.Tensor, out: torch.Tensor, rounds: int) -> torch.Tensor:
    """Read ``rounds`` tiles of ``source`` in each program, from places that the others read at other times."""
    for tile in hl.tile(out.size(0)):
        total = hl.zeros([tile], dtype=torch.float32)
        for turn in hl.grid(rounds):
            total = total + source[(tile.index + turn * 7 * TILE) % source.size(0)]
        out[tile] = total
    return out


@kernel(config=Config(block_sizes=[1], num_warps=1), static_shapes=False, ignore_warnings=["GradientNotRecorded"])
def _chased(table: torch.Tensor, out: torch.Tensor, steps: int) -> torch.Tensor:
    """Read ``steps`` entries, each at the index that the one before has."""
    for tile in hl.tile(out.size(0)):
        at = out[tile]
        for _ in hl.grid(steps):
            at = table[at]
        out[tile] = at
    return out


@kernel(config=_WIDE, static_shapes=False, ignore_warnings=["GradientNotRecorded"])
def _multiplied(out: torch.Tensor, factor: float, steps: int) -> torch.Tensor:
    for tile in hl.tile(out.size(0)):
        value = tile.index.to(torch.float32)
        for _ in hl.grid(steps):
            value = value * factor + factor
        out[tile] = value
    return out


@kernel(config=_WIDE, static_shapes=False, ignore_warnings=["GradientNotRecorded"])
def _raised(out: torch.Tensor, factor: float, steps: int) -> torch.Tensor:
    for tile in hl.tile(out.size(0)):
        value = tile.index.to(torch.float32) * factor
        for _ in hl.grid(steps):
            value = torch.exp2(value)
        out[tile] = value
    return out


def launch() -> Callable[[], Any]:
    """Return a launch of one program that does next to nothing."""
    out = torch.empty([1], device="cuda")
    return lambda: _started(out)


def experiments(device: Target) -> Iterator[Experiment]:
    """Yield all experiments on ``device``."""
    programs = device.num_sms * _RESIDENT
    instructions = programs * TILE / device.warp_size
    tile_bytes = programs * TILE * 4
    yield Experiment(name="copy", unit="bytes", less=2**27, more=2**29, of=2, run=_copy)
    yield Experiment(
        name="cache", unit="bytes", less=64, more=512, of=tile_bytes, run=functools.partial(_sum, programs)
    )
    yield Experiment(name="wait", unit="loads", less=512, more=4096, of=1, run=functools.partial(_chase, _LARGE_BYTES))
    yield Experiment(
        name="cache wait", unit="loads", less=512, more=4096, of=1, run=functools.partial(_chase, _SMALL_BYTES)
    )
    for warps, started in ((4, _started), (_WARPS, _started_wide)):
        yield Experiment(
            name=f"programs of {warps} warps",
            unit="programs per SM",
            less=64,
            more=1024,
            of=1,
            run=functools.partial(_start, started, device.num_sms),
        )
    for name, made, less, more in (("multiply", _multiplied, 256, 2048), ("exponential", _raised, 64, 512)):
        yield Experiment(
            name=name,
            unit="warp instructions",
            less=less,
            more=more,
            of=instructions,
            run=functools.partial(_compute, made, programs),
        )
    for name in ("float16", "bfloat16"):
        yield Experiment(
            name=f"products of {name}",
            unit="operations",
            less=_SIDE // 2,
            more=2 * _SIDE,
            of=2 * _SIDE**2,
            run=functools.partial(_product, getattr(torch, name)),
        )


def measure(device: Target, time: Callable[[Callable[[], Any]], float]) -> dict[str, float]:
    """Return the microseconds of one unit of each experiment, and of a launch, by ``time``.

    Raises ValueError where more takes no longer than less.
    """
    found = {"launch": time(launch())}
    for each in experiments(device):
        less, more = time(each.run(each.less)), time(each.run(each.more))
        if more <= less:
            raise ValueError(f"{each.name}: {each.more} take {more:.1f} us and {each.less} take {less:.1f} us")
        found[each.name] = (more - less) / ((each.more - each.less) * each.of)
    return found


def ring(entries: int, apart: int) -> torch.Tensor:
    """Return a table of indices ``apart`` from each other. Following them from 0 visits all in an unpredictable order."""
    places = torch.randperm(entries // apart, generator=torch.Generator().manual_seed(0)) * apart
    table = torch.zeros([entries], dtype=torch.int64)
    table[places] = places.roll(-1)
    return table


def _copy(count: int) -> Callable[[], Any]:
    source = torch.randn([count // 4], device="cuda")
    out = torch.empty_like(source)
    return lambda: _copied(source, out)


def _sum(programs: int, rounds: int) -> Callable[[], Any]:
    source, out = torch.randn([_SMALL_BYTES // 4], device="cuda"), torch.empty([programs * TILE], device="cuda")
    return lambda: _summed(source, out, rounds)


def _chase(size: int, steps: int) -> Callable[[], Any]:
    table, out = ring(size // 8, _APART // 8).cuda(), torch.zeros([1], dtype=torch.int64, device="cuda")
    return lambda: _chased(table, out, steps)


def _start(started: Any, sms: int, programs_per_sm: int) -> Callable[[], Any]:
    out = torch.empty([programs_per_sm * sms], device="cuda")
    return lambda: started(out)


def _compute(made: Any, programs: int, steps: int) -> Callable[[], Any]:
    out = torch.empty([programs * TILE], device="cuda")
    return lambda: made(out, 0.5, steps)


def _product(dtype: torch.dtype, depth: int) -> Callable[[], Any]:
    left, right = (torch.randn(shape, device="cuda").to(dtype) for shape in ([_SIDE, depth], [depth, _SIDE]))
    return lambda: left @ right
