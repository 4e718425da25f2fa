"""Recurrences and step-by-step accumulations: a loop over single indices that carries a tile, without a matmul or
reduction.

Each step waits for its own loads, unless loads of several steps are in flight. The loop is a software pipeline with
many stages, because a step computes little. Where the loop index alone gives the addresses of all loads, the loop is
unrolled by four. Loads of 28 steps are then in flight. Where indices from data select the rows, tiles are small and have
no stages (measurement ``step_stages``). Loops that load single elements alone have none either: all threads share such a
load, and a copy to shared memory takes two barriers in each step (measurement ``counted_steps``).

Steps that walk the taps of a window have tiles of their own (``step_windows.py``).

Where each load of a step lacks an axis of the grid, rows of a tile share loads: predicted time chooses its shape.
Other tiles extend along contiguous memory. They shrink to the minimum size of asynchronous copies while that gives SMs more
programs. For sm_80 to sm_120 the loads of such loops are asynchronous copies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import ClassVar

from ....._compiler.facts.records import AxisFact, KernelFacts
from ....._shapes import previous_power_of_2
from ....._support.records import dataclass, replace
from .....autotuner.proposal import Declined, Heuristic
from .....hardware import Target
from ...proposal import TritonProposal
from ..choose import fastest
from ..predicted_time import proposal_us
from ..sizing import clamp, estimate, extent_of, grid_extent, is_contiguous
from ..step_windows import walks_windows, window_tiles
from ..tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "recurrence"

    #: Programs per SM, and most elements of a tile.
    programs: int
    most: int
    #: Elements of a thread, so that it copies at least 4 bytes of 16-bit elements, and most warps.
    thread_elements: int
    most_warps: int
    #: Elements of a thread where there are enough of them: a load of 16 bytes of 16-bit elements.
    vector_elements: int
    #: Stages where tiles are small, and from this many elements per SM on, where other programs hide the latency.
    stages: int
    few_stages: int
    many_elements: int
    #: Stages, and steps of each, where no load waits for another one; and the least iterations of the unrolled loop.
    deep_stages: int
    steps: int
    least_turns: int
    #: Most elements of a tile, and of a thread, where steps load no tile: arithmetic alone takes time.
    held: int
    held_elements: int
    #: Elements of a tile whose rows data selects, along contiguous memory and in all, and of a thread: nothing can be
    #: prefetched, and threads hide the latency of the rows.
    picked_run: int
    picked: int
    picked_thread_elements: int
    #: Runs, rows, and elements of a thread of the tiles tried where rows share all loads.
    crossed_runs: tuple[int, ...]
    crossed_rows: tuple[int, ...]
    crossed_elements: tuple[int, ...]
    #: Elements along a third axis, whose rows share the loads that lack it, and along the two others; of a thread then.
    crossed_batches: tuple[int, ...]
    crossed_batch_elements: int


_TUNED = tuned(_Numbers)


class TritonRecurrenceHeuristic(Heuristic):
    name: ClassVar[str] = "TritonRecurrenceHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if facts.matmuls or facts.scans or facts.primary_reduction is not None:
            return Declined("the kernel has a matmul, a reduction of known extent or a scan")
        walked = {axis for region in facts.regions if region.kind == "loop" for axis in region.axes}
        steps = [axis for axis in facts.axes if axis.kind == "scalar" and axis.block_id in walked]
        if not steps or not facts.accumulators:
            return Declined("no loop over single indices carries a tile")
        if any(not axis.on_grid for axis in facts.tunable_axes) or not facts.tunable_axes:
            return Declined("the tiles of the kernel are not those of its grid")
        if walks_windows(facts) and (window := window_tiles(facts, target)) is not None:
            return (window,)
        if any(op.gathered and op.kind == "load" for op in facts.memory_ops):
            return _picked(facts, target)
        room = max(target.warp_size * _TUNED.thread_elements, grid_extent(facts) // (_TUNED.programs * target.num_sms))
        most, elements = _TUNED.most, _TUNED.vector_elements
        if not _loads_tiles(facts):
            most, elements = _TUNED.held, _TUNED.held_elements
        sizes = _sizes(facts, min(most, previous_power_of_2(room)))
        threads = math.prod(sizes.values()) // elements
        warps = max(1, min(_TUNED.most_warps, previous_power_of_2(threads // target.warp_size)))
        many = grid_extent(facts) >= _TUNED.many_elements * target.num_sms
        stages, unrolled = (_TUNED.few_stages if many else _TUNED.stages), 1
        if not _loads_tiles(facts):
            stages = 0
        elif all(_is_long(axis) for axis in steps):
            stages, unrolled = _TUNED.deep_stages, _TUNED.steps
        elif not many and stages * _step_bytes(facts) < target.in_flight_bytes * target.num_sms:
            stages = _TUNED.deep_stages
        if estimate(facts, target, sizes, warps, 1).spill_risk:
            return Declined("the smallest tiles along contiguous memory spill")
        ahead = f"loads of {stages * unrolled} steps in flight" if stages else "no loads of tiles"
        proposal = TritonProposal(
            reason=f"tiles of {_shape(sizes)}, {ahead}, {warps} warps",
            block_sizes=sizes,
            ranges={
                "range_num_stages": {axis.block_id: stages for axis in steps if stages},
                "range_unroll_factors": {axis.block_id: unrolled for axis in steps if unrolled > 1},
            },
            num_warps=warps,
            num_stages=1,
        )
        best = fastest((each, proposal_us(facts, each, target)) for each in _crossed(proposal, facts, target))
        return (proposal,) if best is None else (best[0], proposal)


def _crossed(tiles: TritonProposal, facts: KernelFacts, target: Target) -> Iterator[TritonProposal]:
    """Yield tiles of several rows, where each load of a step lacks an axis of the grid: all rows meet all columns.

    Nothing is prefetched: loads are few, and most are of lines that other programs have loaded.
    """
    kept = {axis.block_id for axis in facts.tunable_axes}
    loads = [op for op in facts.memory_ops if op.kind == "load" and facts.regions[op.region].kind == "loop"]
    if len(kept) < 2 or not loads or any(kept <= set(op.tile_axes) for op in loads):
        return
    last, rows, *others = sorted(facts.tunable_axes, key=lambda axis: _rank(axis, facts))
    if others and extent_of(others[0]) >= _TUNED.crossed_batches[0] and (found := _batch(tiles, facts, target)):
        yield found
        return
    tried = itertools.product(_TUNED.crossed_runs, _TUNED.crossed_rows, _TUNED.crossed_elements)
    for run, count, each in tried:
        warps = run * count // (target.warp_size * each)
        sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
        sizes |= {last.block_id: clamp(run, last), rows.block_id: clamp(count, rows)}
        if not 1 <= warps <= _TUNED.most_warps or estimate(facts, target, sizes, warps, 1).spill_risk:
            continue
        reason = f"tiles of {_shape(sizes)} that share loads, {warps} warps"
        yield replace(tiles, reason=reason, block_sizes=sizes, ranges={}, num_warps=warps)


def _batch(tiles: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return a tile of several rows of a batch that share weights, whose loads are prefetched into registers.

    Without that each step waits for its loads, and predictions do not rank such tiles (measurement ``prefetched_products``).
    Return None if a load cannot be prefetched, or registers do not hold the tile.
    """
    loads = {op.slot for op in facts.memory_ops if op.kind == "load" and facts.regions[op.region].kind == "loop"}
    last, rows, batch, *_ = sorted(facts.tunable_axes, key=lambda axis: _rank(axis, facts))
    sizes = {axis.block_id: axis.min_size for axis in facts.tunable_axes}
    for axis, size in zip((batch, rows, last), _TUNED.crossed_batches, strict=True):
        sizes[axis.block_id] = clamp(min(size, axis.padded or size), axis)
    warps = max(1, math.prod(sizes.values()) // (target.warp_size * _TUNED.crossed_batch_elements))
    if not loads <= set(facts.prefetchable_slots) or estimate(facts, target, sizes, warps, 1).spill_risk:
        return None
    reason = f"tiles of {_shape(sizes)} that share loads, which are prefetched, {warps} warps"
    launch = {"prefetch_distance": 1}
    return replace(tiles, reason=reason, block_sizes=sizes, ranges={}, num_warps=warps, launch=launch)


def _shape(sizes: dict[int, int]) -> str:
    return " x ".join(map(str, sizes.values()))


def _picked(facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
    """Return the proposal for rows selected by data, whose loads wait for the index.

    Single elements are no rows: warps of one program share the lines around theirs (measurement ``selected_elements``).
    Rows of whole dimensions count with all elements, and a thread has two vectors of them (measurement
    ``selected_whole_rows``).
    """
    several, whole = len(facts.tunable_axes) > 1, _whole_row(facts)
    most = max(1, _TUNED.picked // whole)
    least = max(1, target.warp_size // whole)
    sizes, room = {}, max(least, min(most, previous_power_of_2(grid_extent(facts) // target.num_sms)))
    for axis in sorted(facts.tunable_axes, key=lambda axis: _rank(axis, facts)):
        run = min(room, _TUNED.picked_run) if several and is_contiguous(axis, facts) else room
        sizes[axis.block_id] = clamp(min(run, axis.padded or run), axis)
        room = max(1, room // sizes[axis.block_id])
    vectors = 2 if whole > 1 else 1
    threads = math.prod(sizes.values()) * whole // (vectors * _TUNED.picked_thread_elements)
    warps = max(1, min(_TUNED.most_warps, previous_power_of_2(threads // target.warp_size)))
    if estimate(facts, target, sizes, warps, 1).spill_risk:
        return Declined("the smallest tiles along contiguous memory spill")
    reason = f"tiles of {_shape(sizes)} of rows selected by data, {warps} warps"
    return (TritonProposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=1),)


def _whole_row(facts: KernelFacts) -> int:
    """Return the elements of the longest row that data selects, of whole dimensions."""
    rows = [op.tile_axes for op in facts.memory_ops if op.kind == "load" and op.gathered]
    whole = [
        math.prod(facts.axes[a].padded for a in axes if a is not None and facts.axes[a].kind == "full") for axes in rows
    ]
    return max(1, *whole)


def _step_bytes(facts: KernelFacts) -> int:
    """Return the bytes that a step of all programs loads."""
    loops = {region.region for region in facts.regions if region.kind == "loop"}
    tiles = {axis.block_id for axis in facts.tunable_axes}
    loads = [op for op in facts.memory_ops if op.kind == "load" and op.region in loops and tiles <= set(op.tile_axes)]
    return grid_extent(facts) * sum([op.itemsize for op in loads])


def _loads_tiles(facts: KernelFacts) -> bool:
    """Return whether a loop loads a tile."""
    loops = {region.region for region in facts.regions if region.kind == "loop"}
    return any(op.kind == "load" and op.tile_axes and op.region in loops for op in facts.memory_ops)


def _is_long(axis: AxisFact) -> bool:
    return axis.extent is not None and axis.extent >= _TUNED.deep_stages * _TUNED.steps * _TUNED.least_turns


def _sizes(facts: KernelFacts, elements: int) -> dict[int, int]:
    """Return tiles of this many elements, filled along contiguous axes first."""
    sizes: dict[int, int] = {}
    for axis in sorted(facts.tunable_axes, key=lambda axis: _rank(axis, facts)):
        size = clamp(min(elements, axis.padded or elements), axis)
        sizes[axis.block_id] = size
        elements = max(1, elements // size)
    return sizes


def _rank(axis: AxisFact, facts: KernelFacts) -> tuple[bool, int]:
    return not is_contiguous(axis, facts), -extent_of(axis)
