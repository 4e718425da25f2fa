"""Registers per thread, and whether they run out.

The constants are a least-squares fit to 1828 kernels that were compiled offline with Triton 3.7 and ptxas 12.9 for
sm_80, sm_90 and sm_100 (reductions, matrix products, epilogues, elementwise, attention): the median error is 13 %, and
of 69 kernels that spill more than 64 bytes 62 are predicted to, with one false alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...hardware import Target
from ..facts.records import KernelFacts, LiveTile, LiveTiles
from .matrix import tile_shape, unit_of
from .shared import VECTOR_BYTES

_REGISTER_BYTES = 4
#: Registers for addresses, masks and loop counters, without and with dots.
_BASE, _DOT_BASE = 18, 26
#: Weight of what must be held, and of what is resident if there is room.
_HELD, _RESIDENT = 0.70, 0.20
_DOT_HELD, _DOT_RESIDENT = 1.05, 0.15
#: Part of the operand fragments that is there at the same time as everything else.
_FRAGMENTS = 0.6
#: Resident registers over the limit by this factor do not fit in what elementwise reordering can save.
_SLACK = 1.2
#: Over the limit by this much, spilling is certain.
_CERTAIN = 0.25


def registers_per_thread(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> int:
    """Registers one thread wants, before any limit."""
    resident, held = _tile_registers(facts, sizes, num_warps, target)
    if not facts.matmuls:
        return round(_BASE + _HELD * held + _RESIDENT * resident)
    fragments = _fragment_registers(facts, sizes, num_warps, target)
    return round(_DOT_BASE + _DOT_HELD * held + _DOT_RESIDENT * resident + _FRAGMENTS * fragments)


def register_limit(num_warps: int, target: Target) -> int:
    """Registers that a block of ``num_warps`` leaves each thread."""
    limit = target.registers_per_sm // (num_warps * target.warp_size)
    return min(target.max_registers_per_thread, limit - limit % target.register_granularity)


def spill_risk(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """From 0 (none) to 1 (certain)."""
    limit = register_limit(num_warps, target)
    resident, _ = _tile_registers(facts, sizes, num_warps, target)
    need = max(registers_per_thread(facts, sizes, num_warps, target), resident / _SLACK)
    return min(1.0, max(0.0, (need / limit - 1) / _CERTAIN))


def _tile_registers(
    facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target
) -> tuple[float, float]:
    """Registers of the largest snapshot of resident and of held tiles."""
    threads = num_warps * target.warp_size
    products = frozenset(fact.axes for fact in facts.accumulators if fact.of_dot)

    def most(snapshots: tuple[tuple[LiveTiles, ...], ...]) -> float:
        return max((_snapshot(tiles, sizes, threads, products) for root in snapshots for tiles in root), default=0.0)

    return most(facts.resident_tiles), most(facts.held_tiles)


def _numel(tile: LiveTile, sizes: Mapping[int, int]) -> int:
    return math.prod(sizes[axis] for axis in tile[0])


def _snapshot(tiles: LiveTiles, sizes: Mapping[int, int], threads: int, products: frozenset[tuple[int, ...]]) -> float:
    """Registers one thread holds of ``tiles`` together.

    The largest tile is spread over the threads; those that span some of its axes are laid out as its slices, which
    several threads repeat.
    """
    if not tiles:
        return 0.0
    largest = max(tiles, key=lambda tile: _numel(tile, sizes))
    axes, itemsize = largest
    total = _numel(largest, sizes)
    columns = sizes[axes[-1]] if axes else 1
    rows = total // columns
    each = max(1.0, total / threads)
    if axes in products:
        # a thread holds two of every 16 rows of a matrix fragment
        thread_rows = min(float(rows), max(2.0, rows / 8 / max(1, threads // 32)))
    else:
        across = min(threads, max(1, columns * itemsize // VECTOR_BYTES))
        thread_rows = max(1.0, rows / max(1, threads // across))
    thread_columns = max(1.0, each / thread_rows)
    inside, sum_of = set(axes), 0.0
    for tile_axes, size in tiles:
        if tile_axes and inside.issuperset(tile_axes):
            count = thread_columns if tile_axes[-1] == axes[-1] else 1.0
            if len(tile_axes) > 1 or tile_axes[-1] != axes[-1]:
                count *= thread_rows
        else:
            count = max(1.0, _numel((tile_axes, size), sizes) / threads)
        sum_of += max(1.0, count * size / _REGISTER_BYTES)
    return sum_of


def _fragment_registers(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Registers of dot operands on the unit that takes them from registers: up to two steps along K are in flight."""
    most = 0.0
    for fact in facts.matmuls:
        if unit_of(fact, sizes, num_warps, target) != "mma":
            continue
        m, n, k = tile_shape(fact, sizes)
        side = math.sqrt(m * n / num_warps)
        steps = min(2.0, max(1.0, k * fact.lhs_dtype.itemsize / 32))
        # one step is 32 bytes along K: side * 32 bytes per operand over 32 threads of 4 bytes
        most = max(most, steps * 2 * side / 4)
    return most
