"""Products of operands that are computed, in tiles that a view merges: unpacked weights of few bits, computed once in front.

Takes the first of a few tiles, from large to small, that fits without spilling and fills the waves, as plain products of as
many elements do. ``hoisting.py`` says when that pays. Operands over plain tiles are those of ``TritonMatmulHeuristic``.
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
from .hoisting import hoisting, unhoisted
from .moderate_sizes import moderate_sizes
from .sizing import estimate, wave_efficiency

#: M, N and warps, from large to small, bytes of a tile along K and stages.
_SIDES = ((128, 256, 8), (128, 128, 8), (128, 128, 4), (64, 128, 4), (64, 64, 4))
_LINE, _STAGES = 128, (4, 3, 2)
#: Waves are full enough at this efficiency.
_WAVE_TARGET = 0.8
#: Rows of tiles that run one after the other, so that they find columns in the cache.
_GROUP = 8


class TritonHoistedOperandsHeuristic(Heuristic):
    name: ClassVar[str] = "TritonHoistedOperandsHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if why := unhoisted(facts, target):
            return Declined(why)
        if all(fact.k_block_id is not None for fact in facts.matmuls):
            return Declined("K of the product is a tile")
        loaded = rewritten.hoisted(facts)
        feasible = tuple(_feasible(loaded, max(each.dtype.itemsize for each in facts.hoistable), target))
        full = (p for p in feasible if _efficiency(loaded, p, target) >= _WAVE_TARGET)
        best = next(full, None) or max(feasible, key=lambda p: _efficiency(loaded, p, target), default=None)
        return Declined("no tile of the product fits without spilling") if best is None else hoisting((best,))


def _feasible(facts: KernelFacts, itemsize: int, target: Target) -> Iterator[TritonProposal]:
    """For each tile the deepest pipeline with which it fits."""
    k = _LINE // itemsize
    for m, n, warps in _SIDES:
        sizes = moderate_sizes(facts, {"m": m, "n": n, "k": k})
        for stages in _STAGES:
            predicted = estimate(facts, target, sizes, warps, stages)
            if predicted.fits and not predicted.spill_risk:
                yield TritonProposal(
                    reason=f"{m} x {n} x {k} tiles, {stages} stages, operands computed first",
                    block_sizes=sizes,
                    l2_groupings=dict.fromkeys(range(facts.num_roots), _GROUP),
                    num_warps=warps,
                    num_stages=stages,
                )
                break


def _efficiency(facts: KernelFacts, proposal: TritonProposal, target: Target) -> float:
    axes = (facts.axes[axis] for axis in facts.grid_axes)
    counts = (cdiv(axis.extent or 1, proposal.block_sizes.get(axis.block_id) or axis.size or 1) for axis in axes)
    return wave_efficiency(math.prod(counts), target)
