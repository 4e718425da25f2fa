"""Sums about a centre that the same pass finds: which ones merge, which do not, and what the passes look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion._compiler.ir.grammar import ForAttrs, Op, Program
from helion._compiler.ir.verifier import verify
from helion._compiler.rewrites.reduction_loops.roll import roll


@helion.kernel
def reduced(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile, :])
    return out


@helion.kernel
def mapped(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = f(x[tile, :])
    return out


def rolled(kernel: helion.Kernel, *args: Any, block: int = 1) -> Program:
    return verify(roll(kernel.bind(args)._analysis.program, frozenset([block])), "roll")


def passes(program: Program) -> list[Op]:
    return [op for op in program.walk() if isinstance(op.attrs, ForAttrs) and op.attrs.chunked]


def high(v: Any) -> Any:
    return v.amax(-1, keepdim=True)


def mean(v: Any) -> Any:
    return v.mean(-1, keepdim=True)


#: How often a row is walked over, which is less than one pass for each level of reductions.
MERGED: dict[str, tuple[Callable[..., Any], int]] = {
    "logsumexp": (lambda v: torch.logsumexp(v, -1), 1),
    "sum of powers": (lambda v: torch.exp(v - high(v)).sum(-1), 1),
    "sum of powers of 2": (lambda v: torch.exp2((v - high(v)) * 1.25).sum(-1), 1),
    "a scale on both sides": (lambda v: torch.exp2(v * 1.25 - high(v) * 1.25).sum(-1), 1),
    "a temperature": (lambda v: torch.exp(0.5 * ((v - high(v)) / 3.0)).sum(-1), 1),
    "the maximum in bf16": (lambda v: torch.exp(v.bfloat16().float() - high(v.bfloat16()).float()).sum(-1), 1),
    "powers of other values": (lambda v: torch.logsumexp(torch.sin(v) * 3, -1), 1),
    "two sums of powers": (lambda v: torch.logsumexp(v, -1) + torch.logsumexp(v * v, -1), 1),
    "a maximum of a softmax": (lambda v: torch.softmax(v, -1).amax(-1), 2),
    "other reductions": (lambda v: torch.logsumexp(v, -1) + v.sum(-1) + v.amin(-1), 1),
    "variance": (lambda v: v.var(-1), 1),
    "deviation without correction": (lambda v: v.std(-1, correction=0), 1),
    "mean and variance": (lambda v: torch.var_mean(v, -1)[0] * torch.var_mean(v, -1)[1], 1),
    "squares by pow": (lambda v: ((v - mean(v)) ** 2).sum(-1), 1),
    "squares the other way round": (lambda v: torch.square(mean(v) - v).sum(-1), 1),
    "variance of a softmax": (lambda v: torch.softmax(v, -1).var(-1), 2),
    "variance and powers": (lambda v: v.var(-1) + torch.logsumexp(v, -1), 1),
}
MAPPED: dict[str, tuple[Callable[..., Any], int]] = {
    "softmax": (lambda v: torch.softmax(v, -1), 2),
    "log_softmax": (lambda v: torch.log_softmax(v, -1), 2),
    "softmin": (lambda v: F.softmin(v, -1), 2),
    "layer_norm": (lambda v: F.layer_norm(v, [v.size(-1)]), 2),
    "layer_norm of a softmax": (lambda v: F.layer_norm(torch.softmax(v, -1), [v.size(-1)]), 3),
    "softmax of a layer_norm": (lambda v: torch.softmax(F.layer_norm(v, [v.size(-1)]), -1), 3),
}
#: Sums that stay as they are, and the passes they take.
APART: dict[str, tuple[Callable[..., Any], int]] = {
    "powers about the mean": (lambda v: torch.exp(v - mean(v)).sum(-1), 2),
    "powers about the maximum of other values": (lambda v: torch.exp(v - high(torch.cos(v))).sum(-1), 2),
    "powers that grow to the left": (lambda v: torch.exp(high(v) - v).sum(-1), 2),
    "a negative scale": (lambda v: torch.exp((v - high(v)) * -1.0).sum(-1), 2),
    "weighted powers": (lambda v: (torch.exp(v - high(v)) * v).sum(-1), 2),
    "selected powers": (lambda v: torch.where(v > 0, torch.exp(v - high(v)), 0.0).sum(-1), 2),
    "powers rounded to bf16": (lambda v: torch.exp((v - high(v)).bfloat16()).sum(-1).float(), 2),
    "products of powers": (lambda v: torch.exp(v - high(v)).prod(-1), 2),
    "squares about the maximum": (lambda v: torch.square(v - high(v)).sum(-1), 2),
    "squares of a scaled gap": (lambda v: torch.square((v - mean(v)) * 2.0).sum(-1), 2),
    "cubes": (lambda v: ((v - mean(v)) ** 3).sum(-1), 2),
    "maximum of squares": (lambda v: torch.square(v - mean(v)).amax(-1), 2),
    "nothing is saved": (lambda v: torch.exp(v - high(v)).sum(-1) + torch.cos(v - high(v)).sum(-1), 2),
}


@pytest.mark.parametrize("name", MERGED)
def test_merged_levels(name: str) -> None:
    f, few = MERGED[name]
    assert len(passes(rolled(reduced, torch.empty(5, 77), f))) == few


@pytest.mark.parametrize("name", MAPPED)
def test_rows_are_read_once_less(name: str) -> None:
    f, few = MAPPED[name]
    program = rolled(mapped, torch.empty(5, 77), f)
    assert len(passes(program)) == few
    assert sum(op.kind == "load" for op in program.walk()) == few


@pytest.mark.parametrize("name", APART)
def test_levels_that_stay_apart(name: str) -> None:
    f, many = APART[name]
    program = rolled(reduced, torch.empty(5, 77), f)
    assert len(passes(program)) == many
    assert not any(op.kind == "if" or getattr(op.attrs, "name", "") == "fmin" for op in program.walk())


def test_a_row_held_at_once_stays_as_it_is() -> None:
    bound = mapped.bind((torch.empty(5, 77), MAPPED["softmax"][0]))
    text = bound.to_triton_code({"block_sizes": [1], "reduction_loops": [None]})
    assert text.count("tl.exp2(") == 1 and "fmin" not in text


def test_the_maximum_and_the_mean_are_shared() -> None:
    """Powers take the running maximum of the row's own reduction, squares and the sum one shift: two tiles a pass."""
    for f in (MAPPED["softmax"][0], MAPPED["layer_norm"][0]):
        first = passes(rolled(mapped, torch.empty(5, 77), f))[0]
        (region,) = first.regions
        assert sum(len(param.dims) == 2 for param in region.params) == 2


def test_stores_stay_in_the_last_pass_that_reads() -> None:
    @helion.kernel
    def in_place(x: torch.Tensor) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            x[tile, :] = F.layer_norm(torch.softmax(x[tile, :], -1), [x.size(1)])
        return x

    loops = passes(rolled(in_place, torch.empty(5, 77)))
    assert [any(op.kind == "store" for op in loop.walk()) for loop in loops] == [False, False, True]


def test_two_dimensions_of_one_value_are_not_both_walked_in_chunks() -> None:
    @helion.kernel
    def sums(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0)])
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile, :, :].sum((1, 2))
        return out

    x = torch.randn(3, 40, 77)
    bound = sums.bind((x,))
    assert bound._analysis.rollable == (1,)
    found = bound.compile_config({"block_sizes": [1], "reduction_loops": [16]})(x)
    torch.testing.assert_close(found, x.sum((1, 2)), rtol=1e-5, atol=1e-4)


def test_a_variance_over_two_dimensions_stays_apart() -> None:
    @helion.kernel
    def variances(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0)])
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile, :, :].var((1, 2))
        return out

    x = torch.randn(3, 40, 7) + 3
    assert len(passes(rolled(variances, x))) == 2
    found = variances.bind((x,)).compile_config({"block_sizes": [2], "reduction_loops": [16]})(x)
    torch.testing.assert_close(found, x.var((1, 2)))
