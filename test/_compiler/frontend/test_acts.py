"""Kernels of which another run, on copies of the arguments, is seen outside."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl

NOTES: list[int] = []
TABLE: dict[str, int] = {}
STATE = torch.zeros(8)
NUMBERS = itertools.count()


def noted(count: int) -> int:
    NOTES.append(count)
    return count


@helion.kernel
def plain(x: torch.Tensor) -> torch.Tensor:
    """Change an argument, tensors of its own and lists of its own, and read a global tensor."""
    began, parts = time.time(), []
    x.add_(1)
    x[0] = math.sqrt(x.size(0))
    with torch.no_grad(), contextlib.nullcontext():
        parts.append(STATE + began)
    parts[0] += torch.randn(8)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile]
    return out


@helion.kernel
def stored(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        STATE[tile] = x[tile]


@helion.kernel
def followed(x: torch.Tensor, act: Any) -> torch.Tensor:
    act()
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile]
    return out


def _changes_a_global() -> None:
    STATE.mul_(2)


def _sets_an_item_of_a_global() -> None:
    STATE[0] = 1.0


def _sets_an_item_of_a_dict() -> None:
    TABLE["calls"] = 1


def _changes_the_environment() -> None:
    os.environ["HELION_TEST_ACTS"] = "1"


ACTS: tuple[Callable[[], Any], ...] = (
    lambda: noted(3),
    lambda: print("called"),
    lambda: next(NUMBERS),
    lambda: random.random(),
    lambda: random.choice([1, 2]),
    _changes_a_global,
    _sets_an_item_of_a_global,
    _sets_an_item_of_a_dict,
    _changes_the_environment,
)


def acts(kernel: helion.Kernel, *args: Any) -> bool:
    return bool(kernel.bind((torch.empty(8, device="meta"), *args), target="h100").variant.analysis.traced.acts)


def test_changes_of_arguments_and_of_new_tensors_are_no_acts() -> None:
    assert not acts(plain)


def test_stores_into_a_global_tensor_are_acts() -> None:
    assert acts(stored)


@helion.kernel
def appended(x: torch.Tensor) -> torch.Tensor:
    NOTES.append(1)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile]
    return out


def test_a_list_that_host_code_only_changes_is_no_assumption() -> None:
    x = torch.ones(8, device="meta")
    bound = appended.bind((x,), target="h100")
    assert acts(appended)
    NOTES.append(2)
    assert appended.bind((x,), target="h100") is bound


@pytest.mark.parametrize("act", ACTS, ids=map(str, range(len(ACTS))))
def test_calls_with_effects_are_acts(act: Callable[[], Any]) -> None:
    assert acts(followed, act)
