"""Tiles of filters whose rows share loads: a few rows in each thread, along an axis that is not contiguous.

Each row of a window is then loaded and converted once for all outputs that need it (``lower/unroll_rows.py``). More rows
share more, and take more registers and more time to compile, so predicted time chooses (measurement ``unrolled_rows``).

Threads have fewer elements where taps lie along contiguous memory too. Each is then a load of its own, and loads in flight
leave registers for few warps (measurement ``single_taps``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

from ...._compiler.facts.records import AxisFact, KernelFacts, PointwiseFact
from ...._support.records import dataclass, replace
from ....hardware import Target
from ..proposal import TritonProposal
from ..row_windows import kept_loads, saves_loads
from .choose import trust
from .predicted_time import proposal_timing, proposal_us
from .sizing import all_sizes, estimate
from .tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "window_rows"

    #: Rows of a thread along one axis, those of pairs of rows and columns, or rows along each of two.
    rows: tuple[int, ...]
    pairs_rows: tuple[int, ...]
    two_rows: tuple[tuple[int, int], ...]
    #: Elements along the contiguous axis for each thread, and the bytes of the shortest line of a tile.
    runs: tuple[int, ...]
    line_bytes: int
    warps: tuple[int, ...]
    #: Most elements of a thread, and of pairs of rows and columns, whose rows share all loads of columns. Where taps along
    #: contiguous memory load single elements: of few taps, of so many, and of more.
    most: int
    pairs_most: int
    single_most: int
    many_taps: int
    many_most: int
    #: Ratio of predicted times that tells nothing.
    alike: float


def fastest_rows(
    tiles: TritonProposal, fact: PointwiseFact, facts: KernelFacts, target: Target
) -> TritonProposal | None:
    """Return the tile of rows that share loads, if it is predicted to be faster than ``tiles``."""
    if len(fact.contiguous_axes) != 1 or facts.num_roots != 1 or fact.contiguous_axes[0] not in tiles.block_sizes:
        return None
    (first,) = fact.contiguous_axes
    tried = _candidates(tiles, facts.axes[first], fact.storage_itemsize, facts, target)
    found = [each for each in tried if not _spills(each, facts, target)]
    usual = proposal_timing(facts, tiles, target)
    timed = [(each, proposal_us(facts, each, target)) for each in found]
    least = min((us for _, us in timed), default=math.inf)
    # where memory takes most of the time, predictions miss a part of what sharing saves (measurement ``unrolled_rows``)
    saves = 2 * dict(usual.units)["memory"] > usual.us and not _shares(tiles, facts, target)
    if least > (tuned(_Numbers).alike if saves else trust(target).reused) * usual.us:
        return None
    # of tiles that are nearly as fast, the one with the fewest warps and the longest rows has the fewest addresses; more
    # rows share more loads
    alike = [each for each, us in timed if us <= tuned(_Numbers).alike * least]
    return min(alike, key=lambda each: (each.num_warps or 1, -each.block_sizes[first], -_elements(each)))


def holding_warps(warps: int, sizes: Mapping[int, int], facts: KernelFacts, target: Target) -> int:
    """Return ``warps`` or more, so that the registers of a thread hold all loads. Separate rows share some.

    ptxas moves them all to the front, and spills those that it has no registers for (measurement ``single_taps``).
    """
    while warps * target.warp_size < target.max_threads_per_block:
        threads = warps * target.warp_size
        kept = kept_loads(facts, sizes, threads, 0)
        loads = [op for op in facts.memory_ops if op.kind == "load"]
        each = [max(1.0, math.prod(sizes[axis] for axis in op.tile_axes) / threads) for op in loads]
        if (
            sum(kept.get(op.slot, 1.0) * n for op, n in zip(loads, each, strict=True))
            <= target.max_registers_per_thread
        ):
            break
        warps *= 2
    return warps


def _elements(tiles: TritonProposal) -> int:
    return math.prod(tiles.block_sizes.values())


def _shares(tiles: TritonProposal, facts: KernelFacts, target: Target) -> bool:
    threads = (tiles.num_warps or 1) * target.warp_size
    sizes = all_sizes(facts, tiles.block_sizes, tiles.reduction_loops)
    return any(kept_loads(facts, sizes, threads, window.root) for window in facts.row_windows)


def _spills(tiles: TritonProposal, facts: KernelFacts, target: Target) -> bool:
    return bool(estimate(facts, target, tiles.block_sizes, tiles.num_warps or 1, 1).spill_risk)


def _candidates(
    tiles: TritonProposal, first: AxisFact, itemsize: int, facts: KernelFacts, target: Target
) -> Iterator[TritonProposal]:
    numbers = tuned(_Numbers)
    along = [each for each in facts.row_windows if each.axis == first.block_id and any(map(_has_taps, each.rows))]
    singles = [window.loads(1)[1] for window in along]
    taps = any(map(_has_taps, itertools.chain.from_iterable(each.rows for each in facts.row_windows)))
    most = numbers.most if taps else numbers.pairs_most
    if singles:
        most = numbers.many_most if max(singles) >= numbers.many_taps else numbers.single_most
    shortest = max(first.min_size, min(_highest(first), numbers.line_bytes // itemsize))
    least = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
    for rows in _rows(first, facts, taps=taps):
        for run, warps in itertools.product(numbers.runs, numbers.warps):
            lanes = run * warps * target.warp_size
            if not shortest <= lanes <= _highest(first) or run * math.prod(rows.values()) > most:
                continue
            sizes = {**least, **rows, first.block_id: lanes}
            shape = " x ".join(map(str, sizes.values()))
            reason = f"{tiles.reason}, of {shape}: rows of a window share loads"
            yield replace(tiles, reason=reason, block_sizes=sizes, num_warps=warps)


def _rows(first: AxisFact, facts: KernelFacts, *, taps: bool) -> Iterator[dict[int, int]]:
    """Yield the rows along the axis of one window, or of two. Pairs without ``taps`` have up to twice as many."""
    windows = [each for each in facts.row_windows if each.axis != first.block_id and facts.axes[each.axis].tunable]
    for window in windows:
        for rows in tuned(_Numbers).rows if taps else tuned(_Numbers).pairs_rows:
            if saves_loads(*window.loads(rows)) and rows <= _highest(facts.axes[window.axis]):
                yield {window.axis: rows}
    for one, other in itertools.combinations(windows, 2):
        for rows, more in tuned(_Numbers).two_rows:
            if not saves_loads(*one.loads(rows)) and not saves_loads(*other.loads(more)):
                continue
            if more <= _highest(facts.axes[other.axis]) and rows <= _highest(facts.axes[one.axis]):
                yield {one.axis: rows, other.axis: more}


def _has_taps(rows: tuple[int, ...]) -> bool:
    return len(set(rows)) > 1


def _highest(axis: AxisFact) -> int:
    return min(axis.padded or 2**30, axis.max_size or 2**30)
