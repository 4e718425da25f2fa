"""Facts of accesses to lines that an index picks, as if to tensors of the picked lines."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...._compiler.facts.records import AxisFact, KernelFacts, MemoryOpFact
from ..lower.epilogue.column_pairs import name_of_pairs, name_of_repeated
from ..plan.epilogue import LineNumbers

LINES = LineNumbers(name="lines", dtype="int32", pitch=1)
"""A vector of numbers of lines, as facts show it."""


def with_picks(facts: KernelFacts) -> KernelFacts:
    """Return the facts with the axis of the vector in place of a picked dimension. The loads of vectors are left out."""
    vectors = {op.subscript_axes[0]: op for op in facts.memory_ops if _is_vector(op)}
    picked = {axis for op in (*facts.memory_ops, *facts.atomics) if (axis := picked_axis(op)) in vectors}
    if not picked:
        return facts

    def changed(op: MemoryOpFact) -> MemoryOpFact:
        axis = picked_axis(op)
        if axis not in picked:
            return op
        at, lines = op.subscript_axes.index(None), vectors[axis].extents[0]
        extents = (*op.extents[:at], lines, *op.extents[at + 1 :])
        axes = (*op.subscript_axes[:at], axis, *op.subscript_axes[at + 1 :])
        scales = (*op.scales[:at], 0, *op.scales[at + 1 :])
        return replace(op, subscript_axes=axes, extents=extents, scales=scales)

    kept = (op for op in facts.memory_ops if not (_is_vector(op) and op.subscript_axes[0] in picked))
    return replace(facts, memory_ops=tuple(map(changed, kept)), atomics=tuple(map(changed, facts.atomics)))


def picked_axis(op: MemoryOpFact) -> int | None:
    """Return the axis of the numbers that pick along a dimension; None for another access."""
    rest = [axis for axis in op.tile_axes if axis not in op.subscript_axes]
    return rest[0] if op.gathered and len(rest) == 1 and op.subscript_axes.count(None) == 1 else None


def axis_of_pick(op: MemoryOpFact) -> int | None:
    """Return the axis whose indices the numbers of ``with_picks`` take the place of, which scale no index."""
    return op.subscript_axes[op.scales.index(0)] if 0 in op.scales else None


def is_picked(op: MemoryOpFact) -> bool:
    """Return whether an access of ``with_picks`` is of picked lines."""
    return op.gathered and None not in op.subscript_axes


def _is_vector(op: MemoryOpFact) -> bool:
    whole = op.kind == "load" and len(op.subscript_axes) == 1 and op.tile_axes == op.subscript_axes
    return whole and op.dtype in (torch.int32, torch.int64)


def with_column_pairs(facts: KernelFacts) -> KernelFacts:
    """Return the facts with the axis of columns in place of those of their pairs, which threads access one by one."""
    used = {axis for each in facts.matmuls for axis in (each.m_axis, each.n_axis, each.k_axis)}
    columns = {each.n_axis for each in facts.matmuls} | {each.m_axis for each in facts.matmuls}
    of = {
        number: axis
        for number, pairs in enumerate(facts.axes)
        for axis in columns
        if axis is not None and number not in used and _is_of_pairs(pairs, facts.axes[axis])
    }

    def changed(op: MemoryOpFact) -> MemoryOpFact:
        if not op.subscript_axes or op.subscript_axes[-1] not in of:
            return op
        axis = of[op.subscript_axes[-1]]
        return replace(
            op,
            tile_axes=(*op.tile_axes[:-1], axis),
            subscript_axes=(*op.subscript_axes[:-1], axis),
            strides=(*op.strides[:-1], 2),
            extents=(*op.extents[:-1], facts.axes[axis].extent or 0),
        )

    return replace(facts, memory_ops=tuple(map(changed, facts.memory_ops))) if of else facts


def _is_of_pairs(pairs: AxisFact, columns: AxisFact) -> bool:
    """Return whether an axis counts pairs of columns: all, as many as repeat, or those of a tile of a fixed size."""
    if pairs.kind == "full":
        return columns.size is not None and columns.size == 2 * (pairs.extent or 0)
    return pairs.name in (name_of_pairs(columns.block_id), name_of_repeated(columns.block_id))
