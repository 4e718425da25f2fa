"""Lock of a GPU for measurements, shared by all processes that tune on it.

A process holds an advisory lock of the GPU while it checks and times one candidate, or runs a round of turns. It does
not hold it while it compiles. The lock file is in this user's temporary folder and is named by the UUID of the GPU:
indices differ between processes, and machines may share a home. The system releases a lock when its holder ends in any
way.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Iterator

import torch

from ..._support import files as _files
from ..._support import logs as _logging

_LOG = _logging.logger(__name__)

#: Polling interval in seconds of a lock that another process holds. A process that released the lock waits as long
#: before it takes it again, so that a waiting process gets it next.
_LOOK, _LEAVE = 0.001, 0.002
#: Timeout in seconds after an earlier wait timed out, until a wait succeeds.
_AGAIN = 0.25

#: GPUs with a timed-out wait, and the time at which this process released the lock of each.
_IN_VAIN: set[str] = set()
_RELEASED: dict[str, float] = {}


class _Held(threading.local):
    """The GPUs whose lock a thread holds, or continues without."""

    def __init__(self) -> None:
        self.names: set[str] = set()


_HELD = _Held()


class DeviceLock:
    """The lock of a GPU by its UUID. With None, there is nothing to share and it is always free.

    Without support for locks (a read-only file system, a system without ``flock``) its holder continues without. The
    same holds after ``seconds`` of waiting, in which other holders should have ended: a stopped process must not block
    others. All waits together take ``most`` seconds at most.
    """

    def __init__(self, uuid: str | None = None, seconds: float = 0.0, most: float = math.inf) -> None:
        self.waited = 0.0
        """Seconds of waiting, of all holders of this object."""
        self._name = uuid
        self._seconds = seconds
        self._most = most

    @property
    def is_shared(self) -> bool:
        """True if other processes may wait for the lock."""
        return self._name is not None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock: other processes and threads do not measure meanwhile. Reentrant for a thread."""
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
        """Take the lock until ``stack`` is closed, or continue without."""
        time.sleep(max(0.0, min(_LEAVE, _RELEASED.get(name, 0.0) + _LEAVE - time.monotonic())))
        seconds = min(self._seconds, _AGAIN) if name in _IN_VAIN else self._seconds
        seconds = max(0.0, min(seconds, self._most - self.waited))
        try:
            taken = _taken(name, seconds, stack)
        except (OSError, NotImplementedError) as error:
            _say_without(f"{type(error).__name__}: {error}")
            return
        if taken:
            _IN_VAIN.discard(name)
        else:
            _IN_VAIN.add(name)
            _logging.say_once(
                f"helion: another process has measured on GPU {name} for {seconds:.3g} s; times are measured while it runs"
            )


def _taken(name: str, seconds: float, stack: contextlib.ExitStack) -> bool:
    """Try to take the lock for ``seconds``, and return whether it was free; ``stack`` releases it.

    Raises OSError and NotImplementedError.
    """
    import filelock  # which imports asyncio

    lock = filelock.FileLock(_files.private_folder() / f"gpu-{name}.lock", mode=0o600)
    try:
        lock.acquire(timeout=seconds, poll_interval=_LOOK)
    except filelock.Timeout:
        return False
    stack.callback(lambda: _RELEASED.update({name: time.monotonic()}))
    stack.callback(lock.release)
    return True


@functools.cache
def _say_without(reason: str) -> None:
    """Log once for each reason."""
    _LOG.debug("the GPU is measured on without a lock: %s", reason)


def lock_of(device: torch.device, seconds: float, most: float = math.inf) -> DeviceLock:
    """Return the lock of a device, with a timeout of ``seconds`` for each wait, and of ``most`` for all.

    It is always free if the device is no GPU, or one without a UUID.
    """
    if device.type != "cuda":
        return DeviceLock()
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return DeviceLock(None if uuid is None else str(uuid), seconds, most)
