"""A stand-in for the driver: inside ``stub_driver()`` kernels are compiled and called, but nothing is launched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .._locks import new_lock
from .._shapes import CONCRETE_TENSORS


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch that the stub swallowed: ``num_args`` counts what reaches the device, so no ``tl.constexpr``."""

    name: str
    grid: tuple[int, int, int]
    num_args: int


@dataclass(eq=False)
class StubDriver:
    """What ``stub_driver`` yields. ``launches`` are in order; equal ones are one object."""

    launches: list[Launch] = field(default_factory=list)


_LOCK = new_lock()
_ACTIVE: tuple[StubDriver, ...] = ()
_CHANGES = 0
_LISTENERS: list[Callable[[], None]] = []


def active() -> bool:
    """Whether some ``stub_driver()`` is entered, in any thread."""
    return bool(_ACTIVE)


def on_gpu(value: Any) -> bool:
    """Whether a value is a plain tensor in the memory of a GPU, which a driver launches on."""
    return type(value) in CONCRETE_TENSORS and value.is_cuda


def changes() -> int:
    """How often a stub was entered or left: what was made for one count is of no use at another."""
    return _CHANGES


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever a stub is entered or left: what was prepared for one driver must not serve the other."""
    _LISTENERS.append(listener)


def recorder(name: str, num_args: int) -> Callable[..., None]:
    """The no-op that stands for the driver's launch of one kernel: takes the grid first, as the driver does.

    It reports to the stubs entered now.
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
    """The stream of a stubbed launch."""
    return 0


@contextlib.contextmanager
def stub_driver() -> Iterator[StubDriver]:
    """Replace the driver's launch by a no-op, for every kernel of the process, those already bound or run included.

    Everything before the launch happens: keys, host code, output allocation, and compilation, offline for
    ``bound.target``, so that no GPU is needed. CPU tensors take this path too; outputs are left uninitialised. Yields
    an object whose ``launches`` lists what would have run. May be nested: every stub that is entered sees a launch.
    Calls that other threads have under way when the stub is entered or left may still use the former driver.
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
