"""Products in loops one behind the other that differ in numbers alone: the taps of a convolution, as one loop.

A loop for each tap fills its pipeline anew, and has nothing to fill it with where the channels are one tile. One loop over all
taps takes 28, 50 and 43 us where nine take 34, 61 and 65, each with the best of the tiles that were tried (H200, Triton 3.6, 2026-11-23: 3 by
3, 32 x 56 x 56 x 64 to 64, 32 x 28 x 28 x 256 to 256 and 8 x 64 x 64 x 96 to 320 channels). Tiles of 128 rows were the best
there, with 128 columns where there are so many, though the last tile of 320 is half empty; the widest line along K that divides the
channels, and a fourth stage where it is short.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from ...._compiler.facts.records import KernelFacts
from ...._shapes import cdiv
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources import rewritten
from .moderate_sizes import moderate_sizes
from .sizing import estimate, wave_efficiency

#: M, N and warps, from large to small.
_SIDES = ((128, 128, 8), (128, 64, 4), (64, 64, 4), (64, 32, 4), (32, 32, 4), (16, 32, 4), (16, 16, 4))
#: Bytes of a tile along K at most, and stages of such tiles; shorter ones have one more.
_LINE, _STAGES = 128, 3
#: What matrix units take of a side at least.
_LEAST_SIDE = 16
#: Waves are full enough at this efficiency.
_WAVE_TARGET = 0.8


class TritonJoinedLoopsHeuristic(Heuristic):
    name: ClassVar[str] = "TritonJoinedLoopsHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not facts.joinable:
            return Declined("no loops with products differ in numbers alone")
        channels = facts.axes[facts.joinable[0]]
        loaded = rewritten.joined(facts)
        itemsize = max(max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize) for fact in loaded.matmuls)
        line = _LINE // itemsize
        k = math.gcd(line, channels.extent or 1)
        if k < max(channels.min_size, target.min_dot(itemsize)[2]):
            return Declined(f"tiles of {channels.extent} elements of the loops are not whole")
        stages = _STAGES if k == line else _STAGES + 1
        feasible = tuple(_feasible(loaded, facts.joinable, k, stages, target))
        full = (p for p in feasible if _efficiency(loaded, p, target) >= _WAVE_TARGET)
        best = next(full, None) or max(feasible, key=lambda p: _efficiency(loaded, p, target), default=None)
        return Declined("no tile of the product fits without spilling") if best is None else (best,)


def _feasible(
    facts: KernelFacts, loops: tuple[int, ...], k: int, stages: int, target: Target
) -> Iterator[TritonProposal]:
    for m, n, warps in _SIDES:
        sizes = moderate_sizes(facts, {"m": m, "n": n, "k": k})
        sizes.update(dict.fromkeys(loops, k))
        if any(fact.static_n is not None and _is_too_wide(n, fact.static_n) for fact in facts.matmuls):
            continue
        for depth in range(stages, 0, -1):
            predicted = estimate(facts, target, sizes, warps, depth)
            if predicted.fits and not predicted.spill_risk:
                yield TritonProposal(
                    reason=f"{m} x {n} x {k} tiles, {depth} stages, {len(loops)} loops in one",
                    block_sizes=sizes,
                    num_warps=warps,
                    num_stages=depth,
                    launch={"join_loops": True},
                )
                break


def _is_too_wide(side: int, extent: int) -> bool:
    """Whether half of a side of a tile has all lanes."""
    return side > _LEAST_SIDE and side // 2 >= extent


def _efficiency(facts: KernelFacts, proposal: TritonProposal, target: Target) -> float:
    axes = (facts.axes[axis] for axis in facts.grid_axes)
    counts = (cdiv(axis.extent or 1, proposal.block_sizes.get(axis.block_id) or axis.size or 1) for axis in axes)
    return wave_efficiency(math.prod(counts), target)
