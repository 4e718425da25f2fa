"""One config for several argument sets: evaluated on each, and scored over all."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ...config import Config
from ..outcome import Outcome, Status
from .protocol import Evaluator

#: Aggregations of the times of several argument sets.
AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "geomean": lambda times: math.exp(statistics.fmean(map(math.log, times))),
    "max": max,
}
#: Converts a config to the space of one argument set, None if it is not legal there.
Translate = Callable[[Config], Config | None]


class SeveralSets:
    """Evaluators for each set, with the conversion of configs.

    ``units`` are the reference microseconds of each set.
    """

    capacity = 1

    def __init__(
        self, sets: Sequence[tuple[Evaluator, Translate]], aggregation: str, units: Sequence[float] | None = None
    ) -> None:
        self._sets = sets
        self._combine = AGGREGATIONS[aggregation]
        self._units = [1.0] * len(sets) if units is None else list(units)
        self._waiting: deque[Config] = deque()

    @property
    def waited(self) -> float:
        return sum(evaluator.waited for evaluator, _ in self._sets)

    def start(self, config: Config) -> None:
        self._waiting.append(config)

    def finish(self) -> Outcome:
        config = self._waiting.popleft()
        times, seconds = [], 0.0
        for (evaluator, translate), unit in zip(self._sets, self._units, strict=True):
            local = translate(config)
            if local is None:
                return Outcome(config=config, status=Status.FAILED, detail="not legal for all argument sets")
            evaluator.start(local)
            outcome = evaluator.finish()
            if outcome.microseconds is None:
                return Outcome(config=config, status=outcome.status, detail=outcome.detail)
            times.append(outcome.microseconds / unit)
            seconds += outcome.compile_seconds or 0.0
        return Outcome(config=config, status=Status.OK, microseconds=self._combine(times), compile_seconds=seconds)

    def rounds(self, configs: Sequence[Config], count: int) -> Sequence[Mapping[Config, float]]:
        parts = [self._rounds(at, configs, count) for at in range(len(self._sets))]
        return [
            {
                config: self._combine([times[config] for times in rows])
                for config in configs
                if all(config in times for times in rows)
            }
            for rows in zip(*parts, strict=False)
        ]

    def _rounds(self, at: int, configs: Sequence[Config], count: int) -> list[dict[Config, float]]:
        """Measure rounds of one set, in its unit; keys are the configs for all sets."""
        (evaluator, translate), unit = self._sets[at], self._units[at]
        local = {config: found for config in configs if (found := translate(config)) is not None}
        measured = evaluator.rounds(list(dict.fromkeys(local.values())), count)
        return [{c: times[name] / unit for c, name in local.items() if name in times} for times in measured]

    def close(self) -> None:
        for evaluator, _ in self._sets:
            evaluator.close()
