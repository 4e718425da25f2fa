"""Terms on which a compilation runs in a thread, between the one that began it and the compiler."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .records import dataclass, field

#: Called with a function that returns the seconds that the fastest compilation so far took from a stage on; returns whether
#: that is too long. It may wait for that compilation before.
IsLate = Callable[[Callable[[], float]], bool]


def _never(left: Callable[[], float]) -> bool:
    return False


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """Terms of a compilation: it gives up before a stage if it ``is_late``, or once it is ``dropped``.

    ``outside`` is set while it runs outside of Python and of the compiler's state. A thread that has dropped it may then
    leave it: it ends with the stage.
    """

    is_late: IsLate = _never
    dropped: threading.Event = field(default_factory=threading.Event)
    outside: threading.Event = field(default_factory=threading.Event)
