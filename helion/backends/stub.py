"""A stub for the driver: inside ``stub_driver()`` kernels are compiled and called, but not launched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from .._shapes import CONCRETE_TENSORS
from .._support.locks import new_lock
from .._support.records import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch that the stub recorded: ``num_args`` counts the arguments on the device, without ``tl.constexpr``."""

    name: str
    grid: tuple[int, int, int]
    num_args: int


@dataclass(eq=False)
class StubDriver:
    """The record that ``stub_driver`` yields. ``launches`` are in order; equal ones are one object."""

    launches: list[Launch] = field(default_factory=list)


_LOCK = new_lock()
_ACTIVE: tuple[StubDriver, ...] = ()
_CHANGES = 0
_LISTENERS: list[Callable[[], None]] = []


def active() -> bool:
    """Return whether any ``stub_driver()`` is entered, in any thread."""
    return bool(_ACTIVE)


def on_gpu(value: Any) -> bool:
    """Return whether a value is a plain tensor in GPU memory, which a driver launches on."""
    return type(value) in CONCRETE_TENSORS and value.is_cuda


def changes() -> int:
    """Return how many times a stub was entered or left: objects made at one count are stale at another."""
    return _CHANGES


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` when a stub is entered or left: launches prepared for one driver must not serve the other."""
    _LISTENERS.append(listener)


def recorder(name: str, num_args: int) -> Callable[..., None]:
    """Make a no-op in place of the driver's launch of one kernel: it takes the grid first, as the driver does.

    It reports to the stubs that are entered now.
    """
    notes = tuple(stub.launches.append for stub in _ACTIVE)
    known: dict[tuple[int, int, int], Launch] = {}

    def remember(grid: tuple[int, int, int]) -> Launch:
        return known.setdefault(grid, Launch(name=name, grid=grid, num_args=num_args))

    def launch_nested(x: int, y: int, z: int, *rest: object) -> None:
        for note in notes:
            note(remember((x, y, z)))

    if len(notes) > 1:
        return launch_nested
    (note,) = notes

    def launch(x: int, y: int, z: int, *rest: object) -> None:
        note(known.get((x, y, z)) or remember((x, y, z)))

    return launch


def no_stream(device: int) -> int:
    """Return the stream of a stubbed launch."""
    return 0


@contextlib.contextmanager
def stub_driver() -> Iterator[StubDriver]:
    """Replace the driver's launch by a no-op, for every kernel of the process, including those already bound or run.

    Everything before the launch happens: keys, host code, allocation of outputs, and offline compilation for
    ``bound.target``. No GPU is needed. CPU tensors take this path too; outputs stay uninitialized.

    Yields an object whose ``launches`` lists the launches that would have run. May be nested: every entered stub sees a
    launch. Calls in flight in other threads when the stub is entered or left may still use the former driver.
    """
    stub = StubDriver()
    _change(lambda active: (*active, stub))
    try:
        yield stub
    finally:
        _change(lambda active: tuple(other for other in active if other is not stub))


def _change(step: Callable[[tuple[StubDriver, ...]], tuple[StubDriver, ...]]) -> None:
    global _ACTIVE, _CHANGES
    with _LOCK:
        _ACTIVE = step(_ACTIVE)
        _CHANGES += 1
    for listener in _LISTENERS:
        listener()


__all__ = ["Launch", "StubDriver", "stub_driver"]
