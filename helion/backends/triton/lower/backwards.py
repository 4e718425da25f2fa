"""A loop that reads a row again, and adds nothing up, begins where the loop before it ended.

A row that is normalised is read twice where it is too long to be held: by the loop that sums it up, and by the one that stores
results. What the first loop read last is still in the cache, while what it read first may have gone: a row of 131072 numbers of
16 bits has as many bytes as the L1 cache of an H200's SM, and all that run at once have more than its L2. Before::

    for b1 in 0..n: %1 = load x[b0, b1]; ..
    for b1 in 0..n: %2 = load x[b0, b1]; ..; store %3, out[b0, b1]

after::

    for b1 in 0..n: %1 = load x[b0, b1]; ..
    for b1 in 0..n backwards: %2 = load x[b0, b1]; ..; store %3, out[b0, b1]

A loop goes backwards if it does nothing but store, its iterations may come in any order, and the last loop that read one of its
tensors went forwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...._compiler.ir.grammar import ForAttrs, LoopAxis, MemoryAttrs, Op, Program, Region
from ...._compiler.ir.ops import OPS
from ...._compiler.ir.rewrite import map_regions
from ...._compiler.passes.iterations import may_permute
from ...._compiler.passes.schedule import Scheduled
from ...._shapes import Expr, fixed_at


def turn_loops(program: Program, scheduled: Scheduled) -> Program:
    """The program with loops that read again what the one before them read going the other way."""
    if scheduled.unrolled or sum(isinstance(op.attrs, ForAttrs) for op in program.walk()) < 2:
        return program
    sizes = scheduled.sizes_in(program)
    roots = tuple(replace(root, body=_turned(root.body, program, sizes)) for root in program.roots)
    return replace(program, roots=roots)


def _turned(region: Region, program: Program, sizes: Mapping[int, int]) -> Region:
    """``forwards`` has, for each tensor that was read by tiles of a loop, which way the last such loop went."""
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
    """The tensors of which each iteration loads other elements."""
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
    """Whether an op is seen to be done when it is, as what prints is."""
    return op.kind not in ("store", "barrier") and (OPS[op.kind].stays or OPS[op.kind].writes)


def _is_plain(axis: LoopAxis) -> bool:
    whole = not axis.scalar and axis.jagged is None and axis.split is None and not axis.merged
    begins = bool(axis.aligned) or fixed_at(axis.begin, 0)
    return whole and begins and isinstance(axis.end, (int, Expr))


def _backwards(loop: Op) -> Op:
    attrs = loop.attributes(ForAttrs)
    return replace(loop, attrs=replace(attrs, axes=(replace(attrs.axes[0], backwards=True),)))
