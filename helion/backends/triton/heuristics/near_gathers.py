"""Tiles of kernels whose computed subscripts reach neighbours: resized images, padded windows, reordered pixels.

Each element of a thread has an address of its own. Rows of a thread share the indices of their columns, and rows of a
program the lines of memory that they interpolate between. No rule says how these add up, so predicted time chooses
(measurement ``near_gathers``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import ClassVar

from ...._compiler.facts.records import AxisFact, KernelFacts
from ...._support.records import dataclass, replace
from ....hardware import Target
from ..proposal import TritonProposal
from .predicted_time import proposal_us
from .sizing import estimate
from .tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "near_gathers"

    #: Elements of a thread, warps, and elements along the last axis of the tiles tried.
    each: tuple[int, ...]
    warps: tuple[int, ...]
    runs: tuple[int, ...]
    #: Ratio of predicted times that tells nothing.
    alike: float
    #: Most single elements that a thread loads: the assembler has them all in flight, and spills where they are more.
    loads: int
    #: Single elements of a thread from which their addresses limit the programs of an SM.
    addressed: int
    #: Most elements of a row of which a program gathers all, and elements of a thread.
    row: int
    row_elements: int


def is_near(facts: KernelFacts) -> bool:
    """Return whether all computed subscripts of loads reach neighbours along the last axes of the tiles."""
    loads = [op for op in facts.memory_ops if op.kind == "load" and op.gathered]
    return bool(loads) and all(op.tile_axes and op.tile_axes[-1] in dict(op.steps) for op in loads)


def gathers_many(tiles: TritonProposal, facts: KernelFacts, target: Target) -> bool:
    """Return whether a thread gathers so many elements that their addresses take the most registers."""
    return _loads(tiles, facts, target) > tuned(_Numbers).addressed


def fastest_tiles(usual: tuple[TritonProposal, ...], facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...]:
    """Return the tiles with the one of least predicted time first; the last of the usual ones is not flattened.

    Of tiles that are nearly as fast, the first usual one counts. Of others, it is the one with the fewest warps and the
    longest rows, which has the fewest addresses.
    """
    alike, last = tuned(_Numbers).alike, facts.tunable_axes[-1].block_id
    timed = [(each, proposal_us(facts, each, target)) for each in usual]
    least = min(us for _, us in timed)
    first = next(each for each, us in timed if us <= alike * least)
    most = tuned(_Numbers).loads
    fitting = (each for each in _candidates(usual[-1], facts) if _loads(each, facts, target) <= most)
    found = [each for each in fitting if not _spills(each, facts, target)]
    others = [(each, proposal_us(facts, each, target)) for each in found]
    best = min((us for _, us in others), default=least)
    if alike * best < least:
        near = [each for each, us in others if us <= alike * best]
        first = min(near, key=lambda each: (each.num_warps or 1, -each.block_sizes[last]))
    lighter = () if first in usual else (_lighter(first),)
    return first, *lighter, *(each for each in usual if each is not first)


def gathered_rows(tiles: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return the tile of whole rows for gathers along them from a tensor that L1 does not hold.

    A row gathers from few lines, which other programs of the row would load again (measurement ``gathered_rows``).
    """
    numbers, last = tuned(_Numbers), facts.tunable_axes[-1]
    gathers = (op for op in facts.memory_ops if op.kind == "load" and op.gathered and op.subscript_axes[-1] is None)
    far = [op for op in gathers if op.accessed_numel * op.itemsize > target.smem_per_sm_bytes and not op.steps]
    run, row = tiles.block_sizes[last.block_id], _highest(last)
    if not far or len(facts.tunable_axes) == 1 or not run < row <= numbers.row:
        return tiles
    warps = max(1, row // (target.warp_size * numbers.row_elements))
    reason = f"{tiles.reason}, of whole rows that share lines"
    sizes = {**tiles.block_sizes, last.block_id: row}
    return replace(tiles, reason=reason, block_sizes=sizes, flatten_loops={}, loop_orders={}, num_warps=warps)


def _lighter(tiles: TritonProposal) -> TritonProposal:
    """Return the same with half the elements in a thread: the assembler may need more registers than are predicted."""
    warps = 2 * (tiles.num_warps or 1)
    return replace(tiles, reason=f"{tiles.reason}, shared by {warps} warps", num_warps=warps)


def _spills(tiles: TritonProposal, facts: KernelFacts, target: Target) -> bool:
    return bool(estimate(facts, target, tiles.block_sizes, tiles.num_warps or 1, 1).spill_risk)


def _loads(tiles: TritonProposal, facts: KernelFacts, target: Target) -> int:
    """Return the elements that a thread gathers: of each tap of a window (measurement ``taps_in_flight``)."""
    taps = sum(op.kind == "load" and op.gathered for op in facts.memory_ops)
    lanes = math.prod(tiles.block_sizes.values()) * _whole(facts)
    return taps * lanes // (target.warp_size * (tiles.num_warps or 1))


def _candidates(tiles: TritonProposal, facts: KernelFacts) -> Iterator[TritonProposal]:
    *others, last = facts.tunable_axes
    numbers, whole = tuned(_Numbers), _whole(facts)
    for run, warps, each in itertools.product(numbers.runs, numbers.warps, numbers.each):
        rows = 32 * warps * each // (run * whole)
        if run > _highest(last) or rows < 1:
            continue
        for counts in _splits(rows, others):
            sizes = {axis.block_id: count for axis, count in zip(others, counts, strict=True)} | {last.block_id: run}
            shape = " x ".join(map(str, sizes.values()))
            reason = f"{tiles.reason}, of {shape}: computed subscripts reach neighbours"
            yield replace(tiles, reason=reason, block_sizes=sizes, num_warps=warps)


def _whole(facts: KernelFacts) -> int:
    """Return the elements of whole dimensions for each element of a tile."""
    loads = (op for op in facts.memory_ops if op.kind == "load" and op.gathered)
    whole = ([facts.axes[a].padded for a in op.tile_axes if facts.axes[a].kind == "full"] for op in loads)
    return max(max(1, math.prod(each)) for each in whole)


def _splits(rows: int, axes: list[AxisFact]) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of rows along each axis: all along the last one, or as many along the one before."""
    least = tuple(axis.min_size for axis in axes)
    for at in range(1, min(2, len(axes)) + 1):
        counts = list(least)
        if at == 1:
            counts[-1] = rows
        else:
            side = 1 << (rows.bit_length() - 1) // 2
            counts[-1], counts[-2] = rows // side, side
        if all(axis.min_size <= count <= _highest(axis) for axis, count in zip(axes, counts, strict=True)):
            yield tuple(counts)


def _highest(axis: AxisFact) -> int:
    return min(axis.padded or 2**30, axis.max_size or 2**30)
