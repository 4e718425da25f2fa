"""The project's loggers, and ``HELION_LOGS``, which selects the loggers to show and their level.

They are standard ``logging`` loggers named like the modules, so an application's own handlers see them as well. No
handler is attached to them unless the variable is set.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import knobs
from .locks import in_forked_process, new_lock

ROOT = "helion"
#: The logger of lines for users.
NOTICES = "helion.notices"
_FORMAT = "[%(name)s] %(levelname)s: %(message)s"


def logger(module: str) -> logging.Logger:
    """Return the logger of a module, given its ``__name__``."""
    return logging.getLogger(module)


class _StderrHandler(logging.StreamHandler):
    """Handler that writes to the current ``sys.stderr`` at the time of each record."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:  # logging.StreamHandler has it assignable
        raise AttributeError("this handler writes to sys.stderr")


def set_up(wanted: Sequence[tuple[str, bool]]) -> None:
    """Show the named loggers and those below them on stderr: from INFO on, or from DEBUG where the second part is true.

    ``helion`` selects all of them. An empty list changes nothing.
    """
    wanted = [each for each in wanted if not each[0].startswith("-")]
    if not wanted:
        return
    root = logging.getLogger(ROOT)
    if not any(isinstance(handler, _StderrHandler) for handler in root.handlers):
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)
        root.propagate = False  # or an application with a handler of its own would show each line twice
    for name, debug in wanted:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)


def is_silent(topic: str) -> bool:
    """Return whether ``HELION_LOGS`` silences a topic: ``-default``."""
    return (f"-{topic}", False) in knobs.LOGS.read()


@functools.cache
def _notices() -> logging.Logger:
    """Return the logger of lines for users, which go to stderr unchanged unless the application configures it."""
    found = logging.getLogger(NOTICES)
    found.propagate = False
    if not found.handlers:
        found.addHandler(_StderrHandler())
    return found


def say(text: str) -> None:
    """Write a line on stderr.

    Applications silence it with ``logging.getLogger("helion.notices").setLevel(logging.ERROR)``.
    """
    _notices().warning("%s", text)


@functools.cache
def say_once(text: str) -> None:
    """Write a line on stderr, but only the first time."""
    say(text)


@dataclasses.dataclass(eq=False)
class _Watched:
    """A body that may take long: a line is due when it has taken so many ``seconds``."""

    text: Callable[[int], str]
    began: float
    seconds: int

    @property
    def at(self) -> float:
        return self.began + self.seconds


#: Bodies that a thread watches, by identity, and the thread, which ends when it finds none.
_WATCHED: dict[int, _Watched] = {}
_WATCHERS: list[threading.Thread] = []
_WATCHING = new_lock()
#: Longest seconds between two looks, since a body may begin that is to be reported sooner than others.
_LOOK_SECONDS = 1.0
in_forked_process(_WATCHED.clear)
in_forked_process(_WATCHERS.clear)  # the thread is not in the child


@contextlib.contextmanager
def saying_when_slow(text: Callable[[int], str]) -> Iterator[None]:
    """Write ``text(seconds)`` on stderr while the body takes long, unless it is empty.

    The first line comes after ``HELION_COMPILE_NOTICE_SECONDS``, the next ones after each doubling. One thread watches
    all bodies: many take less time than the start of a thread.
    """
    first = knobs.COMPILE_NOTICE_SECONDS.read()
    if not first:
        yield
        return
    watched = _Watched(text, time.monotonic(), first)
    with _WATCHING:
        _WATCHED[id(watched)] = watched
        if not _WATCHERS:
            _WATCHERS.append(threading.Thread(target=_watch, name="helion-slow", daemon=True))
            _WATCHERS[0].start()
    try:
        yield
    finally:
        with _WATCHING:
            _WATCHED.pop(id(watched), None)


def _watch() -> None:
    while True:
        with _WATCHING:
            now = time.monotonic()
            due = [each for each in _WATCHED.values() if each.at <= now]
            if not _WATCHED:
                _WATCHERS.clear()
                return
            left = min(each.at for each in _WATCHED.values()) - now
        for each in due:
            if text := each.text(each.seconds):
                say(text)
            each.seconds *= 2
        if not due:
            time.sleep(min(left, _LOOK_SECONDS))


set_up(knobs.LOGS.read())
