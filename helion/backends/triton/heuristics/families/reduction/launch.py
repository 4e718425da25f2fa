"""Warps of reductions, and smaller tiles where registers do not suffice."""

from __future__ import annotations

import math
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_support.records import dataclass, replace
from ......autotuner.proposal import Predicted
from ......hardware import VECTOR_BYTES, Target
from ....proposal import TritonProposal
from ....resources.predict import unstaged
from ....resources.tiles import vector_elements
from ... import register_safety as safety
from ...sizing import Chunks, Sizes, all_sizes, estimate, extent_of, halve, has_wide_memory, warps_for_threads
from ...tuned import Tuned, tuned
from .budget import Allocation


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "reduction_launch"

    #: Threads by the length of the row in elements; longer rows get the last entry's double.
    threads: tuple[tuple[int, int], ...]
    most_threads: int
    #: On GPUs with much bandwidth per SM, fewer threads per row leave more rows in flight: by bytes of the row's
    #: loads, then by its length.
    light_row_bytes: int
    wide_threads: tuple[tuple[int, int], ...]
    wide_heavy_row: int
    wide_heavy_threads: int
    #: No chunk shrinks below this many times the axis's minimum.
    smallest_chunk: int
    #: Registers of each access of a thread to pieces of rows that no vector fits, in addition to those predicted.
    piece_registers: int
    #: Stages of a loop that adds rows up for each feature.
    prefetched: int
    #: Least threads when each program reduces a grid axis, and the same where memory is fast.
    away_threads: int
    wide_away_threads: int


_TUNED = tuned(_Numbers)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """``num_warps``, and the tiles, reduced until registers suffice."""

    num_warps: int
    sizes: dict[int, int]
    chunks: dict[int, int | None]
    predicted: Predicted


def row_threads(found: Allocation, facts: KernelFacts, target: Target) -> int:
    """Return the threads for the primary reduction's rows. Gated rows are faster in twice as many (measurement ``gated_rows``)."""
    primary = found.primary
    extent = primary.extent
    threads = next((count for limit, count in _TUNED.threads if extent <= limit), _TUNED.most_threads)
    if found.reduced_away:
        return max(threads, _TUNED.wide_away_threads if has_wide_memory(target) else _TUNED.away_threads)
    applies = any(a.extent == extent and a.block_id != primary.axis and not a.on_grid for a in facts.tunable_axes)
    if not has_wide_memory(target) or found.looped or applies or len(facts.sized_reductions) != 1:
        return threads
    if extent * max(1, primary.input_load_itemsize) * max(1, primary.num_loads) <= _TUNED.light_row_bytes:
        return next((count for limit, count in _TUNED.wide_threads if extent <= limit), _TUNED.wide_threads[-1][1])
    return _TUNED.wide_heavy_threads if extent <= _TUNED.wide_heavy_row else threads


def launch(found: Allocation, facts: KernelFacts, target: Target, *, threads: int | None = None) -> Launch:
    """Start from ``threads``, or those for the row; while spills are predicted, take more warps, then halve tiles."""
    warps = warps_for_threads(threads or row_threads(found, facts, target), target)
    most = warps_for_threads(_TUNED.most_threads, target)
    sizes, chunks = dict(found.sizes), dict(found.chunks)

    def wanted(sizes: Sizes, chunks: Chunks) -> tuple[float, ...]:
        held = unstaged(facts, all_sizes(facts, sizes, chunks), most, target)
        return held.spill_risk, held.registers_per_thread, held.time_us

    while unstaged(facts, all_sizes(facts, sizes, chunks), warps, target).spill_risk:
        if warps < most:
            warps *= 2
            continue
        smaller = halve(_able(facts, sizes, chunks), sizes, chunks, facts, wanted)
        if smaller is None:
            break
        sizes, chunks = smaller
    sizes = _with_few_pieces(facts, sizes, chunks, warps, target)
    predicted = estimate(facts, target, sizes, warps, 1, chunks)
    shorter = _shorter_applied(found, facts, sizes)
    if shorter != sizes and not safety.within(predicted, safety.APPLIED):
        sizes = shorter
        predicted = estimate(facts, target, sizes, warps, 1, chunks)
    ragged = _shorter_ragged(facts, chunks)
    if ragged != chunks and not safety.within(predicted, safety.ALL):
        chunks = ragged
        predicted = estimate(facts, target, sizes, warps, 1, chunks)
    return Launch(num_warps=warps, sizes=sizes, chunks=chunks, predicted=predicted)


def prefetched(proposal: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return the same with stages for the loop, if it adds rows up for each feature and reduces them after its end.

    No step waits for other warps, and the assembler alone keeps few loads in flight. An SM has room for the stages of two
    programs (measurement ``prefetched_sums``).
    """
    axes = {fact.axis for fact in facts.reductions if fact.after is not None and fact.per_feature_accumulator}
    loops = [axis.block_id for axis in facts.tunable_axes if not axis.on_grid]
    loads = [op for op in facts.memory_ops if op.kind == "load" and axes & set(op.tile_axes) and len(op.tile_axes) > 1]
    if proposal.ranges or len(axes) != 1 or loops != [*axes] or not loads or not target.has("cp_async"):
        return proposal
    (axis,), sizes = axes, all_sizes(facts, proposal.block_sizes, proposal.reduction_loops)
    step = sum(math.prod(sizes[each] for each in op.tile_axes) * op.itemsize for op in loads)
    runs = [math.gcd(VECTOR_BYTES, *(each * op.itemsize for each in op.strides if each > 1)) for op in loads]
    few = extent_of(facts.axes[axis]) < sizes[axis] * (_TUNED.prefetched + 1)
    if few or min(runs) < VECTOR_BYTES or 2 * _TUNED.prefetched * step > target.smem_per_block_bytes:
        return proposal
    stages = {axis: _TUNED.prefetched}
    return replace(proposal, reason=f"{proposal.reason}, prefetched", ranges={"range_num_stages": stages})


def _with_few_pieces(facts: KernelFacts, sizes: Sizes, chunks: Chunks, warps: int, target: Target) -> dict[int, int]:
    """Return ``sizes`` with shorter tiles of loops over rows that are accessed in pieces of a vector.

    Each access has an address of its own, which predicted registers do not count (measurement ``pieces_of_rows``).
    """
    found, threads = dict(sizes), warps * target.warp_size
    while pieces := _pieces(facts, all_sizes(facts, found, chunks), threads):
        predicted = estimate(facts, target, found, warps, 1, chunks)
        needed = predicted.registers_per_thread + _TUNED.piece_registers * max(pieces.values())
        able = [axis for axis in pieces if axis in found and found[axis] > facts.axes[axis].min_size]
        if not able or needed <= predicted.register_limit:
            break
        longest = max(found[axis] for axis in able)
        found |= {axis: longest // 2 for axis in able if found[axis] == longest}
    return found


def _pieces(facts: KernelFacts, sizes: Sizes, threads: int) -> dict[int, float]:
    """Return the accesses of a thread to whole rows by less than half a vector, by the axis of the loop over the rows."""
    found: dict[int, float] = {}
    for op in facts.memory_ops:
        loops = [axis for axis in op.tile_axes if facts.axes[axis].kind == "tile" and not facts.axes[axis].on_grid]
        width = vector_elements(op, sizes, threads)
        whole = any(facts.axes[axis].kind == "full" for axis in op.tile_axes)
        if len(loops) == 1 and whole and not op.gathered and 2 * width * op.itemsize < VECTOR_BYTES:
            each = math.prod(sizes[axis] for axis in op.tile_axes) / threads / width
            found[loops[0]] = max(found.get(loops[0], 0.0), each)
    return found


def _shorter_applied(found: Allocation, facts: KernelFacts, sizes: Sizes) -> Sizes:
    """Return ``sizes`` where no loop that only applies a result has a longer tile than the loop that reduces."""
    primary = found.primary
    if primary.axis not in sizes:  # the loop that reduces is one over chunks of a whole dimension
        return dict(sizes)
    most = sizes[primary.axis]
    applied = {
        axis.block_id: max(axis.min_size, most)
        for axis in facts.tunable_axes
        if axis.extent == primary.extent and axis.block_id != primary.axis and not axis.on_grid
    }
    reduced = {fact.axis for fact in facts.reductions}
    longer = {axis: size for axis, size in applied.items() if axis not in reduced and 0 < size < sizes[axis]}
    return {**sizes, **longer}


def _shorter_ragged(facts: KernelFacts, chunks: Chunks) -> dict[int, int | None]:
    """Return half of each chunk whose row ends inside of one: masks take registers of their own there."""
    least = {axis: max(1, facts.axes[axis].min_size) * _TUNED.smallest_chunk for axis in chunks}
    return {
        axis: chunk // 2 if chunk and extent_of(facts.axes[axis]) % chunk and chunk > least[axis] else chunk
        for axis, chunk in chunks.items()
    }


def _able(facts: KernelFacts, sizes: Sizes, chunks: Chunks) -> tuple[int, ...]:
    """Return the chunks and tiles that can be halved: those that some value of the kernel spans."""
    able: list[int] = []
    for axis, chunk in chunks.items():
        size = facts.axes[axis].padded if chunk is None else chunk
        if size > max(1, facts.axes[axis].min_size) * _TUNED.smallest_chunk:
            able.append(axis)
    spanned = {axis for root in facts.resident_tiles for tiles in root for axes, _ in tiles for axis in axes}
    able += [axis for axis, size in sizes.items() if axis in spanned and size > facts.axes[axis].min_size]
    return tuple(able)
