"""Parts of K that programs multiply and add to the output, as one matmul over all of K, which is added once.

::

    for tile_m, tile_n, part in hl.tile([m, n, k]):               for tile_m, tile_n in hl.tile([m, n]):
        for tile_k in hl.tile(part.begin, part.end):         →        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], ..., acc=acc)                 acc = hl.dot(x[tile_m, tile_k], ..., acc=acc)
        hl.atomic_add(out, [tile_m, tile_n], acc)                     hl.atomic_add(out, [tile_m, tile_n], acc)

The order of additions by atomics is open, so that both have the same results. Config keys split K again.
"""

from __future__ import annotations

import dataclasses

from ...._compiler.ir.grammar import (
    Bound,
    ForAttrs,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    Root,
    TileAttrs,
    Value,
)
from ...._compiler.ir.ops import OPS
from ...._compiler.passes.always.simplify import drop_dead
from ...._shapes import Expr, fixed_at
from ...._support.records import dataclass
from .numbers import equal

_SCALING = ("mul", "div", "neg")
"""Operations on an accumulator that commute with the sum over parts."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A ``program`` over all of K. ``block`` iterated over the parts; None where the program is the original one."""

    program: Program
    block: int | None = None


def without_parts(program: Program) -> Joined:
    """Return the program without a grid dimension of parts of K whose results are added by atomics."""
    unchanged = Joined(program=program)
    if len(program.roots) != 1:
        return unchanged
    (root,) = program.roots
    makers = {result.number: op for op in program.walk() for result in op.results}
    loops = [op for op in root.body.ops if op.kind == "for"]
    if len(loops) != 1 or len(loops[0].attributes(ForAttrs).axes) != 1:
        return unchanged
    (loop,), (inner,) = loops, loops[0].attributes(ForAttrs).axes
    block = _parted(loop, inner, makers)
    axis = next((each for each in root.axes if each.block == block), None)
    if block is None or axis is None or not _is_plain(axis):
        return unchanged
    once = _added_once(root, loop, block, makers)
    if once is None:
        return unchanged
    root, makers = once.root, makers | {op.result.number: op for op in once.root.body.ops if len(op.results) == 1}
    if not _adds(root, loop, makers, once.adds):
        return unchanged
    extent = program.blocks[block].extent
    if not isinstance(extent, (int, Expr)) or not equal(axis.end, extent):
        return unchanged
    whole = dataclasses.replace(inner, begin=0, end=extent)
    attrs = dataclasses.replace(loop.attributes(ForAttrs), axes=(whole,))
    joined = dataclasses.replace(loop, attrs=attrs, operands=loop.operands[: attrs.carried])
    ops = tuple(joined if op is loop else op for op in root.body.ops)
    axes = tuple(each for each in root.axes if each is not axis)
    blocks = tuple(
        dataclasses.replace(each, extent=extent) if each.id == inner.block else each for each in program.blocks
    )
    body = dataclasses.replace(root.body, ops=ops)
    found = dataclasses.replace(program, blocks=blocks, roots=(dataclasses.replace(root, axes=axes, body=body),))
    found = drop_dead(found)
    return unchanged if any(_uses(op, block) for op in found.walk()) else Joined(program=found, block=block)


def _uses(op: Op, block: int) -> bool:
    """Return whether an op has the position or the indices of a block."""
    if isinstance(op.attrs, (TileAttrs, IotaAttrs)):
        return op.attrs.block == block
    return isinstance(op.attrs, MemoryAttrs) and any(index.block == block for index in op.attrs.indices)


def _parted(loop: Op, inner: LoopAxis, makers: dict[int, Op]) -> int | None:
    """Return the block from whose begin to whose end a loop goes; None for others."""
    ends = [_tile(_bound(loop, bound), makers) for bound in (inner.begin, inner.end)]
    if None in ends or not _is_plain(dataclasses.replace(inner, begin=0)):
        return None
    begin, end = (each for each in ends if each is not None)
    return begin.block if (begin.field, end.field) == ("begin", "end") and begin.block == end.block else None


def _bound(op: Op, bound: Bound) -> Operand | Bound:
    return op.operands[bound.at] if isinstance(bound, OperandRef) else bound


def _tile(value: Operand | Bound, makers: dict[int, Op]) -> TileAttrs | None:
    op = makers.get(value.number) if isinstance(value, Value) else None
    return op.attrs if op is not None and isinstance(op.attrs, TileAttrs) else None


def _is_plain(axis: LoopAxis) -> bool:
    plain = not (axis.scalar or axis.merged or axis.split or axis.backwards) and axis.jagged is None
    return plain and fixed_at(axis.begin, 0) and fixed_at(axis.step, 1)


@dataclass(frozen=True, kw_only=True)
class _Once:
    """A ``root`` without the conditions of the first part. ``adds`` are the numbers of its additions, which one part has."""

    root: Root
    adds: frozenset[int]


def _added_once(root: Root, loop: Op, block: int, makers: dict[int, Op]) -> _Once | None:
    """Return the grid loop in which all parts have what the first one adds to its sums; None for other conditions."""
    ops, adds, values = list[Op](), set[int](), dict[int, Operand]()
    for op in root.body.ops:
        if not op.regions or op is loop:
            operands = tuple(values.get(x.number, x) if isinstance(x, Value) else x for x in op.operands)
            ops.append(op if operands == op.operands else dataclasses.replace(op, operands=operands))
            continue
        if op.kind != "if" or not _is_first_part(op.operands[0], block, makers):
            return None
        then, otherwise = op.regions
        if any(inner.regions or OPS[inner.kind].stays for inner in then.ops) or otherwise.ops:
            return None
        for result, added, kept in zip(op.results, then.results, otherwise.results, strict=True):
            made = makers.get(added.number) if isinstance(added, Value) else None
            more = [x for x in made.operands if x is not kept] if made is not None else []
            if made is None or made.attrs != PointwiseAttrs("add") or len(more) != 1 or _depends(more[0], loop, makers):
                return None
            adds.add(made.number)
            values[result.number] = added
        ops += then.ops
    body = dataclasses.replace(root.body, ops=tuple(ops))
    return _Once(root=dataclasses.replace(root, body=body) if adds else root, adds=frozenset(adds))


def _is_first_part(value: Operand, block: int, makers: dict[int, Op]) -> bool:
    """Return whether a condition is that a part is the first one."""
    op = makers.get(value.number) if isinstance(value, Value) else None
    if op is None or op.attrs != PointwiseAttrs("eq") or 0 not in op.operands:
        return False
    found = [_tile(x, makers) for x in op.operands]
    return any(each is not None and each.block == block and each.field in ("begin", "id") for each in found)


def _adds(root: Root, loop: Op, makers: dict[int, Op], once: frozenset[int]) -> bool:
    """Return whether all effects are additions of sums that start from zero, times what no part changes. ``once`` are the
    numbers of additions of one part."""
    effects = [op for op in root.body.walk() if OPS[op.kind].stays]
    starts = [makers.get(start.number) if isinstance(start, Value) else None for start in loop.operands]
    zero = all(
        made is not None and made.kind == "full" and made.operands[0] == 0
        for made in starts[: loop.attributes(ForAttrs).carried]
    )
    values = [op.operands[0] for op in effects]
    return (
        zero
        and all(op.kind == "atomic" for op in effects)
        and all(_is_sum(each, loop, makers, once) for each in values)
    )


def _is_sum(value: Operand, loop: Op, makers: dict[int, Op], once: frozenset[int]) -> bool:
    """Return whether a value is a result of the loop, or one times a factor, or plus what one part adds."""
    op = makers.get(value.number) if isinstance(value, Value) else None
    if op is None:
        return False
    if op is loop:
        return True
    if op.kind != "pointwise" or not op.result.dtype.is_floating_point:
        return False
    name = op.attributes(PointwiseAttrs).name
    summed = [each for each in op.operands if _depends(each, loop, makers)]
    if name == "cast":
        return _is_sum(op.operands[0], loop, makers, once)
    if op.number in once:
        return len(summed) == 1 and _is_sum(summed[0], loop, makers, once)
    first = name != "div" or (bool(summed) and summed[0] is op.operands[0])
    return name in _SCALING and len(summed) == 1 and first and _is_sum(summed[0], loop, makers, once)


def _depends(value: Operand, loop: Op, makers: dict[int, Op]) -> bool:
    op = makers.get(value.number) if isinstance(value, Value) else None
    return op is loop or (op is not None and any(_depends(each, loop, makers) for each in op.operands))
