"""Detection of data races in interpreted kernels: elements whose value depends on the order of threads or programs.

The interpreter runs one operation after the other, so a missing barrier changes nothing here. ``RaceDetector`` watches
every access to global memory and stores, per element, its last writer and reader.

*Within a program*, between two barriers, only the thread that wrote an element may access it. Only the thread that read
an element may write it. The compiler assigns lanes to threads; the model is:

- Lanes of two accesses belong to one thread if both have one *signature*: the same addresses in the same arrangement.
  The arrangement is the first address, and the step and length along each dimension, in any order of the dimensions.
  Triton chooses the threads of an access by its pointers, so an in-place update relies on this. All other pairs of
  lanes count as different threads.
- Several threads may perform an access with fewer lanes than the program has threads; one of them performs a store. So
  no load may read such a store, even with the same signature. A load before a store of the same signature is fine: the
  storing thread has loaded before. After a matmul this holds for any number of lanes, because loads may be prefetched
  for the operands of the next one.
- Lanes of one store that hit one element must store one value: any of them may be last.
- Atomic operations do not race with each other, but with all other accesses, for every signature.

*Between programs* of a launch there is no order. An element that a program wrote may not be accessed by another, and
one that a program read may not be written by another. Exceptions: atomic operations do not race with each other, and a
store that does not change the element does not count. After an atomic operation with acquire semantics a program is not
checked: it may have waited for the other.

A kernel compiled by this package reports nothing; a reported one lacks a barrier, or its programs conflict.
Hand-written Triton may report accesses that only its layouts make correct.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import re
import sys
import types
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
import torch

from ..... import exc
from .....hardware import WARP_THREADS
from .memory import Region
from .values import Handle

_DETECTING: ContextVar[bool] = ContextVar("helion_detect_races", default=False)
_ORIGIN = re.compile(r"^\s*# (src\[.*)$")
_OTHERS = -1


@contextlib.contextmanager
def detect_races() -> Iterator[None]:
    """Raise ``exc.DataRace`` at the first race of an interpreted launch of this thread, within the context."""
    token = _DETECTING.set(True)
    try:
        yield
    finally:
        _DETECTING.reset(token)


def is_detecting() -> bool:
    """Return whether launches are checked now."""
    return _DETECTING.get()


@dataclass(frozen=True, kw_only=True)
class WatchedTensor:
    """A tensor argument: its address, and sizes and strides in elements."""

    name: str
    address: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, name: str, value: torch.Tensor) -> WatchedTensor:
        return cls(
            name=name,
            address=value.data_ptr(),
            itemsize=value.element_size(),
            shape=tuple(value.shape),
            strides=tuple(value.stride()),
        )

    def subscript(self, address: int) -> str | None:
        """Return the element at an address, as ``x[1, 2]``; None for an address of none of its elements."""
        rest, step = divmod(address - self.address, self.itemsize)
        places = [0] * len(self.shape)
        for d in sorted(range(len(self.shape)), key=lambda d: self.strides[d], reverse=True):
            if self.strides[d] > 0 and self.shape[d] > 1:
                places[d], rest = divmod(rest, self.strides[d])
        if rest or step or any(not 0 <= at < size for at, size in zip(places, self.shape, strict=True)):
            return None
        return f"{self.name}[{', '.join(map(str, places))}]"


@dataclass(frozen=True)
class _Event:
    """One access as messages show it."""

    verb: str
    program: tuple[int, int, int]
    line: str


class _Shadow:
    """State of each unit of a storage; 0 means never, and no program."""

    def __init__(self, region: Region, unit: int) -> None:
        self.region = region
        self.unit = unit
        count = -(-region.size // unit)
        fields = ("wrote", "write_sign", "write_event", "read", "read_sign", "read_event", "updated", "update_event")
        programs = ("writer", "reader", "updater")
        for name in (*fields, *programs):
            setattr(self, name, np.zeros(count, np.int64))

    wrote: np.ndarray
    write_sign: np.ndarray
    write_event: np.ndarray
    read: np.ndarray
    read_sign: np.ndarray
    read_event: np.ndarray
    updated: np.ndarray
    update_event: np.ndarray
    writer: np.ndarray
    reader: np.ndarray
    updater: np.ndarray


@dataclass
class RaceDetector:
    """Detector for one launch. ``threads`` is the number of threads of a program; ``file`` the kernel's source file."""

    kernel: str
    file: str
    regions: Sequence[Region]
    tensors: Sequence[WatchedTensor]
    threads: int = 4 * WARP_THREADS
    _now: int = 0
    _number: int = 0
    _program: tuple[int, int, int] = (0, 0, 0)
    _acquired: bool = False
    _multiplied: bool = False
    _signs: dict[object, int] = field(default_factory=dict)
    _next_sign: int = 0
    _events: list[_Event] = field(default_factory=lambda: [_Event("", (0, 0, 0), "")])
    _shadows: dict[int, _Shadow] = field(default_factory=dict)

    # --- what happens
    # ----------------------------------------------------------------------------------------------------

    def begin_program(self, program: tuple[int, int, int]) -> None:
        self._number += 1
        self._program, self._acquired, self._multiplied = program, False, False
        self.barrier()

    def barrier(self) -> None:
        """Start a new interval: all threads of the program have completed their operations so far."""
        self._now += 1
        self._signs.clear()

    def multiply(self) -> None:
        """Record that the program computes a matmul."""
        self._multiplied = True

    def load(self, pointers: Handle, mask: Handle | None, itemsize: int) -> None:
        sign, many = self._sign(pointers, mask, itemsize)
        event = self._event("read")
        for shadow, units in self._units(pointers, mask, itemsize):
            same = (shadow.write_sign[units] == sign) & (many and not self._multiplied)
            self._check(shadow, units, (shadow.wrote[units] == self._now) & ~same, shadow.write_event, event)
            self._check(shadow, units, shadow.updated[units] == self._now, shadow.update_event, event)
            self._check_programs(shadow, units, np.ones(units.shape, bool), event, readers=False)
            again = (shadow.read[units] == self._now) & (shadow.read_sign[units] != sign)
            shadow.read_sign[units] = np.where(again, _OTHERS, sign)
            shadow.read[units], shadow.read_event[units] = self._now, event
            _meet(shadow.reader, units, self._number)

    def store(self, pointers: Handle, values: np.ndarray, mask: Handle | None) -> None:
        """Check a store of the bits ``values``, before it happens."""
        itemsize = values.dtype.itemsize
        sign, _ = self._sign(pointers, mask, itemsize)
        event = self._event("written")
        if _signature(pointers, mask, itemsize) is None:
            self._check_lanes(pointers, values, mask, event)
        changes = self._changes(pointers, values)
        for shadow, units, changed in self._units_with(pointers, mask, itemsize, changes):
            other = (shadow.wrote[units] == self._now) & (shadow.write_sign[units] != sign)
            self._check(shadow, units, other, shadow.write_event, event)
            other = (shadow.read[units] == self._now) & (shadow.read_sign[units] != sign)
            self._check(shadow, units, other, shadow.read_event, event)
            self._check(shadow, units, shadow.updated[units] == self._now, shadow.update_event, event)
            self._check_programs(shadow, units, changed, event, readers=True)
            shadow.wrote[units], shadow.write_sign[units], shadow.write_event[units] = self._now, sign, event
            shadow.writer[units] = self._number

    def atomic(self, pointers: Handle, mask: Handle | None, itemsize: int, sem: object, scope: object) -> None:
        event = self._event("updated")
        self._acquired |= sem is None or "ACQUIRE" in str(sem).upper()  # it may wait for another program
        for shadow, units in self._units(pointers, mask, itemsize):
            self._check(shadow, units, shadow.wrote[units] == self._now, shadow.write_event, event)
            self._check(shadow, units, shadow.read[units] == self._now, shadow.read_event, event)
            self._check_programs(shadow, units, np.ones(units.shape, bool), event, readers=True, atomic=True)
            shadow.updated[units], shadow.update_event[units] = self._now, event
            _meet(shadow.updater, units, self._number)

    def updated(self, pointers: np.ndarray, old: np.ndarray, new: np.ndarray, sem: object, scope: object) -> None:
        """Do nothing: values do not matter to the order of one GPU's programs."""

    def polled(self, pointers: Handle, values: np.ndarray) -> None:
        """Do nothing, as for ``updated``."""

    def _check_lanes(self, pointers: Handle, values: np.ndarray, mask: Handle | None, event: int) -> None:
        """Report an element to which lanes of one store write different values."""
        shape = pointers.full().shape
        for shadow, units, bits in self._units_with(
            pointers, mask, values.dtype.itemsize, np.broadcast_to(values, shape)
        ):
            order = np.argsort(units, kind="stable")
            units, bits = units[order], bits[order]
            bad = (units[1:] == units[:-1]) & (bits[1:] != bits[:-1])
            if bad.any():
                unit = int(units[1:][bad][0])
                self._report(shadow, unit, self._events[event], event, "lanes of one store have several values for it")

    # --- who it is
    # -------------------------------------------------------------------------------------------------------

    def _sign(self, pointers: Handle, mask: Handle | None, itemsize: int) -> tuple[int, bool]:
        """Return the number of an access's signature since the last barrier, and a flag for a lane in every thread."""
        key = _signature(pointers, mask, itemsize)
        number = self._signs.get(key) if key is not None else None
        if number is None:
            self._next_sign += 1
            number = self._next_sign
            if key is not None:
                self._signs[key] = number
        return number, math.prod(pointers.shape) >= self.threads

    def _changes(self, pointers: Handle, values: np.ndarray) -> np.ndarray:
        """Return a mask of the lanes of a store that change their element."""
        addresses = np.broadcast_to(pointers.full(), np.broadcast_shapes(pointers.full().shape, values.shape))
        changed = np.ones(addresses.shape, bool)
        for region in self.regions:
            inside = _inside(addresses, region, values.dtype.itemsize)
            if inside.any():
                at = (addresses[inside] - np.uint64(region.start)) // np.uint64(values.dtype.itemsize)
                bits = f"u{values.dtype.itemsize}"
                old = region.view(values.dtype)[at.astype(np.int64)].view(bits)
                changed[inside] = old != np.broadcast_to(values, addresses.shape)[inside].view(bits)
        return changed

    def _units(self, pointers: Handle, mask: Handle | None, itemsize: int) -> Iterator[tuple[_Shadow, np.ndarray]]:
        for shadow, units, _ in self._units_with(pointers, mask, itemsize, np.ones(1, bool)):
            yield shadow, units

    def _units_with(
        self, pointers: Handle, mask: Handle | None, itemsize: int, extra: np.ndarray
    ) -> Iterator[tuple[_Shadow, np.ndarray, np.ndarray]]:
        """Yield the units that active lanes access, by storage, with the lanes' entries of ``extra``."""
        addresses = pointers.full()
        active = np.broadcast_to(True if mask is None else mask.full(), addresses.shape)
        extra = np.broadcast_to(extra, addresses.shape)
        for region in self.regions:
            chosen = active & _inside(addresses, region, itemsize)
            if not chosen.any():
                continue
            shadow = self._shadow(region)
            first = (addresses[chosen] - np.uint64(region.start)).astype(np.int64) // shadow.unit
            for step in range(max(itemsize // shadow.unit, 1)):
                yield shadow, first + step, extra[chosen]

    def _shadow(self, region: Region) -> _Shadow:
        found = self._shadows.get(region.start)
        if found is None:
            sizes = [t.itemsize for t in self.tensors if region.start <= t.address < region.end]
            found = self._shadows[region.start] = _Shadow(region, min(sizes, default=1))
        return found

    # --- what is wrong
    # ---------------------------------------------------------------------------------------------------

    def _check(self, shadow: _Shadow, units: np.ndarray, bad: np.ndarray, events: np.ndarray, event: int) -> None:
        if bad.any():
            unit = int(units[bad][0])
            self._report(shadow, unit, self._events[int(events[unit])], event, "no barrier in between")

    def _check_programs(
        self, shadow: _Shadow, units: np.ndarray, counts: np.ndarray, event: int, *, readers: bool, atomic: bool = False
    ) -> None:
        if self._acquired:
            return
        sides = [(shadow.writer, shadow.write_event)]
        sides += [(shadow.reader, shadow.read_event)] if readers else []
        sides += [] if atomic else [(shadow.updater, shadow.update_event)]
        for programs, events in sides:
            who = programs[units]
            bad = counts & (who != 0) & (who != self._number)
            if bad.any():
                unit = int(units[bad][0])
                before = self._events[int(events[unit])]
                self._report(shadow, unit, before, event, "and the programs of a launch run in any order")

    def _event(self, verb: str) -> int:
        self._events.append(_Event(verb, self._program, line_of(self.file)))
        return len(self._events) - 1

    def _report(self, shadow: _Shadow, unit: int, before: _Event, event: int, why: str) -> None:
        address = shadow.region.start + unit * shadow.unit
        names = (tensor.subscript(address) for tensor in self.tensors)
        element = next(filter(None, names), f"byte {address - shadow.region.start} of {shadow.region.owner}")
        after = self._events[event]
        raise exc.DataRace(
            element=element,
            kernel=self.kernel,
            first=f"{before.verb} in program {before.program} at {before.line}",
            second=f"{after.verb} in program {after.program} at {after.line}",
            why=why,
        )


def line_of(file: str) -> str:
    """Return the line of the kernel in ``file`` that is running, as the user wrote it."""
    lines = linecache.getlines(file)
    frame: types.FrameType | None = sys._getframe(1)
    innermost = "its source"
    while frame is not None:
        if frame.f_code.co_filename == file and frame.f_lineno <= len(lines):
            if innermost == "its source":
                innermost = lines[frame.f_lineno - 1].strip()
            for text in reversed(lines[: frame.f_lineno]):
                if found := _ORIGIN.match(text):
                    return found[1]
                if text.startswith("def "):
                    break  # a helper: the line of its caller is the user's
        frame = frame.f_back
    return innermost


def _meet(programs: np.ndarray, units: np.ndarray, number: int) -> None:
    """Record a program that accessed units: its number, or a mark for several."""
    who = programs[units]
    programs[units] = np.where((who == 0) | (who == number), number, _OTHERS)


def _inside(addresses: np.ndarray, region: Region, itemsize: int) -> np.ndarray:
    return (addresses >= np.uint64(region.start)) & (addresses + np.uint64(itemsize) <= np.uint64(region.end))


def _signature(pointers: Handle, mask: Handle | None, itemsize: int) -> object | None:
    """Return the common key of accesses whose lanes belong to the same threads; None where active lanes share
    elements.
    """
    if not pointers.shape:
        return (int(pointers.data.reshape(-1)[0]), (), itemsize)
    addresses = np.asarray(pointers.full()).view(np.int64)
    origin = (0,) * addresses.ndim
    base = int(addresses[origin])
    dims: list[tuple[int, int]] = []
    expected = np.array(base)
    for d, size in enumerate(addresses.shape):
        if size > 1:
            step = int(addresses[(*origin[:d], 1, *origin[d + 1 :])]) - base
            dims.append((step, size))
            expected = expected + (np.arange(size) * step).reshape((-1,) + (1,) * (addresses.ndim - 1 - d))
    dims.sort(key=lambda dim: abs(dim[0]))
    affine = np.array_equal(np.broadcast_to(expected, addresses.shape), addresses)
    if not (affine and _are_apart(dims)):
        # lanes beyond the end of a row may be in the next one
        active = addresses if mask is None else addresses[np.broadcast_to(mask.full(), addresses.shape)]
        if np.unique(active).size != active.size:
            return None
    return (base, tuple(dims), itemsize) if affine else (np.ascontiguousarray(addresses).tobytes(), itemsize)


def _are_apart(dims: list[tuple[int, int]]) -> bool:
    """Return whether combinations of steps, the shortest first, never give one address twice."""
    reach = 0
    for step, size in dims:
        if abs(step) <= reach:
            return False
        reach += (size - 1) * abs(step)
    return True
