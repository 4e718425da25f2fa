"""Bytes that each step of a loop converts to floats for a matmul."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ...._compiler.ir.grammar import Op, Operand, PointwiseAttrs, Program, Value
from ...._compiler.ir.ops import OPS
from ...._compiler.ir.rewrite import Makers
from ....hardware import WARP_THREADS, Target
from ..codegen.ops.bytes import FUNCTIONS
from .dots import lanes

#: Kinds of ops between a conversion and the matmul.
_BETWEEN = frozenset(("pointwise", "view", "mask"))
#: The compute capability from which on Triton converts int8 to bf16 by permuting bytes.
_TO_BF16 = 90
#: Bytes that a thread converts together.
_TOGETHER = 4


def converted_bytes(program: Program, sizes: Mapping[int, int], num_warps: int, target: Target) -> frozenset[int]:
    """Return the casts, by number, of tiles of bytes that a matmul of the same loop multiplies."""
    if target.kind != "cuda":
        return frozenset()
    least = _TOGETHER * WARP_THREADS * num_warps
    return frozenset(
        number
        for loop in program.walk()
        if OPS[loop.kind].is_loop
        for number, operand, to in _casts(loop)
        if (to is not torch.bfloat16 or target.capability >= _TO_BF16)
        and math.prod(lanes(dim, sizes) for dim in operand.dims) >= least
    )


def _casts(loop: Op) -> list[tuple[int, Value, torch.dtype]]:
    """Return the conversions of bytes that matmuls of a loop depend on, by number, with the bytes and their dtype."""
    ops = [op for region in loop.regions for op in region.ops]
    makers = Makers.among(ops)
    left: list[Operand] = [value for op in ops if op.kind == "dot" for value in op.operands[:2]]
    found, seen = [], set[int]()
    while left:
        maker = makers.of(left.pop())
        if maker is None or maker.number in seen or maker.kind not in _BETWEEN:
            continue
        seen.add(maker.number)
        left += maker.values()
        if maker.attrs == PointwiseAttrs("cast"):
            (operand,) = maker.values()
            found += (
                [(maker.number, operand, maker.result.dtype)]
                if (operand.dtype, maker.result.dtype) in FUNCTIONS
                else []
            )
    return found
