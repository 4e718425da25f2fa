"""A pool of workers for tuning jobs; a job of a lost worker is given to another one."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from ..autotuner.pool.children import Child, Died, Nursery, Raised, TimedOut
from .work import Report, Work, Worker

#: Workers that one job may lose before it counts as failed.
ATTEMPTS = 2


class Lost(Exception):
    """Error of a worker that ended during a job."""


class Hand(Protocol):
    """A worker, as the scheduler of jobs sees it."""

    def begin(self, work: Work) -> None:
        """Send a job to the worker. Raises ``Lost``."""
        ...

    def result(self) -> Report:
        """Return the report of the job. Raises ``Lost``."""
        ...


class Crew(Protocol):
    """A pool of workers, each of which does one job at a time."""

    def hired(self) -> Sequence[Hand]:
        """Return ready workers that were not returned before: all at first, later the replacements of lost ones."""
        ...

    def ready(self, busy: Sequence[Hand]) -> Sequence[Hand]:
        """Wait until some of ``busy`` may have a result or be lost, or new workers may be ready; return the former."""
        ...

    def dismiss(self, hand: Hand) -> None:
        """Drop a worker that was lost."""
        ...

    @property
    def is_gone(self) -> bool:
        """True if no worker is left, and none will start."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


def distributed(works: Sequence[Work], crew: Crew) -> Iterator[tuple[Work, Report]]:
    """Run each job on the pool and yield it with its report, in order of completion."""
    waiting = deque((work, 1) for work in works)
    busy: dict[Hand, tuple[Work, int]] = {}
    idle: list[Hand] = []
    while waiting or busy:
        idle += crew.hired()
        while waiting and idle:
            hand, task = idle.pop(0), waiting.popleft()
            busy[hand] = task
            try:
                hand.begin(task[0])
            except Lost as error:
                yield from _given_up(busy.pop(hand), waiting, error)
                crew.dismiss(hand)
        if not busy and crew.is_gone:
            for work, _ in waiting:
                yield work, Report(worked=False, message="no worker is left")
            return
        for hand in crew.ready(list(busy)):
            task = busy.pop(hand)
            try:
                report = hand.result()
            except Lost as error:
                yield from _given_up(task, waiting, error)
                crew.dismiss(hand)
                continue
            idle.append(hand)
            yield task[0], report


def _given_up(task: tuple[Work, int], waiting: deque[tuple[Work, int]], error: Lost) -> Iterator[tuple[Work, Report]]:
    """Put the job of a lost worker back, or report it as failed after too many attempts."""
    work, attempt = task
    if attempt < ATTEMPTS:
        waiting.appendleft((work, attempt + 1))
    else:
        yield work, Report(worked=False, message=f"{ATTEMPTS} workers were lost with it: {error}")


class _Process:
    """A worker process, forked from the fork server."""

    def __init__(self, child: Child) -> None:
        self.child = child

    def begin(self, work: Work) -> None:
        try:
            self.child.post("run", work)
        except Died as error:
            raise Lost(str(error)) from error

    def result(self) -> Report:
        try:
            report: Report = self.child.collect()
        except (Died, TimedOut) as error:
            raise Lost(str(error)) from error
        except Raised as error:
            return Report(worked=False, message=error.text)
        return report


class LocalCrew:
    """A pool of one process for each of these GPU numbers, on this machine; None is a process that sees all GPUs."""

    def __init__(self, gpus: Sequence[int | None]) -> None:
        self._nursery = Nursery((Worker,))
        self._vacant = list(gpus)
        self._gpus: dict[_Process, int | None] = {}

    def hired(self) -> Sequence[Hand]:
        fresh = [(_Process(self._nursery.child(Worker, gpu)), gpu) for gpu in self._vacant]
        self._vacant.clear()
        self._gpus.update(fresh)
        return [process for process, _ in fresh]

    def ready(self, busy: Sequence[Hand]) -> Sequence[Hand]:
        by_channel = {process.child: process for process in self._gpus if process in busy}
        readable, _, _ = select.select(list(by_channel), [], [])
        return [by_channel[child] for child in readable if child.has_answer()]

    def dismiss(self, hand: Hand) -> None:
        """Drop a lost worker. Its GPU is free for another process."""
        assert isinstance(hand, _Process)
        hand.child.kill()
        self._vacant.append(self._gpus.pop(hand))

    @property
    def is_gone(self) -> bool:
        return not (self._gpus or self._vacant)

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [process.child.pid for process in self._gpus]

    def close(self) -> None:
        self._nursery.close()
