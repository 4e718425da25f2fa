"""Works given to several workers at once; what a worker that is lost was doing is given to another one."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from ..autotuner.pool.children import Child, Died, Nursery, Raised, TimedOut
from .work import Report, Work, Worker

#: How many workers one work may cost before it counts as failed.
ATTEMPTS = 2


class Lost(Exception):
    """A worker ended while it worked."""


class Hand(Protocol):
    """A worker as who gives it work sees it."""

    def begin(self, work: Work) -> None:
        """Gives it a work. Raises ``Lost``."""
        ...

    def result(self) -> Report:
        """What came of the work. Raises ``Lost``."""
        ...


class Crew(Protocol):
    """Workers, each of which does one work at a time."""

    def hired(self) -> Sequence[Hand]:
        """Workers that were not given before and are ready: all at first, later those in place of lost ones."""
        ...

    def ready(self, busy: Sequence[Hand]) -> Sequence[Hand]:
        """Waits until some of ``busy`` may have a result or be lost, or new ones may be had; gives the former."""
        ...

    def dismiss(self, hand: Hand) -> None:
        """Drops a worker that was lost."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether nobody is left, and nobody will come."""
        ...

    def close(self) -> None:
        """Ends all of them."""
        ...


def distributed(works: Sequence[Work], crew: Crew) -> Iterator[tuple[Work, Report]]:
    """Each work with what came of it, as they end."""
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
    """Puts the work of a lost worker back, or reports it where it has cost too many."""
    work, attempt = task
    if attempt < ATTEMPTS:
        waiting.appendleft((work, attempt + 1))
    else:
        yield work, Report(worked=False, message=f"{ATTEMPTS} workers were lost with it: {error}")


class _Process:
    """A worker that was forked from the nursery."""

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
    """A process for each of the GPUs with these numbers, on this machine; None stands for one that sees any."""

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
        """Another process takes its GPU."""
        assert isinstance(hand, _Process)
        hand.child.kill()
        self._vacant.append(self._gpus.pop(hand))

    @property
    def is_gone(self) -> bool:
        return not (self._gpus or self._vacant)

    def pids(self) -> list[int]:
        """The processes of those that work."""
        return [process.child.pid for process in self._gpus]

    def close(self) -> None:
        self._nursery.close()
