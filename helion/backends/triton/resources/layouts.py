"""Which elements of a tile one thread holds, and what changing that takes of shared memory.

A layout is a mask per axis: the bits of the index along it that differ between elements of the same thread. The others
number threads. Sizes, vectors and threads are powers of two. Checked against what Triton 3.7 allocates for conversions
between blocked layouts and matrix fragments, for sm_80, sm_90 and gfx942.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....hardware import Target
from .tiles import VECTOR_BYTES

Held = dict[int, int]

#: Bytes that one thread gets of matrix loads from shared memory, for which others write 16 at once.
_MATRIX_LOAD_BYTES = 4
#: Rows and columns that one warp has of an ``mma`` product, and of an AMD one with large and with small fragments.
_MMA, _LARGE, _SMALL = (16, 8), (32, 32), (16, 16)
#: What a thread has of them, as masks of rows and columns: two neighbours in rows 8 apart; four neighbours, of large
#: fragments in every eighth column.
_IN_WARP = {_MMA: (0b1000, 0b1), _LARGE: (0, 0b11011), _SMALL: (0, 0b11)}


def rows_held(axes: Sequence[int], sizes: Mapping[int, int], vector: int, threads: int) -> Held:
    """A tile that is accessed in rows: ``vector`` neighbours a thread, threads along the last axis first."""
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
    """The same tile, by axis: neighbours of one thread, lanes of a warp and warps that stand along it."""
    found: dict[int, tuple[int, int, int]] = {}
    lanes, warps = target.warp_size, num_warps
    first = vector
    for at, axis in enumerate(reversed(axes)):
        own = min(first, sizes[axis])
        threads = min(lanes * warps, max(1, sizes[axis] // own))
        along = min(threads, lanes)
        beside = min(warps, threads // along)
        if at == len(axes) - 1:  # the last one has all that are left, which repeat it
            along, beside = lanes, warps
        found[axis] = own, along, beside
        lanes, warps, first = lanes // along, warps // beside, 1
    return found


def fragment_held(
    rows: tuple[int, int], columns: tuple[int, int], shape: tuple[int, int], num_warps: int, target: Target
) -> Held:
    """A product that goes through registers. ``rows`` and ``columns`` are axes with the elements that a tile has of them,
    ``shape`` is M and N of the dot."""
    (row, m), (column, n) = rows, columns
    of_warp, (down, across) = fragment_warps(shape, num_warps, target)
    in_rows, in_columns = _IN_WARP[of_warp]
    return {
        row: (m - 1) & (~(of_warp[0] * down - 1) | in_rows),
        column: (n - 1) & (~(of_warp[1] * across - 1) | in_columns),
    }


def fragment_warps(shape: tuple[int, int], num_warps: int, target: Target) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of one warp's fragment of a product of M and N ``shape``, and how many warps stand below and beside
    each other."""
    if target.kind == "hip":
        of_warp = _LARGE if min(shape) >= _LARGE[0] else _SMALL
        return of_warp, _amd_warps(shape, of_warp, num_warps)
    return _MMA, _mma_warps(shape, num_warps)


def rounds(one: Held, other: Held, itemsize: int, moved: int = VECTOR_BYTES) -> int:
    """In how many rounds, at least, a tile goes from one layout to the other, through as much less shared memory: a
    thread moves ``moved`` bytes in each, of elements that it holds in both layouts."""
    common = sum((one[axis] & other[axis]).bit_count() for axis in one if axis in other)
    return max(1, (itemsize << common) // moved)


def moved_at_once(width: int, narrower: int, target: Target) -> int:
    """Bytes that a thread moves in one round from accesses of ``width`` bytes to such of ``narrower``, which may be wider
    where matrix stores write what single threads read."""
    loads = target.kind == "cuda" and width >= _MATRIX_LOAD_BYTES * narrower
    stores = target.has("matrix_store") and narrower >= _MATRIX_LOAD_BYTES * width
    return _MATRIX_LOAD_BYTES if loads or stores else VECTOR_BYTES


def _mma_warps(shape: tuple[int, int], num_warps: int) -> tuple[int, int]:
    """How Triton spreads warps over rows and columns of an ``mma`` product: so that operands take few registers."""
    down, across = 1, 1
    left = [-(-shape[0] // _MMA[0]), -(-shape[1] // _MMA[1])]
    while down * across < num_warps:
        if left[0] >= left[1]:
            down, left[0] = down * 2, max(1, left[0] // 2)
        else:
            across, left[1] = across * 2, max(1, left[1] // 2)
    return down, across


def _amd_warps(shape: tuple[int, int], of_warp: tuple[int, int], num_warps: int) -> tuple[int, int]:
    """The same for AMD's products."""
    down, across = 1, 1
    while down * across < num_warps:
        taller = shape[0] // (2 * of_warp[0]) // down >= shape[1] // of_warp[1] // across
        if taller and down < shape[0] // of_warp[0]:
            down *= 2
        else:
            across *= 2
    return (across, down) if across * of_warp[1] > shape[1] else (down, across)
