"""A pause of Python's automatic garbage collection while a kernel is compiled.

Compilers make many objects that stay, and almost no cycles. Each full collection visits all objects of the process,
also those of torch and of the DSL, and can take longer than the compilation.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

from .locks import in_forked_process, new_lock

_LOCK = new_lock()
#: Threads in ``paused``, with the number of bodies that each is in, while this module keeps the collection off.
_PAUSING: dict[int, int] = {}


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Collect no garbage in the body. If the collection was off before, it stays off. Bodies may nest and overlap."""
    here = threading.get_ident()
    with _LOCK:
        ours = bool(_PAUSING) or gc.isenabled()
        if ours:
            _PAUSING[here] = _PAUSING.get(here, 0) + 1
            gc.disable()
    try:
        yield
    finally:
        if ours:
            with _LOCK:
                _leave(here)


@contextlib.contextmanager
def resumed() -> Iterator[None]:
    """Collect garbage in the body, unless another thread pauses the collection: the bodies around it pause no longer."""
    here = threading.get_ident()
    with _LOCK:
        depth = _PAUSING.pop(here, 0)
        if depth and not _PAUSING:
            gc.enable()
    try:
        yield
    finally:
        if depth:
            with _LOCK:
                _PAUSING[here] = depth
                gc.disable()


def _leave(thread: int) -> None:
    _PAUSING[thread] -= 1
    if not _PAUSING[thread]:
        del _PAUSING[thread]
    if not _PAUSING:
        if gc.get_count()[0] > gc.get_threshold()[0]:
            gc.collect(0)  # the next object would begin a collection, of all objects if one is due
        gc.enable()


def _leave_others() -> None:
    """Leave the bodies of threads that a forked process lacks."""
    for thread in _PAUSING.keys() - {threading.get_ident()}:
        _PAUSING[thread] = 1
        _leave(thread)


in_forked_process(_leave_others)
