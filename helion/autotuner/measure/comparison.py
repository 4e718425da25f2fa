"""Which of several configs is the fastest, and whether it is certain enough to replace the one that would run untuned.

Clocks rise, drift and jump while configs are timed, by more than configs differ. So times are compared within a round only,
in which each config runs once: the logarithms of the ratios within rounds, of which the median counts, whose confidence
interval assumes nothing about how they are distributed.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

#: Microseconds by config of rounds; what does not work any more is missing.
Rounds = Sequence[Mapping[T, float]]
#: Measures so many rounds of configs, or fewer of configs that take long.
Measure = Callable[[Sequence[T], int], Rounds[T]]
Clock = Callable[[], float]

#: The probability with which a bound of a median is wrong, each time that it is looked at.
LEVEL = 1e-5
#: Another config must take at most this share of the time of the one that would run untuned.
MARGIN = 0.995
#: What events on a device cannot tell apart, in microseconds: two of the steps in which an H200 counts.
RESOLUTION = 0.064
#: Rounds that are measured at once, how often at most and for how many seconds, while leaders are told apart.
_ROUNDS, _BLOCKS, _SECONDS = 20, 8, 0.25
#: The same when the fastest is compared with the untuned config; each block is prepared and warmed up anew, and this many
#: must agree.
_FINAL_ROUNDS, _FINAL_BLOCKS, _FINAL_SECONDS, _AGREEING = 40, 10, 0.4, 4


@functools.cache
def _rank(count: int) -> int:
    """How many values at either end of ``count`` sorted ones lie outside of the interval of their median; -1 where too few
    are known. The probability that so many or fewer of them lie on one side of the median is at most ``LEVEL``."""
    below, least = 0, -1
    for k in range(count):
        below += math.comb(count, k)
        if below > LEVEL * 2**count:
            break
        least = k
    return least


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Between which numbers the median of what ``values`` are drawn from lies, each with probability 1 - ``LEVEL``."""
    outside = _rank(len(values))
    if outside < 0:
        return -math.inf, math.inf
    ordered = sorted(values)
    return ordered[outside], ordered[-1 - outside]


def log_ratios(rounds: Rounds[T], one: T, other: T) -> list[float]:
    """The logarithm of the time of ``one`` over that of ``other`` in each round that has both."""
    return [math.log(times[one] / times[other]) for times in rounds if one in times and other in times]


def medians(rounds: Rounds[T]) -> dict[T, float]:
    """Median microseconds of each config, the fastest first."""
    times: dict[T, list[float]] = {}
    for each in rounds:
        for config, time in each.items():
            times.setdefault(config, []).append(time)
    return dict(sorted(((c, statistics.median(t)) for c, t in times.items()), key=lambda item: item[1]))


def ranked(configs: Sequence[T], measure: Measure[T], clock: Clock) -> dict[T, float]:
    """Median microseconds of those of ``configs`` that may be the fastest, the fastest first; what is certainly slower than
    another one is dropped on the way."""
    began = clock()
    running, rounds = list(configs), list[Mapping[T, float]]()
    for _ in range(_BLOCKS if running else 0):
        rounds += measure(running, _ROUNDS)
        running = _undecided(running, rounds)
        if len(running) < 2 or clock() - began >= _SECONDS:
            break
    return medians([{config: times[config] for config in running if config in times} for times in rounds])


def _undecided(running: Sequence[T], rounds: Rounds[T]) -> list[T]:
    """Those that are not certainly slower than the fastest; what a round lacks has failed."""
    worked = [config for config in running if rounds and config in rounds[-1]]
    if not worked:
        return []
    known = medians(rounds)
    best = min(worked, key=known.__getitem__)
    return [config for config in worked if median_interval(log_ratios(rounds, config, best))[0] <= 0.0]


@dataclass(frozen=True, kw_only=True)
class Verdict(Generic[T]):
    """``replaces``: the challenger is certainly faster than the baseline, by more than ``MARGIN`` and ``RESOLUTION``.
    ``times`` are the median microseconds of both, of those that worked."""

    replaces: bool
    times: Mapping[T, float]


def compared(challenger: T, baseline: T, measure: Measure[T], clock: Clock) -> Verdict[T]:
    """Compares two configs in blocks of rounds until it is certain which is to run; where it stays uncertain, the baseline.

    Each block is prepared anew, so that where a config's memory lies and what the device did before differ between blocks;
    the challenger must be the faster one in every one of them.
    """
    began = clock()
    rounds: list[Mapping[T, float]] = []
    for blocks in range(1, _FINAL_BLOCKS + 1):
        fresh = measure((baseline, challenger), _FINAL_ROUNDS)
        rounds += fresh
        ratios = log_ratios(fresh, challenger, baseline)
        if not ratios or statistics.median(ratios) >= 0.0:
            break
        low, high = median_interval(log_ratios(rounds, challenger, baseline))
        if low > math.log(MARGIN):
            break
        times = medians(rounds)
        if blocks >= _AGREEING and high < math.log(MARGIN) and times[baseline] - times[challenger] > RESOLUTION:
            return Verdict(replaces=True, times=times)
        if blocks >= _AGREEING and clock() - began >= _FINAL_SECONDS:
            break
    return Verdict(replaces=False, times=medians(rounds))
