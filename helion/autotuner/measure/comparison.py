"""Comparison of configs: which one is the fastest, and certainly faster than the untuned one.

Clocks rise, drift and jump while configs are timed, by more than configs differ. So times are compared only within a
round, in which each config runs once. The comparison uses the median logarithm of the ratios within rounds. Its
confidence interval assumes no distribution.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .runs import FEWEST_ROUNDS

T = TypeVar("T", bound=Hashable)

#: Microseconds by config of rounds; a config that fails is missing.
Rounds = Sequence[Mapping[T, float]]
#: Measures that many rounds of configs, or fewer if they take long.
Measure = Callable[[Sequence[T], int], Rounds[T]]
Clock = Callable[[], float]

#: The probability that a bound of a median is wrong, for each test.
LEVEL = 1e-5
#: Maximum ratio of another config's time to that of the untuned one.
MARGIN = 0.995
#: Resolution of device events in microseconds: two of the steps in which an H200 counts.
RESOLUTION = 0.064
#: Rounds per block, maximum of blocks and of seconds, to compare leaders.
_ROUNDS, _BLOCKS, RANKING_SECONDS = 20, 8, 0.25
#: The same to compare the fastest with the untuned config. Each block is prepared and warmed up again, and this many
#: must agree.
COMPARING_ROUNDS, _FINAL_BLOCKS, COMPARING_SECONDS, _AGREEING = 40, 10, 0.4, 4


def least_seconds(microseconds: Sequence[float]) -> float:
    """Return the seconds that ranking configs of these times, and comparing one with another, takes at least.

    Each block prepares and warms them up, and then runs each in the fewest rounds.
    """
    each = 1e-6 * (2 + FEWEST_ROUNDS)
    longest = sorted(microseconds)[-2:]
    ranking = sum(microseconds) if len(microseconds) > 2 else 0.0
    return each * (ranking + _AGREEING * sum(longest))


@functools.cache
def _rank(count: int) -> int:
    """Return how many of ``count`` sorted values at either end the interval of their median excludes; -1 if too few.

    The probability that at most as many are on one side of the median is at most ``LEVEL``.
    """
    below, least = 0, -1
    for k in range(count):
        below += math.comb(count, k)
        if below > LEVEL * 2**count:
            break
        least = k
    return least


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the confidence interval of a median from samples; each bound has error probability ``LEVEL``."""
    outside = _rank(len(values))
    if outside < 0:
        return -math.inf, math.inf
    ordered = sorted(values)
    return ordered[outside], ordered[-1 - outside]


def log_ratios(rounds: Rounds[T], one: T, other: T) -> list[float]:
    """Return the logarithm of the time of ``one`` over that of ``other`` in each round that has both."""
    return [math.log(times[one] / times[other]) for times in rounds if one in times and other in times]


def medians(rounds: Rounds[T]) -> dict[T, float]:
    """Return median microseconds of each config, the fastest first."""
    times: dict[T, list[float]] = {}
    for each in rounds:
        for config, time in each.items():
            times.setdefault(config, []).append(time)
    return dict(sorted(((c, statistics.median(t)) for c, t in times.items()), key=lambda item: item[1]))


def ranked(configs: Sequence[T], measure: Measure[T], clock: Clock, seconds: float = RANKING_SECONDS) -> dict[T, float]:
    """Return median microseconds of those of ``configs`` that may be the fastest, the fastest first.

    A config that is certainly slower than another one is dropped early. After ``seconds`` no block of rounds begins.
    """
    began = clock()
    running, rounds = list(configs), list[Mapping[T, float]]()
    for _ in range(_BLOCKS if running else 0):
        rounds += measure(running, _ROUNDS)
        running = _undecided(running, rounds)
        if len(running) < 2 or clock() - began >= seconds:
            break
    return medians([{config: times[config] for config in running if config in times} for times in rounds])


def _undecided(running: Sequence[T], rounds: Rounds[T]) -> list[T]:
    """Return the configs that are not certainly slower than the fastest; one missing from a round has failed."""
    worked = [config for config in running if rounds and config in rounds[-1]]
    if not worked:
        return []
    known = medians(rounds)
    best = min(worked, key=known.__getitem__)
    return [config for config in worked if median_interval(log_ratios(rounds, config, best))[0] <= 0.0]


@dataclass(frozen=True, kw_only=True)
class Verdict(Generic[T]):
    """Result of a comparison.

    ``replaces``: the challenger is certainly faster than the baseline, by more than ``MARGIN`` and ``RESOLUTION``.
    ``times`` are the median microseconds of both, without those that failed.
    """

    replaces: bool
    times: Mapping[T, float]


def compared(
    challenger: T,
    baseline: T,
    measure: Measure[T],
    clock: Clock,
    seconds: float = COMPARING_SECONDS,
    count: int = COMPARING_ROUNDS,
) -> Verdict[T]:
    """Compare two configs in blocks of ``count`` rounds until it is certain which is faster; in doubt, take the baseline.

    Each block is prepared again, so that addresses and the device's history differ between blocks. The challenger must
    be faster in every one of them. After ``seconds`` only the blocks begin that must agree.
    """
    began = clock()
    rounds: list[Mapping[T, float]] = []
    for blocks in range(1, _FINAL_BLOCKS + 1):
        fresh = measure((baseline, challenger), count)
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
        if blocks >= _AGREEING and clock() - began >= seconds:
            break
    return Verdict(replaces=False, times=medians(rounds))
