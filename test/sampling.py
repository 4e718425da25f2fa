"""Combinations of many choices: all of them under HELION_PROVE=1, else a few that leave no value out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from conftest import PROVE


def combinations(*choices: Sequence[Any], at: int = 0) -> list[tuple[Any, ...]]:
    """Every value of every choice stands in one of them; cases with other numbers ``at`` have other pairs."""
    if PROVE:
        return list(itertools.product(*choices))
    longest = max(map(len, choices))
    return [tuple(each[(i + at * j) % len(each)] for j, each in enumerate(choices)) for i in range(longest)]
