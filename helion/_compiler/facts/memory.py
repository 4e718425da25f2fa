"""Memory accesses: one fact per load and store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ..._shapes import Expr, Number, number_key
from ..ir.bins import bins_of
from ..ir.grammar import HostTensor, Index, IotaAttrs, MemoryAttrs, Op, Operand, PointwiseAttrs, TileAttrs, Value
from .axes import count
from .flow import Flow
from .lookups import quotient, selecting
from .merged import MergedTiles
from .nearby import steps_of
from .records import AxisFact, MemoryOpFact
from .walk import MAX_HOPS, Walk

#: Bytes in memory after which an index may begin again: those of two sectors.
_RUN_BYTES = 64


def memory_facts(
    walk: Walk,
    flow: Flow,
    axes: tuple[AxisFact, ...],
    operands: dict[int, Literal["lhs", "rhs"]],
    looped: Mapping[int, Mapping[int, int]],
) -> tuple[MemoryOpFact, ...]:
    """Return the facts of loads and stores, by slot.

    ``operands`` has the roles of dot operands by slot. ``looped`` has, by rollable axis, the number of times that each
    load runs in chunks.
    """
    casts, merged = _casts(walk), MergedTiles(walk)
    facts = [_fact(op, walk, flow, axes, operands, looped, casts, merged) for op in (*walk.loads, *walk.stores)]
    return tuple(sorted(facts, key=lambda fact: fact.slot))


def atomic_facts(walk: Walk, flow: Flow, axes: tuple[AxisFact, ...]) -> tuple[MemoryOpFact, ...]:
    read = {value.number for op in walk.program.walk() for value in op.reads()} if walk.atomics else set()
    facts = [(op, _fact(op, walk, flow, axes, {}, {}, {}, MergedTiles(walk))) for op in walk.atomics]
    named = [(op, replace(fact, atomic=op.attributes(MemoryAttrs).atomic or "")) for op, fact in facts]
    return tuple(fact if op.result.number in read else _with_bins(fact, op, walk) for op, fact in named)


def _casts(walk: Walk) -> dict[int, list[Op]]:
    """Return the conversions of each value that has some, by its number."""
    found: dict[int, list[Op]] = {}
    for op in walk.pointwise:
        if isinstance(op.attrs, PointwiseAttrs) and op.attrs.name == "cast":
            for value in op.values():
                found.setdefault(value.number, []).append(op)
    return found


def _fact(
    op: Op,
    walk: Walk,
    flow: Flow,
    axes: tuple[AxisFact, ...],
    operands: dict[int, Literal["lhs", "rhs"]],
    looped: Mapping[int, Mapping[int, int]],
    casts: Mapping[int, list[Op]],
    merged: MergedTiles,
) -> MemoryOpFact:
    attrs = op.attributes(MemoryAttrs)
    tensor = walk.program.tensors[attrs.tensor]
    strides = tuple(map(count, tensor.strides))
    extents = tuple(map(count, tensor.shape))
    found = [_subscript(index, op, walk, merged) for index in attrs.indices]
    tile_axes = walk.tile(op.results[0])[0]
    bits = flow.of(op.results[0]) if op.kind == "load" else 0
    fed: dict[int, int] = {}
    if bits:
        for _, axis, bit in flow.reduce_bits:
            if bits & bit:
                fed[axis] = fed.get(axis, 0) + 1
    converted = casts.get(op.results[0].number, ()) if op.kind == "load" else ()
    widened = max((use.results[0].dtype.itemsize for use in converted), default=0)
    gathered = any(
        index.kind == "tensor" and axis is None for index, (axis, _, _) in zip(attrs.indices, found, strict=True)
    )
    quotients = tuple(_quotients(op, attrs.indices, tile_axes, walk))
    # neighbours along the last axis that share elements by groups have no step
    grouped = any(axis == tile_axes[-1] for axis, _ in quotients if tile_axes)
    return MemoryOpFact(
        slot=attrs.slot,
        load_slot=attrs.load_slot,
        kind=op.kind,  # type: ignore[arg-type]
        storage=tensor.storage,
        name=tensor.name,
        dtype=tensor.dtype,
        region=walk.homes[op.number],
        tile_axes=tile_axes,
        subscript_axes=tuple(axis for axis, _, _ in found),
        strides=strides,
        extents=extents,
        scales=tuple(scale for _, scale, _ in found),
        gathered=gathered,
        steps=steps_of(op, walk, axes) if gathered and not grouped else (),
        accessed_numel=_accessed(attrs, found, strides, extents, axes),
        matmul_operand=operands.get(attrs.slot) if op.kind == "load" else None,
        reductions_fed=tuple(sorted(fed.items())),
        feeds_store=bool(bits & flow.stores),
        looped=tuple((axis, looped[axis][attrs.slot]) for axis in tile_axes if axis in looped and op.kind == "load"),
        cast_itemsize=max(tensor.dtype.itemsize, widened),
        place=tensor.place,
        static=not any(isinstance(number, Expr) for number in (*tensor.shape, *tensor.strides)),
        row_major=_is_row_major(tensor),
        quotients=quotients,
        after=sum(walk.order[dot.number] < walk.order[op.number] for dot in walk.dots),
        per_tile=op.kind == "store" and _depends_on_tiles(tensor),
    )


def _quotients(op: Op, indices: Sequence[Index], tile_axes: tuple[int, ...], walk: Walk) -> Iterator[tuple[int, int]]:
    """Yield the axes of a tile along which neighbours share an element, each with the number of them.

    No other subscript varies along such an axis, as one does in ``x[i // 9, i % 9]``.
    """
    for index in indices:
        divided = quotient(walk, op.operands[index.operand]) if index.operand is not None else None
        if divided is None or divided[0] not in tile_axes:
            continue
        others = (other for other in indices if other is not index)
        if not any(divided[0] in _varying(op, other, walk) for other in others):
            yield divided


def _varying(op: Op, index: Index, walk: Walk) -> frozenset[int]:
    """Return the axes whose indices a subscript is computed from."""
    if index.operand is not None:
        return selecting(walk, op.operands[index.operand], MAX_HOPS)
    return frozenset() if index.block is None else frozenset((index.block,))


def _depends_on_tiles(tensor: HostTensor) -> bool:
    """Return whether the number of elements of a tensor depends on the size of a tile."""
    return any(leaf.op == "block" for size in tensor.shape if isinstance(size, Expr) for leaf in size.leaves())


def _is_row_major(tensor: HostTensor) -> bool:
    following: Number = 1
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if number_key(stride) != number_key(following):
            return False
        following *= extent
    return True


def _with_bins(fact: MemoryOpFact, op: Op, walk: Walk) -> MemoryOpFact:
    found = bins_of(op, walk.makers, walk.program)
    return fact if found is None else replace(fact, bins=count(found.size), summed=found.amount is None)


def _accessed(
    attrs: MemoryAttrs,
    found: list[tuple[int | None, int, int]],
    strides: tuple[int, ...],
    extents: tuple[int, ...],
    axes: tuple[AxisFact, ...],
) -> int:
    """Return the number of different elements that all programs together access; dimensions of stride 0 are one
    element."""
    numel = 1
    for index, (axis, _, lanes), stride, extent in zip(attrs.indices, found, strides, extents, strict=True):
        if stride == 0 or (index.kind == "scalar" and axis is None and index.operand is None):
            continue
        reach = None if axis is None else axes[axis].extent
        numel *= extent if reach is None else min(extent, reach * lanes)
    return numel


def _subscript(index: Index, op: Op, walk: Walk, merged: MergedTiles) -> tuple[int | None, int, int]:
    """Return the axis of a subscript, the factor on its index, and the lanes for each of its elements.

    For a constant subscript the factor is its distance from the first element.
    """
    if index.kind == "block":
        return index.block, 1, 1
    if index.operand is None:
        return None, abs(index.shift) if isinstance(index.shift, int) else 1, 1
    operand = op.operands[index.operand]
    tile = merged.lanes_of(operand) if index.kind == "tensor" else None
    run = _RUN_BYTES // walk.program.tensors[op.attrs.tensor].dtype.itemsize
    return (tile[0], 1, tile[1]) if tile is not None else (*_affine(operand, walk, run), 1)


def _affine(operand: Operand, walk: Walk, run: int) -> tuple[int | None, int]:
    """Follow multiplications by and additions of constants, casts and views back to an index; (None, 1) for anything
    else. An index may begin again after ``run`` or more elements."""
    scale = 1
    for _ in range(MAX_HOPS):
        op = walk.makers.of(operand)
        if op is None:
            break
        if isinstance(op.attrs, IotaAttrs):
            return op.attrs.block, scale * abs(op.attrs.step)
        if isinstance(op.attrs, TileAttrs) and op.attrs.field in ("begin", "index"):
            return op.attrs.block, scale
        values = [v for v in op.operands if isinstance(v, Value) and not _is_number(v, walk)]
        if op.kind not in ("pointwise", "view") or len(values) != 1:
            break
        name = op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else "view"
        constants = [v for v in op.operands if isinstance(v, int)]
        if name == "mul":
            if not constants:
                break
            scale *= abs(constants[0]) or 1
        elif name == "remainder":
            if op.operands[1:] != tuple(constants) or constants[0] < run or not _is_place(values[0], walk):
                break
        elif name not in ("add", "sub", "cast", "view"):
            break
        operand = values[0]
    return None, 1


def _is_place(value: Value, walk: Walk) -> bool:
    """Return whether the value has the places of a tile."""
    op = walk.makers.of(value)
    return op is not None and isinstance(op.attrs, IotaAttrs)


def _is_number(value: Value, walk: Walk) -> bool:
    """Return whether the value is a host number, equal in all programs."""
    op = walk.makers.of(value)
    return op is not None and op.kind == "number"
