"""Loops that count in 64 bits, because their bounds are data that may be near 2**31.

The counter of a loop with 32-bit bounds goes beyond the end by up to a tile. Where the end is less than a tile from
2**31, the counter would become negative, and the loop would never end. A loop whose index addresses a tensor needs
nothing: the tensor has fewer elements. Before::

    %4: [] i32 = load ends[%2]
    for b1 in %3 .. %4: ... full sum of indices, no access ...

After::

    %4: [] i32 = load ends[%2]
    %5: [] i64 = cast %4
    for b1 in %3 .. %5: ...
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from ...._compiler.ir.build import Builder, Numbers
from ...._compiler.ir.grammar import (
    ForAttrs,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    Program,
    TileAttrs,
    Value,
)
from ...._compiler.ir.rewrite import expand_ops
from ...._compiler.rewrites.steps import StepInputs
from ...._shapes import fixed_at


def count_widely(program: Program, inputs: StepInputs) -> Program:
    """Return the program with 64-bit bounds of loops over data whose counters may not fit 32 bits."""
    if program.index_dtype != torch.int32 or not any(map(_over_data, program.walk())):
        return program
    numbers = Numbers.after(program)

    def widen(op: Op) -> Iterable[Op]:
        wide = [axis for axis in _over_data(op) if not _addresses(op, axis.block)]
        made = Builder(numbers, op.location, [])
        operands: list[Operand] = list(op.operands)
        for bound in (bound for axis in wide for bound in (axis.begin, axis.end)):
            value = operands[bound.at] if isinstance(bound, OperandRef) else None
            if isinstance(value, Value) and value.dtype.itemsize <= torch.int32.itemsize:
                operands[bound.at] = made.cast(value, torch.int64)  # type: ignore[union-attr]
        return (*made.ops, replace(op, operands=tuple(operands))) if made.ops else (op,)

    return expand_ops(program, widen)


def _over_data(op: Op) -> tuple[LoopAxis, ...]:
    """Return the axes of a loop that end at a value, in steps of a tile."""
    if not isinstance(op.attrs, ForAttrs):
        return ()
    return tuple(
        axis
        for axis in op.attrs.axes
        if isinstance(axis.end, OperandRef) and not (axis.scalar and fixed_at(axis.step, 1))
    )


def _addresses(loop: Op, block: int) -> bool:
    """Return whether an access in each iteration of a loop depends on the indices of ``block``, without a mask."""
    (body,) = loop.regions
    made: set[int] = set()
    for op in body.ops:
        attrs = op.attrs
        if isinstance(attrs, MemoryAttrs) and attrs.mask is None and _depends(op, attrs, block, made):
            return True
        of_block = isinstance(attrs, (IotaAttrs, TileAttrs)) and attrs.block == block
        if of_block or any(value.number in made for value in op.reads()):
            made |= {result.number for result in op.results}
    return False


def _depends(access: Op, attrs: MemoryAttrs, block: int, made: set[int]) -> bool:
    """Return whether an access has the indices of ``block``, or one of the values ``made`` as an index."""
    values = (access.operands[index.operand] for index in attrs.indices if index.operand is not None)
    return any(index.block == block for index in attrs.indices) or any(
        isinstance(value, Value) and value.number in made for value in values
    )
