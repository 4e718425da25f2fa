"""Work that a call need not wait for, such as writing to a disk.

Threads do it one after the other, in the order in which it was given. The process does not end before. A forked process
leaves it to its parent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .locks import new_lock

_LOCK = new_lock()
#: The thread of the last work given, if it may still run.
_LAST: list[threading.Thread] = []


def do_later(work: Callable[[], object]) -> None:
    """Begin ``work`` in a thread, after what was given before. Its errors are printed, as those of any thread."""

    def run() -> None:
        for each in before:
            each.join()
        work()

    with _LOCK:
        before = tuple(_LAST)
        thread = threading.Thread(target=run, name="helion-later")
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends, and starts no threads any more
            run()
        else:
            _LAST[:] = [thread]


def wait() -> None:
    """Wait until all work that was given is done, unless this is part of it."""
    for thread in tuple(_LAST):
        if thread is not threading.current_thread():
            thread.join()
