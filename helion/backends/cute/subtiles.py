"""Sub-tiles of an epilogue, and the buffers that they are stored through."""

from __future__ import annotations

from ..._shapes import previous_power_of_2

STORE_STAGES = (2, 4, 8)
"""Store buffers, one sub-tile each."""
ODD_STORE_STAGES = (3, 5)
"""Store buffers for tiles with an odd number of sub-tiles. Buffers that do not divide them take a barrier for each tile."""
ONE_WARP_COLUMNS = 16
"""Minimum columns of a sub-tile, for tiles with an even number of them."""
LEAST_SUBTILE = 8
"""Minimum columns for other tiles: one store instruction of two-byte elements."""


def subtile_of(width: int, wanted: int, divided: bool = True) -> int:
    """Return the columns of a sub-tile, a power of two of at most ``wanted``.

    A tile of ``width`` has an even number of sub-tiles, or any if they need not be ``divided`` by a few buffers.
    """
    columns = previous_power_of_2(min(wanted, max(width // 2, ONE_WARP_COLUMNS)))
    while width % (2 * columns) and columns > ONE_WARP_COLUMNS:
        columns //= 2
    few = any((width // columns) % each == 0 for each in (*STORE_STAGES, *ODD_STORE_STAGES))
    return columns if width % columns == 0 and (few or not divided) else LEAST_SUBTILE


def buffers_of(subtiles: int, wanted: int) -> int:
    """Return a number of store buffers that divides the sub-tiles: ``wanted``, else fewer, else the fewest; or two."""
    if subtiles % wanted == 0:
        return wanted
    fewer = [each for each in STORE_STAGES if each <= wanted and subtiles % each == 0]
    fewest = (each for each in (*STORE_STAGES, *ODD_STORE_STAGES) if subtiles % each == 0)
    return max(fewer, default=next(fewest, STORE_STAGES[0]))
