"""Vectorized access of runs whose length is no multiple of a vector, in all tiles but the last.

In the last tile of 33558527 16-bit elements the mask differs between the lanes of a vector. A masked access is
therefore scalar in all tiles. This step marks the loop over such a run::

    grid b0 in 0..33558527, whole tiles apart: %1: [b0] = load x[b0]; ..

The printed code has the body twice: unmasked for tiles whose lanes are all in range, and masked for the last one.
"""

from __future__ import annotations

from dataclasses import replace

from ...._compiler.ir.grammar import LoopAxis, MemoryAttrs, Op, Program, Root
from ...._compiler.rewrites.steps import StepInputs
from ...._shapes import fixed_at
from ....hardware import VECTOR_BYTES

#: Least tiles: of two, the last is half of the work.
_LEAST_TILES = 4
#: Most ops of a body: printing it twice doubles the instructions and the compile time.
_MOST_OPS = 128
#: Kinds of ops that the body may contain.
_KINDS = frozenset(("number", "tile", "iota", "full", "load", "store", "pointwise", "view", "mask"))


def part_whole_tiles(program: Program, inputs: StepInputs) -> Program:
    """Return the program with its grids over such runs marked."""
    # the lanes of a part of a tile are named at its first use, in one of the two bodies
    if inputs.checked or inputs.block_accesses or any(block.part is not None for block in program.blocks):
        return program
    roots = tuple(_parted(program, inputs, root) for root in program.roots)
    return program if roots == program.roots else replace(program, roots=roots)


def _parted(program: Program, inputs: StepInputs, root: Root) -> Root:
    if len(root.axes) != 1 or not _is_plain(root.axes[0]):
        return root
    (axis,), ops = root.axes, root.body.ops
    size = inputs.sizes_in(program)[axis.block]
    assert isinstance(axis.end, int)
    if len(ops) > _MOST_OPS or axis.end < _LEAST_TILES * size or any(op.kind not in _KINDS for op in ops):
        return root
    along = [op for op in ops if isinstance(op.attrs, MemoryAttrs) and _is_along(program, op, axis.block)]
    itemsizes = {program.tensors[op.attributes(MemoryAttrs).tensor].dtype.itemsize for op in along}
    lanes = [min(size, VECTOR_BYTES // itemsize) for itemsize in itemsizes]
    if not any(axis.end % count for count in lanes):
        return root
    return replace(root, axes=(replace(axis, parted=True),))


def _is_plain(axis: LoopAxis) -> bool:
    whole = not axis.scalar and axis.jagged is None and axis.split is None and not axis.aligned
    return whole and fixed_at(axis.begin, 0) and isinstance(axis.end, int)


def _is_along(program: Program, op: Op, block: int) -> bool:
    """Return whether the lanes of a load or a store are consecutive in memory from the begin of a tensor on."""
    attrs = op.attributes(MemoryAttrs)
    tensor = program.tensors[attrs.tensor]
    for index, stride in zip(attrs.indices, tensor.strides, strict=True):
        bare = index.operand is None and fixed_at(index.shift, 0)
        if index.kind == "block" and index.block == block:
            if not bare or not fixed_at(stride, 1):
                return False
        elif index.kind != "scalar" or not bare:
            return False
    return tensor.aligned and any(index.block == block for index in attrs.indices)
