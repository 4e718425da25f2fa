"""Work that a call need not wait for, such as writing to a disk.

Threads do it one after the other, in the order in which it was given. The process does not end before. A forked process
leaves it to its parent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from .locks import new_lock

_LOCK = new_lock()
#: Subjects of work and the threads that do it, in order, those that are done left out in time.
_GIVEN: list[tuple[Hashable, threading.Thread]] = []


def do_later(work: Callable[[], object], about: Hashable = None) -> None:
    """Begin ``work`` in a thread, after what was given before. Its errors are printed, as those of any thread."""

    def run() -> None:
        for _, each in before:
            each.join()
        work()

    with _LOCK:
        before = [given for given in _GIVEN if given[1].is_alive()]
        thread = threading.Thread(target=run, name="helion-later")
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends, and starts no threads any more
            run()
        else:
            _GIVEN[:] = [*before, (about, thread)]


def wait(about: Hashable = None) -> None:
    """Wait until what was given is done: all of it, or the work ``about`` one subject. Work does not wait for itself."""
    for subject, thread in tuple(_GIVEN):
        if about in (None, subject) and thread is not threading.current_thread():
            thread.join()


def is_idle() -> bool:
    """Return whether all work that was given is done."""
    return not any(thread.is_alive() for _, thread in tuple(_GIVEN))
