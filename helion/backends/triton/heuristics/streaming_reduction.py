"""Reductions over rows on H200-class GPUs: small programs with few threads, many at once.

Matches the kernels of the two other reduction heuristics, on such GPUs only, and comes before them. The numbers come
from sweeps over rows of 1000 to 131072 in bf16 and fp32 (H200, CUDA 13.0, Triton 3.6, 2026-11-20). By `python
benchmarks/sweep.py --score`, the seeds take 1.00 to 1.07 of the best config's time, as geometric means by kernel and
dtype.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts, ReductionFact
from ...._shapes import next_power_of_2, previous_power_of_2
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import MemoryClass, Target
from ..proposal import TritonProposal
from ..resources.traffic import work
from .reduction_budget import Allocation, allocate, reduction_alone
from .reduction_launch import launch
from .sizing import all_sizes, grid_extent

#: Bytes of a program's rows: one 16-byte load for each of 256 threads, or two for 128. Half of it for heavy bodies.
_PROGRAM_BYTES = 4096
_MAX_ROWS, _MIN_WAVES = 16, 8
#: Bytes per thread of a program's rows up to ``_SHORT`` elements, and of longer ones; from ``_LONG`` on all threads.
#: Where no row is stored, the bytes of longer ones count all loads, halved with many tiles in a loop or short rows.
_THREAD_BYTES, _LONG_THREAD_BYTES, _SHORT, _LONG = 32, 128, 4096, 32768
_SHORT_ROW = 512
#: The number of dependent reductions from which on a thread of a row up to ``_SHORT`` elements has twice as many. Warps
#: of a row wait for each other in each. On an H200 (2026-11-23) layer norm to int8 with three of 65536 rows of 1000 in
#: fp16 takes 60 us instead of 68. 16384 rows of 4096 in bf16 take 78 instead of 87.
_MANY_STAGES = 3
#: Least threads for a row of two dimensions or more.
_DEEP_THREADS = 64
#: Elements per thread where only one element per row is stored: latency bounds it, and small blocks hide it.
_THREAD_ELEMENTS = 64
#: Rows up to this many elements are loaded whole. Up to twice as many are, if a second read would miss L1 (64 KiB for
#: each resident row). The same holds if a loop would rescale its sum for each new maximum.
_HELD, _CACHED_BYTES, _ONE_PASS = 16384, 65536, frozenset(("max", "sum"))
#: Elements per thread of a row of ``_HELD`` that a loop of the kernel's own reads once. On an H200 (2026-11-23) the
#: squares of 8192 rows of 12000 in bf16 take 0.95 of the time of tiles of 8192.
_HELD_THREAD_ELEMENTS = 32
#: Elements of a tile of such rows of single bytes, and the ratio of padding from which a whole row leaves too many
#: lanes idle. On an H200 (2026-11-23) rows of 11008 weights of 8 bits times a vector take 0.83 of the time of tiles of
#: 16384.
_BYTE_TILE, _IDLE = 4096, 1.25
#: Elements of the chunks of longer rows, divided by the number of loads that span a row, and of rows of twice
#: ``_HELD``. A block has all threads for them, half of them where chunks of so many bytes have this many live tiles.
_CHUNK, _SHORT_CHUNK, _MANY_TILES = 16384, 4096, 3
#: A loop of the kernel's own with this many tiles, whose row is read again, has tiles of at most ``_HELD``. On an H200
#: (2026-11-23) a smoothed loss over rows of 32001 in fp32 takes 0.28 of the time of tiles of 32768, which spill. Where
#: only one element per row is stored, a row is read once in any case. A loop of the kernel's own has these chunks too
#: where rows are not aligned to vectors.
_VECTOR_BYTES = 16
_SCALAR_CHUNK, _SCALAR_THREADS = 2048, 512
#: Chunks of unaligned rows beyond ``_HELD``, and threads for them: a chunk at each end has scalar accesses. On an H200
#: (2026-11-23) rows of 50257 and 32001 in bf16 take 0.60 and 0.85 of the time of larger chunks and of whole rows.
_UNALIGNED_CHUNK, _UNALIGNED_THREADS = 2048, 256
#: Least tiles of an unaligned row of the kernel's own loop, and least elements of one. On an H200 (2026-11-23) rows of
#: 3001 in bf16 take 0.54 of the time of two tiles.
_UNALIGNED_TILES, _LEAST_UNALIGNED = 4, 256
#: A body is heavy from this many live tiles on: elements of a row that is loaded whole, of a chunk, and per thread.
_HEAVY_TILES, _HEAVY_HELD, _HEAVY_CHUNK = 6, 4096, 2048
_HEAVY_THREAD_ELEMENTS, _HEAVY_THREADS = 16, 256
#: A loop that reads its row again is compute-bound when its arithmetic is predicted to take this many times as long as
#: its memory. It then overlaps with other programs' loads, and small tiles let more of these fit. Most elements of its
#: tile, and of a thread; least threads.
_COMPUTE_BOUND, _COMPUTE_BOUND_TILE, _COMPUTE_BOUND_THREAD_ELEMENTS, _COMPUTE_BOUND_THREADS = 1.25, 8192, 32, 64
#: Divisor of the register file for the live tiles of a loop that reads nothing twice: 4 programs share an SM.
_SHARED_BY = 4
_REGISTER_BYTES = 4


class TritonStreamingReductionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonStreamingReductionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if target.memory is not MemoryClass.FAST:
            return Declined(f"measured for H200, not for {target.device}")
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
        return (_proposal(found, facts, target),)


def _proposal(found: Allocation, facts: KernelFacts, target: Target) -> TritonProposal:
    primary = found.primary
    compute_bound = _is_compute_bound(facts, primary, target)
    width = _width(facts, primary, target, compute_bound)
    _set_width(found, facts, width)
    rows = _set_rows(found, facts, target, compute_bound)
    chosen = launch(found, facts, target, threads=_threads(rows * width, width, facts, primary, target, compute_bound))
    way = "at once" if width >= facts.axes[primary.axis].padded else f"in chunks of {width}"
    return TritonProposal(
        reason=f"{rows} rows of {primary.extent} per program, {way}, {chosen.num_warps} warps",
        block_sizes=chosen.sizes,
        reduction_loops=chosen.chunks,
        num_warps=chosen.num_warps,
        num_stages=1,
        eviction=_eviction(facts, primary, width),
    )


def _itemsize(primary: ReductionFact) -> int:
    return max(2, primary.input_load_itemsize)


def _row_loads(facts: KernelFacts, axis: int) -> int:
    """Return the loads that read a row of their own in every program, which excludes weights."""
    return sum(
        op.kind == "load" and axis in op.tile_axes and any(a in facts.grid_axes for a in op.tile_axes)
        for op in facts.memory_ops
    )


def _eviction(facts: KernelFacts, primary: ReductionFact, width: int) -> dict[int, str]:
    """Return the eviction policies of the row loads.

    Long rows that are read again for a store stay in the cache until then. Rows that are read once, where no row is
    stored, leave it first. Outputs of other kernels then stay in the cache instead of being written to memory.
    """
    along, grid = _along(facts, primary), frozenset(facts.grid_axes)
    rows = {
        op.load_slot: op.region == primary.region
        for op in facts.memory_ops
        if op.load_slot is not None and along.intersection(op.tile_axes) and grid.intersection(op.tile_axes)
    }
    stores = _stores_rows(facts, primary)
    # a whole dimension of which no row is stored is read once, chunked or not
    again = primary.re_read and width < primary.extent and (stores or not primary.full_extent)
    if not again and not stores:
        return dict.fromkeys(rows, "first")
    if not again or not stores or primary.extent <= 2 * _HELD:
        return {}
    return {slot: "last" if first else "first" for slot, first in rows.items()}


def _is_heavy(primary: ReductionFact) -> bool:
    return primary.full_extent and primary.body_live_tiles >= _HEAVY_TILES


def _is_compute_bound(facts: KernelFacts, primary: ReductionFact, target: Target) -> bool:
    if primary.full_extent or not primary.re_read:
        return False
    done = work(facts, all_sizes(facts, {}), 1, target)
    return done.scalar_us > _COMPUTE_BOUND * done.bytes_moved / (target.bandwidth_gb_per_s * 1e3)


def _is_aligned(facts: KernelFacts, primary: ReductionFact) -> bool:
    """Return whether every row of the loads begins at a vector boundary."""
    loads = (op for op in facts.memory_ops if op.kind == "load" and primary.axis in op.tile_axes)
    return not any(stride != 1 and stride * op.itemsize % _VECTOR_BYTES for op in loads for stride in op.strides)


def _inside(facts: KernelFacts, primary: ReductionFact) -> int:
    """Return the elements of the other whole dimensions of a row, as in a reduction over two of them."""
    return math.prod(facts.axes[a].padded for a in primary.tile if a != primary.axis and facts.axes[a].kind == "full")


def _along(facts: KernelFacts, primary: ReductionFact) -> frozenset[int]:
    """Return the axes that run along the row, in this loop or another."""
    return frozenset(a.block_id for a in facts.axes if a.extent == primary.extent and not a.on_grid)


def _stores_rows(facts: KernelFacts, primary: ReductionFact) -> bool:
    along = _along(facts, primary)
    return any(op.kind == "store" and along.intersection(op.tile_axes) for op in facts.memory_ops)


def _width(facts: KernelFacts, primary: ReductionFact, target: Target, compute_bound: bool) -> int:
    """Return the elements of a row that are loaded at once."""
    axis = facts.axes[primary.axis]
    whole = axis.padded or next_power_of_2(primary.extent)
    loads = max(1, _row_loads(facts, primary.axis))
    if not primary.full_extent and not primary.re_read:
        scale = sum(size for axes, size in primary.live_tiles if primary.axis in axes)
        room = target.registers_per_sm * _REGISTER_BYTES // _SHARED_BY
        width = min(whole, previous_power_of_2(room // max(1, scale)))
        if loads == 1 and whole <= _HELD:
            width = _BYTE_TILE if _wastes_bytes(primary, whole) else whole
        return width if _is_aligned(facts, primary) else _unaligned_width(width, primary)
    if _is_heavy(primary):
        return whole if whole <= _HEAVY_HELD else _HEAVY_CHUNK
    if primary.full_extent and not _stores_rows(facts, primary):
        return whole if whole <= _HELD else _SCALAR_CHUNK
    if compute_bound:
        return min(whole, _COMPUTE_BOUND_TILE)
    if not primary.full_extent and primary.body_live_tiles >= _MANY_TILES:
        return min(whole, _HELD)
    again = primary.re_read and (
        whole * _itemsize(primary) * loads > _CACHED_BYTES or _ONE_PASS.issubset(primary.names)
    )
    aligned = not primary.full_extent or _is_aligned(facts, primary)
    if whole <= (2 * _HELD if again and aligned else _HELD):
        return whole
    if not primary.full_extent:
        return _HELD if whole <= 2 * _HELD else 2 * _HELD
    if not aligned:
        return _UNALIGNED_CHUNK
    if loads > 1 and _ONE_PASS.issubset(primary.names):
        return _SHORT_CHUNK
    return (_SHORT_CHUNK if whole <= 2 * _HELD else _CHUNK) // previous_power_of_2(loads)


def _wastes_bytes(primary: ReductionFact, whole: int) -> bool:
    """Return whether rows of single bytes are better read in tiles than in one of ``whole`` elements."""
    return primary.input_load_itemsize == 1 and whole > _BYTE_TILE and whole >= _IDLE * primary.extent


def _unaligned_width(width: int, primary: ReductionFact) -> int:
    """Return the tile for an unaligned row: at least four tiles, so that all but the first and the last are vectorized.

    A short row is loaded whole.
    """
    parted = previous_power_of_2(max(1, primary.extent // _UNALIGNED_TILES))
    return min(width, _SCALAR_CHUNK, parted) if parted >= _LEAST_UNALIGNED else min(width, _SCALAR_CHUNK)


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
    """Set and return the rows per program: its bytes, distributed over the grid axes."""
    primary = found.primary
    row = (facts.axes[primary.axis].padded or primary.extent) * _inside(facts, primary) * _itemsize(primary)
    waves = previous_power_of_2(grid_extent(facts, primary.root) // (target.num_sms * _MIN_WAVES))
    room = _PROGRAM_BYTES // 2 if compute_bound or _is_heavy(primary) else _PROGRAM_BYTES
    goal = max(1, min(_MAX_ROWS, room // row, waves))
    # other grid loops keep their sizes, and so do contiguous axes
    own = (facts.axes[a] for a in facts.grid_axes if a not in found.columns)
    axes = [axis for axis in own if axis.tunable and primary.root in axis.roots]
    sizes = {axis.block_id: axis.min_size for axis in axes}
    while math.prod(sizes.values()) < goal:
        able = [a for a in axes if sizes[a.block_id] * 2 <= min(a.padded or 1, a.max_size or goal)]
        if not able:
            break
        sizes[able[-1].block_id] *= 2
    found.sizes.update(sizes)
    return math.prod(sizes.values())


def _threads(
    elements: int, width: int, facts: KernelFacts, primary: ReductionFact, target: Target, compute_bound: bool
) -> int:
    """Return the threads for a program of ``elements``, of which ``width`` are along the row."""
    least, most = target.warp_size, target.max_threads_per_block
    looped = width < primary.extent and primary.full_extent
    if _is_heavy(primary):
        return _HEAVY_THREADS if looped else max(least, elements // _HEAVY_THREAD_ELEMENTS)
    if primary.full_extent and not _stores_rows(facts, primary):
        return _SCALAR_THREADS if looped else max(least, min(most, elements // _THREAD_ELEMENTS))
    if looped and not _is_aligned(facts, primary):
        return _UNALIGNED_THREADS
    if looped:
        crowded = width * _itemsize(primary) >= _CACHED_BYTES and primary.body_live_tiles >= _MANY_TILES
        return most // 2 if crowded else most
    if compute_bound:
        return max(_COMPUTE_BOUND_THREADS, elements // _COMPUTE_BOUND_THREAD_ELEMENTS)
    if elements >= _LONG:
        return most
    inside = _inside(facts, primary)
    if inside > 1:
        return max(_DEEP_THREADS, min(most, elements * inside * _itemsize(primary) // _LONG_THREAD_BYTES))
    if not _stores_rows(facts, primary):
        each = _LONG_THREAD_BYTES // (_itemsize(primary) * max(1, _row_loads(facts, primary.axis)))
        if width == _HELD >= primary.extent:
            each = min(each, _HELD_THREAD_ELEMENTS)
        if _wastes_bytes(primary, next_power_of_2(primary.extent)):
            each = min(each, _HELD_THREAD_ELEMENTS)
        elif primary.body_live_tiles >= _MANY_TILES and (width < primary.extent or width <= _SHORT_ROW):
            each //= 2
    else:
        each = (_THREAD_BYTES if elements <= _SHORT else _LONG_THREAD_BYTES) // _itemsize(primary)
        if elements <= _SHORT and len(primary.stages) >= _MANY_STAGES:
            each *= 2
    return max(least, min(most, elements // each))
