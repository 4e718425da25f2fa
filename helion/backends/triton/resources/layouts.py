"""Layouts: the elements of a tile that one thread has, and the shared memory for converting between layouts.

A layout is a mask per axis: the bits of the index along it that differ between elements of the same thread. The other
bits number threads. Sizes, vectors and threads are powers of two. Checked against the shared memory that Triton 3.7
allocates for conversions between blocked layouts and matrix fragments, for sm_80, sm_90 and gfx942.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....hardware import Target
from .tiles import VECTOR_BYTES

Held = dict[int, int]

#: Bytes that one thread gets from matrix loads (ldmatrix), for which others write 16 at once.
_MATRIX_LOAD_BYTES = 4
#: Rows and columns per warp of an ``mma`` instruction, and of an AMD one with large and with small fragments.
_MMA, _LARGE, _SMALL = (16, 8), (32, 32), (16, 16)
#: Elements of a thread in these, as masks of rows and columns: two neighbours in rows 8 from each other; on AMD four
#: neighbours, in large fragments in every eighth column.
_IN_WARP = {_MMA: (0b1000, 0b1), _LARGE: (0, 0b11011), _SMALL: (0, 0b11)}


def rows_held(axes: Sequence[int], sizes: Mapping[int, int], vector: int, threads: int) -> Held:
    """Return the layout of a tile accessed in rows: ``vector`` neighbours per thread, threads along the last axis
    first.
    """
    held: Held = {}
    first = vector
    for axis in reversed(axes):
        first = min(first, sizes[axis])
        across = min(threads, sizes[axis] // first)
        held[axis] = (sizes[axis] - 1) & ~(first * across - 1) | (first - 1)
        threads //= across
        first = 1
    return held


def spread(
    axes: Sequence[int], sizes: Mapping[int, int], vector: int, num_warps: int, target: Target
) -> dict[int, tuple[int, int, int]]:
    """Return the same layout by axis: neighbours of one thread, lanes of a warp, and warps along the axis."""
    found: dict[int, tuple[int, int, int]] = {}
    lanes, warps = target.warp_size, num_warps
    first = vector
    for at, axis in enumerate(reversed(axes)):
        own = min(first, sizes[axis])
        threads = min(lanes * warps, max(1, sizes[axis] // own))
        along = min(threads, lanes)
        beside = min(warps, threads // along)
        if at == len(axes) - 1:  # the last axis takes all remaining threads, which repeat it
            along, beside = lanes, warps
        found[axis] = own, along, beside
        lanes, warps, first = lanes // along, warps // beside, 1
    return found


def fragment_held(
    rows: tuple[int, int], columns: tuple[int, int], shape: tuple[int, int], num_warps: int, target: Target
) -> Held:
    """Return the layout of a matmul result in register fragments.

    ``rows`` and ``columns`` are axes with the elements of a tile along them, ``shape`` is M and N of the dot.
    """
    (row, m), (column, n) = rows, columns
    of_warp, (down, across) = fragment_warps(shape, num_warps, target)
    in_rows, in_columns = _IN_WARP[of_warp]
    return {
        row: (m - 1) & (~(of_warp[0] * down - 1) | in_rows),
        column: (n - 1) & (~(of_warp[1] * across - 1) | in_columns),
    }


def fragment_warps(shape: tuple[int, int], num_warps: int, target: Target) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the rows and columns of one warp's fragment for M and N ``shape``, and the number of warps along M and
    along N.
    """
    if target.kind == "hip":
        of_warp = _LARGE if min(shape) >= _LARGE[0] else _SMALL
        return of_warp, _amd_warps(shape, of_warp, num_warps)
    return _MMA, _mma_warps(shape, num_warps)


def rounds(one: Held, other: Held, itemsize: int, moved: int = VECTOR_BYTES) -> int:
    """Return the least number of rounds of a layout conversion; each round reuses the same shared memory.

    A thread moves ``moved`` bytes in each round, of elements that it has in both layouts.
    """
    common = sum((one[axis] & other[axis]).bit_count() for axis in one if axis in other)
    return max(1, (itemsize << common) // moved)


def moved_at_once(width: int, narrower: int, target: Target) -> int:
    """Return the bytes that a thread moves in one round between accesses of ``width`` and of ``narrower`` bytes.

    ``narrower`` may be wider than ``width``, where matrix stores (stmatrix) write the values that single threads read.
    """
    loads = target.kind == "cuda" and width >= _MATRIX_LOAD_BYTES * narrower
    stores = target.has("matrix_store") and narrower >= _MATRIX_LOAD_BYTES * width
    return _MATRIX_LOAD_BYTES if loads or stores else VECTOR_BYTES


def _mma_warps(shape: tuple[int, int], num_warps: int) -> tuple[int, int]:
    """Return Triton's distribution of warps over rows and columns of an ``mma`` result, which keeps operand registers
    low.
    """
    down, across = 1, 1
    left = [-(-shape[0] // _MMA[0]), -(-shape[1] // _MMA[1])]
    while down * across < num_warps:
        if left[0] >= left[1]:
            down, left[0] = down * 2, max(1, left[0] // 2)
        else:
            across, left[1] = across * 2, max(1, left[1] // 2)
    return down, across


def _amd_warps(shape: tuple[int, int], of_warp: tuple[int, int], num_warps: int) -> tuple[int, int]:
    """Return the same for AMD's matrix instructions."""
    down, across = 1, 1
    while down * across < num_warps:
        taller = shape[0] // (2 * of_warp[0]) // down >= shape[1] // of_warp[1] // across
        if taller and down < shape[0] // of_warp[0]:
            down *= 2
        else:
            across *= 2
    return (across, down) if across * of_warp[1] > shape[1] else (down, across)
