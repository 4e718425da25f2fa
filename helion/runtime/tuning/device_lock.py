"""Processes that tune on the same GPU measure in turns.

Each holds an advisory lock of the GPU while it checks and times one candidate, or runs a round of turns, and never while
it compiles. The file of the lock lies in this user's folder for temporary files and is named by the UUID of the GPU: indices
differ between processes, and a home may be shared by machines. The system releases a lock when its holder ends, however
it ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator

import torch

from ... import _files, _logging

_LOG = _logging.logger(__name__)

#: Seconds between looks at a lock that another process holds, and for how many seconds a process leaves one that it has released:
#: each of the others looks at it within them, so that the next holder is one of those who wait.
_LOOK, _LEAVE = 0.001, 0.002
#: Seconds that are waited where a wait was in vain, until one is not.
_AGAIN = 0.25
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)

#: GPUs of which a wait was in vain, and when this process has released the lock of each.
_IN_VAIN: set[str] = set()
_RELEASED: dict[str, float] = {}


class _Held(threading.local):
    """The GPUs whose lock a thread holds, or goes on without."""

    def __init__(self) -> None:
        self.names: set[str] = set()


_HELD = _Held()


class DeviceLock:
    """The lock of a GPU by its UUID; of None, where there is nothing to share, it is always free.

    Where there can be no lock (a file system that is read-only, a system without ``flock``), or after ``seconds`` of
    waiting, in which other holders should have been done, its holder goes on without: a process that was stopped must not
    hang others.
    """

    def __init__(self, uuid: str | None = None, seconds: float = 0.0) -> None:
        self.waited = 0.0
        """Seconds of waiting, of all holders of this object."""
        self._name = uuid
        self._seconds = seconds

    @property
    def is_shared(self) -> bool:
        """Whether there may be others that want it."""
        return self._name is not None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within it other processes and threads do not measure. A thread that holds it already has it at once."""
        name = self._name
        if name is None or name in _HELD.names:
            yield
            return
        with contextlib.ExitStack() as stack:
            began = time.monotonic()
            try:
                self._acquire(name, stack)
            finally:
                self.waited += time.monotonic() - began
            _HELD.names.add(name)
            stack.callback(_HELD.names.discard, name)
            yield

    def _acquire(self, name: str, stack: contextlib.ExitStack) -> None:
        """Takes the lock until ``stack`` is closed, or goes on without."""
        time.sleep(max(0.0, min(_LEAVE, _RELEASED.get(name, 0.0) + _LEAVE - time.monotonic())))
        seconds = min(self._seconds, _AGAIN) if name in _IN_VAIN else self._seconds
        try:
            taken = _taken(name, seconds, stack)
        except (OSError, ImportError) as error:
            _say_without(f"{type(error).__name__}: {error}")
            return
        if taken:
            _IN_VAIN.discard(name)
        else:
            _IN_VAIN.add(name)
            _logging.say_once(
                f"helion: another process has measured on GPU {name} for {seconds:.3g} s; times are measured beside it"
            )


def _taken(name: str, seconds: float, stack: contextlib.ExitStack) -> bool:
    """Whether the lock was free within ``seconds``; ``stack`` then releases it. Raises OSError and ImportError."""
    import fcntl  # some systems have none

    file = os.open(_files.private_folder() / f"gpu-{name}.lock", _FLAGS, 0o600)
    stack.callback(os.close, file)
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_LOOK)
            continue
        # closing is not enough: a process that was forked meanwhile has the file open, too
        stack.callback(fcntl.flock, file, fcntl.LOCK_UN)
        stack.callback(lambda: _RELEASED.update({name: time.monotonic()}))
        return True


@functools.cache
def _say_without(reason: str) -> None:
    """Once for each reason."""
    _LOG.debug("the GPU is measured on without a lock: %s", reason)


def lock_of(device: torch.device, seconds: float) -> DeviceLock:
    """The lock of a device, for which ``seconds`` are waited at most; always free where it is no GPU, or one without a
    UUID."""
    if device.type != "cuda":
        return DeviceLock()
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return DeviceLock(None if uuid is None else str(uuid), seconds)
