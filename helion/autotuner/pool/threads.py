"""Compilations in threads of this process, whose results are taken until a deadline."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from ..._support.locks import done_before_forks, in_forked_process
from ..._support.terms import Terms
from .compiling import Built

#: Calls a compilation in whichever thread, on the ``Terms`` of the second argument.
Run = Callable[..., Any]
#: Jobs that run to the end of a stage although nothing waits for them.
_LEFT: set[Future[Built]] = set()
in_forked_process(_LEFT.clear)


def left_running() -> int:
    """Return the number of jobs of closed pools that still run."""
    return len(_LEFT)


class LimitedJob(Protocol):
    """A compilation whose assembler can be ended."""

    def run_within(self, seconds: float) -> object:
        """Compile and return the result, as far as possible in this time. Raises the compiler's errors."""
        ...


class ThreadPool:
    """Pool of at most ``workers`` jobs at once, which begin in the order in which they are submitted.

    Times are those of ``time.monotonic``. Results are taken until the time ``until``. No job begins that needs longer than
    that: as long as the fastest so far, or ``expected`` seconds at first. A job in flight at ``until`` is late. It gives
    up where it can, its assembler at the time ``ends``. Jobs with a key in ``compiled`` are done.
    """

    def __init__(
        self,
        run: Run,
        workers: int,
        until: float,
        *,
        ends: float | None = None,
        expected: float = 0.0,
        compiled: Collection[Hashable] = (),
    ) -> None:
        self._run = run
        self._until = until
        self._ends = until if ends is None else ends
        self._expected = expected
        self._compiled = compiled
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="helion-compile")
        self._seconds: list[float] = []
        self._jobs: dict[Hashable, Future[Built]] = {}
        self._terms: dict[Future[Built], Terms] = {}
        self._in_flight: dict[Hashable, Future[Built]] = {}
        self._given_up: set[Hashable] = set()
        self._is_timed = threading.Event()
        if math.isfinite(until):
            self._is_timed.set()

    def submit(
        self,
        key: Hashable,
        job: LimitedJob,
        *,
        ends: float = -math.inf,
        waits: bool = False,
        longer: float = 1.0,
    ) -> None:
        """Compile ``job``, unless one with this key was submitted and not polled.

        It gives up if it can be done neither before the time ``ends`` nor while results are taken. It takes ``longer``
        than the others by this ratio. If it ``waits``, the stage that takes most time begins after ``take_at``.
        """
        if key in self._jobs:
            return
        if key in self._compiled:
            self._jobs[key] = Future()
            self._jobs[key].set_result(Built(key=key, seconds=0.0))
            return

        def is_late(left: Callable[[], float]) -> bool:
            if waits:
                self._is_timed.wait()
            late = time.monotonic() + longer * left() >= max(self._until, ends)
            self._given_up |= {key} if late else set()
            return late

        terms = Terms(is_late=is_late)
        self._jobs[key] = self._threads.submit(self._run, lambda: self._built(key, job), terms)
        self._jobs[key].add_done_callback(lambda _: terms.outside.set())
        self._terms[self._jobs[key]] = terms

    def wait_until_parsed(self, key: Hashable, seconds: float) -> None:
        """Wait until a job that was submitted has been parsed, or for so many seconds."""
        self._terms[self._jobs[key]].outside.wait(seconds)

    def wait_for(self, key: Hashable) -> None:
        """Wait until a job that was submitted has ended."""
        wait([self._jobs[key]])

    def take_at(self, until: float) -> None:
        """Take results until another time than the pool was made for."""
        self._until = until
        self._is_timed.set()

    def poll(self, seconds: float) -> list[Built]:
        """Return the results of the jobs that have ended. At the deadline the others are late.

        Wait for one that ends if none has, unless ``seconds`` is 0.
        """
        if seconds and not any(job.done() for job in self._jobs.values()):
            wait(self._jobs.values(), max(0.0, self._until - time.monotonic()), FIRST_COMPLETED)
        is_over = time.monotonic() >= self._until
        taken = {key: job for key, job in self._jobs.items() if is_over or job.done()}
        for key in taken:
            del self._jobs[key]
        return list(self._results(taken))

    def in_flight(self) -> list[Hashable]:
        """List the keys of the jobs that were late, also of those that have ended since."""
        return list(self._in_flight)

    def late(self, keys: Collection[Hashable]) -> list[Built]:
        """Wait for those of the late jobs that have these ``keys``, until the time ``ends``, and drop the others.

        Return the results of those that compiled.
        """
        self._take_no_more()
        for key, job in self._in_flight.items():
            if key not in keys:
                self._terms[job].dropped.set()
        wanted = [job for key, job in self._in_flight.items() if key in keys]
        wait(wanted, min(max(0.0, self._ends - time.monotonic()), threading.TIMEOUT_MAX))
        ended = (job.result() for job in wanted if job.done() and not job.cancelled())
        return [built for built in ended if not built.failure]

    def close(self) -> None:
        """Drop all jobs, and wait until each is done or outside of Python. Those outside end with their stage."""
        self._take_no_more()
        for terms in self._terms.values():
            terms.dropped.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for job, terms in self._terms.items():
            terms.outside.wait()
            if not job.done():
                _LEFT.add(job)
                job.add_done_callback(_LEFT.discard)
                done_before_forks(job.done)

    def _take_no_more(self) -> None:
        self._until = min(self._until, time.monotonic())
        self._is_timed.set()  # jobs that wait for it give up

    def of_compiled(self, keys: Collection[Hashable]) -> ThreadPool:
        """Return a pool whose jobs, with these keys, are done."""
        return ThreadPool(self._run, 1, math.inf, compiled=keys)

    def _results(self, jobs: dict[Hashable, Future[Built]]) -> Iterator[Built]:
        for key, job in jobs.items():
            if job.done():
                yield job.result()
                continue
            if not job.cancel():
                self._in_flight[key] = job
            yield _late(key)

    def _built(self, key: Hashable, job: LimitedJob) -> Built:
        began = time.monotonic()
        if began + min(self._seconds, default=self._expected) >= self._until:
            return _late(key)
        try:
            answer = job.run_within(self._ends - began)
        except Exception as error:  # whatever compilers raise
            late = key in self._given_up or time.monotonic() >= self._ends
            failure = str(error).strip() or type(error).__name__
            return Built(key=key, seconds=time.monotonic() - began, failure=failure, timed_out=late)
        self._seconds.append(time.monotonic() - began)
        return Built(key=key, seconds=self._seconds[-1], answer=answer)


def _late(key: Hashable) -> Built:
    return Built(key=key, seconds=0.0, failure="not compiled before the deadline", timed_out=True)
