"""Ranks that one process simulates: their host code, and the programs of their launches, take turns.

Each task is a thread, but only one runs at a time. A task hands over where it may depend on others: at a wait, a
signal, a collective allocation, a launch. A seeded random number generator decides who runs next and for how many
turns, so every schedule can be repeated. If no task can run, the run ends with ``exc.Deadlock``, which says what each
one waits for.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import queue
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from .. import exc

#: Numbers of turns that a task gets at once: some run ahead.
_TURNS = (1, 1, 3, 20)
#: Launches of a rank have this many programs at once, between the two.
_FEWEST_SLOTS, _MOST_SLOTS = 2, 6
_MOST_NAMED = 6


class _Stopped(BaseException):
    """Ends a task whose run has failed."""


def _always() -> bool:
    return True


@dataclass(eq=False)
class Task:
    """The host code of a rank, or one program of a launch.

    ``clock`` has, by number of a task, the time until which this task knows what that one has done.
    ``observed`` is what relaxed reads have seen of others: the end of the launch acquires it. ``ready`` says if it can
    run, ``waiting`` what it waits for.
    """

    number: int
    rank: int
    name: str
    body: Callable[[], Any]
    clock: dict[int, int]
    launch: int = 0
    observed: dict[int, int] = field(default_factory=dict)
    ready: Callable[[], bool] = _always
    waiting: Callable[[], str] = str
    result: Any = None
    done: bool = False
    thread: threading.Thread | None = None
    turn: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)


def _any_done(tasks: Sequence[Task]) -> bool:
    return any(task.done for task in tasks)


@dataclass(eq=False)
class _Rank:
    """Clock of a rank's stream, and the number of launches that it has completed."""

    clock: dict[int, int] = field(default_factory=dict)
    launches: int = 0


@dataclass(frozen=True, kw_only=True)
class Release:
    """A word after a release: its value, all that was released so far, and the rank that sees it, -1 for all."""

    value: int
    clock: dict[int, int]
    rank: int


def reached(value: int, want: int) -> bool:
    """Return whether a counter of 32 bits has reached a number, which may have wrapped around."""
    return (value - want + 2**31) % 2**32 >= 2**31


class World:
    """A simulated run of ``size`` ranks.

    ``shuffled`` starts the programs of a launch in any order instead of that of their numbers. ``notes`` is for the
    state that interpreters keep for a run.
    """

    def __init__(self, size: int, seed: int, *, shuffled: bool = False) -> None:
        self.size, self.seed, self.shuffled = size, seed, shuffled
        self.random = random.Random(seed)
        self.slots = self.random.randint(_FEWEST_SLOTS, _MOST_SLOTS)
        self.progress = 0
        self.ranks = [_Rank() for _ in range(size)]
        #: Rank and launch of each task, by its number; -1 is the host code of the rank.
        self.launch_of: list[tuple[int, int]] = []
        self.notes: dict[str, Any] = {}
        #: The releases of each word, by its address.
        self.releases: dict[int, list[Release]] = {}
        self._tasks: list[Task] = []
        self._shared: dict[tuple[tuple[int, ...], int], list[Any]] = {}
        self._calls: dict[tuple[int, tuple[int, ...]], Iterator[int]] = {}
        #: The ranks that share a memory, by its address.
        self.sharing: dict[int, tuple[int, ...]] = {}
        #: Marked words, by their address.
        self.marked: dict[int, torch.Tensor] = {}
        self._baton: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._failed: BaseException | None = None

    # --- tasks ----------------------------------------------------------------------------------------------------------

    def _add(self, rank: int, name: str, body: Callable[[], Any], launch: int) -> Task:
        number = len(self.launch_of)
        self.launch_of.append((rank, launch))
        task = Task(number, rank, name, body, {**self.ranks[rank].clock, number: 1}, launch)
        context = contextvars.copy_context()
        context.run(_CURRENT.set, (self, task))
        task.thread = threading.Thread(target=context.run, args=(self._run, task), daemon=True)
        self._tasks.append(task)
        task.thread.start()
        return task

    def _run(self, task: Task) -> None:
        task.turn.get()
        try:
            if self._failed is None:
                task.result = task.body()
        except _Stopped:
            pass
        except BaseException as error:
            self._failed = self._failed or error
        task.done = True
        self.progress += 1
        self._baton.put(None)

    def pause(self, task: Task, ready: Callable[[], bool] = _always, waiting: Callable[[], str] = str) -> None:
        """Let other tasks run, and go on once ``ready()`` holds; ``waiting()`` describes the wait for messages."""
        task.ready, task.waiting = ready, waiting
        self._baton.put(None)
        task.turn.get()
        if self._failed is not None:
            raise _Stopped
        task.ready, task.waiting = _always, str

    def run(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run the host code of all ranks to its end and return the results.

        Raises:
            exc.Deadlock: no task can run.
            BaseException: the first error of a task.
        """
        hosts = [self._add(rank, f"the host code of rank {rank}", body, -1) for rank, body in enumerate(bodies)]
        while live := [task for task in self._tasks if not task.done]:
            able = [task for task in live if task.ready()]
            if not able and self._failed is None:
                self._failed = self._deadlock(live)
            if self._failed is not None:
                self._stop(live)
                raise self._failed
            chosen = self.random.choice(able)
            for _ in range(self.random.choice(_TURNS)):
                if chosen.done or not chosen.ready() or self._failed is not None:
                    break
                chosen.turn.put(None)
                self._baton.get()
            self._tasks = [task for task in self._tasks if not task.done]
        if self._failed is not None:
            raise self._failed
        return [task.result for task in hosts]

    def _stop(self, live: list[Task]) -> None:
        for task in live:
            task.turn.put(None)
            self._baton.get()
            assert task.thread is not None
            task.thread.join()

    def _deadlock(self, live: list[Task]) -> exc.Base:
        stuck = [task for task in live if task.waiting()]
        lines = [f"{task.name} {task.waiting()}" for task in stuck[:_MOST_NAMED]]
        more = [f"and {len(stuck) - _MOST_NAMED} more"] if len(stuck) > _MOST_NAMED else []
        return exc.Deadlock(seed=self.seed, waits="; ".join([*lines, *more]))

    # --- launches -------------------------------------------------------------------------------------------------------

    def launch(self, host: Task, name: str, programs: Sequence[tuple[str, Callable[[Task], None]]]) -> None:
        """Run the programs of a launch of a rank, a few at once, until all are done."""
        rank = self.ranks[host.rank]
        waiting = list(programs)
        if self.shuffled:
            self.random.shuffle(waiting)
        running: list[Task] = []
        ended: list[Task] = []
        while waiting or running:
            while waiting and len(running) < self.slots:
                label, body = waiting.pop(0)
                where = f"rank {host.rank}, {name}, program {label},"
                running.append(self._program(host.rank, where, body, rank.launches + 1))
            self.pause(host, partial(_any_done, tuple(running)))
            ended += [task for task in running if task.done]
            running = [task for task in running if not task.done]
        rank.launches += 1
        for task in ended:
            self.join(rank.clock, task.clock)
            self.join(rank.clock, task.observed)
        rank.clock[-host.rank - 1] = rank.launches
        kept = {key: time for key, time in rank.clock.items() if key < 0 or not self._is_complete(key, rank.clock)}
        rank.clock = kept
        host.clock = {**kept, host.number: host.clock[host.number]}

    def _program(self, rank: int, where: str, body: Callable[[Task], None], launch: int) -> Task:
        made: list[Task] = []
        made.append(self._add(rank, where, lambda: body(made[0]), launch))
        return made[0]

    def _is_complete(self, number: int, clock: dict[int, int]) -> bool:
        rank, launch = self.launch_of[number]
        return 0 <= launch <= clock.get(-rank - 1, 0)

    # --- order of events ------------------------------------------------------------------------------------------------

    @staticmethod
    def join(clock: dict[int, int], other: dict[int, int]) -> None:
        """Add what another task knows to a clock."""
        for key, time in other.items():
            if clock.get(key, 0) < time:
                clock[key] = time

    def is_before(self, number: int, time: int, clock: dict[int, int]) -> bool:
        """Return whether what task ``number`` did at ``time`` is known to the owner of ``clock``."""
        return clock.get(number, 0) >= time or self._is_complete(number, clock)

    def acquire(self, rank: int, address: int, known: dict[int, int], want: int | None = None) -> None:
        """Add to a clock of a rank what releases of a word have published, up to the one at which it reached ``want``."""
        for release in self.releases.get(address, ()):
            if release.rank in (-1, rank):
                self.join(known, release.clock)
            if want is not None and reached(release.value, want):
                break

    def release(self, address: int, value: int, rank: int, clock: dict[int, int] | None) -> None:
        """Record a word after an update that publishes a clock, if there is one, to a rank, -1 for all. Earlier
        releases stay released."""
        history = self.releases.setdefault(address, [])
        known = dict(history[-1].clock) if history else {}
        if clock is not None:
            self.join(known, clock)
        history.append(Release(value=value, clock=known, rank=rank))

    # --- collective calls -----------------------------------------------------------------------------------------------

    def gather(self, task: Task, value: Any, group: Group | None = None, *, ordered: bool = True) -> list[Any]:
        """Return the values that all ranks of a group give in their calls of this turn, by rank. ``ordered``: each rank
        then knows of the launches that the others had completed."""
        members = tuple(range(self.size)) if group is None else group.members
        call = next(self._calls.setdefault((task.rank, members), itertools.count()))
        found = self._shared.setdefault((members, call), [None] * len(members))
        found[members.index(task.rank)] = (value, dict(task.clock))
        self.pause(task, lambda: all(each is not None for each in found), lambda: "waits for a call of all ranks")
        for _, clock in found if ordered else ():
            self.join(self.ranks[task.rank].clock, {key: time for key, time in clock.items() if key < 0})
        return [each for each, _ in found]


@dataclass(frozen=True)
class Group:
    """Some of the simulated ranks, in order."""

    members: tuple[int, ...]


#: The number of ranks of all groups, for a kernel that is bound without a process group.
_BOUND: contextvars.ContextVar[int | None] = contextvars.ContextVar("helion_world_size", default=None)


@contextlib.contextmanager
def bound_for(size: int | None) -> Iterator[None]:
    """Bind kernels for groups of ``size`` ranks within the context; None leaves their sizes as they are."""
    if size is None:
        yield
        return
    token = _BOUND.set(size)
    try:
        yield
    finally:
        _BOUND.reset(token)


def assumed_size() -> int | None:
    """Return the number of ranks that a kernel is bound for, or of this simulated run; None for real groups."""
    bound, here = _BOUND.get(), _CURRENT.get()
    return bound if bound is not None or here is None else here[0].size


def size_of_all() -> int | None:
    """Return the number of all ranks; None if it is not known."""
    assumed, distributed = assumed_size(), torch.distributed
    if assumed is None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return assumed


def size_of(group: str) -> int | None:
    """Return the number of ranks of a process group, given by name; None if there is no such group."""
    assumed = assumed_size()
    distributed = torch.distributed
    if assumed is not None or not (distributed.is_available() and distributed.is_initialized()):
        return assumed
    named = distributed.distributed_c10d._world.pg_names.items()
    return next((each.size() for each, name in named if name == group), None)


#: A note has the line of its wait times this number, plus a code of the sender.
NOTE_LINE = 2**11
#: Codes of senders: a peer has its number plus 1, a rank its number plus this one, any rank the largest.
_BY_RANK, ANY_SENDER = 2**10, NOTE_LINE - 1


def code_of_rank(rank: int) -> int:
    """Return the code of a sender that is given by its rank."""
    return _BY_RANK + rank


def sender_of(note: int, me: int, members: Sequence[int]) -> str:
    """Return the rank that a wait is for, by its note. ``me`` is the waiting rank, one of ``members``."""
    code = note % NOTE_LINE
    if code == ANY_SENDER:
        return "any rank"
    if code >= _BY_RANK:
        return f"rank {code - _BY_RANK}"
    return f"rank {members[(members.index(me) + code - 1) % len(members)]}"


_CURRENT: contextvars.ContextVar[tuple[World, Task] | None] = contextvars.ContextVar("helion_rank", default=None)


def current() -> tuple[World, Task] | None:
    """Return the simulated run and the task that this thread belongs to; None outside of one."""
    return _CURRENT.get()
