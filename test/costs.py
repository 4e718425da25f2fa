"""Bounds on the cost of work that hold on every machine: calls are counted, and no time is measured."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable


def calls(work: Callable[[], object]) -> int:
    """Return how many calls, of Python functions and of built-in ones, ``work`` makes.

    Runs it once before, so that caches and imports on demand are not counted.
    """
    work()
    count = 0

    def counted(frame: types.FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
