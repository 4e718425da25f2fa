"""Tiles of a matmul whose kernel splits K itself, in spans whose programs add to the output by atomics; steps along K;
tiles of programs of which some have no work.

Large tiles leave few programs, so that many spans fill the SMs. All programs of one wave end at once, and nothing
overlaps with their additions, which are as many bytes as the output for each span. Smaller tiles with fewer spans add
less (measurement ``parts_of_k``).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tiles import ProductSizer, ProductTile


def with_fewer_parts(sizer: ProductSizer, first: ProductTile) -> ProductTile | None:
    """Return the fastest tile with its atomic additions after the rest, or None where K has no spans or ``first`` is it."""
    if sizer.span is None or sizer.looped or sizer.splits(first.m, first.n) == 1:
        return None

    def cost(tile: ProductTile) -> float:
        found = sizer.timing(tile)
        return math.inf if found is None else found.us + dict(found.units)["atomics"]

    sides = itertools.product(halves(first.m, sizer.tuned.tile_floor), halves(first.n, sizer.tuned.narrow_floor))
    options = [first]
    for m, n in sides:
        k, stages = sizer.pipeline(m, n)
        if sizer.efficiency(m, n) >= sizer.efficiency(first.m, first.n):
            options.append(replace(first, m=m, n=n, k=k, warps=sizer.warps(m, n), stages=stages))
    best = min(options, key=cost)
    return None if best == first else best


def of_branches(sizer: ProductSizer, first: ProductTile) -> ProductTile | None:
    """Return a tile of which an SM holds two programs, where a condition decides if they multiply.

    One then has work while the other ends (measurement ``branched_programs``). Return None for other matmuls, and where
    that tile is predicted to be slower.
    """
    m, n, k, warps, stages = sizer.tuned.branched_tile
    if (
        not (sizer.branched and m)
        or sizer.looped
        or sizer.span is not None
        or k * sizer.itemsize != sizer.tuned.whole_line
    ):
        return None
    paired = replace(first, m=m, n=n, k=k, warps=warps, stages=stages)
    smaller = all(side <= cap for side, cap in zip((m, n), (first.m, first.n), strict=True))
    faster = smaller and paired != first and sizer.time_us(paired) <= sizer.time_us(first)
    return paired if faster and not sizer.predict(paired).spill_risk else None


def halves(side: int, least: int) -> list[int]:
    """Return a side of a tile and its halves, down to ``least``, which the matrix unit runs at full rate."""
    return [side >> i for i in range(side.bit_length()) if side >> i >= min(side, least)]


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


__all__ = ["deeper", "halves", "of_branches", "with_fewer_parts"]
