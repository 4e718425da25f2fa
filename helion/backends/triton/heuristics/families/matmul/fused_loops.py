"""Consecutive loops with matmuls that differ only in constants, such as the taps of a convolution, fused into one loop.

A separate loop for each tap fills its pipeline again, and has nothing to prefetch where the channels are one tile
(measurement ``fused_loops``). Tiles of 128 rows were best there, with 128 columns where there are as many, though half of
the last tile of 320 is empty. K takes the widest line that divides the channels, and a fourth stage where it is short.
Each warp has rows of its own.

A loop over taps around a loop over channels becomes one loop as well. It stays as written where that is predicted to be
faster, as with split-K for few tiles. Programs of all columns follow each other where the rows exceed the cache.

Where the loop computes the rows from what it loads, such as a norm and an activation, programs have four warps: two of
them compute and multiply in turns. Programs of other columns compute the rows again. Tiles have 256 columns where these
are predicted to be faster (measurement ``computed_taps``). So they do where the kernel has fewer rows than the
asynchronous matrix unit takes, as in short rows of pictures (measurement ``short_rows``).

Tiles of twice as many columns come first where they are predicted to be faster, as where many tiles are left.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_support.records import dataclass
from ......autotuner.proposal import Declined, Heuristic
from ......hardware import WARP_ROWS, Target
from ....proposal import TritonProposal
from ....resources.matrix import ASYNC_ROWS, tile_shape
from ...candidates import moderate_sizes
from ...choose import full_first, trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import all_sizes, estimate, programs_of
from ...tuned import Tuned, tuned
from .grid_order import ordered
from .tiles import single_product, sizer_as_written


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "joined_loops"

    #: M, N and warps, from large to small.
    sides: tuple[tuple[int, int, int], ...]
    #: The same for rows that the loop computes, and those of 256 columns.
    computed_sides: tuple[tuple[int, int, int], ...]
    wide_sides: tuple[tuple[int, int, int], ...]
    #: Tiles that come first where the kernel has fewer rows than the asynchronous unit takes.
    short_sides: tuple[tuple[int, int, int], ...]
    #: Fewest warps of a tile that has not 16 rows for each.
    few_warps: int
    #: Most bytes of a tile along K, and stages of such tiles; shorter ones have one more.
    line: int
    stages: int
    #: Least side of a tile that matrix units take.
    least_side: int
    #: Tiles of twice as many columns.
    large_sides: tuple[tuple[int, int, int], ...]
    #: Largest ratio of predicted times at which a loop inside a loop stays as written.
    apart: float


_TUNED = tuned(_Numbers)


class TritonJoinedLoopsHeuristic(Heuristic):
    name: ClassVar[str] = "TritonJoinedLoopsHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not facts.fusible_axes:
            return Declined("no consecutive loops with matmuls differ only in constants")
        channels = facts.axes[facts.fusible_axes[0]]
        loaded = facts.after("fuse_loops").facts
        itemsize = max(max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize) for fact in loaded.matmuls)
        line = _TUNED.line // itemsize
        k = math.gcd(line, channels.extent or 1)
        if k < max(channels.min_size, target.min_dot(itemsize)[2]):
            return Declined(f"no tile divides the {channels.extent} elements of the loops")
        stages = _TUNED.stages if k == line else _TUNED.stages + 1
        tiles = functools.partial(_feasible, loaded, facts.fusible_axes, k, stages, target)
        ratio = trust(target).computed_rows if any(fact.lhs_prologue for fact in loaded.matmuls) else 0.0
        sides = _TUNED.computed_sides if ratio else _TUNED.sides
        if (
            target.has("wgmma")
            and _rows(loaded, moderate_sizes(loaded, {"m": ASYNC_ROWS, "n": 16, "k": k})) < ASYNC_ROWS
        ):
            sides = (*_TUNED.short_sides, *sides)
        best = full_first(tiles(sides), lambda p: programs_of(loaded, p.block_sizes), target)
        if best is None:
            return Declined("no tile of the matmul fits without spilling")
        if ratio:
            first, *wide = ((each, proposal_us(loaded, each, target)) for each in (best, *tiles(_TUNED.wide_sides)))
            chosen = unless_faster(first, wide, ratio)
            return (best,) if chosen is best else (chosen, best)
        fused = [ordered(loaded, each, target) for each in (best, *tiles(_TUNED.large_sides))]
        timed = [(each, proposal_us(loaded, each, target)) for each in fused]
        joined = unless_faster(timed[0], timed[1:], trust(target).more_columns)
        apart = [(each, proposal_us(facts, each, target)) for each in _apart(facts, target)]
        chosen = unless_faster((joined, proposal_us(loaded, joined, target)), apart, _TUNED.apart)
        return tuple({id(each): each for each in (chosen, joined, fused[0])}.values())


def _apart(facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...]:
    """Return the tiles of a loop inside a loop as written, where both become one; none for loops in sequence."""
    if len(facts.fusible_axes) > 1:
        return ()
    extents = single_product(facts)
    return () if isinstance(extents, Declined) else tuple(sizer_as_written(facts, extents, target).proposals())


def _feasible(
    facts: KernelFacts,
    loops: tuple[int, ...],
    k: int,
    stages: int,
    target: Target,
    sides: tuple[tuple[int, int, int], ...],
) -> Iterator[TritonProposal]:
    for m, n, warps in sides:
        sizes = moderate_sizes(facts, {"m": m, "n": n, "k": k})
        sizes.update(dict.fromkeys(loops, k))
        if any(fact.static_n is not None and _is_too_wide(n, fact.static_n) for fact in facts.matmuls):
            continue
        warps = min(warps, max(_TUNED.few_warps, _rows(facts, sizes) // WARP_ROWS))
        for depth in range(stages, 0, -1):
            predicted = estimate(facts, target, sizes, warps, depth)
            if predicted.fits and not predicted.spill_risk:
                yield TritonProposal(
                    reason=f"{m} x {n} x {k} tiles, {depth} stages, {len(loops)} loops fused",
                    block_sizes=sizes,
                    num_warps=warps,
                    num_stages=depth,
                    launch={"fuse_loops": True},
                )
                break


def _rows(facts: KernelFacts, sizes: Mapping[int, int]) -> int:
    every = all_sizes(facts, sizes)
    return min(tile_shape(fact, every)[0] for fact in facts.matmuls)


def _is_too_wide(side: int, extent: int) -> bool:
    """Return whether half of the side still covers the extent."""
    return side > _TUNED.least_side and side // 2 >= extent
