"""Loads move before stores to other memory where a kernel loads and stores in many turns."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from helion.backends.triton.execute.interpreter.races import detect_races

CONFIG = helion.Config(block_sizes=[128], num_warps=4, num_stages=1)


def sums(x, y):
    """Running sums over the first dimension, each stored at once."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(1)):
        total = hl.zeros([tile])
        for i in hl.static_range(12):
            total = total + x[i, tile]
            out[i, tile] = total
    return out


def _sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.cumsum(0)


def in_place(x, y):
    """The same where each store is to the tensor that is loaded."""
    for tile in hl.tile(x.size(1)):
        total = hl.zeros([tile])
        for i in hl.static_range(12):
            total = total + x[i, tile]
            x[11 - i, tile] = total
    return x


def _in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, total = x.clone(), torch.zeros_like(x[0])
    for i in range(12):
        total = total + x[i]
        x[11 - i] = total
    return x


def by_index(x, y):
    """Places from memory, and a tensor that is loaded after a store to it."""
    out, places = torch.empty_like(x), torch.empty([12, x.size(1)], dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(1)):
        for i in hl.static_range(12):
            places[i, tile] = y[i, tile] % 7
            out[i, tile] = x[places[i, tile], 3] + x[i, tile]
    return out


def _by_index(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[y % 7, 3] + x


def few_turns(x, y):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(1)):
        for i in hl.static_range(4):
            out[i, tile] = x[i, tile] * 2
    return out[:4]


def _few_turns(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[:4] * 2


def made() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randint(-9, 9, (12, 300)).float(), torch.randint(0, 99, (12, 300))


def turns(code: str) -> int:
    """Return how often a load follows a store."""
    return len(re.findall("SL", "".join(kind[3].upper() for kind in re.findall(r"tl\.(?:load|store)\(", code))))


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("fn", "reference", "expected"),
    [(sums, _sums, 0), (in_place, _in_place, 11), (by_index, _by_index, 14), (few_turns, _few_turns, 3)],
)
def test_loads_precede_stores_to_other_memory(
    fn: Callable[..., Any], reference: Callable[..., torch.Tensor], expected: int, static: bool
) -> None:
    x, y = made()
    want = reference(x, y)
    bound = helion.kernel(fn, static_shapes=static).bind((x, y))
    assert turns(bound.to_triton_code(CONFIG)) == expected
    with detect_races():
        assert torch.equal(bound.compile_config(CONFIG)(x, y), want)


@pytest.mark.parametrize(("block", "expected"), [(128, 0), (256, 1), (1024, 5), (4096, 11)])
def test_loads_move_as_far_as_registers_hold_them(block: int, expected: int) -> None:
    bound = helion.kernel(sums).bind((tensor(12, 100000, dtype=torch.float32), tensor(1, dtype=torch.int64)))
    assert turns(bound.to_triton_code(helion.Config(block_sizes=[block], num_warps=4, num_stages=1))) == expected
