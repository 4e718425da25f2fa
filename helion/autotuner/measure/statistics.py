"""Which of several configs is the fastest, from times that scatter."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

#: Standard errors between two medians that make their order certain.
_CERTAIN = 3.0
#: Medians that differ by less than this share do not matter.
_EQUAL = 0.002
#: The standard deviation of normally distributed values over their median absolute deviation, and the standard error of
#: their median over that of their mean.
_PER_DEVIATION, _OF_MEDIAN = 1.4826, 1.2533


@dataclass
class Samples:
    """Microseconds of runs of one config."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def error(self) -> float:
        """The standard error of the median; infinite of fewer than three."""
        if len(self.values) < 3:
            return math.inf
        median = self.median
        deviation = _PER_DEVIATION * statistics.median(abs(value - median) for value in self.values)
        return _OF_MEDIAN * deviation / math.sqrt(len(self.values))


def certain_order(samples: Mapping[T, Samples], measure: Callable[[T], Sequence[float]], rounds: int) -> dict[T, float]:
    """Medians by config, the fastest first. All are measured in turn, and those that are certainly slower than the fastest
    no more; until one is left, or after so many rounds. What gives no times is left out."""
    running = list(samples)
    for _ in range(rounds):
        for each in list(running):
            values = measure(each)
            samples[each].values.extend(values)
            if not values:
                running.remove(each)
        running = _undecided(samples, running)
        if len(running) < 2:
            break
    known = {each: one.median for each, one in samples.items() if one.values}
    return dict(sorted(known.items(), key=lambda item: item[1]))


def _undecided(samples: Mapping[T, Samples], running: Sequence[T]) -> list[T]:
    """Those that may yet be the fastest, by more than does not matter."""
    if not running:
        return []
    best = min(running, key=lambda each: samples[each].median)
    limit = samples[best]

    def may_win(each: T) -> bool:
        gap = samples[each].median - limit.median
        return gap <= _CERTAIN * math.hypot(samples[each].error, limit.error)

    left = [each for each in running if may_win(each)]
    alike = all(abs(samples[each].median - limit.median) <= _EQUAL * limit.median for each in left)
    settled = all(_CERTAIN * samples[each].error <= _EQUAL * limit.median for each in left)
    return [] if alike and settled else left
