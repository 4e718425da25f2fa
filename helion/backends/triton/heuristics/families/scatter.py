"""Elementwise kernels with data-dependent accesses: atomics into histograms and rows of a table, loops with bounds from
data.

Matches kernels without dots, reductions of known extent and scans that are not elementwise. A tile of moderate size
extends along contiguous memory, then along the kernel's own loops, and leaves every SM some programs. The conservative
config gives each program 32 elements a side in any case (measurement ``scatter``).

Programs whose results are added at the same addresses wait for each other in the cache. Where a tile is reduced before
its atomic, a longer one leaves fewer of them (measurement ``meeting_atomics``).

Short loops between bounds from data that reduce their loads use one warp, because the reduction then needs no barrier
(measurement ``short_data_loops``). Longer ones halve their tile with their warps where that is predicted to be much
shorter: warps that exchange partial results in each step may take most of the time (measurement ``reducing_warps``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from ....._compiler.facts.records import AxisFact, KernelFacts, ReductionFact
from ....._shapes import cdiv, next_power_of_2, previous_power_of_2
from ....._support.records import dataclass, replace
from .....autotuner.proposal import Declined, Heuristic
from .....hardware import WARP_THREADS, Target
from ...histograms import counts, issued_per_warp, most_summed, width_of
from ...proposal import TritonProposal
from ..choose import fastest, trust, unless_faster
from ..predicted_time import proposal_us
from ..sizing import all_sizes, clamp, estimate, extent_of, grid_extent, is_contiguous
from ..tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "scatter"

    #: Most and least elements of a tile, and most of a loop's tile.
    most: int
    least: int
    walked: int
    #: Elements along the contiguous axis where there are others, twice as many for a whole row; fewer where tiles are
    #: reduced across it before an atomic, because that leaves fewer atomics.
    run: int
    summed_run: int
    #: Programs per SM that remain.
    waves: int
    #: Warps, and least elements per thread of a loop between bounds from data; the same for tiles that such a loop
    #: reduces; and the warps per SM that programs must leave in any case.
    warps: int
    thread_elements: int
    reduced_elements: int
    sm_warps: int
    #: Warps of a program that gives each thread one atomic.
    spread_warps: int
    #: Rows of tiles in a group of programs.
    grouped_rows: int
    #: Ratio of predicted times of halvings that tells nothing, and of tiles that leave few atomics.
    alike: float
    same: float
    #: Ratio of predicted times up to which programs of several grids run along memory.
    along: float
    #: Bytes of the shortest pieces of rows of a tile whose columns are summed.
    piece_bytes: int


_TUNED = tuned(_Numbers)
#: Elements of a tile whose rows all wait for the longest one (measurement ``longest_rows``).
_WAITING = 128
#: Elements of a tile that counts. More of them wait for no fewer votes.
_COUNTED = 8192
#: Most instructions of a thread that counts: its code has those of each element, and takes seconds to compile with more
#: (measurement ``long_histograms``).
_COUNTING = 2048


class TritonScatterHeuristic(Heuristic):
    name: ClassVar[str] = "TritonScatterHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if facts.matmuls or facts.primary_reduction is not None:
            return Declined("the kernel has a matmul or a reduction of known extent")
        if facts.pointwise is not None:
            return Declined("the kernel is elementwise")
        if facts.scans:
            return Declined("the kernel scans its tiles")
        if not facts.tunable_axes or not (facts.atomics or any(axis.extent is None for axis in facts.axes)):
            return Declined("no atomics, and no loop with bounds from data")
        sizes = _of_one_row(_with_few_waiting(_sizes(facts, target), facts), facts)
        warps = _warps(sizes, facts, target)
        while estimate(facts, target, sizes, warps, 1).spill_risk:
            able = [axis for axis in facts.tunable_axes if sizes[axis.block_id] > axis.min_size]
            if not able:
                break
            sizes[max(able, key=lambda axis: sizes[axis.block_id]).block_id] //= 2
        first = _with_few_reducing(_proposal(sizes, warps, "along contiguous memory"), facts, target)
        sizes, warps = dict(first.block_sizes), first.num_warps or warps
        larger = [(sizes, warps), *_longer(sizes, warps, facts, target)]
        larger += [turned for each in larger for turned in _turned(*each, facts, target)]
        longer = [
            _proposal(*each, "that leave few atomics an address")
            for each in (*larger[1:], *_counting(sizes, facts, target))
        ]
        longer += [_proposal(*each, "with an atomic of each thread") for each in _spread(sizes, facts)]
        longer += [_proposal(*each, "whose columns few warps sum") for each in _half_warps(sizes, warps, facts, target)]
        timed = [(each, proposal_us(facts, each, target)) for each in (first, *longer) if longer]
        least = min((us for _, us in timed), default=0.0)
        # of tiles that are alike, small and square ones write the longest parts of rows of both orders
        alike = [(each, least) for each, us in timed[1:] if us <= _TUNED.same * least]
        alike.sort(key=lambda one: (math.prod(one[0].block_sizes.values()), max(one[0].block_sizes.values())))
        best = unless_faster(timed[0], alike, trust(target).fewer_atomics) if timed else first
        return tuple(_ordered(each, facts, target) for each in ((first,) if best is first else (best, first)))


def _proposal(sizes: Mapping[int, int], warps: int, where: str) -> TritonProposal:
    reason = f"tiles of {' x '.join(map(str, sizes.values()))} {where}, {warps} warps"
    return TritonProposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=1)


def _ordered(tiles: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return the same with the order of its programs.

    Where several grids read the same rows, neighbouring programs do so along memory, if that is predicted to be faster
    (measurement ``grids_in_memory_order``).
    """
    if facts.num_roots == 1:
        return _in_groups(tiles, facts)
    if not facts.atomics:
        return tiles
    orders: dict[int, tuple[int, ...]] = {}
    for root in range(facts.num_roots):
        axes = [facts.axes[axis] for axis in facts.grid_axes if root in facts.axes[axis].roots]
        if len(axes) == 2 and is_contiguous(axes[-1], facts) and not is_contiguous(axes[0], facts):
            orders[root] = (1, 0)
    if not orders:
        return tiles
    along = replace(tiles, loop_orders=orders)
    first, other = ((each, proposal_us(facts, each, target)) for each in (tiles, along))
    return unless_faster(first, [other], _TUNED.along)


def _in_groups(tiles: TritonProposal, facts: KernelFacts) -> TritonProposal:
    """Return the same with programs in groups of rows, for a grid that stores a tensor of all its elements.

    Programs next to each other along its rows then run one after the other. Rows that begin within sectors share one at
    each edge of a tile, which is written to memory once (measurement ``summed_beside_rows``).
    """
    axes = facts.grid_axes
    whole = any(op.kind == "store" and op.subscript_axes == axes and op.strides[-1] == 1 for op in facts.memory_ops)
    if facts.num_roots != 1 or len(axes) != 2 or not (whole and facts.atomics):
        return tiles
    return replace(tiles, l2_groupings={0: _TUNED.grouped_rows})


def _with_few_reducing(first: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return a part of the tile and fewer warps, where a loop between bounds from data reduces the tile.

    A thread has as many elements as before. Each halving is predicted to be shorter by the ratio that is trusted. Of
    halvings that are alike, those of other axes come before those of the reduced one, which the loop would step through.
    """
    unknown = [fact for fact in facts.reductions if facts.axes[fact.axis].extent is None]
    reduced, stepped = {axis for fact in unknown for axis in fact.tile}, {fact.axis for fact in unknown}
    us = proposal_us(facts, first, target) if reduced else 0.0
    while (warps := (first.num_warps or 1) // 2) and reduced:
        sizes = first.block_sizes
        able = [a for a in sorted(reduced & set(sizes)) if sizes[a] > facts.axes[a].min_size]
        able.sort(key=lambda axis: axis in stepped)
        halves = [_proposal({**sizes, a: sizes[a] // 2}, warps, "that few warps reduce") for a in able]
        timed = [(half, proposal_us(facts, half, target)) for half in halves]
        best = fastest(timed)
        if best is None or best[1] > trust(target).fewer_reducing * us:
            break
        first, us = next(each for each in timed if each[1] <= _TUNED.alike * best[1])
    return first


def _longer(
    sizes: Mapping[int, int], warps: int, facts: KernelFacts, target: Target
) -> Iterator[tuple[dict[int, int], int]]:
    """Yield larger tiles along axes that are reduced before atomics, as far as registers allow.

    The programs along such an axis all add to the same addresses, and the cache adds one after the other there. A thread
    has as many elements as registers at most, because its code has instructions for each.
    """
    reduced = {fact.axis: fact.tile for fact in facts.reductions if fact.category == "grid_tile"}
    meeting = [axis for axis in reduced if axis in sizes and any(axis not in op.tile_axes for op in facts.atomics)]
    most_warps = target.max_threads_per_block // target.warp_size
    registers = next_power_of_2(target.max_registers_per_thread)
    for axis in sorted(meeting):
        for count in (warps, 2 * warps):
            size, threads = clamp(2 * sizes[axis], facts.axes[axis]), count * target.warp_size
            while count <= most_warps and size > sizes[axis]:
                larger = {**sizes, axis: size}
                of_thread = math.prod(all_sizes(facts, larger)[each] for each in reduced[axis]) // threads
                if of_thread > registers or estimate(facts, target, larger, count, 1).spill_risk:
                    break
                yield larger, count
                size = clamp(2 * size, facts.axes[axis]) if 2 * size <= extent_of(facts.axes[axis]) else 0


def _half_warps(
    sizes: Mapping[int, int], warps: int, facts: KernelFacts, target: Target
) -> Iterator[tuple[dict[int, int], int]]:
    """Yield the same tile in half of the warps, where atomics add sums of its columns.

    The warps of a program exchange each of these sums through shared memory (measurement ``sums_of_few_warps``).
    """
    adds = any(_adds_columns(fact, facts) for fact in facts.reductions)
    if warps > 1 and adds and not estimate(facts, target, sizes, warps // 2, 1).spill_risk:
        yield dict(sizes), warps // 2


def _turned(
    sizes: Mapping[int, int], warps: int, facts: KernelFacts, target: Target
) -> Iterator[tuple[dict[int, int], int]]:
    """Yield twice the rows of half of the columns, as far as these are two sectors, where atomics add sums of columns.

    An address has half of the atomics, and a tile has half of the sums.
    """
    for fact in facts.reductions:
        if not _adds_columns(fact, facts):
            continue
        (column,) = (axis for axis in fact.tile if axis != fact.axis)
        half, rows = sizes[column] // 2, clamp(2 * sizes[fact.axis], facts.axes[fact.axis])
        loads = [op.itemsize for op in facts.memory_ops if op.kind == "load" and {*op.tile_axes} == {*fact.tile}]
        whole = clamp(half, facts.axes[column]) == half and min(loads, default=0) * half >= _TUNED.piece_bytes
        turned = {**sizes, fact.axis: rows, column: half}
        if whole and rows > sizes[fact.axis] and not estimate(facts, target, turned, warps, 1).spill_risk:
            yield turned, warps


def _adds_columns(fact: ReductionFact, facts: KernelFacts) -> bool:
    """Return whether rows of a tile of two grid axes are summed, and atomics add a sum for each column."""
    columns = [axis for axis in fact.tile if axis != fact.axis]
    return (
        fact.category == "grid_tile"
        and len(columns) == 1
        and all(facts.axes[axis].tunable for axis in fact.tile)
        and is_contiguous(facts.axes[columns[0]], facts)
        and any(op.tile_axes == (columns[0],) and op.atomic == "add" for op in facts.atomics)
    )


def _spread(sizes: Mapping[int, int], facts: KernelFacts) -> Iterator[tuple[dict[int, int], int]]:
    """Yield a smaller tile with an element for each thread, for largest and least values.

    They are an instruction for each lane, and for floats two. Neighbours of a thread in memory meet in a line of the
    cache, one after the other (measurement ``scattered_extremes``).
    """
    if facts.num_roots != 1 or any(a.kind == "full" for a in facts.axes):
        return
    if all(op.atomic not in ("max", "min") for op in facts.atomics):
        return
    smaller, threads = dict(sizes), _TUNED.spread_warps * WARP_THREADS
    axes = [a for a in facts.tunable_axes if a.block_id in smaller]
    while math.prod(smaller.values()) > threads:
        able = [a for a in axes if smaller[a.block_id] > a.min_size]
        if not able:
            return
        axis = max(able, key=lambda a: (not is_contiguous(a, facts), smaller[a.block_id]))
        smaller[axis.block_id] //= 2
    yield smaller, _TUNED.spread_warps


def _counting(sizes: Mapping[int, int], facts: KernelFacts, target: Target) -> Iterator[tuple[dict[int, int], int]]:
    """Yield larger tiles of atomics that count or sum up, whose programs add one number for each bin.

    A tile leaves each SM a program. A warp has elements enough to hide the latency of its votes, as far as its code stays
    short. Sums have as many as registers hold.
    """
    for op in facts.atomics:
        width, warps = width_of(op.bins, op.summed), 2 * _TUNED.warps
        axes = [axis for axis in facts.tunable_axes if axis.block_id in op.tile_axes and axis.on_grid]
        if not width or not axes:
            continue
        axis = max(axes, key=extent_of)
        whole = all_sizes(facts, sizes)
        others = math.prod(whole[each] for each in op.tile_axes if each != axis.block_id)
        most = int(_COUNTING / issued_per_warp(width)) * warps * target.warp_size
        if op.summed:
            most = most_summed(width, warps, target)
        share = max(1, extent_of(axis) * others // target.num_sms)
        elements = min(_COUNTED, previous_power_of_2(most), previous_power_of_2(share))
        larger = {**sizes, axis.block_id: clamp(max(1, elements // others), axis)}
        if counts(larger[axis.block_id] * others, width, warps, target, op.summed):
            yield larger, warps


def _sizes(facts: KernelFacts, target: Target) -> dict[int, int]:
    """Return tile sizes, given to the contiguous axes first, then to loops, then to the grid.

    Axes of other grids take none of the elements of a tile.
    """
    walks = any(not axis.on_grid for axis in facts.tunable_axes)
    room, whole = (_TUNED.walked if walks else _TUNED.most), 1
    for axis in facts.axes:
        if axis.kind == "full":
            room, whole = max(1, room // max(1, axis.padded)), whole * max(1, axis.padded)
    summed = bool(facts.atomics) and any(fact.category == "grid_tile" for fact in facts.reductions)
    longest = _TUNED.summed_run if summed else _TUNED.run
    axes = facts.tunable_axes
    sizes: dict[int, int] = {}
    for axis in sorted(axes, key=lambda axis: _rank(axis, facts)):
        run = longest if len(axes) > 1 and is_contiguous(axis, facts) else _TUNED.most
        if run == _TUNED.run and axis.padded == 2 * run:
            run = axis.padded
        near = {a: size for a, size in sizes.items() if not _are_apart(facts.axes[a], axis)}
        # elements left of the whole tile, and of its part on the grid
        most = room // _taken(axis, near, facts)
        if axis.on_grid:
            share = previous_power_of_2(grid_extent(facts, min(axis.roots)) // (_TUNED.waves * target.num_sms))
            own = max(1, max(_TUNED.least, min(_TUNED.most, share)) // whole)
            most = min(most, own // math.prod(size for a, size in near.items() if facts.axes[a].on_grid))
        # the mean length of a loop between bounds from data
        length = _length(axis.mean, facts) if axis.extent is None and axis.mean else axis.padded
        sizes[axis.block_id] = clamp(max(1, min(run, most, length or most)), axis)
    return sizes


def _length(mean: int, facts: KernelFacts) -> int:
    """Return the tile of a loop between bounds from data, of a mean length.

    That of the nearest ratio leaves few lanes of the last tile idle, where no row waits for the longest one (measurement
    ``mean_rows``).
    """
    low = previous_power_of_2(mean)
    longest = any(fact.category == "grid_tile" and "max" in fact.names for fact in facts.reductions)
    return low if not longest and mean * mean <= 2 * low * low else next_power_of_2(mean)


def _are_apart(axis: AxisFact, other: AxisFact) -> bool:
    """Return whether two axes belong to different grids."""
    return axis.on_grid and other.on_grid and set(axis.roots).isdisjoint(other.roots)


def _with_few_waiting(sizes: dict[int, int], facts: KernelFacts) -> dict[int, int]:
    """Return sizes with few rows where loops end at the longest row of a tile: the other rows wait for it.

    Several loops over the same rows have two of them and shorter steps (measurement ``packed_rows``).
    """
    loops = [axis for axis in facts.tunable_axes if axis.extent is None and axis.mean]
    rows = [fact.axis for fact in facts.reductions if fact.category == "grid_tile" and "max" in fact.names]
    if len({axis.mean for axis in loops}) != 1 or facts.atomics or not rows:
        return sizes
    if len(loops) > 1:
        sizes = {**sizes, **{axis.block_id: min(sizes[axis.block_id], _WAITING) for axis in loops}}
    most = max(2 if len(loops) > 1 else 1, _WAITING // max(sizes[axis.block_id] for axis in loops))
    fewer = {axis: clamp(min(sizes[axis], most), facts.axes[axis]) for axis in rows if axis in sizes}
    return {**sizes, **fewer}


def _of_one_row(sizes: dict[int, int], facts: KernelFacts) -> dict[int, int]:
    """Return sizes of a piece of one row of single bytes, with two of a thread, where each selects the place of an atomic.

    A thread that loads a vector of them has as many atomics one after the other. More rows are more lines of the cache
    at once (measurement ``histograms_of_bytes``).
    """
    axes = facts.grid_axes
    loads = [op for op in facts.memory_ops if op.kind == "load" and {*axes} <= {*op.tile_axes}]
    selected = all(
        op.atomic == "add" and op.gathered and {*axes} <= {*op.tile_axes} and op.subscript_axes[-1] is None
        for op in facts.atomics
    )
    if facts.num_roots != 1 or len(axes) < 2 or not (facts.atomics and selected) or {*sizes} != {*axes}:
        return sizes
    if (
        not loads
        or any(op.itemsize > 1 or op.gathered for op in loads)
        or not is_contiguous(facts.axes[axes[-1]], facts)
    ):
        return sizes
    piece = clamp(min(sizes[axes[-1]], 2 * _TUNED.warps * WARP_THREADS), facts.axes[axes[-1]])
    return {**{axis: facts.axes[axis].min_size for axis in axes}, axes[-1]: piece}


def _taken(axis: AxisFact, sizes: Mapping[int, int], facts: KernelFacts) -> int:
    """Return the elements of the tiles that ``axis`` adds a dimension to, over the axes that have a size."""
    return _elements(sizes, facts, _loops(sizes, facts) if axis.on_grid else [axis.block_id])


def _elements(sizes: Mapping[int, int], facts: KernelFacts, nests: Sequence[int]) -> int:
    """Return the elements of the largest tile of the loops that share a nest with one of ``nests``."""
    grid = math.prod(size for a, size in sizes.items() if facts.axes[a].on_grid)
    inside = (math.prod(sizes[a] for a in _loops(sizes, facts) if _share(a, nest, facts)) for nest in nests)
    return grid * max(inside, default=1)


def _loops(sizes: Mapping[int, int], facts: KernelFacts) -> list[int]:
    return [axis for axis in sizes if not facts.axes[axis].on_grid]


def _share(axis: int, other: int, facts: KernelFacts) -> bool:
    """Return whether two axes belong to one loop, or to nested loops."""
    return any({axis, other} <= set(facts.enclosing_axes(region.region)) for region in facts.regions)


def _warps(sizes: Mapping[int, int], facts: KernelFacts, target: Target) -> int:
    """Return the warps: few where loops with bounds from data are short, and one where these reduce tiles that one warp
    can take.

    With more warps each step reduces across warps, through shared memory, and waits for a barrier.
    """
    if not any(axis.extent is None and axis.mean for axis in facts.tunable_axes):
        return _TUNED.warps
    whole = math.prod(max(1, axis.padded) for axis in facts.axes if axis.kind == "full")
    tile = whole * _elements(sizes, facts, _loops(sizes, facts))
    warps = max(1, min(_TUNED.warps, previous_power_of_2(tile // (_TUNED.thread_elements * target.warp_size))))
    if not any(facts.axes[fact.axis].extent is None for fact in facts.reductions):
        return warps
    programs = math.prod(cdiv(extent_of(facts.axes[a]), sizes.get(a, 1)) for a in facts.grid_axes)
    few = next_power_of_2(cdiv(_TUNED.sm_warps * target.num_sms, programs))
    return min(warps, max(few, previous_power_of_2(max(1, tile // (_TUNED.reduced_elements * target.warp_size)))))


def _rank(axis: AxisFact, facts: KernelFacts) -> tuple[bool, bool, int, int]:
    return not is_contiguous(axis, facts), axis.on_grid, -extent_of(axis), axis.block_id
