"""Tiles of moderate size for kernels of any kind."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...._compiler.facts.records import KernelFacts, StagedOperand
from ...._shapes import next_power_of_2
from .sizing import clamp

#: Elements of the tile of a program without a dot.
_TILE_ELEMENTS = 2048


def moderate_sizes(facts: KernelFacts, sides: Mapping[str, int]) -> dict[int, int]:
    """Return dot tiles of ``sides`` m, n and k for the axes of dots, and moderate tiles for the others.

    The other axes share a number of elements, the last ones first, and cover at least one tile of a loop within them.
    """
    sizes: dict[int, int] = {}
    for fact in facts.matmuls:
        for side, block in (("m", fact.m_block_id), ("n", fact.n_block_id), ("k", fact.k_block_id)):
            if block is not None:
                extent = facts.axes[block].extent
                wanted = sides[side] if extent is None else min(sides[side], next_power_of_2(extent))
                sizes[block] = max(sizes.get(block, 1), clamp(wanted, facts.axes[block]))
        sizes.update((b, facts.axes[b].min_size) for b in fact.batch_axes if facts.axes[b].tunable)
    for operand in facts.staged:
        # a view may merge this tile into a side of the matmul: the unit takes 16 along K, and a tile of 1 gives none
        for axis in (facts.axes[a] for a in operand.axes if facts.axes[a].tunable and a not in sizes):
            wanted = sides["k"] if axis.extent is None else min(sides["k"], next_power_of_2(axis.extent))
            sizes[axis.block_id] = clamp(max(1, wanted // _beside(facts, operand, axis.block_id)), axis)
    room = 1 if facts.matmuls else max(1, _TILE_ELEMENTS // _row(facts))
    for axis in reversed(facts.tunable_axes):
        if axis.block_id not in sizes:
            inside = max((sizes.get(a.block_id, 1) for a in facts.tunable_axes if a.outer == axis.block_id), default=1)
            size = clamp(max(inside, min(room, axis.padded or room)), axis)
            sizes[axis.block_id] = size
            room = max(1, room // size)
    return sizes


def _beside(facts: KernelFacts, operand: StagedOperand, axis: int) -> int:
    """Return the elements along K that an operand has for each element of a merged tile, such as groups of 32 with a
    scale.
    """
    fact = facts.matmuls[operand.dot]
    stored = next(op.itemsize for op in facts.memory_ops if op.slot == operand.slot)
    others = (a for a in operand.axes if a not in (axis, fact.m_axis, fact.n_axis) and not facts.axes[a].tunable)
    return max(1, operand.itemsize // stored) * math.prod(max(1, facts.axes[a].padded) for a in others)


def _row(facts: KernelFacts) -> int:
    """Return the elements that whole dimensions add to every lane of a tile."""
    row = 1
    for axis in facts.axes:
        if axis.kind == "full":
            row *= max(1, axis.padded)
    return row
