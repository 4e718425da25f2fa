"""Tiles of loops whose steps walk the taps of a window.

A step finds in the L1 cache what the steps before have loaded, so nothing is prefetched: copies to shared memory take
barriers in each step. Rows of a tile share indices and masks (measurement ``taps_in_steps``).
"""

from __future__ import annotations

import math
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ...._support.records import dataclass
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources.time.roots import roots_of
from .sizing import clamp, estimate, grid_extent, is_contiguous
from .tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "step_windows"

    warps: int
    #: Bytes that a thread loads in a step, its least and most elements, and those of a tile along contiguous memory.
    thread_bytes: int
    elements: tuple[int, int]
    run: int


def walks_windows(facts: KernelFacts) -> bool:
    """Return whether all tiles that steps of loops load overlap those of the steps before."""
    if facts.num_roots != 1:
        return False
    (root,) = roots_of(facts)
    extents = {extent.axis: extent.elements or 1 for extent in root.extents}
    tiles = [access for access in root.accesses if access.kind == "load" and access.in_loop and access.axes]

    def overlaps(steps: tuple[int, ...], once_bytes: int, itemsize: int) -> bool:
        loads = grid_extent(facts) * math.prod([extents[axis] for axis in steps])
        return bool(steps) and loads * itemsize > once_bytes

    return bool(tiles) and all(overlaps(access.again, access.once_bytes, access.itemsize) for access in tiles)


def window_tiles(facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return tiles that extend along contiguous memory, then along the other axes alike; None if the smallest spill."""
    numbers = tuned(_Numbers)
    itemsize = max(op.itemsize for op in facts.memory_ops if op.kind == "load" and op.tile_axes)
    least, most = numbers.elements
    each = max(least, min(most, numbers.thread_bytes // itemsize))
    axes = sorted(facts.tunable_axes, key=lambda axis: not is_contiguous(axis, facts))
    while each:
        room, sizes = each * numbers.warps * target.warp_size, dict[int, int]()
        for at, axis in enumerate(axes):
            # of several axes, the first ones have more rows
            rows = 1 << -(-(room.bit_length() - 1) // (len(axes) - at))
            run = min(numbers.run, room) if is_contiguous(axis, facts) else rows
            sizes[axis.block_id] = clamp(min(run, axis.padded or run), axis)
            room = max(1, room // sizes[axis.block_id])
        if not estimate(facts, target, sizes, numbers.warps, 1).spill_risk:
            shape = " x ".join(map(str, sizes.values()))
            reason = f"tiles of {shape}, whose taps the L1 cache has, {numbers.warps} warps"
            return TritonProposal(reason=reason, block_sizes=sizes, num_warps=numbers.warps, num_stages=1)
        each //= 2
    return None
