"""Combinations of many choices, and seeds: all of them under HELION_PROVE=1, else a few that leave no value out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import PROVE


def combinations(*choices: Sequence[Any], at: int = 0) -> list[tuple[Any, ...]]:
    """Every value of every choice stands in one of them; cases with other numbers ``at`` have other pairs."""
    if PROVE:
        return list(itertools.product(*choices))
    longest = max(map(len, choices))
    return [tuple(each[(i + at * j) % len(each)] for j, each in enumerate(choices)) for i in range(longest)]


def seeds(sample: int, count: int, part: int = 100) -> list[Any]:
    """Return ranges of seeds of random programs as cases: the sample's, and those of the proof in parts.

    A part takes seconds and fails by itself; the whole would take minutes and stop at its first failure.
    """
    parts = [pytest.param(range(at, at + part), marks=pytest.mark.prove) for at in range(0, count, part)]
    return [range(sample), *parts]


def shown(of: range) -> str:
    """Return the name of a case."""
    return f"{of.start}-{of.stop}"
