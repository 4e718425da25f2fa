"""Recognition of integer values that are affine in the lanes of a dimension."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..._shapes import Dim, Dims
from ..._support.records import dataclass
from .grammar import (
    ForAttrs,
    IotaAttrs,
    NumberAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Value,
    ViewAttrs,
)
from .rewrite import Makers


@dataclass(frozen=True)
class _Affine:
    """Affine integers: ``start`` plus the coordinate along each dimension times its ``steps``."""

    start: int
    steps: tuple[int, ...]


def merges_lanes(op: Op) -> bool:
    """Return whether an op reshapes several dimensions of integers into one."""
    if not isinstance(op.attrs, ViewAttrs) or op.attrs.name != "reshape":
        return False
    (value,) = op.values()
    wide = sum(not dim.is_one for dim in value.dims)
    return len(op.result.dims) == 1 < wide and bool(op.result.dims[0].blocks) and not value.dtype.is_floating_point


class Counting:
    """Analysis of affine integers; ``sizes`` are those of all blocks, in elements."""

    def __init__(self, program: Program, sizes: Mapping[int, int]) -> None:
        self.index_dtype, self.sizes = program.index_dtype, sizes
        self.makers = Makers.among(program.walk())
        loops = [op.attrs.axes for op in program.walk() if isinstance(op.attrs, ForAttrs)]
        walked = {axis.block for axes in loops for axis in axes}
        #: Full blocks that a loop visits in chunks: their lanes count from the begin of the chunk.
        self.chunked = {block.id for block in program.blocks if block.kind == "full" and block.id in walked}

    def range_of(self, op: Op) -> IotaAttrs | None:
        """Return the range that equals the lanes of a merged dimension, or None if they are not affine over it."""
        (value,), (dim,) = op.values(), op.result.dims
        if value.dtype != self.index_dtype:
            return None
        affine, sizes = self.affine(value), [self.size(each) for each in value.dims]
        count = math.prod(sizes)
        if affine is None or count != self.size(dim) or count & (count - 1):
            return None
        step = affine.steps[-1]
        behind = [math.prod(sizes[at + 1 :]) for at in range(len(sizes))]
        along = all(s == step * b for s, b, size in zip(affine.steps, behind, sizes, strict=True) if size > 1)
        return IotaAttrs(dim.blocks[0], True, affine.start, step) if along and sizes[-1] > 1 else None

    def size(self, dim: Dim) -> int:
        return math.prod((self.sizes[block] for block in dim.blocks), start=dim.const)

    def affine(self, operand: Operand) -> _Affine | None:
        """Return the affine form of an operand; None if its lanes are unknown or not affine."""
        if not isinstance(operand, Value):
            return _Affine(operand, ()) if type(operand) is int else None
        op = self.makers.of(operand)
        match op.attrs if op is not None else None:
            case IotaAttrs(block=block, relative=True, start=start, step=step) if block not in self.chunked:
                return _Affine(start, (step,))
            case NumberAttrs(expr=expr) if expr.op == "block" and not operand.dtype.is_floating_point:
                return _Affine(self.sizes[expr.args[0]], ())
            case ViewAttrs(name="reshape"):
                assert op is not None
                return self.reshaped(next(op.values()), operand.dims)
            case PointwiseAttrs(name="add" | "mul" as name):
                assert op is not None
                return self.combined(name, op, len(operand.dims))
        return None

    def reshaped(self, value: Value, dims: Dims) -> _Affine | None:
        """Return the affine form of a value reshaped by moving dimensions of size 1."""
        affine = self.affine(value)
        wide = [dim for dim in dims if not dim.is_one]
        if affine is None or wide != [dim for dim in value.dims if not dim.is_one]:
            return None
        steps = iter([step for step, dim in zip(affine.steps, value.dims, strict=True) if not dim.is_one])
        return _Affine(affine.start, tuple(0 if dim.is_one else next(steps) for dim in dims))

    def combined(self, name: str, op: Op, rank: int) -> _Affine | None:
        parts = [self.affine(operand) for operand in op.operands]
        if len(parts) != 2 or parts[0] is None or parts[1] is None:
            return None
        left, right = (_Affine(p.start, (0,) * (rank - len(p.steps)) + p.steps) for p in parts if p is not None)
        if name == "add":
            steps = tuple(a + b for a, b in zip(left.steps, right.steps, strict=True))
            return _Affine(left.start + right.start, steps)
        if any(left.steps) and any(right.steps):
            return None
        number, other = (right, left) if any(left.steps) else (left, right)
        return _Affine(number.start * other.start, tuple(number.start * step for step in other.steps))
