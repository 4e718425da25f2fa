"""Order of memory accesses among the programs of all ranks of a simulated run, by vector clocks.

Two accesses of one element, of which one writes, need an order. Either both are in one program, or the later one knows
of the first: through signals and waits, or through the order of launches of a rank. Otherwise a schedule exists in which the
later access comes first, even if it did not in this run. Atomic operations may meet in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ....._support.ranks import Task, World
from .memory import Region
from .races import WatchedTensor
from .values import Handle

#: Reads that are kept for each storage before those that every rank knows of are dropped.
_MOST_READS = 256


@dataclass(frozen=True)
class Event:
    """One access as messages show it."""

    verb: str
    who: str
    line: str


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Two accesses of an element without an order."""

    element: str
    first: Event
    second: Event


@dataclass(frozen=True)
class _Read:
    """Units that a task read at a time."""

    units: np.ndarray
    task: int
    time: int
    event: int

    @property
    def ends(self) -> tuple[int, int]:
        return int(self.units[0]), int(self.units[-1])


class _Shadow:
    """Last writer and last atomic update of each unit of a storage, and the reads since the last write. 0 is never."""

    def __init__(self, region: Region, unit: int) -> None:
        self.region, self.unit = region, unit
        count = -(-region.size // unit)
        #: For writes and updates: task less -1, its time and its event.
        self.wrote = np.zeros((3, count), np.int64)
        self.updated = np.zeros((3, count), np.int64)
        self.reads: list[_Read] = []


@dataclass(eq=False)
class Shadows:
    """The accesses of a run so far."""

    world: World
    events: list[Event] = field(default_factory=lambda: [Event("", "", "")])
    shadows: dict[int, _Shadow] = field(default_factory=dict)
    tensors: dict[int, WatchedTensor] = field(default_factory=dict)
    #: Storages by address. They stay allocated, so that no rank gets memory that another one has freed.
    held: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def known(
        self, regions: Sequence[Region], tensors: Sequence[WatchedTensor], storages: Sequence[torch.UntypedStorage]
    ) -> None:
        """Register the memory of a launch, and forget that of tensors which no longer exist."""
        self.held |= {storage.data_ptr(): storage for storage in storages}
        for address in [address for address, storage in self.held.items() if _is_unused(storage)]:
            del self.held[address]
            self.shadows.pop(address, None)
        for tensor in tensors:
            self.tensors[tensor.address] = tensor
        for region in regions:
            found = self.shadows.get(region.start)
            if found is None or found.region.size != region.size:
                sizes = [t.itemsize for t in tensors if region.start <= t.address < region.end]
                self.shadows[region.start] = _Shadow(region, min(sizes, default=1))

    def load(self, task: Task, pointers: Handle, mask: Handle | None, itemsize: int, line: str) -> Conflict | None:
        event = self._event("read", task, line)
        for shadow, units in self._units(pointers, mask, itemsize):
            found = self._unordered(task, shadow, units, shadow.wrote) or self._unordered(
                task, shadow, units, shadow.updated
            )
            if found:
                return self._conflict(shadow, *found, event)
            self._add_read(task, shadow, units, event)
        return None

    def received(self, task: Task, pointers: Handle, mask: Handle | None, itemsize: int, line: str) -> None:
        """Record a read of words that the task has waited for."""
        event = self._event("read", task, line)
        for shadow, units in self._units(pointers, mask, itemsize):
            self._add_read(task, shadow, units, event)

    def store(self, task: Task, pointers: Handle, mask: Handle | None, itemsize: int, line: str) -> Conflict | None:
        event = self._event("written", task, line)
        for shadow, units in self._units(pointers, mask, itemsize):
            found = (
                self._unordered(task, shadow, units, shadow.wrote)
                or self._unordered(task, shadow, units, shadow.updated)
                or self._unordered_read(task, shadow, units)
            )
            if found:
                return self._conflict(shadow, *found, event)
            shadow.wrote[:, units] = np.array([[task.number + 1], [task.clock[task.number]], [event]])
        return None

    def update(self, task: Task, pointers: Handle, mask: Handle | None, itemsize: int, line: str) -> Conflict | None:
        event = self._event("updated", task, line)
        for shadow, units in self._units(pointers, mask, itemsize):
            found = self._unordered(task, shadow, units, shadow.wrote) or self._unordered_read(task, shadow, units)
            if found:
                return self._conflict(shadow, *found, event)
            shadow.updated[:, units] = np.array([[task.number + 1], [task.clock[task.number]], [event]])
        return None

    def name(self, address: int) -> str:
        """Return the element at an address, as a kernel's argument names it."""
        names = (tensor.subscript(address) for tensor in self.tensors.values())
        return next(filter(None, names), f"the word at address {address:#x}")

    # --- order ----------------------------------------------------------------------------------------------------------

    def _unordered(self, task: Task, shadow: _Shadow, units: np.ndarray, rows: np.ndarray) -> tuple[int, int] | None:
        """Return a unit with an access in ``rows`` that the task does not know of, and the event; None without one."""
        who, when, events = rows[:, units]
        if who[0] == who[-1] and (who == who[0]).all():
            writers: Iterable[int] = (who[0],)
        else:
            writers = np.unique(who)
        for number in writers:
            if number in (0, task.number + 1):
                continue
            mine = who == number
            if not self.world.is_before(int(number) - 1, int(when[mine].max()), task.clock):
                at = int(np.flatnonzero(mine & (when == when[mine].max()))[0])
                return int(units[at]), int(events[at])
        return None

    def _unordered_read(self, task: Task, shadow: _Shadow, units: np.ndarray) -> tuple[int, int] | None:
        low, high = int(units.min()), int(units.max())
        for read in shadow.reads:
            first, last = read.ends
            if last < low or high < first or read.task == task.number:
                continue
            if self.world.is_before(read.task, read.time, task.clock):
                continue
            both = np.intersect1d(read.units, units)
            if both.size:
                return int(both[0]), read.event
        return None

    def _add_read(self, task: Task, shadow: _Shadow, units: np.ndarray, event: int) -> None:
        shadow.reads.append(_Read(np.unique(units), task.number, task.clock[task.number], event))
        if len(shadow.reads) > _MOST_READS:
            self._drop_old_reads(shadow)

    def _drop_old_reads(self, shadow: _Shadow) -> None:
        clocks = [rank.clock for rank in self.world.ranks]
        is_before = self.world.is_before
        shadow.reads = [r for r in shadow.reads if not all(is_before(r.task, r.time, clock) for clock in clocks)]

    # --- places ---------------------------------------------------------------------------------------------------------

    def _event(self, verb: str, task: Task, line: str) -> int:
        task.clock[task.number] += 1
        self.events.append(Event(verb, task.name, line))
        return len(self.events) - 1

    def _conflict(self, shadow: _Shadow, unit: int, before: int, event: int) -> Conflict:
        element = self.name(shadow.region.start + unit * shadow.unit)
        return Conflict(element=element, first=self.events[before], second=self.events[event])

    def _units(self, pointers: Handle, mask: Handle | None, itemsize: int) -> Iterator[tuple[_Shadow, np.ndarray]]:
        """Yield the units that active lanes access, by storage."""
        addresses = pointers.full()
        active = np.broadcast_to(True if mask is None else mask.full(), addresses.shape)
        addresses = addresses[active]
        if not addresses.size:
            return
        low, high = int(addresses.min()), int(addresses.max())
        for shadow in tuple(self.shadows.values()):
            region = shadow.region
            if high < region.start or low >= region.end:
                continue
            inside = (addresses >= np.uint64(region.start)) & (addresses + np.uint64(itemsize) <= np.uint64(region.end))
            if inside.any():
                first = (addresses[inside] - np.uint64(region.start)).astype(np.int64) // shadow.unit
                steps = max(itemsize // shadow.unit, 1)
                yield shadow, (first[:, None] + np.arange(steps)).reshape(-1)


def _is_unused(storage: torch.UntypedStorage) -> bool:
    """Return whether no tensor has this storage any more."""
    return torch._C._storage_Use_Count(storage._cdata) == 1
