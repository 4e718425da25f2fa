"""The loop of tuning: asks a search, tries what it gives, tells it, and confirms who was fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..config import Config
from .measure.protocol import Evaluator
from .outcome import Outcome, Status
from .search.protocol import Search

#: How many of the fastest are measured again beside the config that would run untuned.
LEADERS = 6
#: Configs that were measured to be slower than the best by more than this are no leaders.
_CLOSE = 1.15
#: By how much another config must be faster than the one that would run untuned to take its place.
_MARGIN = 0.99


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Seconds and configs, whatever is used up first."""

    seconds: float
    configs: int


class Listener(Protocol):
    """Who is shown what happens."""

    def tried(self, outcome: Outcome) -> None:
        """A config was tried, or dropped."""
        ...

    def finished(self, result: Result) -> None:
        """The search is over."""
        ...


@dataclass(frozen=True, kw_only=True)
class Result:
    """``config`` is the fastest, ``baseline`` the one that would have run untuned; times are the confirmed ones, None where
    nothing worked. ``why`` says what ended the search."""

    config: Config
    microseconds: float | None
    baseline: Config
    baseline_microseconds: float | None
    outcomes: tuple[Outcome, ...]
    seconds: float
    why: str

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the config that would have run untuned."""
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
) -> Result:
    """The fastest config that ``search`` gives within ``budget``, never one slower than ``baseline``.

    An interrupt from the keyboard ends the search, and nothing else: the best so far is the answer.
    """
    began = clock()
    outcomes: list[Outcome] = []
    try:
        why = _searched(search, evaluator, budget, listeners, outcomes, lambda: clock() - began)
    except KeyboardInterrupt:
        why = "interrupted"
    times = {} if why == "interrupted" else evaluator.confirm(_leaders(outcomes, baseline))
    result = _result(outcomes, times, baseline, clock() - began, why)
    for listener in listeners:
        listener.finished(result)
    return result


def _searched(
    search: Search,
    evaluator: Evaluator,
    budget: Budget,
    listeners: Sequence[Listener],
    outcomes: list[Outcome],
    elapsed: Callable[[], float],
) -> str:
    """Fills ``outcomes``; gives what ended it."""
    under_way = given = 0
    exhausted = False
    while True:
        while (
            not exhausted and under_way < evaluator.capacity and given < budget.configs and elapsed() < budget.seconds
        ):
            asked = search.ask(1)
            if not asked:
                exhausted = under_way == 0
                break
            evaluator.start(asked[0])
            given, under_way = given + 1, under_way + 1
        if under_way == 0:
            break
        outcome = evaluator.finish()
        under_way -= 1
        outcomes.append(outcome)
        search.tell(outcome)
        for listener in listeners:
            listener.tried(outcome)
        if elapsed() >= budget.seconds:
            return "out of time"
    return "out of configs" if exhausted else "out of budget" if given >= budget.configs else "out of time"


def _leaders(outcomes: Sequence[Outcome], baseline: Config) -> list[Config]:
    """The fastest, and the baseline if it worked or was never tried."""
    worked = sorted((o for o in outcomes if o.status is Status.OK), key=lambda outcome: outcome.time)
    fastest = [o.config for o in worked[:LEADERS] if o.time <= _CLOSE * worked[0].time]
    failed = {o.config for o in outcomes if o.status is not Status.OK}
    return list(dict.fromkeys([*([] if baseline in failed else [baseline]), *fastest]))


def _result(
    outcomes: Sequence[Outcome], confirmed: Mapping[Config, float], baseline: Config, seconds: float, why: str
) -> Result:
    times = confirmed or {o.config: o.time for o in outcomes if o.status is Status.OK}
    best = min(times, key=times.__getitem__, default=baseline)
    if baseline in times and times[best] > _MARGIN * times[baseline]:
        best = baseline
    return Result(
        config=best,
        microseconds=times.get(best),
        baseline=baseline,
        baseline_microseconds=times.get(baseline),
        outcomes=tuple(outcomes),
        seconds=seconds,
        why=why,
    )
