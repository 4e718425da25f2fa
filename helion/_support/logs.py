"""The project's loggers, and ``HELION_LOGS``, which selects the loggers to show and their level.

They are standard ``logging`` loggers named like the modules, so an application's own handlers see them as well. No
handler is attached to them unless the variable is set.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import knobs

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


@contextlib.contextmanager
def saying_when_slow(text: Callable[[int], str]) -> Iterator[None]:
    """Write ``text(seconds)`` on stderr while the body takes long.

    The first line comes after ``HELION_COMPILE_NOTICE_SECONDS``, the next ones after each doubling.
    """
    first = knobs.COMPILE_NOTICE_SECONDS.read()
    if not first:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        waited, next_at = 0, first
        while not done.wait(next_at - waited):
            say(text(next_at))
            waited, next_at = next_at, 2 * next_at

    threading.Thread(target=watch, name="helion-slow", daemon=True).start()
    try:
        yield
    finally:
        done.set()


set_up(knobs.LOGS.read())
