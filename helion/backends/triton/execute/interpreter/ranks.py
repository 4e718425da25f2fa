"""Interpreted launches of simulated ranks (``_ranks``): programs of all ranks in turns, and what orders them.

A program hands over before each atomic operation at system scope, and at each wait. One that only polls, by atomics
that change nothing or by volatile loads, is not run again before another task has changed something. So a wait without
a message ends in ``exc.Deadlock``, and never hangs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ..... import exc
from ....._support import ranks as _ranks
from ....._support.locks import TRITON_LOCK
from .memory import Region
from .races import WatchedTensor, line_of
from .shadows import Conflict, Event, Shadows
from .values import Handle

_RELEASES, _ACQUIRES = ("RELEASE", "ACQUIRE_RELEASE"), ("ACQUIRE", "ACQUIRE_RELEASE")


@dataclass(eq=False)
class _Run:
    """State of a simulated run that its launches share."""

    shadows: Shadows
    #: Values that tasks have polled, by task and address.
    polled: dict[tuple[int, int], int] = field(default_factory=dict)
    #: Marked words that tasks have polled last, by task: their addresses, active lanes and values.
    awaited: dict[int, tuple[Handle, Handle | None, np.ndarray]] = field(default_factory=dict)


def _run_of(world: _ranks.World) -> _Run:
    found: _Run = world.notes.setdefault("interpreter", _Run(Shadows(world)))
    return found


@dataclass(eq=False)
class RankWatch:
    """The accesses of one launch of a rank; has the interface of ``RaceDetector``."""

    world: _ranks.World
    kernel: str
    file: str
    builder: Any
    regions: Sequence[Region]
    tensors: Sequence[WatchedTensor]
    storages: Sequence[torch.UntypedStorage]

    def __post_init__(self) -> None:
        self.run = _run_of(self.world)
        self.run.shadows.known(self.regions, self.tensors, self.storages)

    # --- what happens ---------------------------------------------------------------------------------------------------

    def begin_program(self, program: tuple[int, int, int]) -> None:
        """Do nothing: a program is a task."""

    def barrier(self) -> None:
        """Do nothing: the order of a program's threads is that of ``RaceDetector``."""

    multiply = barrier

    def load(self, pointers: Handle, mask: Handle | None, itemsize: int) -> None:
        self._check(self.run.shadows.load(self._task(), pointers, mask, itemsize, self._line()))

    def store(self, pointers: Handle, values: np.ndarray, mask: Handle | None) -> None:
        self.world.progress += 1
        self._check(self.run.shadows.store(self._task(), pointers, mask, values.dtype.itemsize, self._line()))
        words = self.marked_at(pointers)
        if words is not None:
            self._send_marked(words, pointers, values, mask)

    def atomic(self, pointers: Handle, mask: Handle | None, itemsize: int, sem: Any, scope: Any) -> None:
        """Hand over before an atomic that other ranks may see, and check its order."""
        task = self._task()
        if _word(scope) == "SYSTEM" or _word(sem) in _ACQUIRES:
            self._hand_over(task)
        self._check(self.run.shadows.update(task, pointers, mask, itemsize, self._line()))

    def updated(self, pointers: np.ndarray, old: np.ndarray, new: np.ndarray, sem: Any, scope: Any) -> None:
        """Record what an atomic released and acquired. ``old`` and ``new`` are the elements of its active lanes."""
        task = self._task()
        rank = -1 if _word(scope) == "SYSTEM" else task.rank
        addresses = pointers.reshape(-1)
        known = task.clock if _word(sem) in _ACQUIRES or sem is None else task.observed
        for address in addresses:
            self.world.acquire(task.rank, int(address), known)
        changes = bool((old != new).any())
        released = task.clock if sem is None or _word(sem) in _RELEASES else None
        for address, value in zip(addresses, new, strict=True):
            self.world.release(int(address), int(value), rank, released)
        if changes:
            self.world.progress += 1
        elif rank < 0 or _word(sem) in _ACQUIRES:
            self._spin(task, f"polls {self.run.shadows.name(int(addresses[0]))}", int(addresses[0]), int(new[0]))

    def polled(self, pointers: Handle, values: np.ndarray) -> None:
        """Hand over after a volatile load."""
        task, address = self._task(), int(pointers.data.reshape(-1)[0])
        if not self._spin(task, f"polls {self.run.shadows.name(address)}", address, int(values.reshape(-1)[0])):
            self._hand_over(task)

    def wait(self, word: int, want: int, note: int) -> None:
        """Hand over until a word has reached a count, and acquire what its messages released. ``note`` is the sender."""
        task, line, read = self._task(), self._line(), self._reader(word)

        def waiting() -> str:
            name = self.run.shadows.name(word)
            missing = want - read()
            sender = _ranks.sender_of(note, task.rank, self._sharing(word))
            return f"waits for {missing} more message{'s' * (missing != 1)} of {sender} in {name} ({line})"

        self._hand_over(task, lambda: _ranks.reached(read(), want), waiting)
        self.world.acquire(task.rank, word, task.clock, want)
        task.clock[task.number] += 1

    # --- marked words -----------------------------------------------------------------------------------------------------

    def marked_at(self, pointers: Handle) -> torch.Tensor | None:
        """Return the marked words that an access is to."""
        address = int(pointers.data.reshape(-1)[0])
        return next((words for at, words in self.world.marked.items() if at <= address < at + words.nbytes), None)

    def _send_marked(self, words: torch.Tensor, pointers: Handle, values: np.ndarray, mask: Handle | None) -> None:
        """Release what earlier launches of this rank did: nothing orders other stores of this one before the words."""
        task, history = self._task(), self.world.releases
        if values.dtype.itemsize != words.itemsize:
            event = Event("written", task.name, self._line())
            name = self.run.shadows.name(int(pointers.data.reshape(-1)[0]))
            self._check(Conflict(element=name, first=event, second=replace(event, verb="written in part")))
        known = dict(self.world.ranks[task.rank].clock)
        for address, value in zip(*_active(pointers, values, mask), strict=True):
            last = history.get(int(address), [])[-1:]
            history[int(address)] = [*last, _ranks.Release(value=int(value), clock=known, rank=-1)]
        self._hand_over(task)

    def poll(self, pointers: Handle, mask: Handle | None, values: np.ndarray) -> None:
        """Record that the task has looked for marks."""
        self.run.awaited[self._task().number] = (pointers, mask, values)

    def await_marked(self, note: int) -> None:
        """Hand over until another task changes something, since words are late. ``note`` is their sender."""
        task, line, before = self._task(), self._line(), self.world.progress
        address = int(self.run.awaited[task.number][0].data.reshape(-1)[0])
        sender, name = _ranks.sender_of(note, task.rank, self._sharing(address)), self.run.shadows.name(address)
        self._hand_over(
            task, lambda: self.world.progress != before, lambda: f"waits for marked mail of {sender} in {name} ({line})"
        )

    def received(self) -> None:
        """Acquire what the words that were polled last have released: all of them have their marks."""
        task = self._task()
        pointers, mask, values = self.run.awaited.pop(task.number)
        clocks: dict[int, dict[int, int]] = {}
        for address, value in zip(*_active(pointers, values, mask), strict=True):
            for release in self.world.releases.get(int(address), ()):
                if release.value == int(value):
                    clocks[id(release.clock)] = release.clock
        for clock in clocks.values():
            _ranks.World.join(task.clock, clock)
        self.run.shadows.received(task, pointers, mask, values.dtype.itemsize, self._line())

    # --- order ----------------------------------------------------------------------------------------------------------

    def _hand_over(
        self, task: _ranks.Task, ready: Callable[[], bool] = lambda: True, waiting: Callable[[], str] = str
    ) -> None:
        builder = self.builder
        saved = (builder.kernel, builder.memory, builder.grid, builder.program, builder.races)
        TRITON_LOCK.release()
        try:
            self.world.pause(task, ready, waiting)
        finally:
            TRITON_LOCK.acquire()
            builder.kernel, builder.memory, builder.grid, builder.program, builder.races = saved

    def _spin(self, task: _ranks.Task, what: str, address: int, value: int) -> bool:
        """Hand over until another task changes something, if a poll found the value that it had found before."""
        key, line, before = (task.number, address), self._line(), self.world.progress
        again = self.run.polled.get(key) == value
        self.run.polled[key] = value
        if again:
            self._hand_over(task, lambda: self.world.progress != before, lambda: f"{what}, which is {value} ({line})")
        return again

    def _reader(self, word: int) -> Callable[[], int]:
        for shadow in self.run.shadows.shadows.values():
            region = shadow.region
            if region.holds(word):
                view = region.view(np.dtype(np.int32))
                return lambda: int(view[(word - region.start) // 4])
        raise IndexError(f"{self.builder.place}: hl.wait reads a word outside of every argument")

    def _sharing(self, word: int) -> Sequence[int]:
        """Return the ranks that share the memory of a word."""
        starts = (shadow.region.start for shadow in self.run.shadows.shadows.values() if shadow.region.holds(word))
        return next((self.world.sharing[at] for at in starts if at in self.world.sharing), range(self.world.size))

    # --- what is wrong --------------------------------------------------------------------------------------------------

    def _check(self, found: Conflict | None) -> None:
        if found is None:
            return
        first, second = found.first, found.second
        raise exc.DataRace(
            element=found.element,
            kernel=self.kernel,
            first=f"{first.verb} by {first.who} at {first.line}",
            second=f"{second.verb} by {second.who} at {second.line}",
            why=f"no signal and wait is between the two (seed {self.world.seed})",
        )

    def _task(self) -> _ranks.Task:
        found = _ranks.current()
        assert found is not None
        return found[1]

    def _line(self) -> str:
        return line_of(self.file)


def _active(pointers: Handle, values: np.ndarray, mask: Handle | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the addresses and values of active lanes."""
    addresses = pointers.full()
    active = np.broadcast_to(True if mask is None else mask.full(), addresses.shape)
    return addresses[active], np.broadcast_to(values, addresses.shape)[active]


def _word(option: Any) -> str:
    return "" if option is None else str(option).rpartition(".")[2]


def programs_of(
    grid: tuple[int, int, int], run: Callable[[tuple[int, int, int]], None]
) -> Iterator[tuple[str, Callable[[_ranks.Task], None]]]:
    """Yield a name and a body for each program of a launch, in the order of their numbers."""
    for number in range(math.prod(grid)):
        program = (number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1]))
        yield str(program), partial(_one, run, program)


def _one(run: Callable[[tuple[int, int, int]], None], program: tuple[int, int, int], _task: _ranks.Task) -> None:
    run(program)
