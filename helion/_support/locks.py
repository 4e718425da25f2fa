"""Locks that a forked process finds free, and recovery of the state they guard.

``os.fork`` copies one thread. A lock that another thread held at that moment stays locked in the child forever. The
data that it guards stays half changed. All locks of the package come from ``new_lock``: the child replaces each one
that another thread held, and calls the action that its owner gave to ``recover``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

#: Seconds for which a fork waits for imports on demand in other threads: a child cannot finish a module that is half
#: run. It waits as long for work whose locks it would find held.
_PATIENCE = 10.0
_PAUSE = 0.001

_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()
_RECOVERIES: weakref.WeakKeyDictionary[Any, list[Callable[[], Callable[[], None] | None]]] = weakref.WeakKeyDictionary()
_IN_CHILD: list[Callable[[], None]] = []
#: Imports on demand in flight, by thread, and the thread that is about to fork.
_IMPORTS: dict[int, int] = {}
_FORKING: list[int] = []
#: Functions that say whether work in other threads is done, for which forks wait.
_WORK: list[Callable[[], bool]] = []


def new_lock() -> Any:
    """Return a reentrant lock that is free in a forked process if a thread of its parent held it."""
    made = threading.RLock()
    _LOCKS.add(made)
    return made


def recover(lock: Any, action: Callable[[], None]) -> None:
    """Call ``action`` in a forked process if another thread held ``lock`` at the fork: its data may be half changed.

    A bound method does not keep its object alive.
    """
    is_method = getattr(action, "__self__", None) is not None
    reference: Callable[[], Callable[[], None] | None] = weakref.WeakMethod(action) if is_method else lambda: action
    _RECOVERIES.setdefault(lock, []).append(reference)


def in_forked_process(action: Callable[[], None]) -> None:
    """Call ``action`` in every forked process, after its locks were replaced."""
    _IN_CHILD.append(action)


TRITON_LOCK = new_lock()
"""Held around every interpreted kernel and every Triton compilation, which share state of the process: Triton's caches
of functions and hashes, and numpy's error mode. Reentrant, because an interpreted kernel may compile another one on its
own thread."""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Make a fork in another thread wait until the imports in here are done.

    Uses no lock, which importers could deadlock on.
    """
    me = threading.get_ident()
    _IMPORTS[me] = _IMPORTS.get(me, 0) + 1
    while next(iter(_FORKING), me) != me and _IMPORTS[me] == 1:
        del _IMPORTS[me]
        time.sleep(_PAUSE)
        _IMPORTS[me] = 1
    try:
        yield
    finally:
        _IMPORTS[me] -= 1
        if not _IMPORTS[me]:
            del _IMPORTS[me]


def done_before_forks(is_done: Callable[[], bool]) -> None:
    """Make forks wait until ``is_done`` returns True: locks of a library that works in another thread stay held in a child."""
    _WORK[:] = [each for each in _WORK if not each()]
    _WORK.append(is_done)


def is_held_here(lock: Any) -> bool:
    """Return whether this thread holds a reentrant lock."""
    return bool(lock._is_owned())


def is_held_elsewhere(lock: Any) -> bool:
    """Return whether another thread holds a reentrant lock."""
    if is_held_here(lock):
        return False
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


def _before_fork() -> None:
    me = threading.get_ident()
    _FORKING.append(me)
    end = time.monotonic() + _PATIENCE
    while _is_busy(me) and time.monotonic() < end:
        time.sleep(_PAUSE)


def _is_busy(me: int) -> bool:
    return any(thread != me for thread in list(_IMPORTS)) or not all(is_done() for is_done in list(_WORK))


def _after_fork() -> None:
    _FORKING.clear()


def _in_child() -> None:
    _FORKING.clear()
    _WORK.clear()
    me = threading.get_ident()
    for thread in [thread for thread in _IMPORTS if thread != me]:
        del _IMPORTS[thread]
    held = [lock for lock in list(_LOCKS) if is_held_elsewhere(lock)]
    for lock in [*held, *_locks_of_cached_properties()]:
        lock._at_fork_reinit()
    for lock in held:
        for reference in _RECOVERIES.get(lock, ()):
            action = reference()
            if action is not None:
                action()
    for action in _IN_CHILD:
        action()


def _locks_of_cached_properties() -> list[Any]:
    """Return the locks of ``functools.cached_property`` in the package that other threads hold; there are some until Python 3.12."""
    if sys.version_info >= (3, 12):
        return []
    package = __name__.partition(".")[0]
    modules = [each for name, each in list(sys.modules.items()) if name.partition(".")[0] == package]
    kinds = [kind for module in modules for kind in list(vars(module).values()) if isinstance(kind, type)]
    attributes = [attribute for kind in kinds for attribute in list(vars(kind).values())]
    locks = [getattr(each, "lock", None) for each in attributes if isinstance(each, functools.cached_property)]
    return [lock for lock in locks if lock is not None and is_held_elsewhere(lock)]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
