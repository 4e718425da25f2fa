"""Groups of rows, or of K, in the facts of a kernel: programs load where they begin and end."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ...._compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact
from ...._shapes import dtype_name
from ..plan.scales import Groups
from .sources import load_of

OFFSETS = (torch.int32, torch.int64)


def has_groups_of_k(facts: KernelFacts, fact: MatmulFact) -> bool:
    """Return whether K is that of groups of a batch: programs load the first element of a group and the one after its
    last, and operands are the same for all."""
    operands = [load_of(facts, slot) for slot in (fact.lhs_slot, fact.rhs_slot)]
    tiles = {fact.m_axis, fact.n_axis, fact.k_axis}
    shared = all(op is not None and {*op.subscript_axes, *op.tile_axes} <= tiles for op in operands)
    return shared and _loads_bounds(facts)


def rows_of_groups(fact: MatmulFact, facts: KernelFacts) -> int | None:
    """Return the rows of the left operand, if a loop over them has bounds on the device, or masks leave out those of other
    groups."""
    left = load_of(facts, fact.lhs_slot)
    if left is None or fact.m_axis is None or fact.m_axis not in left.subscript_axes:
        return None
    if facts.axes[fact.m_axis].on_grid and not (_loads_bounds(facts) and _picks_matrices(fact, facts, left)):
        return None
    counted = (extent for at, extent in zip(left.subscript_axes, left.extents, strict=True) if at != fact.k_axis)
    return math.prod(counted)


def groups_of_blocks(fact: MatmulFact, facts: KernelFacts) -> Groups | None:
    """Return the groups whose numbers blocks of rows load, which pick a matrix of the right operand; None without them."""
    right = load_of(facts, fact.rhs_slot)
    numbers = [op for op in facts.memory_ops if op.kind == "load" and not op.tile_axes and op.dtype in OFFSETS]
    rows = facts.axes[fact.m_axis].size if fact.m_axis is not None else None
    if right is None or right.subscript_axes.count(None) != 1 or rows is None:
        return None
    if len(numbers) != 1 or numbers[0].subscript_axes != (None,):
        return None
    size = right.extents[right.subscript_axes.index(None)]
    return Groups(name=numbers[0].name, size=size, dtype=dtype_name(numbers[0].dtype), rows=rows)


def _loads_bounds(facts: KernelFacts) -> bool:
    """Return whether programs load two numbers of one tensor of integers: the first element of a group, and the one after
    its last."""
    single = [op for op in facts.memory_ops if op.kind == "load" and not op.tile_axes and op.dtype in OFFSETS]
    return len(single) == 2 and len({op.storage for op in single}) == 1


def _picks_matrices(fact: MatmulFact, facts: KernelFacts, left: MemoryOpFact) -> bool:
    """Return whether the right operand has a matrix for each group, and neither the left one nor outputs have."""
    right = load_of(facts, fact.rhs_slot)
    stored = [op for op in (*facts.memory_ops, *facts.atomics) if op.kind != "load"]
    groups = {op.subscript_axes[0] for op in facts.memory_ops if not op.tile_axes and op.dtype in OFFSETS} - {None}
    over_all = all(groups.isdisjoint(op.subscript_axes) for op in (left, *stored))
    return right is not None and bool(groups) and groups <= {*right.subscript_axes} and over_all


def without_offsets(facts: KernelFacts) -> KernelFacts:
    """Return the facts without loads of single integers: those of the first rows of groups."""
    kept = tuple(op for op in facts.memory_ops if op.tile_axes or op.dtype not in OFFSETS)
    return replace(facts, memory_ops=kept)
