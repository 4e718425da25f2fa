"""Compilations in threads of this process, all of which end at one deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from .compiling import Built

#: Calls a compilation in whichever thread.
Run = Callable[[Callable[[], Any]], Any]


class LimitedJob(Protocol):
    """A compilation whose assembler can be ended."""

    def run_within(self, seconds: float) -> object:
        """Compile and return the result, as far as possible in this time. Raises the compiler's errors."""
        ...


class ThreadPool:
    """Pool of at most ``workers`` jobs at once, which end at the time ``until`` of ``time.monotonic``.

    Jobs with a key in ``compiled`` are done. Results come together once all jobs have ended, so that a measurement does not share the process with a compilation.
    """

    def __init__(self, run: Run, workers: int, until: float, compiled: Collection[Hashable] = ()) -> None:
        self._run = run
        self._until = until
        self._compiled = compiled
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="helion-compile")
        self._jobs: dict[Hashable, Future[Built]] = {}

    def submit(self, key: Hashable, job: LimitedJob) -> None:
        if key in self._compiled:
            self._jobs[key] = Future()
            self._jobs[key].set_result(Built(key=key, seconds=0.0))
            return
        self._jobs[key] = self._threads.submit(self._run, lambda: self._built(key, job))

    def poll(self, seconds: float) -> list[Built]:
        """Return the results of all jobs, at the deadline at the latest. ``seconds`` has no effect."""
        jobs, self._jobs = self._jobs, {}
        wait(jobs.values(), max(0.0, self._until - time.monotonic()))
        return list(self._results(jobs))

    def close(self) -> None:
        """Wait for the jobs in flight, and drop those that wait."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _results(self, jobs: dict[Hashable, Future[Built]]) -> Iterator[Built]:
        for key, job in jobs.items():
            if job.done():
                yield job.result()
            else:
                job.cancel()
                yield _late(key)

    def _built(self, key: Hashable, job: LimitedJob) -> Built:
        began = time.monotonic()
        if began >= self._until:
            return _late(key)
        try:
            answer = job.run_within(self._until - began)
        except Exception as error:  # whatever compilers raise
            late = time.monotonic() >= self._until
            return Built(key=key, seconds=time.monotonic() - began, failure=str(error), timed_out=late)
        return Built(key=key, seconds=time.monotonic() - began, answer=answer)


def _late(key: Hashable) -> Built:
    return Built(key=key, seconds=0.0, failure="not compiled before the deadline", timed_out=True)
