"""Consecutive loops with matmuls that differ only in constants, such as the taps of a convolution, fused into one loop.

A separate loop for each tap fills its pipeline again, and has nothing to prefetch where the channels are one tile. One
loop over all taps takes 28, 50 and 43 us where nine take 34, 61 and 65, each with the best tiles tried. These are 3x3
convolutions of 32x56x56x64 to 64, 32x28x28x256 to 256 and 8x64x64x96 to 320 channels (H200, Triton 3.6, 2026-11-23).
Tiles of 128 rows were best there, with 128 columns where there are as many, though half of the last tile of 320 is
empty. K takes the widest line that divides the channels, and a fourth stage where it is short.
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
#: Most bytes of a tile along K, and stages of such tiles; shorter ones have one more.
_LINE, _STAGES = 128, 3
#: Least side of a tile that matrix units take.
_LEAST_SIDE = 16
#: Waves are full enough at this efficiency.
_WAVE_TARGET = 0.8


class TritonJoinedLoopsHeuristic(Heuristic):
    name: ClassVar[str] = "TritonJoinedLoopsHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not facts.joinable:
            return Declined("no consecutive loops with matmuls differ only in constants")
        channels = facts.axes[facts.joinable[0]]
        loaded = rewritten.joined(facts)
        itemsize = max(max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize) for fact in loaded.matmuls)
        line = _LINE // itemsize
        k = math.gcd(line, channels.extent or 1)
        if k < max(channels.min_size, target.min_dot(itemsize)[2]):
            return Declined(f"no tile divides the {channels.extent} elements of the loops")
        stages = _STAGES if k == line else _STAGES + 1
        feasible = tuple(_feasible(loaded, facts.joinable, k, stages, target))
        full = (p for p in feasible if _efficiency(loaded, p, target) >= _WAVE_TARGET)
        best = next(full, None) or max(feasible, key=lambda p: _efficiency(loaded, p, target), default=None)
        return Declined("no tile of the matmul fits without spilling") if best is None else (best,)


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
                    reason=f"{m} x {n} x {k} tiles, {depth} stages, {len(loops)} loops fused",
                    block_sizes=sizes,
                    num_warps=warps,
                    num_stages=depth,
                    launch={"fuse_loops": True},
                )
                break


def _is_too_wide(side: int, extent: int) -> bool:
    """Return whether half of the side still covers the extent."""
    return side > _LEAST_SIDE and side // 2 >= extent


def _efficiency(facts: KernelFacts, proposal: TritonProposal, target: Target) -> float:
    axes = (facts.axes[axis] for axis in facts.grid_axes)
    counts = (cdiv(axis.extent or 1, proposal.block_sizes.get(axis.block_id) or axis.size or 1) for axis in axes)
    return wave_efficiency(math.prod(counts), target)
