"""The loop variable of ``hl.tile``, for annotations, and its properties as functions."""

from __future__ import annotations

from typing import Any

from ._registry import declare


class Tile:
    """A block of consecutive indices. Use it as an index, as a size, or through its properties.

    ``index`` is a 1-D integer tensor of the indices, ``begin`` and ``end`` the range (``end`` is at most the loop's
    end), ``block_size`` the size from the config, ``id`` is ``begin // block_size``, ``count`` the number of tiles.
    """

    index: Any
    begin: Any
    end: Any
    block_size: Any
    id: Any
    count: Any


@declare("device")
def tile_index(tile: Any) -> Any:
    """``tile.index``."""


@declare("device")
def tile_begin(tile: Any) -> Any:
    """``tile.begin``."""


@declare("device")
def tile_end(tile: Any) -> Any:
    """``tile.end``."""


@declare("both")
def tile_block_size(tile: Any) -> Any:
    """``tile.block_size``."""


@declare("device")
def tile_id(tile: Any) -> Any:
    """``tile.id``."""


@declare("device")
def tile_count(tile: Any) -> Any:
    """``tile.count``."""
