"""Subscripts along a tile with several lanes for each element: ``x[tile.begin * 2 + hl.arange(2 * block)]``."""

from __future__ import annotations

import functools

from ..ir.counting import Counting, merges_lanes
from ..ir.grammar import IotaAttrs, Op, Operand, PointwiseAttrs, TileAttrs, Value
from ..sizes import representative_sizes
from .walk import Walk


class MergedTiles:
    """Analysis of subscripts over merged tiles."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    @functools.cached_property
    def counting(self) -> Counting:
        return Counting(self.walk.program, representative_sizes(self.walk.program))

    def lanes_of(self, operand: Operand) -> tuple[int, int] | None:
        """Return axis and lanes of a subscript if it covers the elements of a merged tile contiguously; None for
        others.

        ``axis`` is the axis of the tile, ``lanes`` the number of lanes of each of its elements.
        """
        if not isinstance(operand, Value) or len(operand.dims) != 1 or operand.dims[0].block is not None:
            return None
        tiles = [b for b in operand.dims[0].blocks if self.walk.program.blocks[b].kind == "tile"]
        op = self.walk.makers.of(operand)
        if op is None or len(tiles) != 1 or not isinstance(op.attrs, PointwiseAttrs) or op.attrs.name != "add":
            return None
        (axis,) = tiles
        lanes = self.counting.size(operand.dims[0]) // self.counting.sizes[axis]
        makers = [self.walk.makers.of(each) for each in op.operands]
        begins = any(self.begins(maker, axis, lanes) for maker in makers)
        return (axis, lanes) if begins and any(self.counts(maker) for maker in makers) else None

    def begins(self, op: Op | None, axis: int, lanes: int) -> bool:
        """Return whether an op computes the first lane of a tile: ``tile.begin * lanes``."""
        if op is None or not isinstance(op.attrs, PointwiseAttrs) or op.attrs.name != "mul" or lanes not in op.operands:
            return False
        (value, *_) = op.values()
        maker = self.walk.makers.of(value)
        return maker is not None and maker.attrs == TileAttrs(axis, "begin")

    def counts(self, op: Op | None) -> bool:
        """Return whether an op numbers the lanes of a merged tile."""
        if op is not None and isinstance(op.attrs, IotaAttrs):
            return op.attrs.relative and (op.attrs.start, op.attrs.step) == (0, 1)
        if op is None or not merges_lanes(op):
            return False
        found = self.counting.range_of(op)
        return found is not None and (found.start, found.step) == (0, 1)
