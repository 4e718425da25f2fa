"""Compilations in threads: results, errors and the deadline."""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from helion._support.terms import Terms
from helion.autotuner.pool.compiling import Built
from helion.autotuner.pool.threads import ThreadPool, left_running


@dataclass(frozen=True)
class Job:
    work: Callable[[], Any]

    def run_within(self, seconds: float) -> Any:
        assert seconds > 0
        return self.work()


def failing() -> None:
    raise ValueError("no such instruction")


def here(function: Callable[[], Any], terms: Terms) -> Any:
    return function()


def polled(pool: ThreadPool) -> list[Built]:
    """Return the results of all jobs."""
    found: list[Built] = []
    while pool._jobs:
        found += pool.poll(1.0)
    return found


def test_results_and_errors_come_with_their_keys() -> None:
    pool = ThreadPool(here, 2, time.monotonic() + 1e4)
    for key, work in (("right", lambda: 7), ("wrong", failing), ("also right", lambda: 8)):
        pool.submit(key, Job(work))
    found = {built.key: built for built in polled(pool)}
    pool.close()
    assert [found[key].answer for key in ("right", "also right")] == [7, 8]
    assert found["wrong"].failure == "no such instruction" and not found["wrong"].timed_out
    assert pool.poll(0.0) == []


def test_every_job_runs_in_the_given_function() -> None:
    inside: list[int] = []

    def run(function: Callable[[], Any], terms: Terms) -> Any:
        inside.append(threading.get_ident())
        return function()

    pool = ThreadPool(run, 1, time.monotonic() + 1e4)
    pool.submit("a", Job(threading.get_ident))
    (built,) = polled(pool)
    pool.close()
    assert inside == [built.answer] != [threading.get_ident()]


@pytest.mark.parametrize("parses", [True, False])
def test_a_job_is_waited_for_until_it_has_been_parsed_at_the_latest_until_its_end(parses: bool) -> None:
    go = threading.Event()

    def run(function: Callable[[], Any], terms: Terms) -> Any:
        if parses:
            terms.outside.set()
        go.wait()
        return function()

    pool = ThreadPool(run, 1, time.monotonic() + 1e4)
    pool.submit("a", Job(lambda: 1))
    (terms,) = pool._terms.values()
    if parses:
        pool.wait_until_parsed("a", 600.0)
        assert terms.outside.is_set() and not pool.poll(0.0)
    pool.wait_until_parsed("a", 0.0)
    go.set()
    pool.wait_until_parsed("a", 600.0)
    assert terms.outside.is_set() and [built.answer for built in polled(pool)] == [1]
    pool.close()


def test_what_is_not_done_at_the_deadline_is_late_and_what_waits_never_begins() -> None:
    begun, go = [], threading.Event()

    def slow() -> None:
        begun.append(True)
        go.wait()

    pool = ThreadPool(here, 1, time.monotonic() + 0.2)
    for key in ("first", "second"):
        pool.submit(key, Job(slow))
    late = polled(pool)
    go.set()
    pool.close()
    assert [(built.key, built.timed_out) for built in late] == [("first", True), ("second", True)]
    assert len(begun) <= 1


def test_what_is_compiled_already_is_done_even_at_the_deadline() -> None:
    pool = ThreadPool(here, 1, time.monotonic(), compiled=("known",))
    for key in ("known", "other"):
        pool.submit(key, Job(failing))
    known, other = pool.poll(0.0)
    pool.close()
    assert (known.key, known.failure) == ("known", "") and other.timed_out


def test_what_cannot_end_in_time_never_begins() -> None:
    pool = ThreadPool(here, 1, time.monotonic() + 1e4, expected=1e5)
    pool.submit("long", Job(failing))
    (built,) = polled(pool)
    assert built.timed_out
    pool = ThreadPool(here, 1, time.monotonic() + 1e4, expected=1e3)
    pool.submit("short", Job(lambda: 7))
    pool.submit("short", Job(failing))  # under way
    pool.submit("second", Job(lambda: 8))
    assert [built.answer for built in polled(pool)] == [7, 8]
    pool._seconds[:] = [1e5]  # as if they had taken longer than expected
    pool.submit("third", Job(failing))
    assert [built.timed_out for built in polled(pool)] == [True]
    pool.close()


def test_what_compiles_after_the_deadline_is_late_but_known() -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(then: Callable[[], Any]) -> Any:
        begun.set()
        go.wait()
        return then()

    for then, late in ((lambda: 7, [7]), (failing, [])):
        begun.clear()
        go.clear()
        pool = ThreadPool(here, 1, time.monotonic() + 1e4, ends=time.monotonic() + 2e4)
        pool.submit("a", Job(lambda then=then: slow(then)))
        pool.submit("b", Job(failing))
        begun.wait()
        pool._until = 0.0
        assert [built.timed_out for built in pool.poll(0.0)] == [True, True]
        go.set()
        assert pool.in_flight() == ["a"] and [built.answer for built in pool.late(["a"])] == late
        pool.close()


def test_after_the_deadline_nothing_is_compiled() -> None:
    pool = ThreadPool(here, 2, time.monotonic())
    pool.submit("a", Job(failing))
    (built,) = pool.poll(0.0)
    pool.close()
    assert built.timed_out and built.failure == "not compiled before the deadline"


def test_results_are_taken_as_they_come() -> None:
    pool, go = ThreadPool(here, 2, time.monotonic() + 1e4), threading.Event()
    pool.submit("slow", Job(go.wait))
    assert pool.poll(0.0) == []
    pool.submit("fast", Job(lambda: 7))
    assert [built.key for built in pool.poll(1.0)] == ["fast"]
    go.set()
    assert [built.key for built in pool.poll(1.0)] == ["slow"]
    assert pool.poll(1.0) == []
    pool.close()


def test_results_can_be_taken_at_another_time() -> None:
    pool, begun, go = ThreadPool(here, 2, float("inf")), threading.Event(), threading.Event()
    pool.submit("soon", Job(lambda: 7))
    pool.submit("late", Job(lambda: begun.set() or go.wait()))
    pool.wait_for("soon")
    begun.wait()
    pool.take_at(time.monotonic())
    found = {built.key: built for built in pool.poll(0.0)}
    go.set()
    assert found["soon"].answer == 7 and found["late"].timed_out
    assert [built.key for built in pool.late(["late"])] == ["late"]
    pool.close()


def test_a_job_gives_up_where_it_can_be_done_neither_in_time_nor_at_its_own_end() -> None:
    asked: dict[str, list[bool]] = {}

    def run(function: Callable[[], Any], terms: Terms) -> Any:
        asked.setdefault("late", []).extend(terms.is_late(lambda s=seconds: s) for seconds in (0.0, 1e3, 1e5))
        return function()

    for ends, expected in ((-math.inf, [False, True, True]), (time.monotonic() + 1e4, [False, False, True])):
        asked.clear()
        pool = ThreadPool(run, 1, time.monotonic() + 500.0, ends=time.monotonic() + 1e6)
        pool.submit("a", Job(failing), ends=ends)
        (built,) = polled(pool)
        pool.close()
        assert asked["late"] == expected and built.timed_out


@pytest.mark.parametrize(("longer", "expected"), [(1.0, False), (2.0, True)])
def test_a_longer_job_waits_until_the_time_is_known_and_takes_longer(longer: float, expected: bool) -> None:
    asked, late = threading.Event(), list[bool]()

    def run(function: Callable[[], Any], terms: Terms) -> Any:
        asked.set()
        late.append(terms.is_late(lambda: 300.0))
        return function()

    pool = ThreadPool(run, 1, math.inf)
    pool.submit("longer", Job(lambda: 7), waits=True, longer=longer)
    asked.wait()
    assert late == []
    pool.take_at(time.monotonic() + 500.0)
    polled(pool)
    pool.close()
    assert late == [expected]


def test_a_job_that_waits_gives_up_where_its_pool_ends() -> None:
    late: list[bool] = []
    pool = ThreadPool(lambda function, terms: late.append(terms.is_late(lambda: 0.0)) or function(), 1, math.inf)
    pool.submit("longer", Job(lambda: 7), waits=True)
    while not pool._jobs["longer"].running():
        time.sleep(0.001)
    pool.close()
    assert late == [True]


class Outside:
    """Jobs that are in a stage outside of Python until ``go``, and would then begin another one."""

    def __init__(self) -> None:
        self.go, self.dropped = threading.Event(), list[bool]()
        self.begun, self._own = threading.Semaphore(0), threading.local()

    def run(self, function: Callable[[], Any], terms: Terms) -> Any:
        self._own.terms = terms
        return function()

    def stage(self, key: str) -> str:
        terms = self._own.terms
        terms.outside.set()
        self.begun.release()
        self.go.wait()
        self.dropped.append(terms.dropped.is_set())
        if terms.dropped.is_set():
            raise RuntimeError("it was dropped")
        return key

    def pool(self, ends: float, *keys: str) -> ThreadPool:
        """Return a pool whose jobs are all late and outside."""
        pool = ThreadPool(self.run, len(keys), time.monotonic() + 1e4, ends=ends)
        for key in keys:
            pool.submit(key, Job(functools.partial(self.stage, key)))
        for _ in keys:
            self.begun.acquire()
        pool._until = 0.0
        assert all(built.timed_out for built in pool.poll(0.0))
        return pool


def test_a_closed_pool_leaves_jobs_behind_that_end_with_their_stage() -> None:
    jobs = Outside()
    pool = jobs.pool(math.inf, "a", "b")
    before = left_running()
    pool.close()
    assert left_running() == before + 2 and jobs.dropped == []
    jobs.go.set()
    assert [future.result(600.0).failure for future in pool._terms] == ["it was dropped"] * 2
    assert jobs.dropped == [True, True] and left_running() == before


def test_a_closed_pool_waits_for_jobs_that_are_in_python() -> None:
    inside, ended = threading.Event(), []

    def run(function: Callable[[], Any], terms: Terms) -> Any:
        inside.set()
        terms.dropped.wait()
        time.sleep(0.05)
        ended.append(True)
        return function()

    pool = ThreadPool(run, 1, math.inf)
    pool.submit("a", Job(lambda: 7))
    inside.wait()
    pool.close()
    assert ended == [True]


def test_late_jobs_are_waited_for_if_they_are_wanted_until_the_end_of_their_pool() -> None:
    jobs = Outside()
    pool = jobs.pool(time.monotonic() + 0.1, "wanted", "other")
    assert pool.in_flight() == ["wanted", "other"] and pool.late(["wanted"]) == []
    assert time.monotonic() >= pool._ends
    dropped = {key: pool._terms[pool._in_flight[key]].dropped.is_set() for key in ("wanted", "other")}
    assert dropped == {"wanted": False, "other": True}
    pool.close()
    jobs.go.set()
    jobs = Outside()
    pool = jobs.pool(math.inf, "wanted", "other")
    threading.Timer(0.05, jobs.go.set).start()
    assert [built.answer for built in pool.late(["wanted"])] == ["wanted"]
    pool.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_fork_waits_for_what_was_left_running() -> None:
    jobs = Outside()
    pool = jobs.pool(math.inf, "a")
    pool.close()
    (job,) = pool._terms
    threading.Timer(0.2, jobs.go.set).start()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if job.done() and left_running() == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0 and jobs.dropped == [True]
