"""Processes that take the GPU in turn: their lines, failures, and the end of those that hang."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.turns import in_turn

ROOT = Path(__file__).parents[2]


def job(*statements: str) -> list[str]:
    text = "\n".join(
        (
            "import json, sys, time",
            f"sys.path.insert(0, {str(ROOT)!r})",
            "from benchmarks.turns import turn",
            *statements,
        )
    )
    return [sys.executable, "-c", text]


def test_lines_and_failures_are_those_of_each_job() -> None:
    held = "with turn(): print(json.dumps({'at': 1}), flush=True); print('other text'); print(json.dumps({'at': 2}))"
    jobs = {"one": job(held), "two": job(held), "bad": job("raise ValueError('no such shape')")}
    found = [*in_turn(jobs, at_once=2, turn_seconds=600, seconds=600)]
    assert [line for name, line in found if name == "one"] == [{"at": 1}, {"at": 2}]
    assert [line for name, line in found if name == "two"] == [{"at": 1}, {"at": 2}]
    ((_, bad),) = [each for each in found if each[0] == "bad"]
    assert "exit status 1" in bad["why"] and "no such shape" in bad["why"]


def test_lines_of_libraries_end_no_run() -> None:
    printed = job('print(\'{"at": 1, "cut\')', "print('[1]')", "print('{}')", "print('{\"at\": 2}')")
    assert [*in_turn({"one": printed}, at_once=1, turn_seconds=600, seconds=600)] == [("one", {"at": 2})]


def test_one_that_hangs_in_its_turn_is_ended() -> None:
    found = [*in_turn({"slow": job("with turn(): time.sleep(1000)")}, at_once=1, turn_seconds=0.1, seconds=600)]
    assert found == [("slow", {"why": "no line for 0.1 s of its turn"})]


def test_a_turn_that_has_ended_is_not_late() -> None:
    jobs = {"slow": job("with turn(): pass", "time.sleep(1000)")}
    assert [*in_turn(jobs, at_once=1, turn_seconds=2, seconds=4)] == [("slow", {"why": "no time left"})]


def test_all_end_when_the_time_is_over() -> None:
    found = [*in_turn({"one": job("time.sleep(1000)"), "two": job()}, at_once=1, turn_seconds=600, seconds=0.1)]
    assert found == [("one", {"why": "no time left"}), ("two", {"why": "no time left"})]
