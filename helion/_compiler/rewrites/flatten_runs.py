"""Flattens a loop inside of a grid loop that iterates over one run in memory, such as the rows of an image.

Before, with tiles of 4 x 512::

    for b1 in 0..500, b2 in 0..501: %1: [b1, b2] = load x[%0, b1, b2]; %2: [] = reduce max %1 over 0, 1

After, with tiles of 2048 elements::

    for b3 in 0..250500: %1: [b3] = load x[%0, 0, b3]; %2: [] = reduce max %1 over 0

Only the last tile has lanes out of range, and rows need no alignment of their own: a vector may span two of them. All
tensors must have the elements in the order of the lanes, so no lane needs its index along a dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..._shapes import Expr
from ..ir.grammar import Block, ForAttrs, IotaAttrs, LoopAxis, MemoryAttrs, Op, Program, Root
from ..ir.loops import loops_of
from ..ir.rewrite import Declined, map_ops, remembered
from ..passes.analysis.iterations import may_permute
from .flatten_loops import Flattener, merged_block


@dataclass(frozen=True, kw_only=True)
class FlatRuns:
    """A program for facts, in which loops over runs in memory are over their last dimension alone.

    ``loops`` has the original blocks of each such loop by its number.
    """

    program: Program
    loops: Mapping[int, tuple[int, ...]]


def can_flatten_run(program: Program, number: int) -> str | None:
    """Return the reason why a loop inside of a grid loop cannot be flattened, None if it can."""
    return _refusals(program).get(number)


@remembered
def _refusals(program: Program) -> Mapping[int, str]:
    """Return the reason by number of the inner loops that cannot be flattened."""
    found = {}
    for number, loop in enumerate(loops_of(program)):
        if isinstance(loop, Op):
            try:
                flatten_run(program, loop)
            except Declined as reason:
                found[number] = str(reason)
    return found


def flatten_run(program: Program, loop: Op, order: Sequence[int] = ()) -> Program:
    """Return the program with the axes of a loop merged into one over a new block.

    ``order`` lists the axes by position, the slowest-varying among the lanes of a tile first. Raise ``Declined`` if the
    elements are no run in memory in this order.
    """
    axes = loop.attributes(ForAttrs).axes
    if len(axes) < 2:
        raise Declined("the loop has one dimension")
    axes = tuple(axes[at] for at in order or range(len(axes)))
    block = merged_block(program, axes)
    return _flattened(replace(program, blocks=(*program.blocks, block)), loop, axes, block)


def flat_runs(program: Program) -> FlatRuns | None:
    """Return the program with every loop over a run in memory flattened, for facts; None if there is none.

    The last dimension of a loop gets all elements, and the others one, so that the numbers of blocks stay.
    """
    loops = {}
    for number, loop in enumerate(loops_of(program)):
        if isinstance(loop, Root) or can_flatten_run(program, number) is not None:
            continue
        axes = loop.attributes(ForAttrs).axes
        if all(program.blocks[axis.block].tunable for axis in axes) and _occur_once(program, axes):
            loops[number] = tuple(axis.block for axis in axes)
    if not loops:
        return None
    made = program
    for number, blocks in loops.items():
        loop = loops_of(made)[number]
        assert isinstance(loop, Op)
        made = _for_facts(made, loop, blocks)
    return FlatRuns(program=made, loops=loops)


def _occur_once(program: Program, axes: tuple[LoopAxis, ...]) -> bool:
    """Return whether no other loop has one of the blocks."""
    around = [loop.axes if isinstance(loop, Root) else loop.attributes(ForAttrs).axes for loop in loops_of(program)]
    used = [axis.block for each in around for axis in each]
    return all(used.count(axis.block) == 1 for axis in axes)


def _for_facts(program: Program, loop: Op, blocks: tuple[int, ...]) -> Program:
    axes = loop.attributes(ForAttrs).axes
    *_, last = blocks
    sized = {block: replace(program.blocks[block], extent=1, size=1) for block in blocks}
    sized[last] = replace(program.blocks[last], extent=merged_block(program, axes).extent, max_size=None)
    blocks_made = tuple(sized.get(block.id, block) for block in program.blocks)
    flat = _flattened(replace(program, blocks=blocks_made), loop, axes, replace(sized[last], merged=blocks))
    return _with_rows(flat, loop, last)


def _with_rows(program: Program, loop: Op, last: int) -> Program:
    """Return the program with accesses of ``loop``, as it was, to tensors without the dimensions that it has merged."""
    tensors = list(program.tensors)
    before = {op.number: op.attrs for op in loop.walk() if isinstance(op.attrs, MemoryAttrs)}

    def change(op: Op) -> Op:
        if op.number not in before:
            return op
        attrs, pairs = op.attributes(MemoryAttrs), zip(op.attrs.indices, before[op.number].indices, strict=True)
        kept = [dim for dim, (now, old) in enumerate(pairs) if now.kind == old.kind]
        tensor = tensors[attrs.tensor]
        shape = [program.blocks[last].extent if attrs.indices[dim].block == last else tensor.shape[dim] for dim in kept]
        strides = tuple(tensor.strides[dim] for dim in kept)
        tensors.append(replace(tensor, id=len(tensors), shape=tuple(shape), strides=strides))  # type: ignore[arg-type]
        indices = tuple(attrs.indices[dim] for dim in kept)
        return replace(op, attrs=replace(attrs, tensor=len(tensors) - 1, indices=indices))

    made = map_ops(program, change)
    return replace(made, tensors=tuple(tensors))


def _flattened(program: Program, loop: Op, axes: tuple[LoopAxis, ...], block: Block) -> Program:
    if not may_permute(program, loop):
        raise Declined("an iteration of the loop may see what an earlier one did")
    (region,) = loop.regions
    body = Flattener(program, axes, block, within=True).body(region)
    for op in (inner for each in body.ops for inner in each.walk()):
        _check_run(op, frozenset(block.merged) - {block.id})
    total = block.extent
    assert isinstance(total, (int, Expr))
    attrs = replace(loop.attributes(ForAttrs), axes=(LoopAxis(block.id, 0, total),))
    made = replace(loop, attrs=attrs, regions=(body,))
    return map_ops(program, lambda op: made if op.number == loop.number else op)


def _check_run(op: Op, parts: frozenset[int]) -> None:
    if isinstance(op.attrs, IotaAttrs) and op.attrs.block in parts:
        raise Declined("the index along a dimension is read")
    if isinstance(op.attrs, MemoryAttrs) and any(index.block in parts for index in op.attrs.indices):
        raise Declined("a tensor has the elements in another order")
