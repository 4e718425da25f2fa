"""Facts derived from other facts: pointwise kernels, and matmuls with a reduction epilogue."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ..._shapes import cdiv, number_key
from ...hardware import VECTOR_BYTES
from ..ir.grammar import IotaAttrs, MemoryAttrs, Op, Operand, PointwiseAttrs, Program, Value
from ..ir.ops import OPS
from ..ir.pointwise import POINTWISE, POLYNOMIALS
from ..rewrites.flatten_loops import blocks_of_one, can_flatten, indexed_blocks
from .flow import Flow
from .records import (
    AccumulatorFact,
    AxisFact,
    MatmulFact,
    MatmulWithReductionEpilogueFact,
    MatmulWithTiledReductionEpilogueFact,
    MemoryOpFact,
    PointwiseFact,
    ReductionFact,
    WorkFact,
)
from .walk import Walk

#: Kinds of ops that call the random number generator.
RANDOM = ("random", "random4")
#: Number of loads of one tensor that make a window; two may be its halves.
_WINDOW = 3


def is_sfu(op: Op) -> bool:
    return isinstance(op.attrs, PointwiseAttrs) and POINTWISE[op.attrs.name].cost == "sfu"


def is_polynomial(op: Op) -> bool:
    return isinstance(op.attrs, PointwiseAttrs) and op.attrs.name in POLYNOMIALS


def work_facts(walk: Walk) -> tuple[WorkFact, ...]:
    counts: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for op in walk.pointwise:
        key = (walk.homes[op.number], walk.tile(op.results[0])[0])
        entry = counts.setdefault(key, [0, 0, 0, 0, 0])
        entry[0] += 1
        entry[1] += is_sfu(op)
        entry[2] += is_polynomial(op)
        entry[4] += any(_numbers(walk, operand, key[1][-1:]) for operand in op.operands)
    for op in walk.other:
        if op.kind in RANDOM:
            counts.setdefault((walk.homes[op.number], walk.tile(op.results[0])[0]), [0, 0, 0, 0, 0])[3] += 1
    return tuple(
        WorkFact(
            region=region,
            axes=axes,
            ops=ops,
            sfu_ops=sfu_ops,
            polynomials=polynomials,
            randoms=randoms,
            indices=indices,
        )
        for (region, axes), (ops, sfu_ops, polynomials, randoms, indices) in counts.items()
    )


def _numbers(walk: Walk, operand: Operand, axes: tuple[int, ...]) -> bool:
    """Return whether an operand is the index of an axis, possibly reshaped."""
    made = walk.makers.ops.get(operand.number) if isinstance(operand, Value) else None
    while made is not None and made.kind == "view":
        source = made.operands[0]
        made = walk.makers.ops.get(source.number) if isinstance(source, Value) else None
    return made is not None and isinstance(made.attrs, IotaAttrs) and (made.attrs.block,) == axes


def reduced_products(walk: Walk, flow: Flow) -> frozenset[tuple[int, int]]:
    """Return region and axis of the reductions that a dot's result reaches. Reductions of an operand precede the
    dot."""
    products = 0
    for op in walk.dots:
        products |= flow.of(op.results[0])
    return frozenset((walk.homes[op.number], axis) for op, axis, bit in flow.reduce_bits if products & bit)


def epilogue_fact(
    matmuls: tuple[MatmulFact, ...],
    reductions: tuple[ReductionFact, ...],
    axes: tuple[AxisFact, ...],
    products: frozenset[tuple[int, int]],
) -> MatmulWithReductionEpilogueFact | None:
    """Return the fact of a matmul with a reduction epilogue, if it applies.

    ``products`` are the region and axis of reductions that a dot's result reaches.
    """
    sized = [fact for fact in reductions if fact.sized]
    if len(matmuls) != 1 or len(sized) != 1 or not sized[0].full_extent or sized[0].axis != matmuls[0].n_axis:
        return None
    if (sized[0].region, sized[0].axis) not in products:
        return None
    n_extent = axes[sized[0].axis].padded
    return MatmulWithReductionEpilogueFact(matmul=matmuls[0], reduction=sized[0], n_extent=n_extent)


def tiled_epilogue_fact(
    matmuls: tuple[MatmulFact, ...],
    reductions: tuple[ReductionFact, ...],
    axes: tuple[AxisFact, ...],
    products: frozenset[tuple[int, int]],
) -> MatmulWithTiledReductionEpilogueFact | None:
    """Return the fact of matmuls with a tiled reduction epilogue, if it applies.

    ``products`` are the region and axis of reductions that a dot's result reaches.
    """
    sized = tuple(fact for fact in reductions if fact.sized)
    rows = {fact.m_block_id for fact in matmuls}
    columns = tuple(dict.fromkeys(fact.n_block_id for fact in matmuls if fact.n_block_id is not None))
    m = rows.pop() if len(rows) == 1 else None
    if m is None or not axes[m].on_grid or any(fact.n_block_id is None for fact in matmuls):
        return None
    if not sized or any(axes[n].on_grid for n in columns) or any(fact.axis not in columns for fact in sized):
        return None
    if not any((fact.region, fact.axis) in products for fact in sized):
        return None
    summands = tuple(dict.fromkeys(fact.k_block_id for fact in matmuls if fact.k_block_id is not None))
    widths = {axes[n].extent for n in columns}
    applied = (
        axis.block_id
        for axis in axes
        if axis.tunable and not axis.on_grid and axis.extent in widths and axis.block_id not in (*columns, *summands)
    )
    return MatmulWithTiledReductionEpilogueFact(
        matmuls=matmuls,
        reductions=sized,
        m_block_id=m,
        n_block_ids=columns,
        k_block_ids=summands,
        apply_axes=tuple(applied),
    )


def pointwise_fact(
    walk: Walk,
    flow: Flow,
    axes: tuple[AxisFact, ...],
    memory_ops: tuple[MemoryOpFact, ...],
    accumulators: tuple[AccumulatorFact, ...],
    reductions: tuple[ReductionFact, ...],
) -> PointwiseFact | None:
    tiled = {axis.block_id: axis for axis in axes if axis.tunable}
    if walk.dots or accumulators or not memory_ops or not tiled or any(fact.sized for fact in reductions):
        return None
    if walk.scans or walk.atomics or any(not OPS[op.kind].tile_independent for op in walk.other):
        return None
    # Programs of axes with a fixed tile share no elements.
    fixed = {a.block_id: a.size for a in axes if a.on_grid and a.block_id not in tiled and a.size is not None}
    elements = {block: axis.extent or 1 for block, axis in tiled.items()}
    elements |= {axis: cdiv(axes[axis].extent or 1, size) for axis, size in fixed.items()}
    loops = (
        {a for region in walk.regions if region.root == root for a in region.axes}
        for root in range(len(walk.program.roots))
    )
    total = max(math.prod(elements.get(axis, 1) for axis in loop) for loop in loops)
    full = [op for op in memory_ops if 2 * op.accessed_numel >= total]
    contiguous: dict[int, None] = {}
    gather_stride, max_slab = 1, 1
    for op in full:
        slab = 1
        for axis, stride, extent, scale in zip(op.subscript_axes, op.strides, op.extents, op.scales, strict=True):
            if axis in tiled:
                if stride == 1:
                    contiguous[axis] = None
                    gather_stride = max(gather_stride, scale)
            else:
                slab *= fixed.get(axis, extent) if axis is not None and stride else 1
        max_slab = max(max_slab, slab)
    beside = _beside_run(walk.program, axes, memory_ops)
    numbered = beside is not None and not indexed_blocks(walk.program).isdisjoint(
        a.block for a in walk.program.roots[0].axes
    )
    static = all(
        op.static for op in memory_ops
    )  # each element is divided by other sizes, which takes tens of instructions
    return PointwiseFact(
        total_numel=max(1, total),
        slab_numel=_slab(full, tiled, max(1, total)),
        storage_itemsize=max((op.itemsize for op in full or memory_ops), default=1),
        compute_itemsize=_compute_itemsize(walk, flow, memory_ops),
        contiguous_axes=tuple(sorted(contiguous)),
        gather_stride=gather_stride,
        max_op_slab=max_slab,
        one_run=beside == () and not numbered,
        rows_beside_run=static and _are_rows(beside, memory_ops, total) and not numbered,
        run_order=() if numbered or beside is None else _run_order(walk.program, axes, memory_ops, total),
        window_axes=_window_axes(walk, memory_ops, tiled),
        numbered_run=numbered
        and static
        and all(_is_apart(op) or _is_few(op, total) for op in beside or ())
        # Windows around the position of a tile of one are alike in tiles and in a run.
        and (not blocks_of_one(walk.program) or any(op.gathered for op in memory_ops)),
    )


def _window_axes(walk: Walk, memory_ops: Iterable[MemoryOpFact], tiled: Collection[int]) -> tuple[int, ...]:
    """Return the axes along which loads of one tensor are at three or more positions, half of which neighbours share."""
    loads = {op.slot: op for op in memory_ops if op.kind == "load" and not op.gathered}
    positions: dict[tuple[int, int, int], set[Any]] = {}
    for op in walk.loads:
        attrs = op.attributes(MemoryAttrs)
        if (fact := loads.get(attrs.slot)) is None:
            continue
        for axis, scale, index in zip(fact.subscript_axes, fact.scales, attrs.indices, strict=True):
            if axis is not None and axis in tiled:
                operand = None if index.operand is None else op.operands[index.operand]
                at = operand.number if isinstance(operand, Value) else number_key(operand)
                positions.setdefault((attrs.tensor, axis, scale), set()).add((at, number_key(index.shift)))
    return tuple(sorted({axis for (_, axis, scale), at in positions.items() if len(at) >= max(_WINDOW, 2 * scale)}))


#: Minimal ratio of a run's elements to those of a row for the caches to keep the row.
_ROW_REUSE = 16


def _run_order(
    program: Program, axes: tuple[AxisFact, ...], memory_ops: tuple[MemoryOpFact, ...], total: int
) -> tuple[int, ...]:
    """Return the order of the grid in which its stores are one run, next to loads of few elements; empty if it is none."""
    grid = [axis.block for axis in program.roots[0].axes]
    stores = [op for op in memory_ops if op.kind == "store"]
    strides = dict(zip(stores[0].subscript_axes, stores[0].strides, strict=True)) if stores else {}
    if not set(grid) <= strides.keys():
        return ()
    order = tuple(sorted(range(len(grid)), key=lambda at: -strides[grid[at]]))
    if order == tuple(range(len(grid))) or not all(op.static for op in memory_ops):
        return ()
    beside = _beside_run(program, axes, memory_ops, order)
    return order if _are_rows(beside, memory_ops, total) and not {op.kind for op in beside or ()} - {"load"} else ()


def _beside_run(
    program: Program,
    axes: tuple[AxisFact, ...],
    memory_ops: tuple[MemoryOpFact, ...],
    order: tuple[int, ...] = (),
) -> tuple[MemoryOpFact, ...] | None:
    """Return the accesses along the grid that are not contiguous; None if the grid cannot be flattened.

    ``order`` are its axes by position, the slowest-varying among the elements of a tile first.
    Loads of a table at places that data of each element selects are not among them: the order of elements is no
    order of the table.
    """
    grid = program.roots[0].axes
    if len(program.roots) > 1 or len(grid) < 2 or can_flatten(program, 0) is not None:
        return None
    extents = {grid[at].block: axes[grid[at].block].extent for at in order or range(len(grid))}
    tiled = [op for op in memory_ops if op.gathered or not extents.keys().isdisjoint(op.subscript_axes)]
    apart = (op for op in tiled if not _is_looked_up(op, extents))
    ran = (op for op in apart if not op.is_one_run(extents, _parts(op, tiled)))
    return tuple(op for op in ran if not op.is_run_in_part(extents, VECTOR_BYTES))


def _is_looked_up(op: MemoryOpFact, extents: Collection[int]) -> bool:
    selected = op.kind == "load" and op.gathered and all(axis is None for axis in op.subscript_axes)
    return selected and set(op.tile_axes) == set(extents)


def _parts(op: MemoryOpFact, others: Iterable[MemoryOpFact]) -> int:
    """Return the parts of an element, such as those of a complex number, if accesses of one kind take each of them."""
    if op.subscript_axes[-1] is not None or op.gathered or op.strides[-1] != 1:
        return 1
    place = (op.kind, op.name, op.subscript_axes)
    return (
        op.extents[-1]
        if sum((each.kind, each.name, each.subscript_axes) == place for each in others) >= op.extents[-1]
        else 1
    )


def _are_rows(beside: tuple[MemoryOpFact, ...] | None, memory_ops: tuple[MemoryOpFact, ...], total: int) -> bool:
    """Return whether the accesses outside the run are loads of few elements, such as a bias, that caches keep for all
    programs."""
    if not beside or len(beside) == len(memory_ops):
        return False
    return all(_is_few(op, total) and op.static and not op.gathered for op in beside)


def _is_apart(op: MemoryOpFact) -> bool:
    """Return whether a load's elements are not neighbours in memory, as those of every second row and column."""
    return op.kind == "load" and (op.gathered or (op.static and op.step > 1))


def _is_few(op: MemoryOpFact, total: int) -> bool:
    """Return whether an access is a load of elements that caches keep."""
    return op.kind == "load" and _ROW_REUSE * op.accessed_numel <= total


def _slab(full: Sequence[MemoryOpFact], tiled: Collection[int], total: int) -> int:
    """Return the elements in memory for each of ``total``.

    Loads of a window, three or more of one tensor around the same position, count once, since the others hit the cache.
    """
    reached: dict[tuple[str, str], list[MemoryOpFact]] = {}
    for op in full:
        reached.setdefault((op.kind, op.name), []).append(op)
    slab = 0
    for (kind, _), ops in reached.items():
        near = all(set(op.tile_axes) <= set(tiled) and not op.gathered for op in ops)
        is_window = kind == "load" and len(ops) >= _WINDOW and near
        slab += 1 if is_window else sum(max(1, op.accessed_numel // total) for op in ops)
    return max(1, slab)


def _compute_itemsize(walk: Walk, flow: Flow, memory_ops: tuple[MemoryOpFact, ...]) -> int:
    """Return the bytes of the widest value that reaches a store, without index arithmetic."""
    widths = [
        op.results[0].dtype.itemsize
        for op in (*walk.loads, *walk.pointwise)
        if op.results[0].dims and flow.of(op.results[0]) & flow.stores
    ]
    return max(widths, default=max(op.itemsize for op in memory_ops))
