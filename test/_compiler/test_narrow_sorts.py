"""Sorts of elements alone: which have keys of 32 bits, and that the elements are those of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion._compiler.ir.grammar import Op

Function = Callable[[torch.Tensor, torch.Tensor], Any]


@helion.kernel
def rows(x: torch.Tensor, y: torch.Tensor, f: Function, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        out[tile, :] = f(x[tile, :], y[tile, :])
    return out


NARROW: tuple[Function, ...] = (
    lambda v, w: torch.sort(v)[0],
    lambda v, w: torch.sort(v, descending=True).values,
    lambda v, w: v.sort(stable=False)[0] + torch.sort(v)[0],
    lambda v, w: torch.sort(v + w)[0],
    lambda v, w: torch.topk(v, 37)[0].sum(-1)[:, None] + v,
)
WIDE: tuple[Function, ...] = (
    lambda v, w: torch.argsort(v).to(torch.float32),
    lambda v, w: torch.sort(v, dim=-1, stable=True)[0],
    lambda v, w: torch.gather(w, 1, torch.sort(v)[1]),
    lambda v, w: torch.gather(v, 1, torch.sort(w)[1]),
    lambda v, w: torch.sort(v)[0] + torch.sort(v)[1],
)


def keys(f: Function, target: str = "h200") -> set[torch.dtype]:
    """The dtypes of the sorts of the program."""
    x = torch.empty(40, 300, device="meta")
    program = rows.bind((x, x, f, x), target=target)._analysis.traced.program

    def dtypes(op: Op) -> set[torch.dtype]:
        assert op.kind != "sort" or len(op.operands) == 1
        return {op.result.dtype} if op.kind == "sort" else set()

    return set().union(*map(dtypes, program.walk()))


@pytest.mark.parametrize("at", range(len(NARROW)))
def test_elements_alone_have_keys_of_32_bits(at: int) -> None:
    assert keys(NARROW[at]) == {torch.int32}
    x, y = torch.randn(5, 300), torch.randn(5, 300)
    torch.testing.assert_close(rows(x, y, NARROW[at], torch.empty_like(x)), NARROW[at](x, y))


@pytest.mark.parametrize("at", range(len(WIDE)))
def test_positions_have_keys_of_64_bits(at: int) -> None:
    assert keys(WIDE[at]) == {torch.int64}
    x, y = torch.randn(5, 300).round(), torch.stack([torch.randperm(300).float() for _ in range(5)])
    x = x + torch.arange(300) * 1e-3
    torch.testing.assert_close(rows(x, y, WIDE[at], torch.empty_like(x)), WIDE[at](x, y), check_dtype=False)


DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int16, torch.int8, torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [2, 63, 1000])
def test_elements_are_those_of_torch(dtype: torch.dtype, n: int) -> None:
    if dtype.is_floating_point:
        x = (torch.randn(7, n) * 3).round().to(dtype)
        x[0, n // 2], x[1, n // 3], x[2, 0], x[3, n - 1] = -torch.inf, torch.inf, torch.nan, -torch.nan
    else:
        limits = torch.iinfo(dtype)
        x = torch.randint(limits.min, limits.max + 1, [7, n], dtype=dtype)
        x[0, 0], x[1, n - 1] = limits.min, limits.max
    for down in (False, True):
        f = lambda v, w, down=down: torch.sort(v, descending=down)[0]  # noqa: E731
        got, wanted = rows(x, x, f, torch.empty_like(x)), torch.sort(x, descending=down)[0]
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
        if dtype.is_floating_point:
            negative = (got == 0) & torch.signbit(got)
            assert torch.equal(negative.sum(1), ((x == 0) & torch.signbit(x)).sum(1)), "zeros keep their signs"


@pytest.mark.parametrize(("block", "warps"), [(1, 1), (1, 4), (4, 2), (2, 8)])
@pytest.mark.parametrize("n", [50, 300])
def test_every_form_of_the_network_sorts(block: int, warps: int, n: int) -> None:
    x = torch.randn(9, n)
    for f in (NARROW[0], lambda v, w: torch.argsort(v).to(torch.float32)):
        bound = rows.bind((x, x, f, torch.empty_like(x)))
        config = helion.Config(**{**bound.conservative_config(), "block_sizes": [block], "num_warps": warps})
        got = bound.compile_config(config)(x, x, f, torch.empty_like(x))
        torch.testing.assert_close(got, f(x, x), rtol=0, atol=0)
