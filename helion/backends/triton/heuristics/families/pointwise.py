"""Elementwise kernels: as many bytes in flight per program as its registers allow, and enough programs.

Matches kernels that only map elements (add, gelu, swiglu, rope, transpose, embedding). The tile is filled along the
contiguous axis. Where loads and stores disagree, it is square. The numbers are the published ones for H100 (8 KiB per
tile, 8 waves) and B200 (16 KiB, 4 waves); those of B200 apply where memory is fast for the number of SMs (measurement
``pointwise``). Tensors that are one run in memory are iterated over as one run, so that accesses of unaligned rows are
vectorized (measurement ``pointwise_one_run``). Tables that data indexes do not matter (measurement
``tables_beside_a_run``). So are those whose elements are numbered, if rows begin anywhere or computed indices select what
they load. Predicted time chooses the rows of copies that exchange axes (measurement ``turned_rows``).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import ClassVar

from ....._compiler.facts.records import AxisFact, KernelFacts, MemoryOpFact, PointwiseFact
from ....._shapes import cdiv, previous_power_of_2
from ....._support.records import dataclass, replace
from .....autotuner.proposal import Declined, Heuristic
from .....hardware import Target
from ...proposal import TritonProposal
from ...resources.tiles import beside_turned
from ...row_windows import kept_loads
from .. import register_safety as safety
from ..choose import trust, unless_faster
from ..near_gathers import fastest_tiles, gathered_rows, gathers_many, is_near
from ..predicted_time import proposal_us
from ..program_order import innermost_first
from ..random_runs import shorter_runs
from ..shared_operands import common_and_own, computed_once, pair_tile, sharing_rows
from ..sizing import all_sizes, beside_short_rows, estimate, extent_of, has_wide_memory, record_bytes, warps_for_threads
from ..tuned import Tuned, tuned
from ..vectors import begins_anywhere, has_part_vectors, in_fewer_warps, whole_vectors
from ..whole_records import of_records
from ..whole_rows import fewer_programs
from ..window_rows import fastest_rows, holding_warps


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "pointwise"

    #: Bytes of a tile and waves of programs; the wide ones where threads take several vectors each.
    tile_bytes: int
    wide_tile_bytes: int
    waves: int
    wide_waves: int
    #: Least elements along the contiguous axis, as far as registers allow: below, transactions are not full.
    floor: int
    #: Threads by default, and the most.
    threads: int
    max_threads: int
    #: Elements per thread where numbers are random: each thread computes the keys of the generator.
    random_elements: int
    #: Loads of one tensor around a position from which fewer rows per thread are an alternate, and their divisor.
    wide_window: int
    quarters: int
    #: The shortest contiguous run of a window. With windows along three axes: elements of a tile, planes, and of a thread.
    window_run: int
    window_tile: int
    window_planes: int
    window_elements: int
    #: Loads of a thread where taps along contiguous memory load single narrow elements.
    single_taps: int
    #: Dimensions of a grid whose run needs few divisions for each other load.
    divided: int
    #: Bytes that a thread reads of a row of strided elements, which several loads share.
    strided_bytes: int
    #: Least elements per warp.
    warp_elements: int
    #: Most lanes along a short axis, idle ones included, relative to its shortest tiles; and the shortest such tile.
    idle: float
    least_run: int
    #: Elements per thread where memory is fast, by the stride of a gather.
    wide_elements: tuple[tuple[int, int], ...]
    wide_gather_elements: int


_TRANSACTION_BYTES = 128  #: Bytes of a full memory transaction.
#: Bytes that are different for each row of a program, for each byte that its rows share.
_SHARED = 16
_VECTOR_BYTES, _NARROW_BYTES = 16, 2  #: Bytes of a vector, and of elements that are slow to access without vectors.
#: Of tiles with one random number per thread, times that are this near tell nothing; the larger begins fewer programs.
_ALIKE = 1.01
#: Factors of the run of a launch of less than a wave, and elements for each thread.
_RUNS, _EACH = ((1, 4), (1, 2), (1, 1), (2, 1), (4, 1)), (2, 4, 8)
#: Halves of the rows of a tile, and by how much the warps are divided: tries of rows per thread.
_ROWS_AND_WARPS = ((1, 2), (1, 4), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1), (16, 1))


class TritonPointwiseHeuristic(Heuristic):
    name: ClassVar[str] = "TritonPointwiseHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        fact = facts.pointwise
        if fact is None:
            return Declined("the kernel is not elementwise")
        found = self.tiled(fact, facts, target)
        loads = (op for op in facts.memory_ops if op.kind == "load")
        pairs = (pair for op in loads for pair in zip(op.subscript_axes, op.scales, strict=True))
        strided = any(axis is not None and scale > 1 for axis, scale in pairs)
        return found if strided else in_fewer_warps(found, facts, target)

    def tiled(self, fact: PointwiseFact, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...]:
        """Return tiles by the rules for bytes, the first choice first."""
        goal, most = _tile_elements(fact, facts, target)
        sizes = _distribute(goal, most, fact, facts, target)
        tile = math.prod(sizes.values())
        threads = _wide_threads(tile, fact, target) if has_wide_memory(target) else tuned(_Numbers).threads
        if facts.random_tiles:
            threads = max(target.warp_size, min(threads, tile // tuned(_Numbers, target).random_elements))
        if (apart := _strided_elements(fact, facts, target)) is not None:
            threads = max(threads, min(tile // apart, tuned(_Numbers, target).max_threads))
        programs = target.num_sms * tuned(_Numbers, target).waves
        sizes = _fewer_taps(whole_vectors(sizes, threads, fact, facts, programs), threads, fact, facts)
        if not has_wide_memory(target):
            while has_part_vectors(sizes, threads, fact, facts, target) and threads > target.warp_size:
                threads //= 2
        tiles = _at_once(_tiles(sizes, warps_for_threads(threads, target), fact, facts), fact, facts, target)
        tiles = fewer_programs(tiles, facts, target) if fact.max_op_slab > 1 else tiles
        tiles = shorter_runs(tiles, fact, facts, target) if facts.random_tiles else tiles
        sizes, reason = dict(tiles.block_sizes), tiles.reason
        if whole := of_records(tiles, facts, target):
            return *whole, tiles
        if (turned := _turned(tiles, fact, facts, target)) is not None:
            return turned, tiles
        if fact.run_order and _begin_anywhere(fact, facts):
            return _in_order_of_memory(tiles, fact, facts, target), tiles
        run = replace(tiles, reason=f"{reason}, of one run in memory", loop_orders={}, flatten_loops={0: True})
        around = _around(tiles, fact, facts, target)
        if around is None and (window := fastest_rows(tiles, fact, facts, target)) is not None:
            flat = (run,) if fact.numbered_run else ()
            return (*flat, window, tiles) if _begin_anywhere(fact, facts) else (window, *flat, tiles)
        if is_near(facts) and not has_wide_memory(target):
            several = _half_of_gathers(tiles, facts) if gathers_many(tiles, facts, target) else tiles
            return fastest_tiles((run if fact.numbered_run else several, tiles), facts, target)
        rows = _shared_rows(sizes, fact, facts)
        if rows is not None:
            shared = replace(
                tiles,
                reason=f"{reason}, of rows that share operands",
                block_sizes=rows,
                loop_orders=_order(rows, fact, facts),
            )
            if around is None and (reused := _reused(tiles, fact, facts, target)) is not None:
                return reused, tiles, shared
            return tiles, shared
        if around is not None:
            return around, tiles
        reused = _reused(tiles, fact, facts, target) or computed_once(tiles, facts, target, _ROWS_AND_WARPS)
        if reused is not None:
            return reused, tiles
        if fact.numbered_run:
            fewer = _fewer_per_thread(tiles, facts, tuned(_Numbers, target))
            first = _is_gathered(facts) or (_begin_anywhere(fact, facts) and not fewer) or _has_idle_lanes(tiles, facts)
            return (gathered_rows(run, facts, target), tiles) if first else (*fewer, tiles, run)
        if _is_gathered(facts) and not all(op.static for op in facts.memory_ops):
            return _half_of_gathers(tiles, facts), tiles
        if not fact.one_run and not (fact.rows_beside_run and _is_accessed_singly(fact, facts)):
            return (tiles,)
        return (tiles, run) if record_bytes(facts) is not None else (run, tiles)


def _fewer_taps(sizes: dict[int, int], threads: int, fact: PointwiseFact, facts: KernelFacts) -> dict[int, int]:
    """Return a shorter tile of narrow elements where taps lie along contiguous memory alone, whose loads are single elements.

    A thread has registers for so many of them (measurement ``single_elements``).
    """
    if not fact.window_axes or fact.window_axes != fact.contiguous_axes or fact.storage_itemsize > _NARROW_BYTES:
        return sizes
    taps = max(Counter(op.name for op in facts.memory_ops if op.kind == "load" and not op.gathered).values())
    (first, *others), each = fact.window_axes, math.prod(sizes.values()) // threads
    most = max(1, previous_power_of_2(tuned(_Numbers).single_taps // taps))
    return sizes if others or each <= most else {**sizes, first: max(1, sizes[first] * most // each)}


def _in_order_of_memory(
    tiles: TritonProposal, fact: PointwiseFact, facts: KernelFacts, target: Target
) -> TritonProposal:
    """Return the tile of a grid that is flattened in the order of its stores, for rows that begin anywhere.

    A thread then stores a vector, which the divisions of its lane numbers allow (measurement ``stores_in_order``).
    """
    warps = tiles.num_warps or 1
    elements = warps * target.warp_size * _VECTOR_BYTES // fact.storage_itemsize
    axes = [facts.axes[facts.grid_axes[at]] for at in fact.run_order]
    highest = {axis.block_id: min(axis.padded or 2**30, axis.max_size or 2**30) for axis in axes}
    sizes = {axis.block_id: axis.min_size for axis in axes} | _filled(axes, elements, highest)
    reason = f"{tiles.reason}, of one run in the order of memory"
    return replace(tiles, reason=reason, block_sizes=sizes, loop_orders={0: fact.run_order}, flatten_loops={0: True})


def _tiles(sizes: dict[int, int], warps: int, fact: PointwiseFact, facts: KernelFacts) -> TritonProposal:
    lane = f"{fact.slab_numel} elements of {fact.storage_itemsize} bytes per lane"
    return TritonProposal(
        reason=f"{lane}: tiles of {math.prod(sizes.values())}, {warps} warps",
        block_sizes=sizes,
        loop_orders=_order(sizes, fact, facts),
        num_warps=warps,
        num_stages=1,
    )


def _at_once(tiles: TritonProposal, fact: PointwiseFact, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return the same with other runs and warps, if that is predicted to be faster, for a launch of less than a wave.

    Its time is that of starting programs and of one thread, not that of memory. So no thread computes two keys of the
    generator of random numbers one after the other.
    """
    ratio, blocks = (
        trust(target).at_once,
        (*fact.contiguous_axes, *(axis.block_id for axis in facts.tunable_axes[-1:]), -1),
    )
    if len(fact.contiguous_axes) > 1 or blocks[0] not in tiles.block_sizes:
        return tiles
    if not _in_a_wave(tiles, facts, target):
        return tiles
    first = facts.axes[blocks[0]]
    run, rest = tiles.block_sizes[first.block_id], fact.max_op_slab * math.prod(tiles.block_sizes.values())
    highest, found = min(first.padded or 2**30, first.max_size or 2**30), []
    for more, divisor in _RUNS:
        size = run * more // divisor
        if first.min_size <= size <= highest:
            elements = rest * size // run
            for count in {max(1, elements // (target.warp_size * n)) for n in ((1,) if facts.random_tiles else _EACH)}:
                sizes = {**tiles.block_sizes, first.block_id: size}
                found.append(_tiles(sizes, previous_power_of_2(min(count, 8)), fact, facts))
    within = (each for each in found if _in_a_wave(each, facts, target))
    timed = [(each, proposal_us(facts, each, target)) for each in (tiles, *within)]
    others = timed[1:]
    if facts.random_tiles and others:
        least = min(us for _, us in others)
        near = (each for each in others if each[1] <= _ALIKE * least)
        others = [max(near, key=lambda each: math.prod(each[0].block_sizes.values()))]
    return unless_faster(timed[0], others, ratio)


def _in_a_wave(tiles: TritonProposal, facts: KernelFacts, target: Target) -> bool:
    programs = math.prod(cdiv(extent_of(facts.axes[block]), size) for block, size in tiles.block_sizes.items())
    return programs * (tiles.num_warps or 1) <= target.num_sms * target.max_warps_per_sm


def _turned(tiles: TritonProposal, fact: PointwiseFact, facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return the same with fewer and longer rows, if that is predicted to be faster, for copies that exchange axes."""
    if len(fact.contiguous_axes) != 1 or all(beside_turned(op, facts) is None for op in facts.memory_ops):
        return None
    (first,) = fact.contiguous_axes
    others = [axis for axis in facts.tunable_axes if axis.block_id != first]
    highest = {axis.block_id: min(axis.padded or 2**30, axis.max_size or 2**30) for axis in facts.tunable_axes}
    elements, run = math.prod(tiles.block_sizes.values()), tiles.block_sizes[first]
    of_warp = target.warp_size * max(1, _VECTOR_BYTES // (fact.storage_itemsize * fact.max_op_slab))
    orders, found = innermost_first(first, facts), []
    while run <= min(elements, highest[first]):
        rows = elements // run
        while rows:
            least = {axis.block_id: axis.min_size for axis in others}
            sizes = {**least, first: run, **_filled(others, rows, highest)}
            warps = min(tiles.num_warps or 1, max(1, math.prod(sizes.values()) // of_warp))
            shape = " x ".join(map(str, sizes.values()))
            reason = f"{tiles.reason}, of {shape}: rows of a permuted tile meet in shared memory"
            found.append(replace(tiles, reason=reason, block_sizes=sizes, loop_orders=orders, num_warps=warps))
            rows //= 2
        run *= 2
    timed = [(each, proposal_us(facts, each, target)) for each in (tiles, *found)]
    best = unless_faster(timed[0], timed[1:], trust(target).longer_rows)
    return None if best is tiles else best


def _reused(tiles: TritonProposal, fact: PointwiseFact, facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return the same with other rows per thread, if that is predicted to be faster, for kernels whose rows share loads.

    It is also for loads of rows that data selects from one part of a tensor. A thread needs what its rows share once. Of
    programs in the order of memory, those that run together select from one part, which the L2 cache keeps.
    """
    if len(fact.contiguous_axes) != 1 or not tiles.block_sizes:
        return None
    (first,) = fact.contiguous_axes
    selects = any(_selects_from_part(op, facts, target) for op in facts.memory_ops)
    rows = sharing_rows(first, facts)
    if not selects and rows is None:
        return None
    across = [axis.block_id for axis in facts.tunable_axes if axis.block_id != first]
    if not across:
        return None
    axis = facts.axes[rows if rows is not None else across[-1]]
    if any(work.polynomials and {first, axis.block_id} <= set(work.axes) for work in facts.work):
        return None  # predictions do not rank the polynomials of a thread (measurement ``shared_sines``)
    orders = innermost_first(first, facts) if selects else tiles.loop_orders
    highest, warps = min(axis.padded or 2**30, axis.max_size or 2**30), tiles.num_warps or 1
    if (pairs := pair_tile(tiles, axis.block_id, first, facts)) is not None:
        within = safety.within(estimate(facts, target, pairs.block_sizes, pairs.num_warps or 1, 1), safety.MANY_ROWS)
        usual, shared = (proposal_us(facts, each, target) for each in (tiles, pairs))
        return pairs if within and shared <= trust(target).reused * usual else None
    found = []
    for half_rows, fewer in _ROWS_AND_WARPS:
        count = tiles.block_sizes[axis.block_id] * half_rows // 2
        if axis.min_size <= count <= highest and fewer <= warps:
            sizes = {**tiles.block_sizes, axis.block_id: count}
            if not safety.within(estimate(facts, target, sizes, warps // fewer, 1), safety.MANY_ROWS):
                continue
            shape = " x ".join(map(str, sizes.values()))
            reason = f"{tiles.reason}, of {shape}: rows of a thread share operands"
            found.append(replace(tiles, reason=reason, block_sizes=sizes, loop_orders=orders, num_warps=warps // fewer))
    timed = [(each, proposal_us(facts, each, target)) for each in (tiles, *found)]
    best = unless_faster(timed[0], timed[1:], trust(target).reused)
    return None if best is tiles else best


def _around(tiles: TritonProposal, fact: PointwiseFact, facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return the same in blocks of planes, rows and columns, for windows along three axes.

    Each position is then loaded by fewer programs, and by few threads with many loads in flight (measurement
    ``windows_in_space``).
    """
    if len(fact.window_axes) != 3 or len(fact.contiguous_axes) != 1 or has_wide_memory(target):
        return None
    numbers, (first,) = tuned(_Numbers, target), fact.contiguous_axes
    others = [facts.axes[axis] for axis in fact.window_axes if axis != first]
    if len(others) != 2 or not all(axis.tunable for axis in others):
        return None
    extent = extent_of(facts.axes[first])
    run = min((2 * numbers.window_run, numbers.window_run), key=lambda n: cdiv(extent, n) * n)
    planes = min(numbers.window_planes, previous_power_of_2(extent_of(others[0])))
    rows = min(numbers.window_tile // (planes * run), previous_power_of_2(extent_of(others[1])))
    sizes = {**tiles.block_sizes, first: run, others[0].block_id: planes, others[1].block_id: rows}
    elements = math.prod(sizes.values())
    warps = holding_warps(max(1, elements // (target.warp_size * numbers.window_elements)), sizes, facts, target)
    if not kept_loads(facts, all_sizes(facts, sizes), warps * target.warp_size, 0):
        return None  # rows without a load in common only leave registers for fewer warps
    if (
        elements * target.num_sms * numbers.waves > fact.total_numel
        or estimate(facts, target, sizes, warps, 1).spill_risk
    ):
        return None
    reason = f"{tiles.reason}, of {planes} x {rows} x {run}: windows along three axes share loads"
    return replace(tiles, reason=reason, block_sizes=sizes, num_warps=warps)


def _selects_from_part(op: MemoryOpFact, facts: KernelFacts, target: Target) -> bool:
    """Return whether data selects what a load reads from the part of a large tensor that axes of the grid index."""
    if op.kind != "load" or not op.gathered or None not in op.subscript_axes:
        return False
    parts = (a for a in op.subscript_axes if a is not None and a in facts.grid_axes and a not in op.tile_axes)
    return any(extent_of(facts.axes[a]) > 1 for a in parts) and op.accessed_numel * op.itemsize > target.l2_bytes


def _is_accessed_singly(fact: PointwiseFact, facts: KernelFacts) -> bool:
    """Return whether rows are unaligned for vectors, and elements have several parts or are so narrow that scalar accesses
    do not fill a warp's transaction.

    One run is then better even if a bias needs scalar loads with a division each (measurement
    ``pointwise_single_accesses``). Rows of complex numbers begin within sectors (measurement ``unaligned_pairs``). In
    grids of many dimensions each such load needs several divisions (measurement ``products_of_matrices``).
    """
    if len(facts.grid_axes) > tuned(_Numbers).divided:
        return False
    narrow = fact.storage_itemsize <= _NARROW_BYTES
    return (narrow or not fact.contiguous_axes) and _begin_anywhere(fact, facts)


def _strided_elements(fact: PointwiseFact, facts: KernelFacts, target: Target) -> int | None:
    """Return the elements of a thread where several loads share rows of strided elements; None elsewhere.

    A thread stores a vector, so the lanes of a warp read elements at strides of a vector. Each line of memory takes a
    cycle (measurement ``strided_windows``). Threads with neighbours whose windows share half or more load that once.
    """
    if (record_bytes(facts) or 0) > _VECTOR_BYTES // 2 and not has_wide_memory(target):
        return 1
    if not set(fact.window_axes).isdisjoint(fact.contiguous_axes):
        return None
    strided = [op for op in facts.memory_ops if op.kind == "load" and not op.gathered and op.step > 1]
    shared = max(Counter(op.name for op in strided).values(), default=0)
    stores = any(op.kind == "store" and op.step == 1 for op in facts.memory_ops)
    if fact.gather_stride == 1 or not stores or shared < 2 or has_wide_memory(target):
        return None
    itemsize = max(op.itemsize for op in strided)
    return max(1, tuned(_Numbers, target).strided_bytes // (fact.gather_stride * itemsize))


def _has_idle_lanes(tiles: TritonProposal, facts: KernelFacts) -> bool:
    """Return whether tiles of strided elements are longer than their rows."""
    strided = (op for op in facts.memory_ops if op.kind == "load" and not op.gathered and op.step > 1)
    axes = {axis for op in strided for axis in op.tile_axes}
    return any(size > extent_of(facts.axes[axis]) for axis, size in tiles.block_sizes.items() if axis in axes)


def _begin_anywhere(fact: PointwiseFact, facts: KernelFacts) -> bool:
    """Return whether rows are unaligned for vectors in all full accesses."""

    full = [op for op in facts.memory_ops if 2 * op.accessed_numel >= fact.total_numel]
    return bool(full) and all(map(begins_anywhere, full))


def _is_gathered(facts: KernelFacts) -> bool:
    """Return whether computed indices select what a load reads along its rows, as those of an interpolation do.

    In several dimensions Triton orders the threads of such a load by the other axes. In one run they follow the stores
    (measurement ``numbered_runs``).
    """
    return any(op.kind == "load" and op.gathered and op.subscript_axes[-1] is None for op in facts.memory_ops)


def _half_of_gathers(tiles: TritonProposal, facts: KernelFacts) -> TritonProposal:
    """Return the same with half of the rows, for gathers from places that sizes of the call decide.

    Each element of a thread has addresses of its own, so registers limit the programs of an SM (measurement
    ``gathers_by_size``). Few elements of a thread leave them (measurement ``few_gathers``).
    """
    rows = [axis.block_id for axis in facts.tunable_axes if tiles.block_sizes.get(axis.block_id, 1) > axis.min_size]
    if len(rows) < 2:
        return tiles
    sizes = {**tiles.block_sizes, rows[-2]: tiles.block_sizes[rows[-2]] // 2}
    return replace(tiles, reason=f"{tiles.reason}, half of the rows", block_sizes=sizes, loop_orders={})


def _fewer_per_thread(tiles: TritonProposal, facts: KernelFacts, numbers: _Numbers) -> tuple[TritonProposal, ...]:
    """Return the same with a quarter of the rows, for windows of so many loads that each thread waits for few of them."""
    loads = Counter(op.name for op in facts.memory_ops if op.kind == "load" and not op.gathered)
    rows = [axis.block_id for axis in facts.tunable_axes if tiles.block_sizes.get(axis.block_id, 1) >= numbers.quarters]
    if max(loads.values(), default=0) < numbers.wide_window or len(rows) < 2:
        return ()
    sizes = {**tiles.block_sizes, rows[-2]: tiles.block_sizes[rows[-2]] // numbers.quarters}
    return (replace(tiles, reason=f"{tiles.reason}, a quarter of the rows for a window", block_sizes=sizes),)


def _shared_rows(sizes: dict[int, int], fact: PointwiseFact, facts: KernelFacts) -> dict[int, int] | None:
    """Return a tile of as many elements with more rows, if loads that are the same for all rows move the most bytes.

    A program then needs them once for its rows: the weights of a depthwise convolution, with a few taps of a channel
    each, move 32 bytes where each row moves 10.
    """
    if len(fact.contiguous_axes) != 1:
        return None
    (first,) = fact.contiguous_axes
    across = [axis.block_id for axis in reversed(facts.tunable_axes) if axis.block_id != first]
    for axis in across:
        common, own = common_and_own(axis, first, facts)
        extent = min(facts.axes[axis].padded or 2**30, facts.axes[axis].max_size or 2**30)
        if common <= 2 * own or extent == 1:
            continue
        wanted = min(previous_power_of_2(max(1, _SHARED * common // max(1, own))), extent)
        run = min(sizes[first], max(sizes[first] // wanted, _TRANSACTION_BYTES // fact.storage_itemsize))
        rows = min(extent, sizes.get(axis, 1) * (sizes[first] // run))
        if rows > sizes.get(axis, 1):
            return {**sizes, first: run, axis: rows}
    return None


def _order(sizes: dict[int, int], fact: PointwiseFact, facts: KernelFacts) -> dict[int, tuple[int, ...]]:
    """Return ``loop_orders`` with neighbouring programs along the contiguous axis, then along the last of the others, so
    that resident programs share memory pages (measurement ``grid_in_memory_order``). Where whole dimensions are
    contiguous, neighbours are those of the stores (measurement ``stored_in_order``).
    """
    if not fact.contiguous_axes:
        return _as_stored(facts)
    if len(fact.contiguous_axes) != 1:
        return {}
    (first,) = fact.contiguous_axes
    extent = facts.axes[first].extent
    covered = extent is not None and sizes.get(first, 1) >= extent
    return {} if covered and len(facts.grid_axes) <= 2 else innermost_first(first, facts)


def _as_stored(facts: KernelFacts) -> dict[int, tuple[int, ...]]:
    """Return ``loop_orders`` in which neighbouring programs store next to each other."""
    axes = facts.grid_axes
    stores = [op for op in facts.memory_ops if op.kind == "store" and set(axes) <= {*op.subscript_axes, *op.tile_axes}]
    if facts.num_roots != 1 or len(axes) < 2 or not stores:
        return {}
    largest = max(stores, key=lambda op: op.accessed_numel * op.itemsize)
    steps = {
        axis: stride * scale
        for axis, stride, scale in zip(largest.subscript_axes, largest.strides, largest.scales, strict=True)
    }
    order = tuple(sorted(range(len(axes)), key=lambda at: steps.get(axes[at], 0)))
    return {} if order == tuple(range(len(axes))) or not steps.keys() >= set(axes) else {0: order}


def _tile_elements(fact: PointwiseFact, facts: KernelFacts, target: Target) -> tuple[float, float]:
    """Return the elements that a tile should have, and the most that registers allow."""
    wide, numbers = has_wide_memory(target), tuned(_Numbers, target)
    fetch = fact.slab_numel * fact.storage_itemsize * (fact.gather_stride if wide else 1)
    budget = (numbers.wide_tile_bytes if wide else numbers.tile_bytes) / fetch
    if (apart := _strided_elements(fact, facts, target)) is not None:
        budget = min(budget, 2 * numbers.threads * apart)
    # a quarter of the register file, so that four blocks can share an SM
    held = target.registers_per_sm / (fact.slab_numel * fact.compute_itemsize)
    occupancy = fact.total_numel / (target.num_sms * (numbers.wide_waves if wide else numbers.waves))
    return max(1.0, min(budget, held, occupancy)), held


def _distribute(goal: float, most: float, fact: PointwiseFact, facts: KernelFacts, target: Target) -> dict[int, int]:
    axes, numbers = facts.tunable_axes, tuned(_Numbers, target)
    sizes = {axis.block_id: axis.min_size for axis in axes}
    highest = {a.block_id: min(a.padded or 2**30, a.max_size or 2**30) for a in axes}
    runs = fact.contiguous_axes or beside_short_rows(facts, _TRANSACTION_BYTES)
    if len(runs) >= 2:
        run = _square_run(most, len(runs), fact, target)
        short = min(highest[block] for block in runs)
        if short < run:
            # use the elements that a short axis has no room for, up to full transactions
            run = max(run, min(numbers.floor, run ** len(runs) // short))
        for block in runs:
            sizes[block] = max(sizes[block], min(run, highest[block]))
        filled = math.prod(sizes[block] for block in runs)
        others = [axis for axis in axes if axis.block_id not in runs]
        return {**sizes, **_filled(others, goal / filled, highest)}
    first = fact.contiguous_axes[0] if fact.contiguous_axes else axes[-1].block_id
    # along other axes, the contiguous elements of each lane fill transactions
    least = numbers.floor if fact.contiguous_axes else max(1, numbers.floor // fact.max_op_slab)
    floor = min(previous_power_of_2(least), previous_power_of_2(int(most)))
    run = min(max(floor, previous_power_of_2(int(goal))), highest[first])
    sizes[first] = max(sizes[first], _even(run, facts.axes[first].extent, numbers))
    others = [axis for axis in axes if axis.block_id != first]
    return {**sizes, **_filled(others, goal / sizes[first], highest)}


def _filled(axes: list[AxisFact], rest: float, highest: dict[int, int]) -> dict[int, int]:
    """Return sizes that use up ``rest`` elements of a tile, the innermost axis first."""
    sizes = {}
    for axis in reversed(axes):
        if rest >= 2:
            sizes[axis.block_id] = max(axis.min_size, min(previous_power_of_2(int(rest)), highest[axis.block_id]))
            rest /= sizes[axis.block_id]
    return sizes


def _even(run: int, extent: int | None, numbers: _Numbers) -> int:
    """Return ``run``, or a fraction of it that leaves fewer lanes idle along a short axis."""
    if extent is None or run < extent:
        return run
    least = min(run, numbers.least_run)
    most = numbers.idle * cdiv(extent, least) * least
    return next(run >> i for i in range(run.bit_length()) if cdiv(extent, run >> i) * (run >> i) <= most)


def _square_run(most: float, ways: int, fact: PointwiseFact, target: Target) -> int:
    """Return the side of a square or cubic tile, whose loads run along one of ``ways`` axes and stores along another.

    The side is as long as registers allow while every SM gets a tile, but no shorter than full transactions.
    """
    run = previous_power_of_2(int(most))
    while run > 1 and run**ways > most:
        run //= 2
    shortest = max(1, _TRANSACTION_BYTES // (fact.storage_itemsize * fact.max_op_slab))
    while run > shortest and run**ways * target.num_sms > fact.total_numel:
        run //= 2
    return run


def _wide_threads(tile: int, fact: PointwiseFact, target: Target) -> int:
    numbers = tuned(_Numbers, target)
    each = next(
        (count for stride, count in numbers.wide_elements if fact.gather_stride <= stride), numbers.wide_gather_elements
    )
    work = previous_power_of_2(tile // (32 * each))
    programs = max(1, fact.total_numel // tile)
    resident = previous_power_of_2(target.num_sms * target.max_warps_per_sm * 3 // 4 // programs)
    warps = min(max(work, resident), previous_power_of_2(tile * fact.max_op_slab // numbers.warp_elements))
    return 32 * max(1, min(warps, numbers.max_threads // 32))
