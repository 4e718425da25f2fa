"""Matmuls whose operands are computed from tiles that a view merges, such as unpacked low-bit weights: computed once,
before.

Takes the first of a few tiles, from large to small, that fits without spilling and fills the waves. ``hoisting.py``
decides where that pays. Few rows are multiplied by weights that each program unpacks, with split-K.
``TritonMatmulHeuristic`` handles operands over plain tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

from ...._compiler.facts.records import HoistableFact, KernelFacts, MatmulFact
from ...._shapes import cdiv, previous_power_of_2
from ....autotuner.proposal import Declined, Heuristic
from ....hardware import Target
from ..proposal import TritonProposal
from ..resources import rewritten
from .hoisting import hoisting, unhoisted
from .moderate_sizes import moderate_sizes
from .sizing import clamp, estimate, wave_efficiency

#: M, N and warps, from large to small; then bytes of a tile along K, and stages.
_SIDES = ((128, 256, 8), (128, 128, 8), (128, 128, 4), (64, 128, 4), (64, 64, 4))
_LINE, _STAGES = 128, (4, 3, 2)
#: Waves are full enough at this efficiency.
_WAVE_TARGET = 0.8
#: Rows of tiles that run consecutively, so that they find columns in L2.
_GROUP = 8


#: Constants for matmuls of few rows, whose programs each unpack their weights: M, N, warps, stages, programs per SM,
#: split-K factor and steps of each split. 16 x 4096 x 4096 takes 21 us on an H200, and 23 to 60 with other tiles,
#: stages and splits (2026-11-23).
_LEAST_ROWS, _MOST_ROWS, _COLUMNS, _FEW_WARPS, _FEW_STAGES = 16, 64, 32, 4, 3
_FILLED, _MOST_PARTS, _LEAST_STEPS = 4, 8, 4


class TritonHoistedOperandsHeuristic(Heuristic):
    name: ClassVar[str] = "TritonHoistedOperandsHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not facts.hoistable or all(None not in _tiled(fact) for fact in facts.matmuls):
            return Declined("no operand over merged lanes can be precomputed")
        if why := unhoisted(facts, target):
            few = _few_rows(facts, target)
            return Declined(why) if few is None else (few,)
        loaded = rewritten.hoisted(facts)
        feasible = tuple(_feasible(loaded, facts.hoistable, target))
        full = (p for p in feasible if _efficiency(loaded, p, target) >= _WAVE_TARGET)
        best = next(full, None) or max(feasible, key=lambda p: _efficiency(loaded, p, target), default=None)
        return Declined("no tile of the matmul fits without spilling") if best is None else hoisting((best,))


def _tiled(fact: MatmulFact) -> tuple[int | None, ...]:
    return fact.m_block_id, fact.n_block_id, fact.k_block_id


def _sizes(facts: KernelFacts, hoistable: tuple[HoistableFact, ...], m: int, n: int, k: int) -> dict[int, int]:
    """Return block sizes with these sides, including tiles that a view merges into one side."""
    sizes = moderate_sizes(facts, {"m": m, "n": n, "k": k})
    for each in hoistable:
        for axis, lanes, side in zip(each.axes, each.lanes, (k, n) if each.role == "rhs" else (m, k), strict=True):
            if lanes > 1 and facts.axes[axis].tunable:
                sizes[axis] = clamp(max(1, side // lanes), facts.axes[axis])
    return sizes


def _feasible(facts: KernelFacts, hoistable: tuple[HoistableFact, ...], target: Target) -> Iterator[TritonProposal]:
    """Yield each tile with the deepest pipeline that fits."""
    k = _LINE // max(each.dtype.itemsize for each in hoistable)
    for m, n, warps in _SIDES:
        sizes = _sizes(facts, hoistable, m, n, k)
        for stages in _STAGES:
            predicted = estimate(facts, target, sizes, warps, stages)
            if predicted.fits and not predicted.spill_risk:
                yield TritonProposal(
                    reason=f"{m} x {n} x {k} tiles, {stages} stages, operands precomputed",
                    block_sizes=sizes,
                    l2_groupings=dict.fromkeys(range(facts.num_roots), _GROUP),
                    num_warps=warps,
                    num_stages=stages,
                )
                break


def _few_rows(facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return a proposal for few rows of one matmul: a split-K factor with which programs on an SM hide each other's
    latency.
    """
    if any(fact.n_block_id is None for fact in facts.matmuls):
        return None
    rows = max(fact.static_m or _MOST_ROWS + 1 for fact in facts.matmuls)
    if rows > _MOST_ROWS or not facts.divisible or not target.has("wgmma"):
        return None
    itemsize = max(each.dtype.itemsize for each in facts.hoistable)
    sizes = moderate_sizes(facts, {"m": max(_LEAST_ROWS, rows), "n": _COLUMNS, "k": 2 * _LINE // itemsize})
    predicted = estimate(facts, target, sizes, _FEW_WARPS, _FEW_STAGES)
    if not predicted.fits or predicted.spill_risk:
        return None
    loops = {axis for each in facts.hoistable for axis in each.axes if not facts.axes[axis].on_grid and axis in sizes}
    steps = min((cdiv(facts.axes[axis].extent or 1, sizes[axis]) for axis in loops), default=1)
    most = min(_FILLED * target.num_sms // max(1, _programs(facts, sizes)), steps // _LEAST_STEPS, _MOST_PARTS)
    parts = previous_power_of_2(max(1, most))
    return TritonProposal(
        reason=f"{rows} rows, split-K by {parts}",
        block_sizes=sizes,
        num_warps=_FEW_WARPS,
        num_stages=_FEW_STAGES,
        launch={"split_k": parts} if parts > 1 else {},
    )


def _programs(facts: KernelFacts, sizes: Mapping[int, int]) -> int:
    axes = (facts.axes[axis] for axis in facts.grid_axes)
    return math.prod(cdiv(axis.extent or 1, sizes.get(axis.block_id) or axis.size or 1) for axis in axes)


def _efficiency(facts: KernelFacts, proposal: TritonProposal, target: Target) -> float:
    return wave_efficiency(_programs(facts, proposal.block_sizes), target)
