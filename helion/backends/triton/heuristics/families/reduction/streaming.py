"""Reductions over rows: small programs with few threads, many at once.

Matches the kernels of the two other reduction heuristics, and comes before them. Programs that share an SM overlap: one
loads its rows while another reduces.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import ClassVar

from ......_compiler.facts.records import AxisFact, KernelFacts, ReductionFact
from ......_shapes import next_power_of_2, previous_power_of_2
from ......_support.records import dataclass, replace
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import REGISTER_BYTES, VECTOR_BYTES, Target
from ....proposal import TritonProposal
from ....resources.traffic import work
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...program_order import beside_pieces, near_rows
from ...sizing import all_sizes, extent_of, grid_extent, programs_of
from ...tuned import Tuned, tuned
from .budget import Allocation, allocate, reduction_alone
from .few_rows import Makes, one_on_each, two_on_each
from .gathered import fewer_gathered
from .in_loops import alone_in_loops, whole_rows
from .launch import launch
from .lighter import in_quarter, shorter_loops
from .sharing import sharing
from .summed import fewer_sums
from .thin import thinner
from .walked import in_short_steps


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "streaming_reduction"

    #: Bytes of a program's rows: one 16-byte load for each of 256 threads, or two for 128. Half of it for heavy
    #: bodies.
    program_bytes: int
    max_rows: int
    min_waves: int
    #: Bytes per thread of a program's rows up to ``short`` elements, and of longer ones; from ``long`` on all
    #: threads. Where no row is stored, the bytes of longer ones count all loads, halved with many tiles in a loop or
    #: short rows.
    thread_bytes: int
    long_thread_bytes: int
    short: int
    long: int
    short_row: int
    #: The number of dependent reductions from which on a thread of a row up to ``short`` elements has twice as many.
    #: Warps of a row wait for each other in each.
    many_stages: int
    #: Least threads for a row of two dimensions or more.
    deep_threads: int
    #: Elements per thread where only one element per row is stored: latency bounds it, and small blocks hide it.
    thread_elements: int
    #: The number of dependent reductions from which on a thread of such rows has fewer elements: the instructions of
    #: all of them are unrolled.
    chained_stages: int
    chained_thread_elements: int
    #: Rows up to this many elements, with several reductions and none stored, have so many bytes per thread.
    narrow: int
    narrow_thread_bytes: int
    #: Elements of whole rows that a program of one warp takes, where more warps would share them. Then the fewest and
    #: the most of these rows. Such a program has half of the bytes of others.
    shared: int
    shared_rows: tuple[int, int]
    #: The same for rows of single elements, and their rows from twice as many on.
    shared_singly: int
    shared_singly_rows: int
    #: With no more programs than SMs, elements per thread of rows that are loaded whole, up to ``few_threads``; and of
    #: those with one reduction, of which no row is stored. Nothing but the warps of a program hides latency there.
    few_thread_elements: int
    few_summed_elements: int
    few_threads: int
    #: Bytes of rows for each of the cache from which they do not leave it first.
    streamed: int
    #: Rows up to this many elements are loaded whole. Up to twice as many are, if a second read would miss L1 (64 KiB
    #: for each resident row). The same holds if a loop would rescale its sum for each new maximum.
    held: int
    cached_bytes: int
    #: Elements per thread of a row of ``held`` that a loop of the kernel's own reads once.
    held_thread_elements: int
    #: Elements per thread of rows of several loads, masks aside, of which fewer are stored: all stay in registers.
    gated_thread_elements: int
    #: Lanes of a row that one warp takes alone where the last of four would be idle, and its bytes of an element.
    alone_lanes: int
    alone_itemsize: int
    #: Elements of a tile of such rows of single bytes, and the ratio of padding from which a whole row leaves too many
    #: lanes idle.
    byte_tile: int
    idle: float
    #: Elements of the chunks of longer rows, divided by the number of loads that span a row, and of rows of twice
    #: ``held``. A block has all threads for them, half of them where chunks of so many bytes have this many live
    #: tiles.
    chunk: int
    short_chunk: int
    many_tiles: int
    #: Chunks of rows of which one element is stored, which are read once in any case. A loop of the kernel's own has
    #: them too where rows are not aligned to vectors.
    scalar_chunk: int
    scalar_threads: int
    #: From so many loads of a row on, chunks of rows that exceed ``held`` together, and threads for them: a thread would
    #: have the elements of all in registers before it adds them up (measurement ``several_rows``).
    several: int
    several_chunk: int
    several_threads: int
    #: Threads for such a row if its loop rescales its sum for each new maximum, and least waves of such programs.
    rescaled_threads: int
    rescaled_waves: float
    #: Threads for such a row that begins anywhere, where it has one load.
    single_threads: int
    #: Chunks of unaligned rows beyond ``held``, and threads for them: a chunk at each end has scalar accesses.
    unaligned_chunk: int
    unaligned_threads: int
    #: Least tiles of an unaligned row of the kernel's own loop, and least elements of one.
    unaligned_tiles: int
    least_unaligned: int
    #: A body is heavy from this many live tiles on: elements of a row that is loaded whole, of a chunk, and per
    #: thread.
    heavy_tiles: int
    heavy_held: int
    heavy_chunk: int
    heavy_thread_elements: int
    heavy_threads: int
    #: A loop that reads its row again is compute-bound when its arithmetic is predicted to take this many times as
    #: long as its memory. It then overlaps with other programs' loads, and small tiles let more of these fit. Most
    #: elements of its tile, and of a thread; least threads.
    compute_bound: float
    compute_bound_tile: int
    compute_bound_thread_elements: int
    compute_bound_threads: int
    #: Divisor of the register file for the live tiles of a loop that reads nothing twice: 4 programs share an SM.
    shared_by: int


_TUNED = tuned(_Numbers)

_ONE_PASS = frozenset(("max", "sum"))
#: Dependent reductions that one pass over a row computes. With more, the row is read again (measurement ``read_again``).
_MERGED_STAGES = 2


class TritonStreamingReductionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonStreamingReductionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        primary = reduction_alone(facts)
        if isinstance(primary, Declined):
            return primary
        found = allocate(facts, target)
        sums_up = any(fact.per_feature_accumulator for fact in facts.reductions)
        if sums_up or primary.carried_2d or found.reduced_away:
            return Declined("programs accumulate many rows")
        if primary.category not in ("user_tile", "full_slice"):
            return Declined(f"axis {primary.axis} is on the grid")
        if not (facts.axes[primary.axis].padded or primary.extent):
            return Declined(f"the extent of axis {primary.axis} depends on another tile or on data")
        numbers = _TUNED.held_thread_elements, _TUNED.scalar_threads
        first = whole_rows(_proposal(found, facts, target), primary, facts, target, *numbers)
        programs = programs_of(facts, all_sizes(facts, first.block_sizes), primary.root)
        if programs > target.num_sms:
            few = two_on_each(first, primary, _stores_rows(facts, primary), _makes(facts, target), facts, target)
            few = shorter_loops(few, primary, facts, target)
            many, rows = _lighter(_fuller(few, facts, target), facts, target), _row_axes(found, facts)
            many = fewer_sums(thinner(many, rows, primary, facts, target), rows, primary, facts, target)
            shared = sharing(many, rows, _along(facts, primary), facts, target)
            steps = fewer_gathered(in_short_steps(shared, primary, facts, target), primary, facts, target)
            return (beside_pieces(near_rows(steps, facts, target), facts),)
        threads = _threads_of_few(facts, primary)
        fewer = first.num_warps is not None and threads > first.num_warps * target.warp_size
        if fewer and None in first.reduction_loops.values():
            first = _proposal(allocate(facts, target), facts, target, threads=threads)
        width = _width(facts, primary, target, _is_compute_bound(facts, primary, target))
        others = one_on_each(width, primary, _makes(facts, target), target)
        timed = [(each, proposal_us(facts, each, target)) for each in (first, *others)]
        best = unless_faster(timed[0], timed[1:], trust(target).wide_programs)
        return (first,) if best is first else (best, first)


def _makes(facts: KernelFacts, target: Target) -> Makes:
    """Return the function that makes the proposal for a width and threads."""
    return lambda width, threads: _proposal(allocate(facts, target), facts, target, width, threads)


def _lighter(proposal: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return the same with a half or a quarter of many warps, if that is predicted to be faster, for rows held whole.

    The warps of a row meet in each of its reductions.
    """
    warps, primary = proposal.num_warps or 1, allocate(facts, target).primary
    if primary.category == "user_tile" and _inside(facts, primary) > 1:
        return in_quarter(proposal, primary, facts, target)
    again = any(each.axis == primary.axis and each.region != primary.region for each in facts.reductions)
    if again and primary.full_extent and not any(proposal.reduction_loops.values()):
        return alone_in_loops(proposal, _row_axes(allocate(facts, target), facts), primary, facts, target)
    if warps * target.warp_size < _TUNED.scalar_threads or None not in proposal.reduction_loops.values():
        return proposal
    every = [replace(proposal, num_warps=warps // share) for share in (1, 2, 4)]
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    best = unless_faster(timed[0], timed[1:], trust(target).lighter_rows)
    return replace(best, reason=proposal.reason.replace(f"{warps} warps", f"{best.num_warps} warps"))


def _fuller(proposal: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return the same with more rows and warps, if that is predicted to be faster, for short rows held whole.

    Programs of a few of them take longer to begin than to run (measurement ``rows_of_a_program``).
    """
    found = allocate(facts, target)
    axis = facts.axes[found.primary.axis]
    row = (axis.padded or found.primary.extent) * _inside(facts, found.primary) * _itemsize(found.primary)
    if row * _TUNED.max_rows >= _TUNED.program_bytes or not found.primary.full_extent:
        return proposal
    warps, able = proposal.num_warps or 1, _row_axes(found, facts)
    every = [proposal]
    sizes = dict(proposal.block_sizes)
    rows = math.prod(sizes[a.block_id] for a in able)
    most = max(8, previous_power_of_2(_TUNED.program_bytes // (row * rows)))
    for times in itertools.takewhile(lambda times: times <= most, (2**step for step in itertools.count(1))):
        longer = [a for a in able if sizes[a.block_id] * 2 <= min(a.padded or 1, a.max_size or a.padded or 1)]
        if not longer:
            break
        sizes = {**sizes, longer[-1].block_id: 2 * sizes[longer[-1].block_id]}
        shares = (16, 8, 4) if times > 8 else (2, 1) if times == 2 else (times, 2, 1)
        every += [
            replace(
                proposal,
                reason=f"{times * rows} rows of {found.primary.extent} per program, at once, {each} warps",
                block_sizes=sizes,
                num_warps=each,
            )
            for each in (warps * times // share for share in shares)
            if each <= target.max_threads_per_block // target.warp_size
        ]
    timed = [(each, proposal_us(facts, each, target)) for each in every]
    return unless_faster(timed[0], timed[1:], trust(target).fuller_programs)


def _proposal(
    found: Allocation, facts: KernelFacts, target: Target, width: int | None = None, threads: int = 0
) -> TritonProposal:
    """Return the proposal with the given width and threads, else with those of the rules."""
    primary = found.primary
    compute_bound = _is_compute_bound(facts, primary, target)
    width = width or _width(facts, primary, target, compute_bound)
    _set_width(found, facts, width)
    rows = _set_rows(found, facts, target, compute_bound)
    threads = threads or _threads(rows * width, width, facts, primary, target, compute_bound)
    chosen = launch(found, facts, target, threads=threads)
    way = "at once" if width >= facts.axes[primary.axis].padded else f"in chunks of {width}"
    return TritonProposal(
        reason=f"{rows} rows of {primary.extent} per program, {way}, {chosen.num_warps} warps",
        block_sizes=chosen.sizes,
        reduction_loops=chosen.chunks,
        num_warps=chosen.num_warps,
        num_stages=1,
        eviction=_eviction(facts, primary, width, target),
    )


def _itemsize(primary: ReductionFact) -> int:
    return max(2, primary.input_load_itemsize)


def _row_loads(facts: KernelFacts, axis: int, least: int = 1) -> int:
    """Return the loads that read a row of their own in every program, which excludes weights, of ``least`` bytes an
    element."""
    return sum(
        op.kind == "load"
        and axis in op.tile_axes
        and any(a in facts.grid_axes for a in op.tile_axes)
        and op.itemsize >= least
        for op in facts.memory_ops
    )


def _row_stores(facts: KernelFacts, primary: ReductionFact) -> int:
    """Return the stores of whole rows."""
    along = _along(facts, primary)
    return sum(op.kind == "store" and bool(along.intersection(op.tile_axes)) for op in facts.memory_ops)


def _eviction(facts: KernelFacts, primary: ReductionFact, width: int, target: Target) -> dict[int, str]:
    """Return the eviction policies of the row loads.

    Long rows that are read again for a store stay in the cache until then. Rows that are read once, where no row is
    stored, leave it first. Outputs of other kernels then stay in the cache instead of being written to memory, which is
    no gain with many times its bytes: single elements would leave it before the next access to their line. So would
    rows that data selects before other programs select them too (measurement ``evicted_first``), and rows that programs
    along another axis read (measurement ``evicted_rows_of_several``).
    """
    along, grid = _along(facts, primary), frozenset(facts.grid_axes)
    rows = {
        op.load_slot: op.region == primary.region
        for op in facts.memory_ops
        if op.load_slot is not None and along.intersection(op.tile_axes) and grid.intersection(op.tile_axes)
    }
    stores = _stores_rows(facts, primary)
    # a whole dimension of which no row is stored is read once by a maximum and a sum, chunked or not
    several = len(primary.stages) > _MERGED_STAGES or not primary.full_extent
    again = primary.re_read and width < primary.extent and (stores or several)
    if not again and not stores:
        own = [op for op in facts.memory_ops if op.load_slot in rows and not op.gathered]
        bytes_read = sum(math.prod(op.extents) * op.itemsize for op in own)
        many = target.kind == "cuda" and bytes_read > _TUNED.streamed * target.l2_bytes
        # each place of a window reads lines that the others read
        places = _places(facts, primary)
        apart = {axis for axis in facts.grid_axes if extent_of(facts.axes[axis]) > 1}
        once = [op.load_slot for op in own if places[op.slot] <= 1 and apart <= {*op.tile_axes, *op.subscript_axes}]
        return {} if many else {slot: "first" for slot in once if slot is not None}
    if not again or not stores or primary.extent <= 2 * _TUNED.held:
        return {}
    return {slot: "last" if first else "first" for slot, first in rows.items()}


def _places(facts: KernelFacts, primary: ReductionFact) -> Counter[int]:
    """Return the loads of an access by its slot: one for each place of a window (measurement ``sliced_windows``)."""
    return Counter(op.slot for op in facts.memory_ops if op.kind == "load" and primary.axis in op.tile_axes)


def _is_heavy(primary: ReductionFact) -> bool:
    return primary.full_extent and primary.body_live_tiles >= _TUNED.heavy_tiles


def _is_compute_bound(facts: KernelFacts, primary: ReductionFact, target: Target) -> bool:
    if primary.full_extent or not primary.re_read:
        return False
    done = work(facts, all_sizes(facts, {}), 1, target)
    return done.scalar_us > _TUNED.compute_bound * done.bytes_moved / (target.bandwidth_gb_per_s * 1e3)


def _is_shared(facts: KernelFacts, primary: ReductionFact, width: int, target: Target) -> bool:
    """Return whether Triton would divide a short row among more threads than a warp has.

    Each thread has as many elements of it as one access moves, which is one where rows begin anywhere. Two warps that
    share a row shuffle for all of its sums each, and meet at barriers (measurement ``shared_rows``). Longer rows gain as
    well, of single elements up to 512 (measurement ``shared_rows_longer``,
    measurement ``shared_rows_singly``).
    """
    if not (primary.full_extent and primary.extent <= width) or _inside(facts, primary) > 1:
        return False
    grid = frozenset(facts.grid_axes)
    loads = [op for op in facts.memory_ops if op.kind == "load" and primary.axis in op.tile_axes]
    rows = [op for op in loads if grid.intersection(op.tile_axes)]
    each = (math.gcd(VECTOR_BYTES, *(s * op.itemsize for s in op.strides if s != 1)) // op.itemsize for op in rows)
    moved = max([1, *each])
    singly = moved == 1 and _stores_rows(facts, primary)
    return width <= (_TUNED.shared_singly if singly else _TUNED.shared) and width // moved > target.warp_size


def _is_aligned(facts: KernelFacts, primary: ReductionFact) -> bool:
    """Return whether every row of the loads begins at a vector boundary."""
    loads = (op for op in facts.memory_ops if op.kind == "load" and primary.axis in op.tile_axes)
    return not any(stride != 1 and stride * op.itemsize % VECTOR_BYTES for op in loads for stride in op.strides)


def _inside(facts: KernelFacts, primary: ReductionFact) -> int:
    """Return the elements of the other whole dimensions of a row, as in a reduction over two of them."""
    return math.prod(facts.axes[a].padded for a in primary.tile if a != primary.axis and facts.axes[a].kind == "full")


def _along(facts: KernelFacts, primary: ReductionFact) -> frozenset[int]:
    """Return the axes that run along the row, in this loop or another."""
    return frozenset(a.block_id for a in facts.axes if a.extent == primary.extent and not a.on_grid)


def _stores_rows(facts: KernelFacts, primary: ReductionFact) -> bool:
    return _row_stores(facts, primary) > 0


def _width(facts: KernelFacts, primary: ReductionFact, target: Target, compute_bound: bool) -> int:
    """Return the elements of a row that are loaded at once."""
    axis = facts.axes[primary.axis]
    whole = axis.padded or next_power_of_2(primary.extent)
    loads = max(1, _row_loads(facts, primary.axis))
    if not primary.full_extent and not primary.re_read:
        scale = sum(size for axes, size in primary.live_tiles if primary.axis in axes)
        room = target.registers_per_sm * REGISTER_BYTES // _TUNED.shared_by
        width = min(whole, previous_power_of_2(room // max(1, scale)))
        if loads == 1 and whole <= _TUNED.held:
            width = _TUNED.byte_tile if _wastes_bytes(primary, whole) else whole
        return width if _is_aligned(facts, primary) else _unaligned_width(width, primary)
    if _is_heavy(primary):
        return whole if whole <= _TUNED.heavy_held else _TUNED.heavy_chunk
    if primary.full_extent and not _stores_rows(facts, primary):
        rows = _row_loads(facts, primary.axis, 2)
        if rows >= _TUNED.several and whole <= _TUNED.held < rows * whole:
            return _TUNED.several_chunk
        return whole if whole <= _TUNED.held else _TUNED.scalar_chunk
    if compute_bound:
        return min(whole, _TUNED.compute_bound_tile)
    if not primary.full_extent and primary.body_live_tiles >= _TUNED.many_tiles:
        return min(whole, _TUNED.held)
    again = primary.re_read and (
        whole * _itemsize(primary) * loads > _TUNED.cached_bytes or _ONE_PASS.issubset(primary.names)
    )
    aligned = not primary.full_extent or _is_aligned(facts, primary)
    if whole <= (2 * _TUNED.held if again and aligned else _TUNED.held):
        return whole
    if not primary.full_extent:
        return _TUNED.held if whole <= 2 * _TUNED.held else 2 * _TUNED.held
    if not aligned:
        return _TUNED.unaligned_chunk
    if loads > 1 and _ONE_PASS.issubset(primary.names):
        return _TUNED.short_chunk
    return (_TUNED.short_chunk if whole <= 2 * _TUNED.held else _TUNED.chunk) // previous_power_of_2(loads)


def _is_alone(facts: KernelFacts, primary: ReductionFact) -> bool:
    """Return whether one warp takes a row, because the last of four has columns past its end.

    The warps of a row meet for each reduction, idle ones as well (measurement ``idle_warps``).
    """
    whole = facts.axes[primary.axis].padded or next_power_of_2(primary.extent)
    lanes = whole == _TUNED.alone_lanes and whole >= _TUNED.idle * primary.extent
    plain = primary.full_extent and _stores_rows(facts, primary) and _inside(facts, primary) == 1
    return plain and lanes and _itemsize(primary) == _TUNED.alone_itemsize


def _wastes_bytes(primary: ReductionFact, whole: int) -> bool:
    """Return whether rows of single bytes are better read in tiles than in one of ``whole`` elements."""
    return primary.input_load_itemsize == 1 and whole > _TUNED.byte_tile and whole >= _TUNED.idle * primary.extent


def _unaligned_width(width: int, primary: ReductionFact) -> int:
    """Return the tile for an unaligned row: at least four tiles, so that all but the first and the last are vectorized.

    A short row is loaded whole.
    """
    parted = previous_power_of_2(max(1, primary.extent // _TUNED.unaligned_tiles))
    return (
        min(width, _TUNED.scalar_chunk, parted) if parted >= _TUNED.least_unaligned else min(width, _TUNED.scalar_chunk)
    )


def _set_width(found: Allocation, facts: KernelFacts, width: int) -> None:
    primary = found.primary
    axis = facts.axes[primary.axis]
    if primary.full_extent:
        for block in found.chunks:
            if facts.axes[block].extent == axis.extent:
                found.chunks[block] = None if width >= axis.padded else width
        return
    for other in facts.tunable_axes:
        if not other.on_grid and other.extent == axis.extent:
            found.sizes[other.block_id] = max(other.min_size, min(width, other.max_size or width))


def _set_rows(found: Allocation, facts: KernelFacts, target: Target, compute_bound: bool) -> int:
    """Set and return the rows per program: its bytes, distributed over the grid (measurement ``widest_loads``)."""
    primary = found.primary
    loads = (op.itemsize for op in facts.memory_ops if op.kind == "load" and primary.axis in op.tile_axes)
    itemsize = max(_itemsize(primary), *loads) if _is_heavy(primary) else _itemsize(primary)
    row = (facts.axes[primary.axis].padded or primary.extent) * _inside(facts, primary) * itemsize
    row *= max(_places(facts, primary).values(), default=1)
    waves = previous_power_of_2(grid_extent(facts, primary.root) // (target.num_sms * _TUNED.min_waves))
    if _is_alone(facts, primary):
        waves = 1
    room = _TUNED.program_bytes // 2 if compute_bound or _is_heavy(primary) else _TUNED.program_bytes
    rows = min(_TUNED.max_rows, room // row)
    padded = facts.axes[primary.axis].padded or 0
    if not _is_heavy(primary) and _is_shared(facts, primary, padded, target):
        least, most = _TUNED.shared_rows
        rows = max(least, min(most, rows // 2)) if padded <= _TUNED.shared else _TUNED.shared_singly_rows
    goal = max(1, min(rows, waves))
    axes = _row_axes(found, facts)
    sizes = {axis.block_id: axis.min_size for axis in axes}
    while math.prod(sizes.values()) < goal:
        able = [a for a in axes if sizes[a.block_id] * 2 <= min(a.padded or 1, a.max_size or goal)]
        if not able:
            break
        sizes[able[-1].block_id] *= 2
    found.sizes.update(sizes)
    return math.prod(sizes.values())


def _row_axes(found: Allocation, facts: KernelFacts) -> list[AxisFact]:
    """Return the axes of the grid that rows are distributed over: other loops keep their sizes, as contiguous axes do."""
    own = (facts.axes[a] for a in facts.grid_axes if a not in found.columns)
    return [axis for axis in own if axis.tunable and found.primary.root in axis.roots]


def _summed_threads(facts: KernelFacts, primary: ReductionFact, target: Target) -> int:
    """Return the threads for a row that is read in chunks and of which one element is stored.

    Rows that begin anywhere are read in single elements, of which a thread has more in flight if it has more of them
    (measurement ``chunks_of_single_elements``).
    """
    aligned, few = _is_aligned(facts, primary), _TUNED.rescaled_threads
    singly = not aligned and _row_loads(facts, primary.axis) == 1
    # More sums for an element need more threads (measurement ``summed_threads``).
    alone = primary.stages == (("max",), ("sum",))
    rescales = alone and primary.input_load_itemsize == 2 and aligned
    resident = target.num_sms * target.max_warps_per_sm * target.warp_size // few
    waves = grid_extent(facts, primary.root) / resident
    if waves < _TUNED.rescaled_waves:
        return _TUNED.scalar_threads
    return few if rescales else _TUNED.single_threads if singly else _TUNED.scalar_threads


def _threads(
    elements: int, width: int, facts: KernelFacts, primary: ReductionFact, target: Target, compute_bound: bool
) -> int:
    """Return the threads for a program of ``elements``, of which ``width`` are along the row."""
    least, most = target.warp_size, target.max_threads_per_block
    looped = width < primary.extent and primary.full_extent
    if _is_heavy(primary):
        return _TUNED.heavy_threads if looped else max(least, elements // _TUNED.heavy_thread_elements)
    if _is_shared(facts, primary, width, target):
        return least
    if primary.full_extent and not _stores_rows(facts, primary):
        is_chained = len(primary.stages) >= _TUNED.chained_stages
        each = _TUNED.chained_thread_elements if is_chained else _TUNED.thread_elements
        if len(primary.stages) > 1 and width <= _TUNED.narrow:
            each = min(each, _TUNED.narrow_thread_bytes // _itemsize(primary))
        if looped and width == _TUNED.several_chunk:
            return _TUNED.several_threads
        return _summed_threads(facts, primary, target) if looped else max(least, min(most, elements // each))
    if looped and not _is_aligned(facts, primary):
        return _TUNED.unaligned_threads
    if _is_alone(facts, primary):
        return least
    if looped:
        crowded = width * _itemsize(primary) >= _TUNED.cached_bytes and primary.body_live_tiles >= _TUNED.many_tiles
        return most // 2 if crowded else most
    if compute_bound:
        return max(_TUNED.compute_bound_threads, elements // _TUNED.compute_bound_thread_elements)
    if elements >= _TUNED.long:
        return most
    inside = _inside(facts, primary)
    if inside > 1:
        return max(_TUNED.deep_threads, min(most, elements * inside * _itemsize(primary) // _TUNED.long_thread_bytes))
    if not _stores_rows(facts, primary):
        each = _TUNED.long_thread_bytes // (_itemsize(primary) * max(1, _row_loads(facts, primary.axis)))
        if width == _TUNED.held >= primary.extent:
            each = min(each, _TUNED.held_thread_elements)
        if _wastes_bytes(primary, next_power_of_2(primary.extent)):
            each = min(each, _TUNED.held_thread_elements)
        elif primary.body_live_tiles >= _TUNED.many_tiles and (width < primary.extent or width <= _TUNED.short_row):
            each //= 2
    else:
        each = (_TUNED.thread_bytes if elements <= _TUNED.short else _TUNED.long_thread_bytes) // _itemsize(primary)
        if elements <= _TUNED.short and len(primary.stages) >= _TUNED.many_stages:
            each *= 2
        if primary.full_extent and _row_loads(facts, primary.axis, 2) > max(1, _row_stores(facts, primary)):
            each = min(each, _TUNED.gated_thread_elements)
    return max(least, min(most, elements // max(1, each)))


def _threads_of_few(facts: KernelFacts, primary: ReductionFact) -> int:
    """Return the threads of a row that is loaded whole, by one of no more programs than SMs."""
    whole = facts.axes[primary.axis].padded or next_power_of_2(primary.extent)
    summed = len(primary.stages) == 1 and not _stores_rows(facts, primary)
    return min(_TUNED.few_threads, whole // (_TUNED.few_summed_elements if summed else _TUNED.few_thread_elements))
