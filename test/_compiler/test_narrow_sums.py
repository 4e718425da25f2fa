"""Sums of integers in 32 bits: which are, and that their bits are those of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl

Function = Callable[[torch.Tensor], Any]


@helion.kernel
def of_rows(x: torch.Tensor, f: Function, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile, :]).to(out.dtype)
    return out


@helion.kernel
def in_steps(x: torch.Tensor, f: Function, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        count = hl.zeros([tile], dtype=torch.int32)
        for step in hl.tile(x.size(1)):
            count += f(x[tile, step])
        out[tile] = count.to(out.dtype)
    return out


@helion.kernel
def in_wide_steps(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        count = hl.zeros([tile], dtype=torch.int64)
        for step in hl.tile(x.size(1)):
            count += x[tile, step].sum(-1)
        out[tile] = (count // 2).to(out.dtype)
    return out


NARROW: tuple[Function, ...] = (
    lambda v: v.sum(-1),
    lambda v: (v > 3).sum(-1),
    lambda v: (v > 3).to(torch.int32).sum(-1),
    lambda v: torch.where(v > 3, v, -7).to(torch.int64).sum(-1) * 3 - 5,
    lambda v: (v.to(torch.int64) * v - v).sum(-1),
    lambda v: (v.sum(-1) ^ (v == 0).sum(-1)) & -2,
)
WIDE: tuple[Function, ...] = (
    lambda v: v.sum(-1) // 3,
    lambda v: v.sum(-1) >> 5,
    lambda v: torch.maximum(v.sum(-1), (v > 3).sum(-1)),
    lambda v: v.to(torch.float32).to(torch.int64).sum(-1),
    lambda v: v.sum(-1) + 2**40,
)


def sums(kernel: helion.Kernel, *args: Any) -> set[torch.dtype]:
    """The dtypes of the sums of a program."""
    program = kernel.bind(args, target="h200")._analysis.traced.program
    return {op.result.dtype for op in program.walk() if op.kind == "reduce"}


def numbers(dtype: torch.dtype) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, (5, 1000)).to(dtype)


def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("at", range(len(NARROW)))
@pytest.mark.parametrize("kernel", [of_rows, in_steps])
def test_sums_whose_low_bits_are_used_have_32(kernel: helion.Kernel, at: int) -> None:
    assert sums(kernel, empty(4000, 1000), NARROW[at], empty(4000)) == {torch.int32}


@pytest.mark.parametrize("at", range(len(NARROW)))
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
@pytest.mark.parametrize("of", [torch.int32, torch.int16, torch.uint8])
def test_low_bits_are_those_of_torch(at: int, dtype: torch.dtype, of: torch.dtype) -> None:
    x = numbers(dtype)
    found = of_rows(x, NARROW[at], torch.empty(5, dtype=of))
    assert torch.equal(found, NARROW[at](x).to(of))


@pytest.mark.parametrize("width", [63, 1000])
def test_counts_of_steps_are_those_of_torch(width: int) -> None:
    x = numbers(torch.int32)[:, :width].contiguous()
    found = in_steps(x, NARROW[0], torch.empty(5, dtype=torch.int32))
    assert torch.equal(found, x.sum(-1).to(torch.int32))
    config = helion.Config(block_sizes=[2, 16], num_warps=1)
    out = torch.empty(5, dtype=torch.int32)
    assert torch.equal(
        in_steps.bind((x, NARROW[1], out)).compile_config(config)(x, NARROW[1], out), (x > 3).sum(-1).int()
    )


@pytest.mark.parametrize("at", range(len(WIDE)))
def test_sums_whose_high_bits_are_used_keep_64(at: int) -> None:
    assert torch.int64 in sums(of_rows, empty(4000, 1000), WIDE[at], empty(4000))
    x = numbers(torch.int16)
    assert torch.equal(of_rows(x, WIDE[at], torch.empty(5, dtype=torch.int32)), WIDE[at](x).to(torch.int32))


def test_sums_of_other_uses_keep_64() -> None:
    assert sums(of_rows, empty(4000, 1000), NARROW[0], empty(4000, dtype=torch.int64)) == {torch.int64}
    assert sums(of_rows, empty(4000, 1000), NARROW[0], empty(4000, dtype=torch.float32)) == {torch.int64}
    assert sums(of_rows, empty(4000, 1000, dtype=torch.int64), NARROW[0], empty(4000)) == {torch.int64}
    assert sums(in_wide_steps, empty(4000, 1000), empty(4000)) == {torch.int64}
    x = numbers(torch.int32)
    found = in_wide_steps(x, torch.empty(5, dtype=torch.int32))
    assert torch.equal(found, (x.sum(-1) // 2).to(torch.int32))
