"""Facts of tiles of a grid whose lines are reduced, as if of the matmuls of a batch: one for each tile."""

from __future__ import annotations

from dataclasses import replace

from ...._compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact
from ..lower.rewrites.panels import lines_of_panels


def with_panels(facts: KernelFacts) -> KernelFacts:
    """Return the facts with an axis of panels on the grid, and a whole axis of the lines of one in place of its tiles."""
    facts = _with_rows_of_blocks(facts)
    found = next((fact.axis for fact in facts.reductions if _is_panel(facts, fact.axis)), None)
    if found is None:
        return facts
    axis, number = facts.axes[found], len(facts.axes)
    size = lines_of_panels(axis.size, axis.extent)
    assert size is not None and axis.extent is not None
    lines = replace(axis, kind="full", extent=size, padded=size, size=None, on_grid=False, roots=())
    panels = replace(axis, block_id=number, kind="scalar", extent=axis.extent // size, size=None, min_size=1)

    def changed(op: MemoryOpFact) -> MemoryOpFact:
        if found not in op.subscript_axes:
            return op
        at = op.subscript_axes.index(found)
        step = op.strides[at]
        return replace(
            op,
            subscript_axes=(*op.subscript_axes[:at], number, *op.subscript_axes[at:]),
            strides=(*op.strides[:at], step * size, *op.strides[at:]),
            extents=(*op.extents[:at], op.extents[at] // size, size, *op.extents[at + 1 :]),
            scales=(*op.scales[:at], 1, *op.scales[at:]),
        )

    return replace(
        facts,
        axes=(*(lines if each is axis else each for each in facts.axes), panels),
        grid_axes=tuple(number if at == found else at for at in facts.grid_axes),
        regions=tuple(
            replace(each, axes=tuple(number if at == found else at for at in each.axes))
            if each.parent is None
            else each
            for each in facts.regions
        ),
        memory_ops=tuple(map(changed, facts.memory_ops)),
        matmuls=tuple(_turned(fact) if fact.m_axis == found else fact for fact in facts.matmuls),
        atomics=tuple(map(changed, facts.atomics)),
    )


def _with_rows_of_blocks(facts: KernelFacts) -> KernelFacts:
    """Return the facts of blocks of rows and columns that are reduced as if rows were: with a number for each row."""
    for fact in facts.matmuls:
        if fact.m_axis is None or fact.n_axis is None:
            continue
        rows, columns = facts.axes[fact.m_axis], facts.axes[fact.n_axis]
        blocks = [each.extent // each.size if each.extent is not None and each.size else 0 for each in (rows, columns)]
        stored = [op for op in facts.memory_ops if op.kind == "store" and op.subscript_axes == (None, None)]
        stored = [op for op in stored if op.extents == tuple(blocks)]
        if not stored or {fact.m_axis, fact.n_axis} - {each.axis for each in facts.reductions}:
            continue
        numbers = (replace(op, subscript_axes=(fact.m_axis, None)) if op in stored else op for op in facts.memory_ops)
        reductions = tuple(each for each in facts.reductions if each.axis != fact.m_axis)
        return replace(facts, memory_ops=tuple(numbers), reductions=reductions)
    return facts


def _turned(fact: MatmulFact) -> MatmulFact:
    """Return the fact of the transposed matmul."""
    return replace(
        fact,
        m_block_id=fact.n_block_id,
        n_block_id=fact.m_block_id,
        m_axis=fact.n_axis,
        n_axis=fact.m_axis,
        static_m=fact.static_n,
        static_n=fact.static_m,
        lhs_dtype=fact.rhs_dtype,
        rhs_dtype=fact.lhs_dtype,
        lhs_slot=fact.rhs_slot,
        rhs_slot=fact.lhs_slot,
        lhs_layout=fact.rhs_layout,
        rhs_layout=fact.lhs_layout,
        lhs_prologue=fact.rhs_prologue,
        rhs_prologue=fact.lhs_prologue,
    )


def _is_panel(facts: KernelFacts, at: int) -> bool:
    """Return whether an axis has whole panels on the grid, of rows or columns of a matmul."""
    axis = facts.axes[at]
    if axis.kind not in ("fixed", "tile") or not axis.on_grid or not axis.static or axis.outer is not None:
        return False
    of_matmul = any(at in (fact.m_axis, fact.n_axis) for fact in facts.matmuls)
    return of_matmul and lines_of_panels(axis.size, axis.extent) is not None
