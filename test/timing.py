"""Bounds on time that hold on busy and slow machines: what is timed is compared with known work timed beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

#: Seconds of ``_known_work`` where the bounds of the tests were set: Python 3.11 on a server core at rest.
_KNOWN_SECONDS = 0.55e-3


def seconds(work: Callable[[], object], bound: float, repeats: int = 60) -> float:
    """The least seconds of ``work``, as on the machine where the bounds were set, or some at most ``bound``.

    A slower machine, or one that others use too, takes longer for known work that is timed in turns with it; by so much
    the result is less than what was measured. A faster machine gets no discount. Both last about equally long, so that
    what disturbs the one disturbs the other. What stays above ``bound`` is timed ``repeats`` times, what does not once.
    """
    rounds = max(1, round(_timed(work) / _KNOWN_SECONDS))
    own = known = math.inf
    found = math.inf
    for _ in range(repeats):
        own, known = min(own, _timed(work)), min(known, _timed(_known_work, rounds))
        found = own / max(known / (rounds * _KNOWN_SECONDS), 1.0)
        if found <= bound:
            break
    return found


class _Node:
    def __init__(self, number: int, key: tuple[int, int]) -> None:
        self.number = number
        self.key = key


def _known_work() -> int:
    """What compilers written in Python do: small objects, tuples, dictionaries."""
    found: dict[tuple[int, int], _Node] = {}
    for number in range(2000):
        node = _Node(number, (number, number + 1))
        found[node.key] = node
    return sum(node.number for node in found.values())


def _timed(work: Callable[[], object], rounds: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        work()
    return time.perf_counter() - start
