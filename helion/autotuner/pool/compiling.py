"""Pool that precompiles jobs, each in a separate process, several at a time."""

from __future__ import annotations

import select
import statistics
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Protocol

from .children import ATTEMPTS, Child, ForkServer, ProcessDied, Raised, ServerDied, TimedOut

#: Memory limit of a compilation in MiB: ten times the largest use observed.
MEGABYTES = 16 * 1024


class Job(Protocol):
    """A picklable compilation."""

    def run(self) -> object:
        """Compile and return the result. Raises the compiler's errors."""
        ...


@dataclass(frozen=True, kw_only=True)
class Built:
    """Result of one job: its answer, or ``failure`` as text. ``timed_out`` and ``crashed`` are the kind of failure."""

    key: Hashable
    seconds: float
    answer: object = None
    failure: str = ""
    timed_out: bool = False
    crashed: bool = False


@dataclass
class Patience:
    """Timeout of jobs: ``most`` seconds at first.

    As jobs finish, it becomes a multiple of the time of the slowest tenth of them, at least ``least``.
    """

    most: float
    adaptive: bool = True
    least: float = 5.0
    _seen: list[float] = field(default_factory=list)

    #: Finished jobs needed to adapt, and the multiple of their time.
    ENOUGH, FACTOR = 8, 4.0

    def finished(self, seconds: float) -> None:
        self._seen.append(seconds)

    @property
    def seconds(self) -> float:
        if not self.adaptive or len(self._seen) < self.ENOUGH:
            return self.most
        slow = statistics.quantiles(self._seen, n=10)[-1]
        return min(self.most, max(self.least, self.FACTOR * slow))


@dataclass(frozen=True)
class _Waiting:
    key: Hashable
    job: Job
    #: Number of fork servers that have ended with this job.
    lost: int = 0


@dataclass
class _Running:
    job: _Waiting
    child: Child
    began: float

    @property
    def key(self) -> Hashable:
        return self.job.key


def _itself(job: Job) -> Job:
    return job


class CompilePool:
    """Pool of at most ``workers`` jobs at once, in the order of ``submit``. A job cannot affect others.

    ``fork_server`` returns the running fork server. Jobs that one takes with it as it ends are compiled by the next.
    """

    def __init__(self, fork_server: Callable[[], ForkServer], workers: int, patience: Patience) -> None:
        self._fork_server = fork_server
        self._workers = workers
        self._patience = patience
        self._waiting: deque[_Waiting] = deque()
        self._running: list[_Running] = []
        self._lost: list[Built] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running or self._lost)

    def submit(self, key: Hashable, job: Job) -> None:
        self._waiting.append(_Waiting(key, job))
        self._fill()

    def poll(self, seconds: float) -> list[Built]:
        """Return the jobs that have ended; if there are none, wait up to about ``seconds``."""
        if not self._running:
            self._fill()
        if self._lost:
            lost, self._lost = self._lost, []
            return lost
        now = time.monotonic()
        deadlines = [run.began + self._patience.seconds - now for run in self._running]
        wait = max(0.0, min([seconds, *deadlines]))
        readable, _, _ = select.select([run.child for run in self._running], [], [], wait)
        now = time.monotonic()
        answered = [run for run in self._running if run.child in readable and run.child.has_answer()]
        late = [run for run in self._running if now - run.began >= self._patience.seconds]
        ended = [run for run in self._running if run in answered or run in late]
        built = [each for run in ended if (each := self._built(run, run in answered)) is not None]
        self._running = [run for run in self._running if run not in ended]
        self._fill()
        return built

    def close(self) -> None:
        """Drop the jobs that are not done."""
        self._waiting.clear()
        for run in self._running:
            run.child.kill()
        self._running.clear()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._workers:
            waiting = self._waiting.popleft()
            began = time.monotonic()
            try:
                child = self._fork_server().child(_itself, waiting.job, megabytes=MEGABYTES)
                child.post("run")
            except ProcessDied as error:
                if not self._waits_again(waiting, error):
                    seconds = time.monotonic() - began
                    self._lost.append(Built(key=waiting.key, seconds=seconds, failure=str(error), crashed=True))
                continue
            self._running.append(_Running(waiting, child, began))

    def _waits_again(self, waiting: _Waiting, error: ProcessDied) -> bool:
        """Put a job back that has ended with its fork server; return False if it died alone or too often."""
        if not isinstance(error, ServerDied) or waiting.lost + 1 >= ATTEMPTS:
            return False
        self._waiting.appendleft(replace(waiting, lost=waiting.lost + 1))
        return True

    def _built(self, run: _Running, readable: bool) -> Built | None:
        """Return the result of a job that has ended, or None if it waits for another fork server."""
        allowed = self._patience.seconds
        try:
            answer = run.child.collect(allowed if readable else 0.0)
        except Raised as error:
            return Built(key=run.key, seconds=time.monotonic() - run.began, failure=error.text)
        except TimedOut:
            return Built(key=run.key, seconds=allowed, failure=f"not compiled within {allowed:.0f} s", timed_out=True)
        except ProcessDied as error:
            if self._waits_again(run.job, error):
                return None
            return Built(key=run.key, seconds=time.monotonic() - run.began, failure=str(error), crashed=True)
        run.child.leave()
        seconds = time.monotonic() - run.began
        self._patience.finished(seconds)
        return Built(key=run.key, seconds=seconds, answer=answer)
