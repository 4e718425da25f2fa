"""Host numbers that addresses and loops depend on.

Triton compiles better addresses where it knows that a number is a multiple of 16, and other binaries for 1 and for
multiples of 16. A number that changes in a host loop would compile those in the middle of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...._compiler.ir.grammar import (
    AddressAttrs,
    ForAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    Program,
    Value,
)
from ...._compiler.ir.rewrite import Makers
from ...._shapes import Expr


def addressed(program: Program) -> list[Expr]:
    """Return the numbers that addresses and loop bounds depend on; all numbers if what a loop carries does."""
    roots = (axis for root in program.roots for axis in root.axes)
    found = [*_bounds((*roots, *(part for root in program.roots for axis in root.axes for part in axis.merged)))]
    found += [n for tensor in program.tensors for n in tensor.strides if isinstance(n, Expr)]
    makers = Makers.among(program.walk())
    waiting: list[Operand] = []
    for op in program.walk():
        found += _numbers(op)
        waiting += _operands(op)
    seen = set()
    while waiting:
        operand = waiting.pop()
        if not isinstance(operand, Value) or operand.number in seen:
            continue
        seen.add(operand.number)
        maker = makers.of(operand)
        if maker is None:
            return [op.attrs.expr for op in program.walk() if isinstance(op.attrs, NumberAttrs)] + found
        if isinstance(maker.attrs, NumberAttrs):
            found.append(maker.attrs.expr)
        waiting += maker.reads()
    return found


def _bounds(axes: tuple[LoopAxis, ...]) -> Iterator[Expr]:
    yield from (n for axis in axes for n in (axis.begin, axis.end, axis.step) if isinstance(n, Expr))


def _numbers(op: Op) -> Iterator[Expr]:
    """Yield the numbers of an op's addresses and bounds that are no operands."""
    if isinstance(op.attrs, ForAttrs):
        yield from _bounds(op.attrs.axes)
    elif isinstance(op.attrs, MemoryAttrs):
        yield from (index.shift for index in op.attrs.indices if isinstance(index.shift, Expr))


def _operands(op: Op) -> Iterator[Operand]:
    """Yield the operands that are addresses or bounds."""
    if isinstance(op.attrs, ForAttrs):
        yield from op.operands[op.attrs.carried :]
    elif isinstance(op.attrs, MemoryAttrs):
        yield from (op.operands[index.operand] for index in op.attrs.indices if index.operand is not None)
    elif isinstance(op.attrs, AddressAttrs):
        yield from op.operands
