"""Any kernel on any target: moderate tiles, made smaller until nothing spills and everything fits.

Always applies, and comes last. Not measured on a GPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import ClassVar

from ...._compiler.facts.records import AxisFact, KernelFacts, StagedOperand
from ...._shapes import next_power_of_2
from ....autotuner.proposal import Predicted, Proposal, Verdict
from ....hardware import Target
from .sizing import Chunks, Sizes, all_sizes, clamp, estimate, halve

#: Sides of the tile of a dot, and elements of any other program's tile.
_DOT_SIDES = {"m": 64, "n": 64, "k": 32}
_TILE_ELEMENTS = 2048
#: A whole row is held at once up to this many elements.
_HELD_ROW, _CHUNK = 16384, 4096
_WARPS, _MOST_THREADS, _STAGES = 4, 512, 2
_SMALLEST_CHUNK = 16


class TritonFallbackHeuristic:
    name: ClassVar[str] = "TritonFallbackHeuristic"
    backend: ClassVar[str] = "triton"
    promote_seed_to_default: ClassVar[bool] = False

    def is_eligible(self, facts: KernelFacts, target: Target) -> Verdict:
        return Verdict(eligible=True, reason="applies to every kernel")

    def get_seed_configs(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...]:
        sizes = moderate_sizes(facts, _DOT_SIDES)
        chunks: Chunks = {axis.block_id: None if axis.padded <= _HELD_ROW else _CHUNK for axis in facts.rolled_axes}
        warps, stages = _WARPS, _STAGES if facts.matmuls else 1
        most = max(1, _MOST_THREADS // target.warp_size)
        while True:
            predicted = estimate(facts, target, sizes, warps, stages, chunks)
            if predicted.fits and not predicted.spill_risk:
                break
            if predicted.fits and warps < most:
                warps *= 2
            elif not predicted.fits and stages > 1:
                stages -= 1
            else:
                short = functools.partial(_short, facts, target, warps, stages)
                smaller = halve(_able(facts, sizes, chunks), sizes, chunks, facts, short)
                if smaller is None:
                    break
                sizes, chunks = smaller
        reason = f"tiles of at most {max(sizes.values(), default=1)}, {_outcome(predicted)}"
        return (Proposal(reason=reason, block_sizes=sizes, reduction_loops=chunks, num_warps=warps, num_stages=stages),)


def _short(
    facts: KernelFacts, target: Target, warps: int, stages: int, sizes: Sizes, chunks: Chunks
) -> tuple[float, ...]:
    """What a launch lacks, the worst first."""
    predicted = estimate(facts, target, sizes, warps, stages, chunks)
    shared = 0 if predicted.fits else predicted.shared_bytes
    return not predicted.fits, shared, predicted.spill_risk, predicted.registers_per_thread, predicted.time_us


def _outcome(predicted: Predicted) -> str:
    if not predicted.fits:
        return predicted.reason
    if predicted.spill_risk:
        return "and registers run out even so"
    return f"{predicted.registers_per_thread} registers, {predicted.shared_bytes} bytes of shared memory"


def moderate_sizes(facts: KernelFacts, sides: Mapping[str, int]) -> dict[int, int]:
    """Dot tiles of ``sides`` m, n and k for the axes of dots; other axes share a number of elements, the last ones
    first."""
    sizes: dict[int, int] = {}
    for fact in facts.matmuls:
        for side, block in (("m", fact.m_block_id), ("n", fact.n_block_id), ("k", fact.k_block_id)):
            if block is not None:
                extent = facts.axes[block].extent
                wanted = sides[side] if extent is None else min(sides[side], next_power_of_2(extent))
                sizes[block] = max(sizes.get(block, 1), clamp(wanted, facts.axes[block]))
        sizes.update((b, facts.axes[b].min_size) for b in fact.batch_axes if facts.axes[b].tunable)
    for operand in facts.staged:
        # a tile that a view merges into a side of the product: the unit takes 16 along K, and a tile of 1 gives none
        for axis in (facts.axes[a] for a in operand.axes if facts.axes[a].tunable and a not in sizes):
            wanted = sides["k"] if axis.extent is None else min(sides["k"], next_power_of_2(axis.extent))
            sizes[axis.block_id] = clamp(max(1, wanted // _beside(facts, operand, axis.block_id)), axis)
    room = 1 if facts.matmuls else max(1, _TILE_ELEMENTS // _row(facts))
    for axis in reversed(facts.tunable_axes):
        if axis.block_id not in sizes:
            size = clamp(min(room, axis.padded or room), axis)
            sizes[axis.block_id] = size
            room = max(1, room // size)
    return sizes


def _beside(facts: KernelFacts, operand: StagedOperand, axis: int) -> int:
    """Elements along K that an operand has for each of a tile that a view merges into it: groups of 32 with a scale."""
    fact = facts.matmuls[operand.dot]
    stored = next(op.itemsize for op in facts.memory_ops if op.slot == operand.slot)
    others = (a for a in operand.axes if a not in (axis, fact.m_axis, fact.n_axis) and not facts.axes[a].tunable)
    return max(1, operand.itemsize // stored) * math.prod(max(1, facts.axes[a].padded) for a in others)


def _row(facts: KernelFacts) -> int:
    """Elements that whole dimensions add to every lane of a tile."""
    row = 1
    for axis in facts.axes:
        if axis.kind == "full":
            row *= max(1, axis.padded)
    return row


def _able(facts: KernelFacts, sizes: Sizes, chunks: Chunks) -> tuple[int, ...]:
    """The tiles that may be halved, or with all at their smallest, the rows."""

    def least(axis: AxisFact) -> int:
        return max(axis.min_size, _SMALLEST_CHUNK if axis.block_id in chunks else 1)

    now = all_sizes(facts, sizes, chunks)
    for blocks in (tuple(sizes), tuple(chunks)):
        able = tuple(block for block in blocks if now[block] > least(facts.axes[block]))
        if able:
            return able
    return ()
