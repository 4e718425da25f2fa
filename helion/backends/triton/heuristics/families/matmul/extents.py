"""Extents and number of the matmuls of a kernel, where the axes alone do not give them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ......_compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact
from ......_shapes import cdiv, next_power_of_2, previous_power_of_2
from ......_support.records import dataclass
from ....resources.matrix import ASYNC_ROWS
from ...sizing import extent_of, is_chosen

#: Least side of a tile that matrix units take.
MIN_SIDE = 16


@dataclass(frozen=True, kw_only=True)
class Extents:
    """One matmul of ``m`` by ``n`` by ``k`` elements, for each of ``batch`` others of the grid.

    An extent that depends on data or on another tile is the operand's, divided by the number of grid tiles that do not
    index it. For groups this is the mean number of rows. ``span`` is a tile of the grid that bounds K, so that several
    programs compute split-K partials of one matmul. ``steps`` are those of the loops of a program around the loop over K,
    and ``inner`` those of the innermost of them.
    """

    m: int
    n: int
    k: int
    batch: int
    span: int | None
    steps: int = 1
    inner: int = 1


def product_extents(facts: KernelFacts) -> Extents | str:
    """Return the extents of the kernel's first dot over three tiles of its own, or the reason why one is not known."""
    fact = facts.matmuls[0]
    grid = _grid_around(facts, fact)
    found = {}
    for side, axis, slots in (
        ("M", fact.m_block_id, (fact.lhs_slot,)),
        ("N", fact.n_block_id, (fact.rhs_slot,)),
        ("K", fact.k_block_id, (fact.lhs_slot, fact.rhs_slot)),
    ):
        assert axis is not None
        extent = next((e for slot in slots if (e := _extent(facts, axis, slot, grid)) is not None), None)
        if extent is None:
            return f"{side} of the matmul depends on data, and no operand has an axis of its own for it"
        found[side] = extent
    assert fact.k_block_id is not None
    outer = facts.axes[fact.k_block_id].outer
    span = outer if outer in grid and outer is not None and is_chosen(facts.axes[outer]) else None
    others = grid - {fact.m_block_id, fact.n_block_id, span}
    batch = math.prod(cdiv(extent_of(facts.axes[axis]), facts.axes[axis].size or 1) for axis in others)
    around = _steps_around(facts, fact, grid)
    sides = {"m": found["M"], "n": found["N"], "k": found["K"]}
    return Extents(**sides, batch=batch, span=span, steps=math.prod(around), inner=around[-1] if around else 1)


def _grid_around(facts: KernelFacts, fact: MatmulFact) -> set[int]:
    return {axis for axis in facts.enclosing_axes(fact.region) if facts.axes[axis].on_grid}


def _steps_around(facts: KernelFacts, fact: MatmulFact, grid: set[int]) -> list[int]:
    """Return the steps of each loop of a program around the loop over K, the outermost first."""
    around = [axis for axis in facts.enclosing_axes(fact.region) if axis not in grid and axis != fact.k_block_id]
    return [cdiv(extent_of(facts.axes[axis]), facts.axes[axis].size or 1) for axis in around]


def _extent(facts: KernelFacts, axis: int, slot: int | None, grid: set[int]) -> int | None:
    known = facts.axes[axis]
    if known.extent is not None:
        return known.extent
    if known.outer is not None and facts.axes[known.outer].extent is not None:
        return facts.axes[known.outer].extent
    for op in facts.memory_ops:
        if op.slot == slot and axis in op.subscript_axes:
            dot = facts.matmuls[0]
            sharing = grid - {dot.m_block_id, dot.n_block_id} - set(op.subscript_axes)
            parts = math.prod(extent_of(facts.axes[a]) for a in sharing)
            return max(1, cdiv(op.extents[op.subscript_axes.index(axis)], parts))
    return None


def within_rows(op: MemoryOpFact) -> Iterator[int]:
    """Yield the axes along which a program's rows are pieces of longer rows."""
    places = [*zip(op.subscript_axes, op.strides, op.extents, strict=True)]
    longest = max((stride for axis, stride, _ in places if axis in op.tile_axes), default=0)
    for axis, stride, extent in places:
        if axis is not None and axis not in op.tile_axes and extent > 1 and stride < longest:
            yield axis


def begins_with_pieces(facts: KernelFacts, fact: MatmulFact) -> bool:
    """Return whether the first axis of the matmul's grid is one of pieces of rows (measurement ``grouped_pieces``).

    Programs of all pieces read whole rows together.
    """
    root = facts.regions[fact.region].root
    first = {region.axes[:1] for region in facts.regions if region.kind == "root" and region.root == root}
    return any((axis,) in first for op in facts.memory_ops for axis in within_rows(op))


def is_branched(facts: KernelFacts, region: int) -> bool:
    """Return whether a condition of the grid's tiles decides if a region runs, so that tiles differ in their work."""
    at: int | None = region
    while at is not None and facts.regions[at].kind != "branch":
        at = facts.regions[at].parent
    return at is not None


def axes_beside(facts: KernelFacts) -> tuple[int, ...]:
    """Return the tiles of separate loops as long as K, such as one that computes the norm of an operand's rows."""
    fact = facts.matmuls[0]
    assert fact.k_block_id is not None
    own, k = (fact.m_block_id, fact.n_block_id, fact.k_block_id), facts.axes[fact.k_block_id]
    return tuple(
        axis.block_id
        for axis in facts.tunable_axes
        if axis.block_id not in own and not axis.on_grid and k.extent is not None and axis.extent == k.extent
    )


def largest_side(extent: int) -> int:
    """Return the largest tile for a side.

    Two tiles would read the other operand twice, and only pay where the second has little to do. A short side has one tile:
    two of half its size compute as many padded rows (measurement ``rows_in_one_tile``).
    """
    if extent <= ASYNC_ROWS:
        return max(MIN_SIDE, next_power_of_2(extent))
    below = previous_power_of_2(extent)
    return max(MIN_SIDE, 2 * below if 2 * extent >= 3 * below and extent > below else below)
