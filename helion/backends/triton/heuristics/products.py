"""Matrix products for which no rule promotes a seed: chains of them, sums over their rows, scans along their columns.

Takes the first of a few tiles, from large to small, that fits without spilling and gives every SM a program, else the one
that leaves the fewest idle. Products have a default of their own because the conservative config gives the matrix unit
single rows: it takes 16 of them, or 64, whatever it is given. Not measured on a GPU; the seeds are proved offline like
all others.
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
from . import register_safety as safety
from .moderate_sizes import moderate_sizes
from .sizing import estimate, extent_of, wave_efficiency

#: M and N of the tiles, from large to small.
_SIDES = ((128, 128), (128, 64), (64, 64), (64, 32), (32, 64), (32, 32), (16, 64), (16, 32), (16, 16))
#: Bytes of the tiles along K (a line of the swizzle in which matrix units read shared memory, or half) and stages.
_PIPELINES = ((128, 3), (128, 2), (64, 3), (64, 2), (64, 1))
_WARPS = (4, 8, 16)
#: Waves are full enough at this efficiency.
_WAVE_TARGET = 0.8


class TritonProductsHeuristic(Heuristic):
    name: ClassVar[str] = "TritonProductsHeuristic"
    promote_seed_to_default: ClassVar[bool] = True
    stands_in: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not facts.matmuls:
            return Declined("the kernel has no matrix product")
        found = tuple(_feasible(facts, target))
        if not found:
            return Declined("no tile of the products fits without spilling")
        sure = tuple(proposal for proposal, certain in found if certain) or tuple(proposal for proposal, _ in found)
        full = (p for p in sure if wave_efficiency(_programs(facts, p), target) >= _WAVE_TARGET)
        best = next(full, None) or max(sure, key=lambda p: wave_efficiency(_programs(facts, p), target))
        return (best,)


def _feasible(facts: KernelFacts, target: Target) -> Iterator[tuple[TritonProposal, bool]]:
    """For each tile the widest K, the deepest pipeline and the fewest warps with which it is not predicted to spill, and
    whether it leaves registers."""
    itemsize = max(max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize) for fact in facts.matmuls)
    least = target.min_dot(itemsize)[2]
    percent = safety.products(target)
    for m, n in _SIDES:
        for line, stages in _PIPELINES:
            k = max(least, line // itemsize)
            sizes = moderate_sizes(facts, {"m": m, "n": n, "k": k})
            warps = _fewest_warps(facts, target, sizes, stages)
            if warps is not None:
                predicted = estimate(facts, target, sizes, warps, stages)
                reason = f"{m} x {n} x {k} tiles, {stages} stages, {predicted.registers_per_thread} registers"
                proposal = TritonProposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=stages)
                yield proposal, safety.within(predicted, percent)
                break


def _fewest_warps(facts: KernelFacts, target: Target, sizes: dict[int, int], stages: int) -> int | None:
    """The fewest warps that spill nothing; None where no number of them does, or the tile does not fit."""
    for warps in _WARPS:
        predicted = estimate(facts, target, sizes, warps, stages)
        if not predicted.fits:
            return None
        if not predicted.spill_risk:
            return warps
    return None


def _programs(facts: KernelFacts, proposal: TritonProposal) -> int:
    """Programs of the largest grid that has a product."""
    roots = {facts.regions[fact.region].root for fact in facts.matmuls}

    def count(axis: int) -> int:
        fact = facts.axes[axis]
        return cdiv(extent_of(fact), proposal.block_sizes.get(axis) or fact.size or 1)

    return max(math.prod(count(a) for a in facts.grid_axes if root in facts.axes[a].roots) for root in roots)
