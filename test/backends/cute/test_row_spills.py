"""Values of elements that stay in registers between passes over a row, as facts and as plans count them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.cute.lower.rowwise.kernel import known_rows
from helion.backends.cute.plan.rowwise.choice import Keep, RowChoice
from helion.backends.cute.plan.rowwise.layout import layout_of
from helion.backends.cute.plan.rowwise.passes import demand_of
from helion.backends.cute.plan.rowwise.time import predicted_us, spilled_registers
from helion.backends.cute.resources.rowwise.shape import row_shape_of


def norm(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].float()
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    return out


def total(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.logsumexp(x[tile, :].float(), -1)
    return out


def scaled_total(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.logsumexp(x[tile, :].float() * 0.5, -1)
    return out


def entropy(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], device=x.device)
    for tile in hl.tile(x.size(0)):
        p = torch.log_softmax(x[tile, :].float(), -1)
        out[tile] = -(torch.exp(p) * p).sum(-1)
    return out


def divergence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], device=x.device)
    for tile in hl.tile(x.size(0)):
        p, q = torch.log_softmax(x[tile, :].float(), -1), torch.log_softmax(y[tile, :].float(), -1)
        out[tile] = (torch.exp(p) * (p - q)).sum(-1)
    return out


def gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a, b = x[tile, :].float(), y[tile, :].float()
        out[tile, :] = (a * (b - (a * b).sum(-1, keepdim=True))).to(x.dtype)
    return out


def norm_of_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return rows of which later passes read one value, a sum of two inputs."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].float() + y[tile, :].float()
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    return out


def bound_to(fn: Callable[..., Any], n: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    x = torch.empty(8192, n, dtype=dtype, device="meta")
    count = fn.__code__.co_argcount
    return helion.kernel(fn, backend="cute").bind(
        (x,) * count if count == 1 else (x, torch.empty_like(x)), target="h200"
    )


@pytest.mark.parametrize(
    ("fn", "live"),
    [(total, 0), (scaled_total, 1), (norm, 1), (entropy, 1), (norm_of_sum, 1), (divergence, 2), (gradient, 2)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_facts_and_plans_count_the_same_values(fn: Callable[..., Any], live: int) -> None:
    bound = bound_to(fn, 12288)
    shape = row_shape_of(bound._analysis.facts)
    assert not isinstance(shape, str) and shape.demand.live == live
    assert demand_of(known_rows(bound.variant.specialized.analysis.program).problem).live == live


def test_words_of_32_bits_are_converted_as_they_are_compared() -> None:
    shape = row_shape_of(bound_to(total, 12288, torch.float32)._analysis.facts)
    assert not isinstance(shape, str) and shape.demand.live == 1


def short_of(fn: Callable[..., Any], n: int, warps: int, keep: Keep = "registers") -> int:
    """Return the registers that a thread lacks, of which more than a few make a layout slower than shared memory."""
    bound = bound_to(fn, n)
    shape = row_shape_of(bound._analysis.facts)
    assert not isinstance(shape, str)
    layout = layout_of(shape.demand, RowChoice(warps=warps, keep=keep), bound.target)
    other = layout_of(shape.demand, RowChoice(warps=warps, keep="shared"), bound.target)
    lacking = spilled_registers(layout)
    assert (predicted_us(layout, 8192, bound.target) > 1.1 * predicted_us(other, 8192, bound.target)) == (lacking > 0)
    return lacking


def test_registers_that_threads_lack() -> None:
    """Two inputs of 96 elements of a thread are 192 registers, of 168; one input of 64 elements fits in 96."""
    assert short_of(divergence, 12288, 4) == 48 and short_of(divergence, 12288, 8) == 24
    assert short_of(norm, 24576, 8) == 24 and short_of(norm, 16384, 8) == 0
    assert short_of(total, 24576, 8) == 0 and short_of(divergence, 12288, 4, "shared") == 0


@pytest.mark.parametrize("fn", [divergence, gradient], ids=lambda fn: fn.__name__)
def test_pairs_of_rows_stay_in_shared_memory(fn: Callable[..., Any]) -> None:
    bound = bound_to(fn, 12288)
    assert bound.default_config()["cute_row_keep"] == "shared"
    assert bound_to(fn, 8192).default_config()["cute_row_keep"] == "registers"


def test_defaults_of_such_rows_do_not_spill() -> None:
    bound = bound_to(divergence, 12288)
    kept = bound.default_config().to_dict() | {"cute_row_keep": "registers"}
    assert bound.resources().spill_bytes == 0
    assert bound.resources(helion.Config(**kept)).spill_bytes > 400
