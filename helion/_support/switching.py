"""Turns of Python's threads while kernels compile in some of them.

A thread that comes back from a compiler takes Python's lock again, from one that computes. It waits for up to 5 ms each
time, and compilers come back often (measurement ``first_call_turns``).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

#: Seconds of a turn. Switching itself takes microseconds.
_OFTEN = 2e-4


@contextlib.contextmanager
def often() -> Iterator[None]:
    """Switch threads more often in the body, unless another interval is set there. Bodies must not overlap."""
    before = sys.getswitchinterval()
    ours = min(before, _OFTEN)
    sys.setswitchinterval(ours)
    ours = sys.getswitchinterval()  # as it was rounded
    try:
        yield
    finally:
        if sys.getswitchinterval() == ours:
            sys.setswitchinterval(before)
