"""The work of a scan, as Triton lowers it.

A thread scans each run of neighbours that it has. The lanes of a warp combine the ends of their runs in steps, and pass on
the last one through shared memory. Each thread then combines the ends of all warps, for each of its runs, and combines
every element with what precedes it. Where runs have one element, each takes as many combinations as there are lane steps and
warps (measurement ``scanned_rows``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .roots import Scan

#: Ops of an instruction of a combination, which has its operands in registers, relative to those of a tile.
_COMBINED = 0.7
#: Instructions of a word of an element in chunks: the choice of the first chunk, that of the last lane, and its sum.
_CHUNK_OPS = 3
#: Cycles of a step between lanes, and of each op of a combination: those of a row wait for the step before.
_STEP_CYCLES, _OP_CYCLES = 25, 5


class ScanWork(NamedTuple):
    """The work of one scan of a tile: ops and transcendental functions of a thread, lane steps, and barriers.

    ``chained`` are the cycles of the lane steps of a row, one after the other.
    """

    ops: float
    special: float
    shuffles: float
    chained: float
    barriers: int


def live_share(size: int, used: float, along: int, width: int) -> float:
    """Return the part of a thread's elements that any thread of a row of ``used`` elements has in range.

    The code has no combination of the others, of which compilers know that no lane loads them.
    """
    step = along * width
    return min(1.0, math.ceil(used / step) * step / size)


def scan_work(scan: Scan, each: float, along: int, of_warp: int, width: int, *, live: float, chunked: bool) -> ScanWork:
    """Return the work of a scan where a thread has ``each`` elements, in runs of ``width`` along contiguous memory.

    ``along`` threads of a program share a row, ``of_warp`` of them in one warp. ``live`` is the part of the elements in
    range. If ``chunked``, each chunk is combined with the end of the one before.
    """
    each *= live
    runs = each if scan.ahead else each / width
    steps, warps = math.log2(of_warp), along // of_warp
    met = runs * (steps + (warps if warps > 1 else 0))
    combined = (each - runs) + met + each + (runs if warps == 1 else 0) + (each if chunked else 0)
    moved = met + (_CHUNK_OPS * each if chunked else 0)
    chained = 0.0 if scan.ahead else (steps + 1) * runs * (_STEP_CYCLES + _OP_CYCLES * scan.ops)
    return ScanWork(
        ops=_COMBINED * (combined * scan.ops + scan.words * moved),
        special=combined * scan.sfu_ops,
        shuffles=steps * runs,
        chained=chained,
        barriers=(4 if chunked else 2) if warps > 1 else 0,
    )
