"""The config key for tiles of unfused matmuls, which a separate kernel computes first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

from ... import exc
from ..._support.records import dataclass
from ...autotuner.proposal import Proposal
from ...autotuner.space.fields import Field, adjacent
from ...fields import PowerOfTwoFragment, values_of

_NAMES = ("rows", "columns", "elements along K")


@dataclass(frozen=True, kw_only=True)
class Tile(Field):
    """Rows, columns and elements along K of a tile, or None where matmuls stay fused.

    A side that is out of range is clamped, as block sizes are. ``sides`` are the ranges of the three.
    """

    sides: tuple[PowerOfTwoFragment, ...]

    def default(self) -> None:
        return None

    def read(self, value: Any) -> list[int] | None:
        if value is None or value is False:
            return None
        if not isinstance(value, (list, tuple)) or len(value) != len(self.sides):
            raise exc.InvalidConfig(
                f"{self.key} must be None or a list of {', '.join(_NAMES)} of a tile, such as [128, 128, 32], got {value!r}."
            )
        return [self._side(at, side) for at, side in enumerate(value)]

    def _side(self, at: int, side: object) -> int:
        if (why := PowerOfTwoFragment(1, 2**31).why_not(side)) is not None:
            raise exc.InvalidConfig(f"{self.key}[{at}] ({_NAMES[at]}) {why}.")
        assert isinstance(side, int)
        return nearest_to(self.sides[at], side)

    def encode(self, proposal: Proposal) -> None:
        """Return None: a proposal gives it verbatim."""
        return None

    def random(self, rng: Random) -> list[int] | None:
        return [rng.choice(values_of(side)) for side in self.sides] if rng.random() < 0.5 else None

    def neighbours(self, value: list[int] | None) -> list[list[int] | None]:
        if value is None:
            return [[nearest_to(side, size) for side, size in zip(self.sides, (128, 128, 32), strict=True)]]
        changed = [
            [*value[:at], other, *value[at + 1 :]]
            for at, side in enumerate(self.sides)
            for other in adjacent(side, value[at])
        ]
        return [None, *changed]

    def coordinates(self, value: Sequence[int] | None) -> list[float]:
        return [0.0] * len(self.sides) if value is None else [math.log2(side) for side in value]


def nearest_to(side: PowerOfTwoFragment, size: int) -> int:
    """Return ``size`` clamped to the range of a side."""
    return min(max(size, side.low), side.high)
