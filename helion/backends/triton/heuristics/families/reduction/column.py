"""Column reductions: ``x[:, tile]`` reduced over rows, where the columns are contiguous.

Matches kernels without a dot whose longest reduction runs along an axis that is contiguous in no tensor. A tile of the
grid is contiguous instead. Examples are statistics per feature, means over time, column sums, and rows of a transposed
tensor. A program takes as many columns as fill a memory transaction, or fewer while SMs are idle. It loops over the
rows in chunks as large as registers allow. One column at a time would read a whole 32-byte sector for each element.
Sizes come from a sweep over column sums (measurement ``column_sums``).

Several programs may share the rows, by a loop from ``tile.begin`` to ``tile.end`` of a tile of rows. Each then takes as
many columns as its threads load at once, so that each thread accumulates its own columns. It takes as few rows as leave
every SM a program or two, and its loop prefetches chunks (measurement ``column_sums``).

Where the rows are reduced after the loop, no step of it waits for other warps. Few warps then have smaller chunks, which
the loop prefetches: the assembler alone keeps few loads of a step in flight (measurement ``late_columns``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import ClassVar

from ......_compiler.facts.records import AxisFact, KernelFacts, MemoryOpFact, ReductionFact
from ......_shapes import cdiv, next_power_of_2, previous_power_of_2
from ......_support.records import dataclass, replace
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import VECTOR_BYTES, Target
from ....proposal import TritonProposal
from ....resources.time.roots import SECTOR_BYTES
from ...choose import Timed, trust, unless_faster
from ...predicted_time import proposal_us
from ...program_order import innermost_first
from ...sizing import Chunks, Sizes, all_sizes, clamp, estimate, extent_of, programs_of, warps_for_threads
from ...tuned import Tuned, tuned
from .budget import Allocation, allocate, column_axis, reduction_alone
from .launch import Launch, launch


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "column_reduction"

    #: Most elements and most rows of a chunk: programs are few, so each needs many loads in flight.
    chunk: int
    chunk_rows: int
    #: Least rows of a chunk: register pressure does not shrink it further.
    least_chunk: int
    #: Elements per thread, and least and most threads of a program.
    thread_elements: int
    least_threads: int
    most_threads: int
    #: Loads of a thread for a chunk: rows that begin anywhere have one for each element.
    thread_loads: int
    #: Where programs share rows: threads, and the bytes that each loads of a row. Next: most programs per SM, bytes of
    #: a chunk of all loads, product of stages and programs of an SM, and least chunks of a program.
    part_threads: int
    programs: int
    chunk_bytes: int
    stages: int
    least_chunks: int
    #: Where reductions run after the loop: bytes of a chunk, and of it for each thread, and stages of the loop.
    late_bytes: int
    late_thread_bytes: int
    late_stages: int
    #: Rows that one warp holds whole, and warps of an SM that hide what they wait for. Elements that a thread of a
    #: program of few warps loads of rows held whole.
    held_rows: int
    held_warps: int
    held_elements: int
    #: Most warps of a program of columns that chunks would read again.
    read_warps: int


_TUNED = tuned(_Numbers)


#: Bytes of the narrowest asynchronous copy.
_COPY_BYTES = 4
#: Bytes of a line of the cache, which a program reads whole.
_LINE_BYTES = 128


class TritonColumnReductionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonColumnReductionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        primary = reduction_alone(facts)
        if isinstance(primary, Declined):
            return primary
        column = column_axis(facts, primary)
        if column is None:
            return Declined(f"rows along axis {primary.axis} are contiguous, or no axis is")
        shared = _shared_rows(facts, primary, target)
        if shared is not None:
            return (_in_even_parts(facts, primary, shared, facts.axes[column], target),)
        found = allocate(facts, target)
        _set_chunk(found, facts)
        threads = _threads(found, facts)
        _fit_chunk(found, facts, target, threads)
        _fit_loads(found, facts, column, threads)
        chosen = launch(found, facts, target, threads=threads)
        made = _proposal(found, chosen.sizes, chosen.chunks, chosen.num_warps)
        others = (
            *_lighter(found, column, facts, chosen, target),
            *_held(found, column, facts, chosen, target),
            *_read_once(found, column, facts, chosen, target),
        )
        lighter = [(each, proposal_us(facts, each, target)) for each in others]
        if lighter:
            timed = (made, proposal_us(facts, made, target))
            best = unless_faster(timed, lighter, trust(target).lighter_columns)
            made = _overlapping(timed, lighter, facts, target) if best is made else best
        late = _late(found, column, facts, target)
        made = _in_memory_order(_in_few_warps(made, found, column, facts, chosen, target), column, facts)
        return (made,) if late is None else (_in_memory_order(late, column, facts), made)


def _proposal(found: Allocation, sizes: Sizes, chunks: Chunks, warps: int) -> TritonProposal:
    columns = ", ".join(str(sizes[axis]) for axis in found.columns)
    width = chunks.get(found.primary.axis, sizes.get(found.primary.axis))
    way = "at once" if width is None else f"in chunks of {width}"
    return TritonProposal(
        reason=f"{columns} columns of {found.primary.extent} per program, {way}, {warps} warps",
        block_sizes=sizes,
        reduction_loops=chunks,
        num_warps=warps,
        num_stages=1,
    )


def _overlapping(
    first: Timed[TritonProposal], lighter: Iterable[Timed[TritonProposal]], facts: KernelFacts, target: Target
) -> TritonProposal:
    """Return fewer rows for fewer warps where an SM holds one program of several, if that is predicted to be as fast.

    Nothing overlaps the loads of its steps with arithmetic. The registers of a thread stay the same, and an SM has room
    for three such programs by prediction, which misses some registers.
    """

    def held(each: TritonProposal) -> float:
        warps, chunks = each.num_warps or 1, each.reduction_loops
        return estimate(facts, target, each.block_sizes, warps, 1, chunks).occupancy_blocks

    def elements(each: TritonProposal) -> float:
        return math.prod(each.block_sizes.values()) / (each.num_warps or 1)

    made = first[0]
    if programs_of(facts, made.block_sizes) <= target.num_sms or held(made) > 1:
        return made
    grid = {axis: size for axis, size in made.block_sizes.items() if axis in facts.grid_axes}
    fewer = [each for each in lighter if grid.items() <= each[0].block_sizes.items()]
    fewer = [each for each in fewer if elements(each[0]) <= elements(made) and held(each[0]) > 2]
    return unless_faster(first, fewer, trust(target).overlapping_columns)


def _in_memory_order(proposal: TritonProposal, column: int, facts: KernelFacts) -> TritonProposal:
    """Return the proposal with neighbouring programs along contiguous columns, if a program has less than a row of them.

    Programs that run at once then read whole pages of memory (measurement ``columns_in_order``).
    """
    if proposal.block_sizes.get(column, 1) >= extent_of(facts.axes[column]):
        return proposal
    return replace(proposal, loop_orders=innermost_first(column, facts))


def _lighter(
    found: Allocation, column: int, facts: KernelFacts, chosen: Launch, target: Target
) -> Iterator[TritonProposal]:
    """Yield programs of half the warps, with the same tile, with half of it, and with half the columns and twice the rows.

    A step of the loop waits for its loads, so that bytes in flight decide: each thread loads twice as many, and a
    reduction joins fewer warps. With half the tile, an SM has more programs, whose phases overlap.
    """
    axis, warps = found.primary.axis, chosen.num_warps // 2
    if warps and column in chosen.sizes:
        yield from _smaller(found, column, facts, chosen, target)
    if not warps or not {axis, column} <= chosen.sizes.keys() or facts.axes[axis].on_grid:
        return
    sizes, rows, columns = chosen.sizes, 2 * chosen.sizes[axis], chosen.sizes[column] // 2
    itemsize = max((op.itemsize for op in facts.memory_ops if op.kind == "load" and column in op.tile_axes), default=1)
    options = [dict(sizes)]
    if rows <= facts.axes[axis].padded and columns * itemsize >= _LINE_BYTES:
        options.append({**sizes, column: columns, **dict.fromkeys(_walked(found, facts), rows)})
    for each in options:
        if not estimate(facts, target, each, warps, 1, chosen.chunks).spill_risk:
            yield _proposal(found, each, chosen.chunks, warps)


def _smaller(
    found: Allocation, column: int, facts: KernelFacts, chosen: Launch, target: Target
) -> Iterator[TritonProposal]:
    """Yield programs of half the warps for half the rows of a step, and for half the columns."""
    sizes, warps = chosen.sizes, chosen.num_warps // 2
    fewer = {block: sizes[block] // 2 for block in _walked(found, facts) if block in sizes}
    for smaller in (fewer, {column: sizes[column] // 2}):
        each = {**sizes, **smaller}
        least = all(size >= facts.axes[block].min_size for block, size in smaller.items())
        if smaller and least and not estimate(facts, target, each, warps, 1, chosen.chunks).spill_risk:
            yield _proposal(found, each, chosen.chunks, warps)


def _late(found: Allocation, column: int, facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return a program of few warps for a line of columns, whose loop prefetches chunks of rows, if it reduces them after
    the loop.
    """
    primary = found.primary
    axis = facts.axes[primary.axis]
    loads = [op for op in facts.memory_ops if op.kind == "load" and set(primary.tile) <= set(op.tile_axes)]
    if primary.after is None or primary.re_read or not axis.tunable or not loads or not target.has("cp_async"):
        return None
    itemsize = max(op.itemsize for op in loads)
    sizes = dict(found.sizes)
    if column in sizes:
        sizes[column] = clamp(min(sizes[column], _LINE_BYTES // itemsize), facts.axes[column])
    columns = math.prod(sizes.get(a) or facts.axes[a].padded or 1 for a in primary.tile if a != primary.axis)
    rows = clamp(previous_power_of_2(max(1, _TUNED.late_bytes // (columns * itemsize))), axis)
    if extent_of(axis) < rows * (_TUNED.late_stages + 1) or any(_run_bytes(op) < _COPY_BYTES for op in loads):
        return None
    sizes.update((block, min(rows, sizes[block])) for block in _walked(found, facts))
    sizes[axis.block_id] = rows
    warps = warps_for_threads(max(_TUNED.least_threads, columns * rows * itemsize // _TUNED.late_thread_bytes), target)
    made = _proposal(found, sizes, found.chunks, warps)
    stages = {axis.block_id: _TUNED.late_stages}
    return replace(made, reason=f"{made.reason}, prefetched", ranges={"range_num_stages": stages})


def _run_bytes(op: MemoryOpFact) -> int:
    """Return the bytes at whose multiples the rows of an access begin."""
    return math.gcd(VECTOR_BYTES, *(each * op.itemsize for each in op.strides if each > 1))


def _held(
    found: Allocation, column: int, facts: KernelFacts, chosen: Launch, target: Target
) -> Iterator[TritonProposal]:
    """Yield programs of one or two warps for columns of few rows, such as classes, that are held whole.

    Several warps would each have some of the rows, and meet in shared memory for each reduction (measurement
    ``few_rows_held``).
    """
    axis = facts.axes[found.primary.axis]
    if found.chunks.get(axis.block_id, 0) is not None or axis.padded > _TUNED.held_rows or column not in chosen.sizes:
        return
    for warps, more in ((1, 1), (1, 2), (2, 2), (2, 4)):
        columns = chosen.sizes[column] * more
        sizes = {**chosen.sizes, column: clamp(columns, facts.axes[column])}
        enough = programs_of(facts, sizes, found.primary.root) >= _TUNED.held_warps * target.num_sms // warps
        if (
            warps < chosen.num_warps
            and enough
            and not estimate(facts, target, sizes, warps, 1, chosen.chunks).spill_risk
        ):
            yield _proposal(found, sizes, chosen.chunks, warps)


def _in_few_warps(
    proposal: TritonProposal, found: Allocation, column: int, facts: KernelFacts, chosen: Launch, target: Target
) -> TritonProposal:
    """Return few warps for rows that are held whole and used again, with the widest part of the columns that fits.

    More warps exchange parts of each column's results, with barriers, and fewer of their programs share an SM. Rows that
    begin anywhere have twice the columns, but a load of each element (measurement ``held_columns``).
    """
    axis, chunks = facts.axes[found.primary.axis], dict(proposal.reduction_loops)
    whole = chunks.get(axis.block_id, axis.padded) is None or proposal.block_sizes.get(axis.block_id) == axis.padded
    columns, most = chosen.sizes.get(column), warps_for_threads(_TUNED.least_threads, target)
    if not whole or not found.primary.re_read or columns is None or 2 * (proposal.num_warps or 1) <= most:
        return proposal
    loads = [op for op in facts.memory_ops if op.kind == "load" and {axis.block_id, column} <= set(op.tile_axes)]
    singly = any(_run_bytes(op) <= op.itemsize for op in loads)
    room = _TUNED.held_elements // 2 if singly else _TUNED.held_elements
    least = max(facts.axes[column].min_size, _LINE_BYTES // 2 // min((op.itemsize for op in loads), default=1))
    columns = clamp(2 * columns, facts.axes[column]) if singly else columns
    while columns >= least:
        sizes = {**proposal.block_sizes, column: columns}
        every = all_sizes(facts, sizes, chunks)
        elements = sum(math.prod(every[a] for a in op.tile_axes) for op in loads)
        for warps in (most // 2, most):
            enough = warps * programs_of(facts, sizes, found.primary.root) >= _TUNED.held_warps * target.num_sms
            if elements > room * warps * target.warp_size or not enough:
                continue
            if not estimate(facts, target, sizes, warps, 1, chunks).spill_risk:
                return _proposal(found, sizes, chunks, warps)
        columns //= 2
    return proposal


def _read_once(
    found: Allocation, column: int, facts: KernelFacts, chosen: Launch, target: Target
) -> Iterator[TritonProposal]:
    """Yield programs of fewer columns, down to a sector of each row, that hold all rows which chunks would read again.

    Of several widths that fit, the widest reads the longest parts of lines (measurement ``columns_read_once``).
    """
    axis = facts.axes[found.primary.axis]
    chunk = chosen.chunks.get(axis.block_id)
    if chunk is None or not found.primary.re_read or column not in chosen.sizes:
        return
    loads = [op for op in facts.memory_ops if op.kind == "load" and {axis.block_id, column} <= set(op.tile_axes)]
    least = SECTOR_BYTES // min((op.itemsize for op in loads), default=1)
    columns, fit = chosen.sizes[column], False
    while not fit and columns >= max(least, facts.axes[column].min_size):
        threads = axis.padded * columns // _TUNED.thread_elements
        sizes, chunks = {**chosen.sizes, column: columns}, {**chosen.chunks, axis.block_id: None}
        for warps in dict.fromkeys(warps_for_threads(times * threads, target) for times in (1, 2)):
            if not estimate(facts, target, sizes, warps, 1, chunks).spill_risk:
                fit = warps <= _TUNED.read_warps
                yield _proposal(found, sizes, chunks, warps)
        columns //= 2


def _shared_rows(facts: KernelFacts, primary: ReductionFact, target: Target) -> AxisFact | None:
    """Return the tile of rows that bounds the loop, if programs share the rows and the loop's loads can be
    prefetched.
    """
    axis = facts.axes[primary.axis]
    if axis.outer is None or not axis.tunable or not target.has("cp_async"):
        return None
    outer = facts.axes[axis.outer]
    tiles = [a for a in facts.tunable_axes if a.on_grid and set(a.roots) & set(outer.roots)]
    return outer if outer.on_grid and outer.tunable and len(tiles) == 2 else None


def _part_threads(itemsize: int, columns: int) -> int:
    """Return the threads of programs that share rows: half as many where that leaves fewer lanes idle past the last
    column (measurement ``column_threads``).
    """

    def lanes(threads: int) -> int:
        width = threads * VECTOR_BYTES // itemsize
        return cdiv(columns, width) * width

    half = _TUNED.part_threads // 2
    return half if lanes(half) < lanes(_TUNED.part_threads) else _TUNED.part_threads


def _in_even_parts(
    facts: KernelFacts, primary: ReductionFact, rows: AxisFact, columns: AxisFact, target: Target
) -> TritonProposal:
    """Return programs of the rows that give each SM its share, or of half as many, if that is predicted to be faster.

    With less than two waves of programs, a power of two of rows may leave most SMs idle in the last one.
    """
    made = _in_parts(facts, primary, rows, columns, target, 1)
    if programs_of(facts, made.block_sizes) >= 2 * target.num_sms:
        return made
    halved = _in_parts(facts, primary, rows, columns, target, 2)
    first, other = ((each, proposal_us(facts, each, target)) for each in (made, halved))
    return unless_faster(first, [other], trust(target).lighter_columns)


def _in_parts(
    facts: KernelFacts, primary: ReductionFact, rows: AxisFact, columns: AxisFact, target: Target, times: int
) -> TritonProposal:
    """Return programs that share rows: ``times`` as many as the SMs have room for, in powers of two of rows."""
    itemsize = max(1, primary.input_load_itemsize)
    walked = facts.axes[primary.axis]
    threads = _part_threads(itemsize, extent_of(columns))
    smaller = _TUNED.part_threads // threads
    width = threads * VECTOR_BYTES // itemsize
    width = clamp(min(width, columns.padded or width), columns)
    side_by_side = cdiv(extent_of(columns), width)
    programs = min(_TUNED.programs, side_by_side)
    parts = max(1, programs * smaller * target.num_sms // side_by_side)
    span = clamp(next_power_of_2(cdiv(extent_of(rows), parts)) // times, rows)
    loads = sum(
        op.kind == "load" and {walked.block_id, columns.block_id}.issubset(op.tile_axes) for op in facts.memory_ops
    )
    chunk = _TUNED.chunk_bytes // (smaller * width * itemsize * max(1, loads))
    chunk = max(1, min(chunk, span // _TUNED.least_chunks))
    sizes = {rows.block_id: span, columns.block_id: width, walked.block_id: clamp(previous_power_of_2(chunk), walked)}
    warps = warps_for_threads(threads, target)
    while estimate(facts, target, sizes, warps, 1).spill_risk and sizes[walked.block_id] > walked.min_size:
        sizes[walked.block_id] //= 2
    return TritonProposal(
        reason=f"{width} columns of {span} rows per program, in chunks of {sizes[walked.block_id]}, {warps} warps",
        block_sizes=sizes,
        ranges={"range_num_stages": {walked.block_id: _TUNED.stages - programs}},
        num_warps=warps,
        num_stages=1,
    )


def _set_chunk(found: Allocation, facts: KernelFacts) -> None:
    """Loop over the rows in chunks, unless one chunk holds all of them."""
    primary = found.primary
    axis = facts.axes[primary.axis]
    columns = math.prod(found.sizes.get(a) or facts.axes[a].padded or 1 for a in primary.tile if a != primary.axis)
    room = max(axis.min_size, min(_TUNED.chunk_rows, previous_power_of_2(_TUNED.chunk // columns)))
    if primary.axis in found.chunks:
        found.chunks[primary.axis] = None if axis.padded <= room else room
    for block in _walked(found, facts):
        other = facts.axes[block]
        found.sizes[block] = max(other.min_size, min(room, other.max_size or room, other.padded or room))


def _walked(found: Allocation, facts: KernelFacts) -> list[int]:
    """Return the tiles of loops over the rows: that of the reduction and of others as long, such as one that applies
    its result.
    """
    primary = found.primary
    return [
        axis.block_id
        for axis in facts.tunable_axes
        if axis.block_id == primary.axis or (axis.extent == primary.extent and not axis.on_grid)
    ]


def _fit_chunk(found: Allocation, facts: KernelFacts, target: Target, threads: int) -> None:
    """Halve the chunk of rows while it would spill: with more warps instead, some would idle."""
    axis = facts.axes[found.primary.axis]
    sizes = found.chunks if axis.block_id in found.chunks else found.sizes
    warps = warps_for_threads(threads, target)
    while estimate(facts, target, found.sizes, warps, 1, found.chunks).spill_risk:
        half = (sizes.get(axis.block_id) or axis.padded) // 2
        if axis.block_id not in sizes or half < max(_TUNED.least_chunk, axis.min_size):
            break
        sizes[axis.block_id] = half
        found.sizes.update((block, min(half, found.sizes[block])) for block in _walked(found, facts))


def _fit_loads(found: Allocation, facts: KernelFacts, column: int, threads: int) -> None:
    """Halve the chunk of rows that begin anywhere while a thread has more loads for it than registers next to its sums.

    The assembler then makes some of them wait for others (measurement ``loads_of_columns``). Rows that are held whole, and
    of which a value depends on the reduction, would be loaded again (measurement ``columns_in_order``).
    """
    axis = facts.axes[found.primary.axis]
    chunk = found.chunks.get(axis.block_id) or axis.padded
    wide = found.sizes.get(column)
    if axis.block_id not in found.chunks or wide is None:
        return
    if found.primary.re_read and found.chunks[axis.block_id] is None:
        return
    loads = [op for op in facts.memory_ops if op.kind == "load" and {axis.block_id, column} <= set(op.tile_axes)]
    each = min((_run_bytes(op) // op.itemsize for op in loads), default=VECTOR_BYTES)
    while each == 1 and chunk * wide > _TUNED.thread_loads * threads and chunk // 2 >= _TUNED.least_chunk:
        chunk //= 2
        found.chunks[axis.block_id] = chunk


def _threads(found: Allocation, facts: KernelFacts) -> int:
    """Return the number of threads for the reduced tile."""
    sizes = {**found.sizes, **{axis: chunk for axis, chunk in found.chunks.items() if chunk is not None}}
    tile = math.prod(sizes.get(axis) or facts.axes[axis].padded or 1 for axis in found.primary.tile)
    return max(_TUNED.least_threads, min(_TUNED.most_threads, tile // _TUNED.thread_elements))
