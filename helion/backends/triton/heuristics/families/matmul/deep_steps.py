"""Longer steps along K for programs that all run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ......_support.records import replace

if TYPE_CHECKING:
    from .tiles import ProductSizer, ProductTile


def deeper(sizer: ProductSizer, tile: ProductTile) -> ProductTile:
    """Return the tile with twice the K where all programs run at once in any case.

    Warps of the synchronous unit then wait for half as many steps. With more programs, those that share an SM hide the
    waits (measurement ``deep_steps``).
    """
    twice, target = replace(tile, k=2 * tile.k), sizer.target
    if 4 * twice.k > sizer.depth(tile.m, tile.n) or sum(sizer.operands) != 2:
        return tile
    room = target.smem_per_sm_bytes // ((tile.m + tile.n) * twice.k * sizer.itemsize * tile.stages)
    if sizer.blocks(tile.m, tile.n) * sizer.parts > room * target.num_sms:
        return tile
    predicted = sizer.predict(twice)
    return twice if predicted.fits and not predicted.spills else tile
