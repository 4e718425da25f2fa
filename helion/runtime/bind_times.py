"""``HELION_MEASURE_COMPILE_TIME=1``: a table of the number and duration of binds by kernel, printed at exit."""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections.abc import Iterator

from .. import knobs
from .._support.locks import new_lock

ENABLED: bool = knobs.MEASURE_COMPILE_TIME.read()
"""Read once, so that a bind costs no more than the look at a flag. While it is set, every call binds."""

_LOCK = new_lock()
_TIMES: dict[str, list[float]] = {}


@contextlib.contextmanager
def measured(kernel: str) -> Iterator[None]:
    """Count one bind of ``kernel``, whether it compiles or finds what an earlier one made."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        with _LOCK:
            _TIMES.setdefault(kernel, []).append(seconds)


def counts() -> dict[str, int]:
    """Return the number of binds so far, by kernel."""
    with _LOCK:
        return {name: len(times) for name, times in _TIMES.items()}


def table() -> str:
    """Format one line per kernel: binds, seconds in total, the longest in milliseconds."""
    with _LOCK:
        rows = [(name, len(times), sum(times), 1e3 * max(times)) for name, times in sorted(_TIMES.items())]
    lines = [f"{name:30} {count:8} {total:10.3f} {longest:12.3f}" for name, count, total, longest in rows]
    return "\n".join([f"{'bind of kernel':30} {'times':>8} {'total s':>10} {'longest ms':>12}", *lines])


def _report() -> None:
    if _TIMES:
        print(table(), file=sys.stderr)


if ENABLED:
    atexit.register(_report)
