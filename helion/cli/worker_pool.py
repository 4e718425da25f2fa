"""A pool of workers for tuning jobs; a job of a lost worker is given to another one."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from ..autotuner.pool.children import Child, ForkServer, ProcessDied, Raised, TimedOut
from .work import Report, Work, Worker

#: Workers that one job may lose before it counts as failed.
ATTEMPTS = 2


class WorkerDied(Exception):
    """Error of a worker that ended during a job."""


class PoolWorker(Protocol):
    """A worker, as the scheduler of jobs sees it."""

    def begin(self, work: Work) -> None:
        """Send a job to the worker. Raises ``WorkerDied``."""
        ...

    def result(self) -> Report:
        """Return the report of the job. Raises ``WorkerDied``."""
        ...


class WorkerPool(Protocol):
    """A pool of workers, each of which does one job at a time."""

    def new_workers(self) -> Sequence[PoolWorker]:
        """Return ready workers that were not returned before: all at first, later the replacements of lost ones."""
        ...

    def ready(self, busy: Sequence[PoolWorker]) -> Sequence[PoolWorker]:
        """Wait until some of ``busy`` may have a result or be lost, or new workers may be ready; return the former."""
        ...

    def drop(self, worker: PoolWorker) -> None:
        """Drop a worker that was lost."""
        ...

    @property
    def is_gone(self) -> bool:
        """True if no worker is left, and none will start."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


def distributed(works: Sequence[Work], pool: WorkerPool) -> Iterator[tuple[Work, Report]]:
    """Run each job on the pool and yield it with its report, in order of completion."""
    waiting = deque((work, 1) for work in works)
    busy: dict[PoolWorker, tuple[Work, int]] = {}
    idle: list[PoolWorker] = []
    while waiting or busy:
        idle += pool.new_workers()
        while waiting and idle:
            worker, task = idle.pop(0), waiting.popleft()
            busy[worker] = task
            try:
                worker.begin(task[0])
            except WorkerDied as error:
                yield from _given_up(busy.pop(worker), waiting, error)
                pool.drop(worker)
        if not busy and pool.is_gone:
            for work, _ in waiting:
                yield work, Report(worked=False, message="no worker is left")
            return
        for worker in pool.ready(list(busy)):
            task = busy.pop(worker)
            try:
                report = worker.result()
            except WorkerDied as error:
                yield from _given_up(task, waiting, error)
                pool.drop(worker)
                continue
            idle.append(worker)
            yield task[0], report


def _given_up(
    task: tuple[Work, int], waiting: deque[tuple[Work, int]], error: WorkerDied
) -> Iterator[tuple[Work, Report]]:
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
        except ProcessDied as error:
            raise WorkerDied(str(error)) from error

    def result(self) -> Report:
        try:
            report: Report = self.child.collect()
        except (ProcessDied, TimedOut) as error:
            raise WorkerDied(str(error)) from error
        except Raised as error:
            return Report(worked=False, message=error.text)
        return report


class LocalPool:
    """A pool of one process for each of these GPU numbers, on this machine; None is a process that sees all GPUs."""

    def __init__(self, gpus: Sequence[int | None]) -> None:
        self._fork_server = ForkServer((Worker,))
        self._vacant = list(gpus)
        self._gpus: dict[_Process, int | None] = {}

    def new_workers(self) -> Sequence[PoolWorker]:
        fresh = [(_Process(self._fork_server.child(Worker, gpu)), gpu) for gpu in self._vacant]
        self._vacant.clear()
        self._gpus.update(fresh)
        return [process for process, _ in fresh]

    def ready(self, busy: Sequence[PoolWorker]) -> Sequence[PoolWorker]:
        by_channel = {process.child: process for process in self._gpus if process in busy}
        readable, _, _ = select.select(list(by_channel), [], [])
        return [by_channel[child] for child in readable if child.has_answer()]

    def drop(self, worker: PoolWorker) -> None:
        """Drop a lost worker. Its GPU is free for another process."""
        assert isinstance(worker, _Process)
        worker.child.kill()
        self._vacant.append(self._gpus.pop(worker))

    @property
    def is_gone(self) -> bool:
        return not (self._gpus or self._vacant)

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [process.child.pid for process in self._gpus]

    def close(self) -> None:
        self._fork_server.close()
