"""Accesses of short whole dimensions as one run in memory, together with the dimension before them.

Triton chooses the elements of a thread's access along the last dimension alone. In a tile ``[b0, b1, 2]`` of 16-bit
elements an access has 4 bytes, although the elements of 4 neighbours along ``b1`` are one vector (measurement
``joined_runs``). Before, where ``b2`` has all elements of its dimension::

    store out[b0, b1, b2] <- %1

after, which is printed as a store of the reshaped ``[b0, b1 * b2]``::

    store out[b0, b1, b2] <- %1, the last 1 dimensions in one run with the one before

Kernels with matmuls stay as they are: their results would go through shared memory. So do loads in loops with stages,
which Triton does not pipeline through a reshape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ....._compiler.ir.grammar import ForAttrs, LoopAxis, MemoryAttrs, Op, Program, Value
from ....._compiler.ir.operands import is_block, unaddressed
from ....._compiler.ir.rewrite import map_ops
from ....._compiler.rewrites.steps import StepInputs
from ....._shapes import fixed_at
from .....hardware import VECTOR_BYTES
from ..align import is_ordered


def join_runs(program: Program, inputs: StepInputs) -> Program:
    """Return the program with its accesses of short whole dimensions marked."""
    if inputs.checked or any(op.kind == "dot" for op in program.walk()):
        return program
    axes = axes_of(program)
    if any(axis.jagged is not None for axis in axes) or is_ordered(program):
        return program
    sizes, walked = inputs.sizes_in(program), _walked(program, axes)

    def mark(op: Op) -> Op:
        if op.kind not in ("load", "store") or (op.kind == "load" and not inputs.steady):
            return op
        attrs = op.attributes(MemoryAttrs)
        if attrs.slot in inputs.block_accesses:
            return op
        run = _inner(program, op, attrs, sizes, walked)
        if run and _is_spread(op, run, sizes, inputs.threads):
            return op
        return replace(op, attrs=replace(attrs, run=run)) if run else op

    return map_ops(program, mark)


def _is_spread(op: Op, run: int, sizes: Mapping[int, int], threads: int) -> bool:
    """Return whether a thread has no two neighbours along the dimension before the last ``run`` ones."""
    dims = [dim.lanes(sizes) for dim in op.results[0].dims]
    return math.prod(dims) < 2 * math.prod(dims[-run:]) * threads


def axes_of(program: Program) -> list[LoopAxis]:
    """List the axes of all loops."""
    found = [axis for root in program.roots for axis in root.axes]
    return found + [axis for op in program.walk() if isinstance(op.attrs, ForAttrs) for axis in op.attrs.axes]


def _walked(program: Program, axes: list[LoopAxis]) -> frozenset[int]:
    """Return the blocks whose lanes count from the begin of their tile, wherever they have a loop."""
    odd = {axis.block for axis in axes if axis.scalar or axis.aligned}
    odd |= {part.block for axis in axes for part in axis.merged}
    looped = {axis.block for axis in axes}
    full = {block.id for block in program.blocks if block.kind == "full" and block.part is None}
    return frozenset((looped | full) - odd)


def _inner(program: Program, op: Op, attrs: MemoryAttrs, sizes: Mapping[int, int], walked: frozenset[int]) -> int:
    """Return the number of last dimensions of a tile that are one run in memory with the one before.

    It is 0 if a thread has whole vectors without.
    """
    tensor, dims = program.tensors[attrs.tensor], op.results[0].dims
    value = op.results[0] if op.kind == "load" else op.operands[0]
    plain = attrs.mask is None and attrs.mark is None and not attrs.padded and not attrs.aligned
    if not plain or not isinstance(value, Value) or value.dims != dims or unaddressed(attrs.indices, op.operands, dims):
        return 0
    joined, following, vector = 0, 1, VECTOR_BYTES // tensor.dtype.itemsize
    for index, stride, extent in zip(attrs.indices[::-1], tensor.strides[::-1], tensor.shape[::-1], strict=True):
        at = attrs.rank - 1 - joined
        next_to = is_block(index) and index.positions == (at,) and fixed_at(stride, following)
        if not next_to or index.block is None or index.block not in walked or sizes[index.block] == 1:
            break
        joined += 1
        following *= sizes[index.block]
        whole = program.blocks[index.block].kind == "full" and fixed_at(extent, sizes[index.block])
        if not whole or following >= vector:
            break
    return max(0, joined - 1)


__all__ = ["axes_of", "join_runs"]
