"""The threads along one axis of a tile, for reductions and scans."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ....._compiler.facts.records import MatmulFact
from .....hardware import WARP_ROWS
from ..matrix import tile_shape

#: Threads of a warp exchange in registers; more of them go through shared memory.
WARP = 32
#: Least columns of an accumulator per warp.
_FRAGMENT_COLUMNS = 8


def threads_along(
    axis: int, tile: tuple[int, ...], widest: int, ahead: tuple[int, ...], sizes: Mapping[int, int], threads: int
) -> tuple[int, int, int]:
    """Return the threads of a program, and of one warp, along ``axis`` of a tile, and the neighbours in memory of each.

    Neighbours in memory go to neighbours, then those along the axes ``ahead``.
    """
    numel = math.prod([sizes[each] for each in tile])
    width = max(1, min(widest, numel // threads))
    if not ahead:
        along = min(threads, max(1, sizes[axis] // width))
        return along, min(WARP, along), width
    first, *others = ahead
    lanes = max(1, sizes[first] // width) * math.prod([sizes[each] for each in others])
    along = min(sizes[axis], max(1, threads // lanes))
    return along, min(along, max(1, WARP // lanes)), width


def accumulator_threads(axis: int, product: MatmulFact, sizes: Mapping[int, int], warps: int) -> tuple[int, int]:
    """Return the threads along ``axis`` of a matmul result: warps take rows by 16 first, then columns; a warp has 8 rows
    and 4 columns of threads.
    """
    rows, columns, _ = tile_shape(product, sizes)
    below = max(1, min(warps, rows // WARP_ROWS))
    beside = max(1, min(warps // below, columns // _FRAGMENT_COLUMNS))
    return (4 * beside, 4) if axis == product.n_axis else (8 * below, 8)
