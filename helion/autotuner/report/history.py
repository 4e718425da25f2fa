"""A search as its log records it, and its analysis."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..outcome import Outcome, Status


@dataclass(frozen=True, kw_only=True)
class Step:
    """One config: ``seconds`` since the search began, and its outcome."""

    seconds: float
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Matter:
    """Effect of a config key on times: the geometric mean of the times with its worst value over that with its best.

    ``values`` are these means relative to the best, by value as text.
    """

    key: str
    ratio: float
    values: tuple[tuple[str, float, int], ...]


@dataclass(frozen=True, kw_only=True)
class History:
    """One search: its options, the configs it tried, and its answer (None if it did not end)."""

    begin: dict[str, Any]
    steps: tuple[Step, ...]
    end: dict[str, Any] | None

    @property
    def name(self) -> str:
        return str(self.begin.get("name", "?"))

    @property
    def effort(self) -> str:
        return str(self.begin.get("effort", "?"))

    def changed(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of a config that differ from the untuned one."""
        seed = self.begin.get("baseline") or {}
        return {key: value for key, value in config.items() if key not in seed or seed[key] != value}

    @property
    def working(self) -> list[Step]:
        return [step for step in self.steps if step.outcome.microseconds is not None]

    def trajectory(self) -> list[tuple[float, float]]:
        """List the seconds and the new least microseconds at each improvement."""
        best, found = math.inf, []
        for step in self.working:
            if step.outcome.time < best:
                best = step.outcome.time
                found.append((step.seconds, best))
        return found

    def counts(self) -> dict[str, int]:
        """Count the configs of each status."""
        seen = [step.outcome.status for step in self.steps]
        return {status.value: seen.count(status) for status in Status if status in seen}

    def matters(self) -> list[Matter]:
        """List the keys that were varied, those with the largest effect first."""
        working = self.working
        keys = list(working[0].outcome.config) if working else []
        found = (_matter(key, [step.outcome for step in working]) for key in keys)
        return sorted((each for each in found if each is not None), key=lambda each: -each.ratio)


def _matter(key: str, outcomes: Sequence[Outcome]) -> Matter | None:
    by_value: dict[str, list[float]] = {}
    for outcome in outcomes:
        by_value.setdefault(json.dumps(outcome.config.get(key)), []).append(math.log(outcome.time))
    if len(by_value) < 2:
        return None
    means = {value: statistics.fmean(logs) for value, logs in by_value.items()}
    least = min(means.values())
    rows = ((value, math.exp(mean - least), len(by_value[value])) for value, mean in means.items())
    values = tuple(sorted(rows, key=lambda row: row[1]))
    return Matter(key=key, ratio=values[-1][1], values=values)


def histories(lines: Iterable[str]) -> list[History]:
    """Parse the searches of a log, in order. An incomplete last line is dropped.

    Raises ValueError, with the number of the line, for a file that is no log.
    """
    found: list[History] = []
    begin: dict[str, Any] | None = None
    steps: list[Step] = []

    def close(end: dict[str, Any] | None) -> None:
        if begin is not None:
            found.append(History(begin=begin, steps=tuple(steps), end=end))
        steps.clear()

    records = list(lines)
    for at, line in enumerate(records, 1):
        try:
            record = json.loads(line)
            event = record["event"]
            if event == "begin":
                close(None)
                begin = record
            elif event == "tried" and begin is not None:
                steps.append(Step(seconds=float(record["at"]), outcome=Outcome.from_dict(record)))
            elif event == "end" and begin is not None:
                close(record)
                begin = None
            else:
                raise ValueError(f"event {event!r} outside of a search")
        except (KeyError, TypeError, ValueError) as error:
            if at == len(records) and isinstance(error, json.JSONDecodeError):
                break
            raise ValueError(f"line {at} is none of a tuning log: {error}") from error
    close(None)
    return found
