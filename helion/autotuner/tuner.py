"""The tuning loop: takes configs from a search, tries them, reports results to it, and confirms the fastest."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..config import Config
from .measure.comparison import COMPARING_ROUNDS, COMPARING_SECONDS, RANKING_SECONDS, compared, least_seconds, ranked
from .measure.protocol import Evaluator
from .measure.runs import TRIAL_RUNS
from .options import CLOSE
from .outcome import Outcome, Status
from .search.protocol import Search

#: Number of the fastest configs that are measured again together with the untuned config.
LEADERS = 6
#: Ratio to the untuned config's time below which another config replaces it if the two could not be compared in rounds.
#: Times that were measured at different moments are off by up to a tenth.
_UNCOMPARED = 0.85


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits in seconds and configs; the first one reached ends the search."""

    seconds: float
    configs: int


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """Precision of measurements.

    Configs within ``close`` times the least time are ranked for ``ranking_seconds``. The fastest of them is compared
    with the untuned config for ``comparing_seconds``, in blocks of ``comparing_rounds``. ``brief``: before the ranking each
    config runs a few times only.

    No config runs, and none is compared, that would take until after ``seconds``. Waits for other processes' measurements
    take ``waiting_seconds`` at most.
    """

    close: float = CLOSE
    ranking_seconds: float = RANKING_SECONDS
    comparing_seconds: float = COMPARING_SECONDS
    comparing_rounds: int = COMPARING_ROUNDS
    brief: bool = False
    seconds: float = math.inf
    waiting_seconds: float = math.inf


class Listener(Protocol):
    """Listener to the events of a search."""

    def tried(self, outcome: Outcome) -> None:
        """Handle a config that was tried, or dropped."""
        ...

    def finished(self, result: Result) -> None:
        """Handle the end of the search."""
        ...


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a search.

    ``config`` is the fastest, ``baseline`` the untuned one. Times are the confirmed ones, None if no config worked.
    ``why`` is the reason for the end of the search.
    """

    config: Config
    microseconds: float | None
    baseline: Config
    baseline_microseconds: float | None
    outcomes: tuple[Outcome, ...]
    seconds: float
    why: str

    @property
    def speedup(self) -> float | None:
        """The speedup over the untuned config."""
        if self.microseconds is None or self.baseline_microseconds is None:
            return None
        return self.baseline_microseconds / self.microseconds


def tune(
    search: Search,
    evaluator: Evaluator,
    budget: Budget,
    baseline: Config,
    listeners: Sequence[Listener] = (),
    *,
    clock: Callable[[], float] = time.monotonic,
    again: Sequence[Search] = (),
    measuring: Measuring = Measuring(),
) -> Result:
    """Return the fastest config that ``search`` finds within ``budget``, never one slower than ``baseline``.

    ``again`` are more searches, each with its own budget; configs tried before are not tried again. The fastest configs
    are measured again before one is chosen.

    A keyboard interrupt ends only the search: the best config so far is the answer.
    """
    began = clock()
    outcomes: list[Outcome] = []
    try:
        for each in (search, *again):
            ends = began + measuring.seconds
            why = _searched(each, evaluator, budget, listeners, outcomes, clock, ends)
    except KeyboardInterrupt:
        why = "interrupted"
    leaders = _leaders(outcomes, baseline, measuring.close)

    def working() -> float:
        """Return the time without waiting, which makes nothing more certain."""
        return clock() - evaluator.waited

    try:
        if clock() - began + _comparing(leaders, outcomes) > measuring.seconds:
            choice = _uncompared(outcomes, baseline, _UNCOMPARED)
        else:
            choice = _chosen(leaders, baseline, evaluator, measuring, working) or _uncompared(outcomes, baseline, 0.0)
    except KeyboardInterrupt:
        why, choice = "interrupted", _uncompared(outcomes, baseline, _UNCOMPARED)
    result = Result(
        config=choice.config,
        microseconds=choice.times.get(choice.config),
        baseline=baseline,
        baseline_microseconds=choice.times.get(baseline),
        outcomes=tuple(outcomes),
        seconds=clock() - began,
        why=why,
    )
    for listener in listeners:
        listener.finished(result)
    return result


def _searched(
    search: Search,
    evaluator: Evaluator,
    budget: Budget,
    listeners: Sequence[Listener],
    outcomes: list[Outcome],
    clock: Callable[[], float],
    ends: float,
) -> str:
    """Run a search, append to ``outcomes``, and return the reason for its end.

    It also ends where the next config would run until after the time ``ends``, if it is as slow as the slowest one before.
    """
    began = clock()
    longest = 0.0
    known = {outcome.config: outcome for outcome in outcomes}
    under_way = given = 0
    exhausted = False

    def elapsed() -> float:
        return clock() - began

    while True:
        while (
            not exhausted and under_way < evaluator.capacity and given < budget.configs and elapsed() < budget.seconds
        ):
            asked = search.ask(1)
            if not asked:
                exhausted = under_way == 0
                break
            if asked[0] in known:
                search.tell(known[asked[0]])
                continue
            evaluator.start(asked[0])
            given, under_way = given + 1, under_way + 1
        if under_way == 0:
            break
        if ends < math.inf and clock() + longest > ends:
            return "out of time"
        outcome = evaluator.finish()
        under_way -= 1
        longest = max(longest, 1e-6 * TRIAL_RUNS * (outcome.microseconds or 0.0))
        outcomes.append(outcome)
        search.tell(outcome)
        for listener in listeners:
            listener.tried(outcome)
        if elapsed() >= budget.seconds:
            return "out of time"
    return "out of configs" if exhausted else "out of budget" if given >= budget.configs else "out of time"


def _comparing(leaders: Sequence[Config], outcomes: Sequence[Outcome]) -> float:
    """Return the least seconds of the comparison of ``leaders``."""
    times = {o.config: o.time for o in outcomes if o.status is Status.OK}
    return least_seconds([times[config] for config in leaders if config in times])


def _leaders(outcomes: Sequence[Outcome], baseline: Config, close: float) -> list[Config]:
    """List the baseline if it worked or was never tried, and the fastest: those within ``close`` times the least time."""
    worked = sorted((o for o in outcomes if o.status is Status.OK), key=lambda outcome: outcome.time)
    fastest = [o.config for o in worked[:LEADERS] if o.time <= close * worked[0].time]
    failed = {o.config for o in outcomes if o.status is not Status.OK}
    return list(dict.fromkeys([*([] if baseline in failed else [baseline]), *fastest]))


@dataclass(frozen=True)
class _Choice:
    """A choice, with the ``times`` of the configs it was made from."""

    config: Config
    times: Mapping[Config, float]


def _chosen(
    leaders: Sequence[Config],
    baseline: Config,
    evaluator: Evaluator,
    measuring: Measuring,
    clock: Callable[[], float],
) -> _Choice | None:
    """Return the baseline, unless the fastest of the leaders certainly beats it; None if nothing can be measured.

    Two leaders need no ranking.
    """
    seconds, rounds = measuring.comparing_seconds, measuring.comparing_rounds
    if len(leaders) == 2 and baseline in leaders:
        (other,) = (config for config in leaders if config != baseline)
        verdict = compared(other, baseline, evaluator.rounds, clock, seconds, rounds)
        if len(verdict.times) == 2:
            return _Choice(other if verdict.replaces else baseline, verdict.times)
    times = ranked(leaders, evaluator.rounds, clock, measuring.ranking_seconds)
    if not times:  # one of them spoils it for all
        working = [config for config in leaders if evaluator.rounds([config], 1)]
        times = ranked(working, evaluator.rounds, clock, measuring.ranking_seconds)
    best = next(iter(times), None)
    if best is None:
        return None
    if best == baseline or baseline not in leaders:
        return _Choice(best, times)
    verdict = compared(best, baseline, evaluator.rounds, clock, seconds, rounds)
    if baseline not in verdict.times and best in verdict.times:  # it does not work any more
        return _Choice(best, verdict.times)
    return _Choice(best if verdict.replaces else baseline, verdict.times)


def _uncompared(outcomes: Sequence[Outcome], baseline: Config, share: float) -> _Choice:
    """Choose by the times of the search alone.

    It is the baseline, if it worked, unless another took at most this ratio of its time.
    """
    times = {o.config: o.time for o in outcomes if o.status is Status.OK}
    best = min(times, key=times.__getitem__, default=baseline)
    slower = baseline in times and times[best] > share * times[baseline]
    return _Choice(baseline if slower else best, times)
