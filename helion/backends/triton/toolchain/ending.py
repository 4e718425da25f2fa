"""The end of an assembler that takes too long. ``ptxas`` is a process; Triton's own passes and LLVM run in ours and cannot be ended."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

from ...._support.records import dataclass

#: Intervals at which a compilation is asked whether it is over, and its children are read once it is.
_ASK_SECONDS, _POLL_SECONDS = 0.02, 0.1
#: Linux keeps so many characters of the name of a program.
_NAME_LENGTH = 15


@dataclass
class Ending:
    """``ended``: an assembler was ended."""

    ended: bool = False


@contextlib.contextmanager
def ending_assembler(path: str, seconds: float | None, is_over: Callable[[], bool] | None = None) -> Iterator[Ending]:
    """End each process of the program ``path`` that this thread starts inside, once ``seconds`` are over (None: never).

    They also end once ``is_over`` returns True in another thread. The caller that waits for the process sees it fail. Only Linux says which thread started a process; elsewhere none is ended.
    """
    ending = Ending()
    never = seconds is None and is_over is None
    if never or not path or not _children_file(threading.get_native_id()).exists():
        yield ending
        return
    thread, done = threading.get_native_id(), threading.Event()
    former, end = _children(thread), math.inf if seconds is None else time.monotonic() + seconds

    def is_waited_out() -> bool:
        """Wait until the time is up; return False if the body ends before."""
        while not (is_over is not None and is_over()) and (left := end - time.monotonic()) > 0:
            if done.wait(left if is_over is None else min(left, _ASK_SECONDS)):
                return False
        return True

    def watch() -> None:
        if not is_waited_out():
            return
        while not done.is_set():
            for child in _children(thread) - former:
                ending.ended = _end(child, thread, os.path.basename(path)) or ending.ended
            done.wait(_POLL_SECONDS)

    watcher = threading.Thread(target=watch, name="helion-ending", daemon=True)
    watcher.start()
    try:
        yield ending
    finally:
        done.set()
        watcher.join()


def _children_file(thread: int) -> pathlib.Path:
    return pathlib.Path(f"/proc/self/task/{thread}/children")


def _children(thread: int) -> frozenset[int]:
    """Return the processes that a thread started and that have not been waited for."""
    return frozenset(map(int, _children_file(thread).read_text().split()))


def _end(child: int, thread: int, name: str) -> bool:
    """Kill a child of ``thread`` that runs the program ``name``. The handle keeps the number from meaning another process."""
    try:
        handle = os.pidfd_open(child)
    except OSError:  # it has ended by itself
        return False
    try:
        runs = pathlib.Path(f"/proc/{child}/comm").read_text().strip()
        if child not in _children(thread) or runs != name[:_NAME_LENGTH]:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:  # it has ended meanwhile
        return False
    finally:
        os.close(handle)
    return True
