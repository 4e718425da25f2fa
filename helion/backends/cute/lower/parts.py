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
from dataclasses import dataclass

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
    loops = [op for op in root.body.ops if op.regions]
    if len(loops) != 1 or loops[0].kind != "for" or len(loops[0].attributes(ForAttrs).axes) != 1:
        return unchanged
    (loop,), (inner,) = loops, loops[0].attributes(ForAttrs).axes
    block = _parted(loop, inner, makers)
    axis = next((each for each in root.axes if each.block == block), None)
    if block is None or axis is None or not _is_plain(axis) or not _adds(root, loop, makers):
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


def _adds(root: Root, loop: Op, makers: dict[int, Op]) -> bool:
    """Return whether all effects are additions of sums that start from zero, times what no part changes."""
    effects = [op for op in root.body.walk() if OPS[op.kind].stays]
    starts = [makers.get(start.number) if isinstance(start, Value) else None for start in loop.operands]
    zero = all(
        made is not None and made.kind == "full" and made.operands[0] == 0
        for made in starts[: loop.attributes(ForAttrs).carried]
    )
    values = [op.operands[0] for op in effects]
    return zero and all(op.kind == "atomic" for op in effects) and all(_is_sum(each, loop, makers) for each in values)


def _is_sum(value: Operand, loop: Op, makers: dict[int, Op]) -> bool:
    """Return whether a value is a result of the loop, or one times a factor."""
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
        return _is_sum(op.operands[0], loop, makers)
    first = name != "div" or (bool(summed) and summed[0] is op.operands[0])
    return name in _SCALING and len(summed) == 1 and first and _is_sum(summed[0], loop, makers)


def _depends(value: Operand, loop: Op, makers: dict[int, Op]) -> bool:
    op = makers.get(value.number) if isinstance(value, Value) else None
    return op is loop or (op is not None and any(_depends(each, loop, makers) for each in op.operands))
