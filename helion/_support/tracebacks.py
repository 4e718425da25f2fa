"""Errors of the user's program without the compiler's own frames: the user's frames, the message and the line stay."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from .. import exc, knobs

if TYPE_CHECKING:
    from typing import ParamSpec, TypeVar

    _P = ParamSpec("_P")
    _R = TypeVar("_R")

_OURS = str(pathlib.Path(__file__).parents[1])
#: Files of Python and torch whose frames are between ours.
_BETWEEN = frozenset((functools.__file__, contextlib.__file__, torch.autograd.function.__file__))
_NOTE = "Frames of the compiler are left out; HELION_FULL_TRACEBACK=1 shows them."


def shortened(error: exc.Base) -> exc.Base:
    """Remove the frames of the compiler below the caller's from an error's traceback, and return the error.

    Errors that are about the compiler itself keep them.
    """
    if isinstance(error, exc.InternalError) or knobs.FULL_TRACEBACK.read():
        return error
    before = _length(error.__traceback__)
    error.__traceback__ = _of_users(error.__traceback__)
    if before - _length(error.__traceback__) > 1 and _NOTE not in getattr(error, "__notes__", ()):
        add_note: Callable[[str], None] | None = getattr(error, "add_note", None)  # from Python 3.11 on
        if add_note is not None:
            add_note(_NOTE)
    return error


def short_errors(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a function so that its errors are ``shortened``."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except exc.Base as error:
            raise shortened(error)  # noqa: B904 - the same error

    return run


def _of_users(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_OURS) and file not in _BETWEEN:
            kept.append(trace)
        trace = trace.tb_next
    rest: TracebackType | None = None
    for each in reversed(kept):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest


def _length(trace: TracebackType | None) -> int:
    count = 0
    while trace is not None:
        count, trace = count + 1, trace.tb_next
    return count


__all__ = ["short_errors", "shortened"]
