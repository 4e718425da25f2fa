"""Registers per thread."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...hardware import Target
from ..facts.records import KernelFacts, LiveTile, LiveTiles
from .matrix import tile_shape, unit_of

BASE=16
DOT_BASE=30
#: Bytes of the widest load or store instruction, which sets how many neighbours one thread holds.
_VECTOR_BYTES = 16
_REGISTER_BYTES = 4


def tile_registers(
    facts: KernelFacts, tiles: LiveTiles, sizes: Mapping[int, int], num_warps: int, target: Target, dots: frozenset[tuple[int,...]]
) -> float:
    """Registers that one thread holds of ``tiles`` together.

    The largest tile is spread over the threads; those that span some of its axes are laid out as its slices, which
    repeats them across threads.
    """
    threads = num_warps * target.warp_size
    spread = _Spread(max(tiles, key=lambda tile: _numel(tile, sizes), default=((), 4)), sizes, threads, dots)
    return sum(spread.registers(tile) for tile in tiles)


def _numel(tile: LiveTile, sizes: Mapping[int, int]) -> int:
    return math.prod(sizes[axis] for axis in tile[0])


class _Spread:
    """How the elements of one tile are spread over the threads: elements per thread along its last axis and the rest."""

    def __init__(self, tile: LiveTile, sizes: Mapping[int, int], threads: int, dots: frozenset[tuple[int,...]]) -> None:
        self.sizes, self.threads = sizes, threads
        axes, itemsize = tile
        self.axes = axes
        columns = sizes[axes[-1]] if axes else 1
        rows = _numel(tile, sizes) // max(1, columns)
        each = max(1.0, rows * columns / threads)
        if axes in dots:
            # the matrix units give a thread at least two rows
            self.rows = min(rows, max(2.0, rows / 16 / max(1, threads // 32) * 2))
        else:
            across = min(threads, max(1, columns * itemsize // _VECTOR_BYTES))
            self.rows = max(1.0, rows / max(1, threads // across))
        self.columns = max(1.0, each / self.rows)

    def registers(self, tile: LiveTile) -> float:
        axes, itemsize = tile
        if set(axes) <= set(self.axes) and axes:
            count = 1.0
            if self.axes[-1] in axes:
                count *= self.columns
            if any(axis != self.axes[-1] for axis in axes):
                count *= self.rows
        else:
            count = max(1.0, _numel(tile, self.sizes) / self.threads)
        return max(1.0, count * itemsize / _REGISTER_BYTES)


def fragments(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> float:
    """Registers of dot operands on the units that take them from registers."""
    most = 0.0
    for fact in facts.matmuls:
        if unit_of(fact, sizes, num_warps, target) != "mma":
            continue
        m, n, k = tile_shape(fact, sizes)
        side = math.sqrt(m * n / num_warps)
        steps = min(2.0, max(1.0, k / (32 // fact.lhs_dtype.itemsize)))
        most = max(most, steps * 2 * side / 4)
    return most


def features(facts, sizes, num_warps, num_stages, target):
    dots = frozenset(axes for a in facts.accumulators if a.of_dot for axes in (a.axes,))
    comfortable = max((tile_registers(facts, t, sizes, num_warps, target, dots) for root in facts.resident_tiles for t in root), default=0)
    held = max((tile_registers(facts, t, sizes, num_warps, target, dots) for root in facts.held_tiles for t in root), default=0)
    return comfortable, held, fragments(facts, sizes, num_warps, target)
