"""Output of a search: a bar on a terminal, lines elsewhere, a log file, and at the end the decorator to paste."""

from __future__ import annotations

import collections
import importlib
import json
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from .._support import logs
from ..config import Config
from .options import Options
from .outcome import Outcome, Status
from .tuner import Budget, Listener, Result

#: Seconds between lines if there is no terminal.
_INTERVAL = 10.0
_BAD = (Status.FAILED, Status.TIMED_OUT, Status.CRASHED, Status.INACCURATE, Status.NO_MEMORY)

Decorator = Callable[[Config], str]


class Tally:
    """Summary so far: the best time, that of the baseline, and the number of each status."""

    def __init__(self, budget: Budget, baseline: Config) -> None:
        self.budget = budget
        self.began = time.monotonic()
        self.best: float | None = None
        self.untuned: float | None = None
        self.counts: collections.Counter[Status] = collections.Counter()
        self._baseline = baseline

    def add(self, outcome: Outcome) -> None:
        self.counts[outcome.status] += 1
        if outcome.microseconds is not None:
            self.best = min(outcome.microseconds, self.best or outcome.microseconds)
            if outcome.config == self._baseline:
                self.untuned = outcome.microseconds

    @property
    def tried(self) -> int:
        return sum(self.counts.values())

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.budget.seconds - (time.monotonic() - self.began))

    def text(self) -> str:
        """Format one line without counts that are 0."""
        parts = [f"{self.tried} tried"]
        if self.best is not None:
            parts.append(f"best {self.best:.1f} us")
            if self.untuned is not None:
                parts.append(f"{self.untuned / self.best:.2f} x the seed")
        parts += [f"{self.counts[status]} {status.value}" for status in _BAD if self.counts[status]]
        return ", ".join([*parts, f"{self.seconds_left:.0f} s left"])


class Lines:
    """Listener that prints a line at intervals."""

    def __init__(self, name: str, tally: Tally, decorator: Decorator, stream: TextIO) -> None:
        self._name = name
        self._tally = tally
        self._decorator = decorator
        self._stream = stream
        self._last = time.monotonic()

    def tried(self, outcome: Outcome) -> None:
        self._tally.add(outcome)
        if outcome.status is Status.INACCURATE:
            print(f"helion: {self._name}: a config was left out: {outcome.detail}", file=self._stream)
        if time.monotonic() - self._last >= _INTERVAL:
            self._last = time.monotonic()
            print(f"helion: tuning {self._name}: {self._tally.text()}", file=self._stream)

    def finished(self, result: Result) -> None:
        print(summary(self._name, result, self._decorator), file=self._stream)


class Bar:
    """Listener with a rich progress bar on a terminal."""

    def __init__(self, name: str, tally: Tally, decorator: Decorator, stream: TextIO, rich: Any) -> None:
        self._name = name
        self._tally = tally
        self._decorator = decorator
        self._stream = stream
        console = importlib.import_module("rich.console").Console(file=stream)
        self._progress = rich.Progress(console=console, transient=True)
        self._task = self._progress.add_task(f"tuning {name}", total=tally.budget.configs)
        self._progress.start()

    def tried(self, outcome: Outcome) -> None:
        self._tally.add(outcome)
        self._progress.update(self._task, advance=1, description=f"tuning {self._name}: {self._tally.text()}")

    def finished(self, result: Result) -> None:
        self._progress.stop()
        print(summary(self._name, result, self._decorator), file=self._stream)


class Log:
    """Listener that writes a file of JSON lines immediately: a header, a line per config, the result."""

    def __init__(self, path: pathlib.Path, name: str, options: Options, baseline: Config, decorator: Decorator) -> None:
        self._path = path
        self._decorator = decorator
        self._began = time.monotonic()
        self._write(
            {
                "event": "begin",
                "name": name,
                "effort": options.effort,
                "search": options.search,
                "seconds": options.seconds,
                "configs": options.configs,
                "random_seed": options.random_seed,
                "baseline": baseline.to_dict(),
                "when": time.time(),
            }
        )

    def tried(self, outcome: Outcome) -> None:
        self._write({"event": "tried", "at": self._elapsed(), **outcome.to_dict()})

    def finished(self, result: Result) -> None:
        self._write(
            {
                "event": "end",
                "at": self._elapsed(),
                "config": result.config.to_dict(),
                "decorator": self._decorator(result.config),
                "microseconds": result.microseconds,
                "baseline_microseconds": result.baseline_microseconds,
                "why": result.why,
            }
        )

    def _elapsed(self) -> float:
        return round(time.monotonic() - self._began, 4)

    def _write(self, record: dict[str, Any]) -> None:
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            logs.say_once(f"helion: the log {self._path} cannot be written: {error}")


def summary(name: str, result: Result, decorator: Decorator) -> str:
    """Format the result, and the decorator that fixes it."""
    tried = f"{len(result.outcomes)} configs in {result.seconds:.1f} s, {result.why}"
    if result.microseconds is None:
        return f"helion: tuned {name}: no time was measured ({tried}): {decorator(result.config)}"
    gain = "" if result.speedup is None else f", {result.speedup:.2f} x the seed"
    return f"helion: tuned {name}: {result.microseconds:.1f} us{gain} ({tried}): {decorator(result.config)}"


def listeners(
    name: str, budget: Budget, options: Options, baseline: Config, decorator: Decorator
) -> Sequence[Listener]:
    """Return the listeners of a search with these options: ``progress`` and ``log``."""
    found: list[Listener] = []
    if options.progress:
        found.append(_shown(name, Tally(budget, baseline), decorator, sys.stderr))
    if options.log:
        found.append(Log(pathlib.Path(options.log), name, options, baseline, decorator))
    return found


def _shown(name: str, tally: Tally, decorator: Decorator, stream: TextIO) -> Listener:
    if stream.isatty():
        try:
            return Bar(name, tally, decorator, stream, importlib.import_module("rich.progress"))
        except ImportError:
            pass
    return Lines(name, tally, decorator, stream)
