"""What users see of a search: a bar on a terminal, lines elsewhere, nothing where they want nothing, and the decorator to paste."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from helion.autotuner import progress
from helion.autotuner.options import Options
from helion.autotuner.outcome import Outcome, Status
from helion.autotuner.progress import Bar, Lines, Log, listeners
from helion.autotuner.tuner import Budget, Listener, Result
from helion.config import Config

SEED, BEST = Config(num_warps=4), Config(num_warps=8)
OUTCOMES = (
    Outcome(config=SEED, status=Status.OK, microseconds=20.0),
    Outcome(config=BEST, status=Status.OK, microseconds=16.0),
    Outcome(config=Config(num_warps=1), status=Status.CRASHED, detail="crashed"),
    Outcome(config=Config(num_warps=2), status=Status.INACCURATE, detail="result 0 is 0.3 off, 0.004 is allowed"),
    Outcome(config=Config(num_warps=16), status=Status.TIMED_OUT, detail="no answer"),
)
RESULT = Result(
    config=BEST, microseconds=16.0, baseline=SEED, baseline_microseconds=20.0, outcomes=OUTCOMES, seconds=2.0,
    why="out of time",
)  # fmt: skip
SUMMARY = "helion: tuned k on sm_90: 16.0 us, 1.25 x the seed (5 configs in 2.0 s, out of time): @k(num_warps=8)\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, **options: object) -> list[type]:
    monkeypatch.setattr(progress.sys, "stderr", stream)
    decorator: Callable[[Config], str] = lambda config: f"@k(num_warps={config['num_warps']})"  # noqa: E731
    made = Options(**options)  # type: ignore[arg-type]
    found: list[Listener] = list(listeners("k on sm_90", Budget(seconds=30.0, configs=5), made, SEED, decorator))
    for listener in found:
        for outcome in OUTCOMES:
            listener.tried(outcome)
        listener.finished(RESULT)
    return [type(listener) for listener in found]


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    stream = Terminal()
    assert shown(monkeypatch, stream) == [Bar]
    assert "tuning k on sm_90" in stream.getvalue() and stream.getvalue().endswith(SUMMARY)


def test_elsewhere_there_are_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_INTERVAL", 0.0)
    stream = io.StringIO()
    assert shown(monkeypatch, stream) == [Lines]
    lines = stream.getvalue().splitlines(keepends=True)
    assert lines[0].startswith("helion: tuning k on sm_90: 1 tried, best 20.0 us, 1.00 x the seed, ")
    assert "a config was left out: result 0 is 0.3 off" in stream.getvalue()
    assert "5 tried, best 16.0 us, 1.25 x the seed, 1 timed out, 1 crashed, 1 inaccurate, " in lines[-2]
    assert lines[-1] == SUMMARY
    monkeypatch.setattr(progress, "_INTERVAL", 1e9)
    quiet = io.StringIO()
    shown(monkeypatch, quiet)
    assert len(quiet.getvalue().splitlines()) == 2  # what is inaccurate, and the end


def test_nothing_is_shown_to_who_wants_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = io.StringIO()
    assert shown(monkeypatch, stream, progress=False) == [] and stream.getvalue() == ""
    log = tmp_path / "log"
    assert shown(monkeypatch, stream, progress=False, log=str(log)) == [Log] and stream.getvalue() == ""
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["event"] for record in records] == ["begin", *["tried"] * 5, "end"]
    assert records[-1]["decorator"] == "@k(num_warps=8)" and records[0]["baseline"] == {"num_warps": 4}
