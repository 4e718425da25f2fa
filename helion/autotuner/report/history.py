"""A search as its log has it, and what can be said of it."""

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
    """One config: ``seconds`` since the search began, and what became of it."""

    seconds: float
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Matter:
    """How much a key of the config changes times: the geometric mean of the times with its worst value over that with its
    best. ``values`` are these means relative to the best, by value as text."""

    key: str
    ratio: float
    values: tuple[tuple[str, float, int], ...]


@dataclass(frozen=True, kw_only=True)
class History:
    """One search: what it was told to do, what it tried, and its answer (None where it did not end)."""

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
        """What of a config is not as in the one that would have run untuned."""
        seed = self.begin.get("baseline") or {}
        return {key: value for key, value in config.items() if key not in seed or seed[key] != value}

    @property
    def working(self) -> list[Step]:
        return [step for step in self.steps if step.outcome.microseconds is not None]

    def trajectory(self) -> list[tuple[float, float]]:
        """Seconds and the least microseconds until then, wherever that changes."""
        best, found = math.inf, []
        for step in self.working:
            if step.outcome.time < best:
                best = step.outcome.time
                found.append((step.seconds, best))
        return found

    def counts(self) -> dict[str, int]:
        """How many configs there are of each status."""
        seen = [step.outcome.status for step in self.steps]
        return {status.value: seen.count(status) for status in Status if status in seen}

    def matters(self) -> list[Matter]:
        """The keys that were varied, those that change most first."""
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
    """The searches of a log, in order. A line that was cut off at the end is left out.

    Raises ValueError, with the number of the line, for what is no log.
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
