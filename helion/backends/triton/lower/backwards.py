"""Reversal of loops that read a row again without accumulating, so that they begin where the previous loop ended.

A row that is normalized is read twice where it exceeds the registers: by the loop that reduces it, and by the one that
stores results. The last chunks of the first loop are still in the cache, the first ones may be evicted. A row of 131072
16-bit elements fills the L1 cache of an H200's SM, and all resident rows together exceed its L2. Before::

    for b1 in 0..n: %1 = load x[b0, b1]; ..
    for b1 in 0..n: %2 = load x[b0, b1]; ..; store %3, out[b0, b1]

after::

    for b1 in 0..n: %1 = load x[b0, b1]; ..
    for b1 in 0..n backwards: %2 = load x[b0, b1]; ..; store %3, out[b0, b1]

A loop runs backwards if it only stores, its iterations are independent, and the last loop over one of its tensors ran
forwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...._compiler.ir.grammar import ForAttrs, LoopAxis, MemoryAttrs, Op, Program, Region
from ...._compiler.ir.ops import OPS
from ...._compiler.ir.rewrite import map_regions
from ...._compiler.passes.analysis.iterations import may_permute
from ...._compiler.rewrites.steps import StepInputs
from ...._shapes import Expr, fixed_at


def turn_loops(program: Program, inputs: StepInputs) -> Program:
    """Return the program with loops reversed that read the same tensors as the loop before."""
    if inputs.unrolled or sum(isinstance(op.attrs, ForAttrs) for op in program.walk()) < 2:
        return program
    sizes = inputs.sizes_in(program)
    roots = tuple(replace(root, body=_turned(root.body, program, sizes)) for root in program.roots)
    return replace(program, roots=roots)


def _turned(region: Region, program: Program, sizes: Mapping[int, int]) -> Region:
    """Return the region with such loops reversed.

    ``forwards`` has, for each tensor that was read by tiles of a loop, the direction of the last such loop.
    """
    forwards: dict[int, bool] = {}
    ops: list[Op] = []
    for op in region.ops:
        op = map_regions(op, lambda child: _turned(child, program, sizes))
        if isinstance(op.attrs, ForAttrs):
            read = frozenset(_read_by_tiles(op))
            again = any(forwards.get(tensor, False) for tensor in read)
            if again and _may_turn(op, program, sizes):
                op = _backwards(op)
            forwards |= dict.fromkeys(read, not op.attributes(ForAttrs).axes[0].backwards)
        ops.append(op)
    return replace(region, ops=tuple(ops))


def _read_by_tiles(loop: Op) -> Iterator[int]:
    """Return the tensors of which each iteration loads other elements."""
    blocks = {axis.block for axis in loop.attributes(ForAttrs).axes}
    loads = (op.attributes(MemoryAttrs) for op in loop.regions[0].ops if op.kind == "load")
    return (attrs.tensor for attrs in loads if any(index.block in blocks for index in attrs.indices))


def _may_turn(loop: Op, program: Program, sizes: Mapping[int, int]) -> bool:
    attrs = loop.attributes(ForAttrs)
    if len(attrs.axes) != 1 or attrs.carried or not _is_plain(attrs.axes[0]):
        return False
    (axis,) = attrs.axes
    single = isinstance(axis.end, int) and sizes[axis.block] >= axis.end
    return not single and not any(map(_is_ordered, loop.regions[0].walk())) and may_permute(program, loop)


def _is_ordered(op: Op) -> bool:
    """Return whether the order of an op is observable, as that of a print is."""
    return op.kind not in ("store", "barrier") and (OPS[op.kind].stays or OPS[op.kind].writes)


def _is_plain(axis: LoopAxis) -> bool:
    whole = not axis.scalar and axis.jagged is None and axis.split is None and not axis.merged
    begins = bool(axis.aligned) or fixed_at(axis.begin, 0)
    return whole and begins and isinstance(axis.end, (int, Expr))


def _backwards(loop: Op) -> Op:
    attrs = loop.attributes(ForAttrs)
    return replace(loop, attrs=replace(attrs, axes=(replace(attrs.axes[0], backwards=True),)))
