"""Divisions of indices, as C divides: Triton then knows which neighbours they keep.

Floor division by a power of two is a shift, and its remainder a mask. Triton's analysis of axes follows neither, so
``out[i // 32, j % 32]`` is stored in single elements (measurement ``divided_subscripts``). It follows C's division, which
is the same for numbers that are not negative. Before::

    %1: [b0] = iota b0; %2 = remainder %1, 32; store out[.., %2]

After::

    %1: [b0] = iota b0; %2 = fmod %1, 32; store out[.., %2]

Products and sums are excluded: they may wrap around to negative numbers.

A GPU divides 64-bit integers in a subroutine of about 100 instructions. A product with ``(2**63 - 1) // divisor`` takes a
third of them, and a thread computes that number once for all its elements. Before::

    %2 = remainder %1, %0       # %1: a tile of int64; %0: a scalar

After::

    %2 = inline _long_remainder(%1, %0)

Divisors that the compiler knows are left: LLVM multiplies by their reciprocals already.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..._compiler.ir.grammar import (
    ForAttrs,
    InlineAttrs,
    IotaAttrs,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Root,
    TileAttrs,
    Value,
)
from ..._compiler.ir.loops import loops_of
from ..._compiler.ir.rewrite import Makers, map_ops
from ..._compiler.rewrites.steps import StepInputs
from ..._shapes import is_power_of_2

#: C's division and remainder, by those that round down.
_OF_C = {"floordiv": "truncdiv", "remainder": "fmod"}
#: Ops that keep what they are given from being negative, and fields of tiles that are not.
_KEEPING = frozenset((*_OF_C, *_OF_C.values(), "cast", "minimum"))
_FIELDS = frozenset(("begin", "id", "index", "count"))
#: Lines that divide a tile of int64 by a scalar, by op.
_LONG = {
    name: InlineAttrs((f"{helper}({{0}}.to(tl.int64), tl.cast({{1}}, tl.int64))",), effect="none")
    for name, helper in {"floordiv": "_long_floordiv", "remainder": "_long_remainder"}.items()
}


def divide_naturals(program: Program, inputs: StepInputs) -> Program:
    """Return the program with C's division of indices by constants.

    By powers of two it is one only for subscripts, because shifts are shorter.
    """
    if not any(_divisor(op) for op in program.walk()):
        return program
    known = _Known(program)

    def change(op: Op) -> Op:
        by = _divisor(op)
        if not by or not known.is_natural(op.operands[0]) or (is_power_of_2(by) and op.number not in known.subscripts):
            return op
        return replace(op, attrs=PointwiseAttrs(_OF_C[op.attributes(PointwiseAttrs).name]))

    return map_ops(program, change)


def multiply_by_reciprocals(program: Program, inputs: StepInputs) -> Program:
    """Return the program with products for divisions of int64 tiles by scalars."""

    def change(op: Op) -> Op:
        return replace(op, kind="inline", attrs=_LONG[op.attributes(PointwiseAttrs).name]) if _is_long(op) else op

    return map_ops(program, change)


def _is_long(op: Op) -> bool:
    if not isinstance(op.attrs, PointwiseAttrs) or op.attrs.name not in _LONG or op.result.dtype != torch.int64:
        return False
    dividend, divisor = op.operands
    return (
        isinstance(dividend, Value)
        and isinstance(divisor, Value)
        and all(each.dtype.is_signed for each in (dividend, divisor))
        and any(not dim.is_one for dim in dividend.dims)
        and all(dim.is_one for dim in divisor.dims)
    )


def _divisor(op: Op) -> int:
    """Return the constant by which an op divides the integers of a tile, rounding down, else 0."""
    if not isinstance(op.attrs, PointwiseAttrs) or op.attrs.name not in _OF_C or op.result.dtype.is_floating_point:
        return 0
    by, lanes = op.operands[1], any(not dim.is_one for dim in op.result.dims)
    return by if lanes and isinstance(by, int) and by > 0 and isinstance(op.operands[0], Value) else 0


def _is_positive(operand: Operand) -> bool:
    return isinstance(operand, int) and operand > 0


class _Known:
    def __init__(self, program: Program) -> None:
        self.makers = Makers.among(program.walk())
        loops = (loop if isinstance(loop, Root) else loop.attributes(ForAttrs) for loop in loops_of(program))
        axes = [axis for loop in loops for axis in loop.axes]
        from_zero = {a.block for a in axes if isinstance(a.begin, int) and a.begin >= 0 and not a.aligned}
        from_zero |= {part.block for a in axes for part in a.merged if a.block in from_zero}
        self.from_zero = from_zero - {a.block for a in axes if a.block not in from_zero}
        self.subscripts = self._subscripts(program)

    def _subscripts(self, program: Program) -> frozenset[int]:
        """Return the numbers of the elementwise ops that subscripts are computed by."""
        found, left = set[int](), []
        for op in program.walk():
            if isinstance(op.attrs, MemoryAttrs):
                left += [op.operands[index.operand] for index in op.attrs.indices if index.operand is not None]
        while left:
            made = self.makers.of(left.pop())
            if made is not None and made.number not in found and made.kind in ("pointwise", "view"):
                found.add(made.number)
                left += made.operands
        return frozenset(found)

    def is_natural(self, operand: Operand) -> bool:
        """Return whether a number is an index, or a part of one, and so not negative."""
        if not isinstance(operand, Value):
            return isinstance(operand, int) and operand >= 0
        made = self.makers.of(operand)
        if made is None or operand.dtype.is_floating_point:
            return False
        if isinstance(made.attrs, IotaAttrs):
            counted = made.attrs.relative or made.attrs.block in self.from_zero
            return counted and made.attrs.start >= 0 and made.attrs.step > 0
        if isinstance(made.attrs, TileAttrs):
            return made.attrs.field in _FIELDS and made.attrs.block in self.from_zero
        if isinstance(made.attrs, PointwiseAttrs) and made.attrs.name in _KEEPING:
            if any(value.dtype.itemsize > operand.dtype.itemsize for value in made.values()):
                return False  # a narrower one may be negative
            first = made.operands if made.attrs.name == "minimum" else made.operands[:1]
            return all(map(self.is_natural, first)) and (made.attrs.name not in _OF_C or _is_positive(made.operands[1]))
        return made.kind == "view" and all(map(self.is_natural, made.values()))
