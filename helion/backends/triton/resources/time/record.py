"""Record of the demand of one grid loop's programs on each unit of the GPU."""

from __future__ import annotations

from typing import NamedTuple


class Demand(NamedTuple):
    """Demand of one root, per program unless the name says otherwise. Times in microseconds, instructions per warp.

    ``looped_*`` are of repeated work of a program, ``straight_*`` of work done once.
    """

    programs: float
    warps: float
    resident: float
    """Resident programs per SM, by the prediction of registers and shared memory."""
    registers: float
    needed: float
    """Per thread; the excess over the limit is spilled."""
    limit: float
    new_bytes: float
    """Bytes from or to memory, in whole sectors, given the order of programs and the L2 cache."""
    again_bytes: float
    """Bytes that a program reads a second time, which come from memory where the cache has lost them."""
    first_bytes: float
    """Bytes of loop loads with eviction policy "first"."""
    last_bytes: float
    """The same with "last"."""
    others_bytes: float
    """Bytes that only other programs use, of the sectors of loads."""
    first_others_bytes: float
    """Part of them in loop loads with "first" (measurement ``evicted_sectors``)."""
    sectors_in_flight: float
    """Bytes of those sectors at a time."""
    row_bytes: float
    """Bytes that one program must find in the cache for that."""
    scattered_bytes: float
    """Bytes from memory, weighted by the halvings of their run relative to a long one."""
    asked_bytes: float
    """Bytes through the L2 cache."""
    sector_bytes: float
    lines: float
    """Lines that warps ask the cache for, in whole or in part; with matmuls, those of short pieces beyond their bytes
    (measurement ``matmul_counts``)."""
    written_bytes: float
    """Bytes of sectors that programs store partially, minus the stored bytes."""
    line_atomics: float
    """Contiguous atomics to each line of the cache: the part of one program, per warp instruction (measurement
    ``meeting_atomics``)."""
    lane_atomics: float
    """The same for scattered ones, per element."""
    near_bytes: float
    """Part of ``sector_bytes`` that the previous program on the same SM has read too."""
    shifted_bytes: float
    """The same of tiles that the program has just read, shifted by some elements."""
    straight_bytes: float
    looped_bytes: float
    prefetched_bytes: float
    """Those of loads that a loop prefetches, for which no warp waits."""
    straight_issue: float
    looped_issue: float
    special: float
    steps: float
    """Operations on tiles, however few elements a thread has."""
    walked_issue: float
    """Work per chunk of chunked rows, once for each pass."""
    walked_special: float
    accesses: float
    straight_rounds: float
    """Number of times that a program waits for memory."""
    looped_rounds: float
    boxes: float
    """The same for loads through descriptors outside of loops."""
    boxed_rounds: float
    """The same for those that a loop does not load ahead (measurement ``boxed_loops``)."""
    fenced_rounds: float
    """The same in loops in which warps wait for each other."""
    stored_rounds: float
    """The same in loops that store in each step."""
    pipelined_rounds: float
    """The same for loads ahead of their use, over the steps between."""
    fills: float
    iterations: float
    largest_times: float
    """Runs of the region with the largest tile, where registers run out first."""
    matrix_us: float
    """On one SM, at the data sheet's rate of the unit, padding included."""
    synchronous_us: float
    """Part of that on the synchronous unit where there is a faster one."""
    converted_us: float
    """Part of that with a right operand that converts its layout on the way, as in tiles of 128 rows: its elements are
    converted once for all rows."""
    products: float
    accumulated_bytes: float
    """Bytes of accumulators in registers, each counted once for every dot that is added to it."""
    operand_bytes: float
    """Bytes that the matrix unit reads from shared memory."""
    conflicting_bytes: float
    """Bytes that tiles move through shared memory between loads and stores along other axes, once for each access to the
    same bank (measurement ``turned_rows``)."""
    computed_bytes: float
    """Bytes through shared memory of right operands that a program computes from loads, once for each access to the same
    bank."""
    turned_bytes: float
    """Bytes of results that are operands of other dots and go to other warps."""
    exchanges: float
    """Reductions across warps."""
    exchanged_bytes: float
    """Bytes of those through shared memory, once for each access to the same bank."""
    shuffles: float
    barriers: float
    stores: float
    descriptors: float
    """Tensor descriptors that a program creates before it can load; a persistent program creates them once."""
    persistent: float
    """1 for persistent programs."""
    longest: float
    """The longest loop of a program, relative to the mean; 1 for persistent programs."""
    skewed: float
    """1 where consecutive tiles of a persistent program have loops that are longer than the mean."""
    fused: float
    """1 where the next tile's loads begin before the last one is stored."""
    staged_bytes: float
    """Bytes of loads that a loop prefetches, over the steps between."""
    code: float
    """Ops of the scans of a program as code, which has those of each element of a thread."""
    code_runs: float
    """Runs of that code."""
    chained_cycles: float
    """Cycles of the steps of scans that wait for each other."""
