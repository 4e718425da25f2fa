"""How matrix products of 8-bit floats are summed up."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...._compiler.ir.grammar import DotAttrs, MemoryAttrs, Op, Program, Value
from ...._compiler.ir.ops import OPS
from ...._compiler.ir.rewrite import Makers
from ...._shapes import Dim, hint_of
from ....hardware import Target
from ..resources.matrix import are_float8, partial_sum, unit_for


def partial_sums(program: Program, sizes: Mapping[int, int], num_warps: int, target: Target) -> dict[int, int]:
    """By dot of 8-bit floats: how many products along K the matrix unit may add up before their sum is promoted to fp32.

    0, every one, except on a unit that adds fewer bits than fp32 has and refuses products without a limit.
    """
    dots = [op for op in program.walk() if op.kind == "dot" and _is_float8(op)]
    makers = Makers.among(program.walk() if dots else ())
    return {op.number: _of(program, op, makers, sizes, num_warps, target) for op in dots}


def _is_float8(op: Op) -> bool:
    attrs = op.attributes(DotAttrs)
    lhs, rhs = list(op.values())[:2]
    return attrs.scaled is None and are_float8((lhs.dtype, rhs.dtype))


def _of(program: Program, op: Op, makers: Makers, sizes: Mapping[int, int], warps: int, target: Target) -> int:
    attrs = op.attributes(DotAttrs)
    lhs, rhs = list(op.values())[:2]

    def size(dim: Dim) -> int:
        return math.prod((sizes[block] for block in dim.blocks), start=dim.const)

    depth, dtypes = size(lhs.dims[-1]), (lhs.dtype, rhs.dtype)
    unit = unit_for(
        rows=size(lhs.dims[-2]),
        depth=depth,
        batched=any(size(dim) > 1 for dim in lhs.dims[:-2]),
        dtypes=dtypes,
        k_major=all(_is_k_major(program, makers, *side) for side in ((lhs, lhs.dims[-1]), (rhs, rhs.dims[-2]))),
        precision=attrs.precision,
        warps=warps,
        target=target,
    )
    return partial_sum(dtypes, depth, target) if unit == "wgmma" else 0


def _is_k_major(program: Program, makers: Makers, value: Value, k: Dim) -> bool:
    """Whether an operand is contiguous along ``k`` in memory, or does not come from there as it is."""
    op = makers.of(value)
    while op is not None and OPS[op.kind].keeps_lanes:
        values = list(op.values())
        if op.kind == "pointwise" and len(values) != 1:
            return True
        op = makers.of(values[0])
    if op is None or op.kind != "load":
        return True
    attrs = op.attributes(MemoryAttrs)
    strides = program.tensors[attrs.tensor].strides
    unit = [i.block for i, stride in zip(attrs.indices, strides, strict=True) if hint_of(stride) == 1]
    return k.block is None or k.block in unit
