"""Counts of conditions: which are taken in fp32, and that they are what integers give."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from helion._compiler.ir.grammar import Op, ReduceAttrs
from helion.backends.triton.lower.counts import reductions as counts


@helion.kernel()
def below(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """A sum of 64 bits, stored in 32."""
    out = torch.empty([x.size(0)], dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = (edges[:][None, :] <= x[tile][:, None]).to(torch.int32).sum(-1)
    return out


@helion.kernel()
def positive(x: torch.Tensor) -> torch.Tensor:
    """A row of its own, masked where 0 would be counted."""
    out = torch.empty([x.size(0)], dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = (x[tile, :] >= 0).sum(-1)
    return out


@helion.kernel()
def in_tiles(x: torch.Tensor) -> torch.Tensor:
    """The parts of a sum that a loop adds up are integers."""
    out = torch.empty([x.size(0)], dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(0)):
        acc = hl.zeros([tile], dtype=torch.int64)
        for part in hl.tile(x.size(1)):
            acc = acc + (x[tile, part] >= 0).sum(-1)
        out[tile] = acc
    return out


@helion.kernel()
def loaded(x: torch.Tensor) -> torch.Tensor:
    """Integers that are no conditions."""
    out = torch.empty([x.size(0)], dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].sum(-1)
    return out


@helion.kernel()
def weighted(x: torch.Tensor) -> torch.Tensor:
    """Conditions that are multiplied are no conditions any more."""
    out = torch.empty([x.size(0)], dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = ((x[tile, :] >= 0).to(torch.int64) * 3).sum(-1)
    return out


def sums(kernel: helion.Kernel, args: tuple[torch.Tensor, ...], target: str, **config: object) -> set[torch.dtype]:
    """The dtypes in which the printed program sums."""
    bound = kernel.bind(args, target=target)
    full = bound.config_spec.normalize({**bound.default_config(), **config})
    program = bound._analysis.code(full).plan.program

    def is_sum(op: Op) -> bool:
        return isinstance(op.attrs, ReduceAttrs) and op.attrs.name == "sum"

    return {op.result.dtype for op in program.walk() if is_sum(op)}


ROW = torch.empty(40, 300, device="meta")


@pytest.mark.parametrize("target", ["h200", "sm_80"])
def test_conditions_along_a_whole_dimension_are_counted_in_floats(target: str) -> None:
    vectors = (torch.empty(5000, device="meta"), torch.empty(31, device="meta"))
    assert sums(below, vectors, target) == {torch.float32}
    assert sums(positive, (ROW,), target) == {torch.float32}
    assert sums(positive, (ROW,), target, reduction_loops=[64]) == {torch.float32}


def test_other_sums_stay_integers() -> None:
    assert sums(in_tiles, (ROW,), "h200") == {torch.int64}
    assert sums(loaded, (ROW.to(torch.int32),), "h200") == {torch.int64}
    assert sums(weighted, (ROW,), "h200") == {torch.int64}
    assert sums(positive, (ROW,), "gfx942") == {torch.int64}, "which adds integers as fast"


def test_a_sum_that_fp32_cannot_hold_stays_an_integer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "_EXACT", 300)
    fresh = helion.kernel(positive.fn)
    assert sums(fresh, (ROW,), "h200") == {torch.int64}
    assert sums(fresh, (torch.empty(40, 299, device="meta"),), "h200") == {torch.float32}


def test_an_extent_that_only_the_run_knows_stays_an_integer() -> None:
    kernel = helion.kernel(positive.fn, static_shapes=False)
    assert sums(kernel, (ROW,), "h200") == {torch.int64}


@pytest.mark.parametrize("rows", [1, 63, 1000])
@pytest.mark.parametrize("width", [3, 31, 300])
@pytest.mark.parametrize("chunk", [None, 1, 8])
def test_counts_are_right(rows: int, width: int, chunk: int | None) -> None:
    generator = torch.Generator().manual_seed(rows + width)
    x = torch.randn(rows, generator=generator)
    edges = torch.randn(width, generator=generator).sort().values
    x[0] = edges[0]
    config = {"reduction_loops": [chunk], "block_sizes": [64]}
    counted = helion.kernel(below.fn, config=helion.Config(**config))(x, edges)
    assert torch.equal(counted.long(), (edges[None, :] <= x[:, None]).sum(-1))
    square = torch.randn(rows, width, generator=generator).round()
    square[-1] = float("nan")
    counted = helion.kernel(positive.fn, config=helion.Config(**config | {"block_sizes": [4]}))(square)
    assert torch.equal(counted, (square >= 0).sum(-1))
