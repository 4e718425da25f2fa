"""Kernels that predicted times and first seeds are judged by: right in the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.holdout import HOLDOUT
from benchmarks.mechanisms import MECHANISMS
from benchmarks.unseen.table import ALL, Maker, Unseen
from benchmarks.workloads.table import WORKLOADS
from helion._testing import map_tensors


def flat(values: Any) -> list[torch.Tensor]:
    return [values] if isinstance(values, torch.Tensor) else [t for each in values for t in flat(each)]


#: One in so many of the workloads and mechanisms runs each time, all of them with ``HELION_PROVE=1``.
EVERY = 6


def small_cases() -> Iterator[Any]:
    for at, one in enumerate((*HOLDOUT, *WORKLOADS, *MECHANISMS)):
        marks = [pytest.mark.prove] if at >= len(HOLDOUT) and at % EVERY else []
        for dtype, shape in one.small:
            yield pytest.param(one, dtype, shape, id=one.kernel.name, marks=marks)


@pytest.mark.parametrize(("one", "dtype", "shape"), list(small_cases()))
def test_the_kernels_are_right(one: Unseen, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    args = one.arguments(Maker("cpu"), dtype, *shape)
    wide = map_tensors(args, lambda t: t.double() if t.is_floating_point() else t)
    for mine, exact in zip(flat(one.kernel(*args)), flat(one.reference(*wide)), strict=True):
        assert mine.shape == exact.shape
        distance = float((mine.double() - exact.double()).norm() / exact.double().norm())
        assert distance <= 2e-5


def test_nothing_is_fitted_to_them() -> None:
    names = [one.kernel.name for one in (*HOLDOUT, *ALL, *WORKLOADS, *MECHANISMS)]
    assert len(set(names)) == len(names)
