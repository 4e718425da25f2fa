"""Loads that rows of a tile share: those of a window, whose places differ by whole rows."""

from __future__ import annotations

from ..ir.grammar import MemoryAttrs
from ..passes.analysis.row_windows import LEAST_LOADS, is_plain, is_simple, shared_rows
from .access import RowWindow
from .walk import Walk


def row_windows(walk: Walk) -> tuple[RowWindow, ...]:
    """Return the windows along each axis of grid loops that load, compute elements, and store."""
    loads: dict[int, int] = {}
    for op in walk.loads:
        tensor = op.attributes(MemoryAttrs).tensor
        loads[tensor] = loads.get(tensor, 0) + 1
    if max(loads.values(), default=0) < LEAST_LOADS:
        return ()
    found = []
    for number, root in enumerate(walk.program.roots):
        ops = root.body.ops
        for axis in root.axes if all(map(is_plain, ops)) else ():
            shared = shared_rows(walk.makers, ops, axis.block) if is_simple(axis) else None
            if shared is not None and shared.shares:
                found.append(RowWindow(root=number, axis=axis.block, rows=shared.rows, slots=shared.slots))
    return tuple(found)
