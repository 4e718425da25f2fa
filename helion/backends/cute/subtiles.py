"""Into which sub-tiles an epilogue divides a tile, and how many of them are on their way to memory."""

from __future__ import annotations

from ..._shapes import previous_power_of_2

STORE_STAGES = (2, 4, 8)
"""Sub-tiles of a result on their way to memory."""
ODD_STORE_STAGES = (3, 5)
"""The same for tiles with an odd number of sub-tiles, which buffers have to divide."""
ONE_WARP_COLUMNS = 16
"""The fewest columns of a sub-tile, of tiles with an even number of them."""
LEAST_SUBTILE = 8
"""The fewest of others: what one instruction stores of two bytes an element."""


def subtile_of(width: int, wanted: int) -> int:
    """Columns of a sub-tile, a power of two and ``wanted`` at most: a tile of ``width`` has an even number of them, or a number
    that a few buffers divide."""
    columns = previous_power_of_2(min(wanted, max(width // 2, ONE_WARP_COLUMNS)))
    while width % (2 * columns) and columns > ONE_WARP_COLUMNS:
        columns //= 2
    if width % columns or not any((width // columns) % each == 0 for each in (*STORE_STAGES, *ODD_STORE_STAGES)):
        return LEAST_SUBTILE
    return columns


def buffers_of(subtiles: int, wanted: int) -> int:
    """Buffers of sub-tiles on their way to memory that divide these: as many as ``wanted``, else fewer, else the fewest."""
    if subtiles % wanted == 0:
        return wanted
    fewer = [each for each in STORE_STAGES if each <= wanted and subtiles % each == 0]
    fewest = (each for each in (*STORE_STAGES, *ODD_STORE_STAGES) if subtiles % each == 0)
    return max(fewer, default=next(fewest, STORE_STAGES[0]))
