"""Counts of conditions that a loop carries: which are taken in fp32, and that they are what integers give."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from helion._compiler.ir.grammar import ForAttrs
from helion.backends.triton.lower.counts import steps


@helion.kernel
def buckets(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """The number of edges at or below each element."""
    out = torch.empty(x.size(), dtype=torch.uint8, device=x.device)
    for tile in hl.tile(x.size()):
        v = x[tile]
        count = hl.zeros(tile, dtype=torch.int32)
        for i in range(edges.size(0)):
            count += (v >= edges[i]).to(torch.int32)
        out[tile] = count.to(torch.uint8)
    return out


@helion.kernel
def crossings(x: torch.Tensor, level: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Two conditions of each step in one count, from a start of its own, and the last row besides it."""
    steps, n = x.size()
    out = torch.empty([n], dtype=torch.int64, device=x.device)
    last = torch.empty([n], dtype=x.dtype, device=x.device)
    for tile in hl.tile(n):
        before = x[0, tile]
        count = (before > 0).to(torch.int64)
        for i in range(1, steps):
            now = x[i, tile]
            count += now >= level
            count = (now < -level) + count
            before = now
        out[tile] = count
        last[tile] = before
    return out, last


@helion.kernel
def inside(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """A condition of two comparisons."""
    out = torch.empty(x.size(), dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        v, count = x[tile], hl.zeros([tile], dtype=torch.int32)
        for i in range(low.size(0)):
            count += ((v >= low[i]) & (v < high[i])).to(torch.int32)
        out[tile] = count
    return out


@helion.kernel
def runs(x: torch.Tensor) -> torch.Tensor:
    """A count that starts again is read by more than its addition."""
    steps, n = x.size()
    out = torch.empty([n], dtype=torch.int32, device=x.device)
    for tile in hl.tile(n):
        count = hl.zeros([tile], dtype=torch.int32)
        for i in range(steps):
            count = torch.where(x[i, tile] > 0, count + 1, 0)
        out[tile] = count
    return out


@helion.kernel
def nested(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """An inner loop adds to the count of the outer one."""
    out = torch.empty([x.size(1)], dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(1)):
        count = hl.zeros([tile], dtype=torch.int32)
        for i in range(x.size(0)):
            for j in range(edges.size(0)):
                count += (x[i, tile] >= edges[j]).to(torch.int32)
        out[tile] = count
    return out


def carried(kernel: helion.Kernel, args: tuple[object, ...], target: str = "h200") -> list[torch.dtype]:
    """The dtypes that the loops of the printed program carry."""
    bound = kernel.bind(args, target=target)
    program = bound._analysis.code(bound.config_spec.normalize(bound.default_config())).plan.program
    loops = [op for op in program.walk() if isinstance(op.attrs, ForAttrs)]
    return [value.dtype for op in loops for value in op.results]


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def test_counts_of_a_loop_are_carried_in_floats() -> None:
    assert carried(buckets, (meta(40, 300), meta(33))) == [torch.float32]
    assert carried(crossings, (meta(64, 300), 0.5)) == [torch.float32, torch.float32]
    assert carried(nested, (meta(5, 300), meta(20))) == [torch.int32, torch.float32]


def test_other_values_stay_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert carried(buckets, (meta(40, 300), meta(7))) == [torch.int32], "too few to pay for the conversion"
    assert carried(buckets, (meta(40, 300), meta(33)), "gfx942") == [torch.int32], "which adds integers as fast"
    assert carried(runs, (meta(64, 300),)) == [torch.int32]
    assert carried(inside, (meta(300), meta(33), meta(33))) == [torch.int32], "no comparison alone"
    whole = (torch.empty(40, 300, dtype=torch.int32, device="meta"), torch.empty(33, dtype=torch.int32, device="meta"))
    assert carried(buckets, whole) == [torch.int32], "no comparison of floats"
    dynamic = helion.kernel(buckets.fn, static_shapes=False)
    assert carried(dynamic, (meta(40, 300), meta(33))) == [torch.int32]
    monkeypatch.setattr(steps, "_EXACT", 33)
    assert carried(helion.kernel(buckets.fn), (meta(40, 300), meta(33))) == [torch.int32]
    assert carried(helion.kernel(buckets.fn), (meta(40, 300), meta(32))) == [torch.float32]


@pytest.mark.parametrize("rows", [1, 63, 1000])
@pytest.mark.parametrize("edges", [7, 8, 33])
def test_counts_are_right(rows: int, edges: int) -> None:
    x, limits = torch.randn(rows, 41), torch.randn(edges).sort().values
    x[0, 0], x[-1, -1] = limits[3], float("nan")
    assert torch.equal(buckets(x, limits).long(), (x[..., None] >= limits).sum(-1))
    assert torch.equal(nested(x[:5], limits).long(), (x[:5, :, None] >= limits).sum((0, 2)))
    assert torch.equal(runs(x.T.contiguous()), _runs(x.T))


def _runs(x: torch.Tensor) -> torch.Tensor:
    count = torch.zeros(x.size(1), dtype=torch.int32)
    for row in x:
        count = torch.where(row > 0, count + 1, 0)
    return count.to(torch.int32)


@pytest.mark.parametrize("steps", [2, 5, 64])
def test_a_count_with_a_start_and_two_conditions(steps: int) -> None:
    x = torch.randn(steps, 77)
    count, last = crossings(x, 0.25)
    up, low = x[1:] >= 0.25, x[1:] < -0.25
    assert torch.equal(count, (x[0] > 0).long() + up.sum(0) + low.sum(0))
    assert torch.equal(last, x[-1])
