"""Loops: what runs in parallel over the grid, and what runs in sequence inside a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._registry import declare


@declare("loop")
def tile(begin_or_end: Any, end: Any = None, /, block_size: Any = None) -> Iterator[Any]:
    """Iterate over ``[0, end)`` or ``[begin, end)`` in tiles.

    Bounds are integers, sizes or scalars, or lists of them for a multi-dimensional tile: ``for tile_m, tile_n in
    hl.tile([m, n])``. Outside of any device loop the tiles run in parallel, one program each; inside, in sequence.
    The size of a tile comes from ``block_sizes`` of the config unless ``block_size`` fixes it.

    Raises ``exc.TileOfTile`` for a tile as bound, ``exc.InvalidTileRange`` when begin exceeds end.
    """
    raise NotImplementedError


@declare("loop")
def grid(begin_or_end: Any, end: Any = None, /, step: Any = None) -> Iterator[Any]:
    """As ``tile``, but the loop variable is a scalar index instead of a block of indices."""
    raise NotImplementedError


@declare("loop")
def static_range(begin_or_end: int, end: int | None = None, /, step: int = 1) -> Iterator[int]:
    """A loop with constant bounds that is unrolled at compile time. Device code only."""
    raise NotImplementedError
