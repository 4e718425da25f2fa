"""Rule by which rows of a tile become values of their own: where rows of one thread share loads.

The step of ``lower/unroll_rows.py`` and the predicted time both follow it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..._compiler.facts.records import KernelFacts

#: Most rows of a tile.
MOST_ROWS = 16
#: Least ratio of the loads of all taps to those of the result.
_LEAST_SHARED = 1.3
#: Most steps of Triton's choice of layouts, and ops for each tap and each load. It visits all ops for each load
#: (measurement ``unrolled_rows``).
_MOST_STEPS, _TAP_OPS, _LOAD_OPS = 5e7, 2, 6


def is_unrolled(rows: int, lanes: int, threads: int) -> bool:
    """Return whether rows of so many lanes may be separate: each thread has elements of all rows in any case."""
    return 2 <= rows <= MOST_ROWS and lanes >= threads


def saves_loads(asked: int, made: int) -> bool:
    """Return whether separate rows load enough less, and are no more than Triton compiles in short time."""
    steps = made * (_TAP_OPS * asked + _LOAD_OPS * made) ** 2
    return made * _LEAST_SHARED <= asked and steps <= _MOST_STEPS


def kept_loads(facts: KernelFacts, sizes: Mapping[int, int], threads: int, root: int) -> dict[int, float]:
    """Return the part of the loads that separate rows keep, by slot of those that rows share."""
    found: dict[int, float] = {}
    for window in facts.row_windows:
        rows = sizes[window.axis]
        if window.root != root or not 2 <= rows <= MOST_ROWS:
            continue
        tiles = [op.tile_axes for op in facts.memory_ops if window.axis in op.tile_axes]
        lanes = max((_lanes(axes, window.axis, sizes) for axes in tiles), default=0)
        if not is_unrolled(rows, lanes, threads):
            continue
        asked, made = window.loads(rows)
        if not saves_loads(asked, made):
            continue
        for group, slots in zip(window.rows, window.slots, strict=True):
            distinct = len({first + row for first in group for row in range(rows)})
            for slot in slots:
                found[slot] = found.get(slot, 1.0) * distinct / (rows * len(slots))
    return found


def _lanes(axes: tuple[int, ...], rows: int, sizes: Mapping[int, int]) -> int:
    lanes = 1
    for axis in axes:
        lanes *= 1 if axis == rows else sizes[axis]
    return lanes
