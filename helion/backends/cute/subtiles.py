"""Sub-tiles of an epilogue, and the buffers that they are stored through."""

from __future__ import annotations

from ..._shapes import previous_power_of_2

STORE_STAGES = (2, 4, 8)
"""Store buffers, one sub-tile each."""
ODD_STORE_STAGES = (3, 5)
"""Store buffers for tiles with an odd number of sub-tiles, which the buffers have to divide."""
ONE_WARP_COLUMNS = 16
"""Minimum columns of a sub-tile, for tiles with an even number of them."""
LEAST_SUBTILE = 8
"""Minimum columns for other tiles: one store instruction of two-byte elements."""


def subtile_of(width: int, wanted: int) -> int:
    """Return the columns of a sub-tile, a power of two of at most ``wanted``.

    A tile of ``width`` has an even number of sub-tiles, or a number that a few buffers divide.
    """
    columns = previous_power_of_2(min(wanted, max(width // 2, ONE_WARP_COLUMNS)))
    while width % (2 * columns) and columns > ONE_WARP_COLUMNS:
        columns //= 2
    if width % columns or not any((width // columns) % each == 0 for each in (*STORE_STAGES, *ODD_STORE_STAGES)):
        return LEAST_SUBTILE
    return columns


def buffers_of(subtiles: int, wanted: int) -> int:
    """Return a number of store buffers that divides the sub-tiles: ``wanted``, else fewer, else the fewest."""
    if subtiles % wanted == 0:
        return wanted
    fewer = [each for each in STORE_STAGES if each <= wanted and subtiles % each == 0]
    fewest = (each for each in (*STORE_STAGES, *ODD_STORE_STAGES) if subtiles % each == 0)
    return max(fewer, default=next(fewest, STORE_STAGES[0]))
