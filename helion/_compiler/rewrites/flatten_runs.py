"""Flattens a loop inside of a grid loop that iterates over one run in memory, such as the rows of an image.

Before, with tiles of 4 x 512::

    for b1 in 0..500, b2 in 0..501: %1: [b1, b2] = load x[%0, b1, b2]; %2: [] = reduce max %1 over 0, 1

After, with tiles of 2048 elements::

    for b3 in 0..250500: %1: [b3] = load x[%0, 0, b3]; %2: [] = reduce max %1 over 0

Only the last tile has lanes out of range, and rows need no alignment of their own: a vector may span two of them. All
tensors must have the elements in the order of the lanes, so no access needs an index along a dimension. Values may have
other dimensions before the merged ones, as those of a tile of images. Reductions along one merged dimension after the
other become one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..._shapes import ONE, Dims, Expr
from ..._support.records import dataclass, replace
from ..ir.build import Builder
from ..ir.grammar import (
    Block,
    ForAttrs,
    IotaAttrs,
    LoopAxis,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Program,
    ReduceAttrs,
    Root,
    Value,
    ViewAttrs,
)
from ..ir.loops import loops_of
from ..ir.reductions import REDUCTIONS, identity
from ..ir.rewrite import Declined, map_ops, remembered
from ..passes.analysis.iterations import may_permute
from .flatten_loops import Flattener, merged_block, solid


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
    body = _RunFlattener(program, axes, block).body(region)
    for op in (inner for each in body.ops for inner in each.walk()):
        _check_run(op, frozenset(block.merged) - {block.id})
    total = block.extent
    assert isinstance(total, (int, Expr))
    attrs = replace(loop.attributes(ForAttrs), axes=(LoopAxis(block.id, 0, total),))
    made = replace(loop, attrs=attrs, regions=(body,))
    return map_ops(program, lambda op: made if op.number == loop.number else op)


def _check_run(op: Op, parts: frozenset[int]) -> None:
    if isinstance(op.attrs, MemoryAttrs) and any(index.block in parts for index in op.attrs.indices):
        raise Declined("a tensor has the elements in another order")


class _RunFlattener(Flattener):
    """The rewrite of the body of an inner loop.

    ``partial`` has the reductions that made values of fewer merged dimensions; their lanes are not reduced yet.
    """

    within = frozenset(("reduce", "mask"))

    def __init__(self, program: Program, axes: tuple[LoopAxis, ...], block: Block) -> None:
        super().__init__(program, axes, block)
        self.partial: dict[int, str] = {}

    def check(self, op: Op) -> None:
        super().check(op)
        if op.kind not in self.within and any(value.number in self.partial for value in op.reads()):
            raise Declined("a reduction keeps a dimension")

    def check_dims(self, value: Value) -> None:
        """Leave it to ``lane``: a reduction's result may lack merged dimensions."""

    def before(self, value: Value) -> int:
        """Return the number of dimensions before the merged ones."""
        return max(0, len(value.dims) - len(self.axes))

    def lane(self, value: Value) -> Value:
        first = self.before(value)
        blocks = [axis.block for axis in self.axes]
        for at, dim in enumerate(value.dims):
            own = blocks[at - first : at - first + 1] if len(value.dims) >= len(blocks) else blocks
            if at < first and self.merged.intersection(dim.blocks):
                raise Declined("a merged dimension is not among the last ones")
            if at >= first and not dim.is_one and dim.block not in own:
                raise Declined("a value has another dimension after or between the merged ones")
        return self.lanes_of(value, value.dims[:first])

    def lanes_of(self, value: Value, before: Dims) -> Value:
        self.values[value.number] = made = replace(value, dims=(*before, *self.lanes))
        return made

    def single(self, value: Value, ops: list[Op]) -> Value:
        before, others = value.dims[: self.before(value)], value.dims[self.before(value) :]
        if not all(dim.is_one for dim in others) or all(dim.is_one for dim in before):
            return super().single(value, ops)
        return Builder(self.numbers, ops=ops).reshape(value, (*before, ONE))

    def narrow(self, op: Op, ops: list[Op]) -> None:
        match op.attrs:
            case ReduceAttrs(name, dims, _):
                self.reduced(op, name, dims, ops)
            case MaskAttrs(dims, fill):
                ops.append(self.masked(op, dims, fill))
            case ViewAttrs(name, _) if self.carries(value := next(iter(op.values()))):
                if name == "permute" or (name == "reshape" and solid(value) != solid(op.result)):
                    raise Declined(f"a {name} uses a merged dimension")
                source, made = self.values[value.number], self.lane(op.result)
                if source.dims == made.dims:
                    self.values[op.result.number] = source
                else:
                    ops.append(replace(op, operands=(source,), results=(made,)))
            case IotaAttrs(block, False) if block in self.merged:
                self.numbered(op, block, ops)
            case MemoryAttrs():
                ops.append(self.accessed(op, op.attributes(MemoryAttrs), ops))
            case _:
                super().narrow(op, ops)

    def numbered(self, op: Op, block: int, ops: list[Op]) -> None:
        """Append divisions of the lane number that give the index along a dimension."""
        *outer, inner = (axis.block for axis in self.axes)
        at = [*outer, inner].index(block)
        ends = [axis.end for axis in self.axes[at:]]
        if not all(isinstance(end, int) and end > 0 for end in ends):
            raise Declined("the index along a dimension of unknown size is read")
        build = Builder(self.numbers, ops=ops)
        made = build.emit("iota", (), op.result.dtype, self.lanes, IotaAttrs(self.block, False), op.result.name)
        if block != inner:
            made = build.pointwise("floordiv", made, math.prod(ends[1:]), like=op.result.name)  # type: ignore[arg-type]
        if at:
            made = build.pointwise("remainder", made, ends[0], like=op.result.name)  # type: ignore[arg-type]
        self.values[op.result.number] = made

    def reduced(self, op: Op, name: str, dims: tuple[int, ...], ops: list[Op]) -> None:
        """Append a reduction of all lanes, or keep the lanes for the reduction that follows."""
        (value,) = op.values()
        source = self.values[value.number]
        lanes = len(source.dims) - 1
        outside = tuple(dim for dim in dims if dim < lanes)
        if REDUCTIONS[name].combine is None:
            raise Declined("a reduction gives the position of an element")
        if self.partial.get(value.number, name) != name:
            raise Declined("reductions of two kinds follow each other")
        if value.number not in self.partial and not self.tiled.issubset(b for dim in value.dims for b in dim.blocks):
            raise Declined("a reduction does not span all of the dimensions")
        if any(self.merged.intersection(dim.blocks) for dim in op.result.dims):
            if outside:
                raise Declined("a reduction keeps a dimension")
            self.values[op.result.number] = source
            self.partial[op.result.number] = name
            return
        kept = tuple(dim for at, dim in enumerate(source.dims[:lanes]) if at not in outside)
        if op.result.dims != kept:
            raise Declined("a reduction keeps a dimension")
        attrs = replace(op.attributes(ReduceAttrs), dims=(*outside, lanes))
        ops.append(replace(op, operands=(source,), attrs=attrs))

    def masked(self, op: Op, dims: tuple[int, ...], fill: float) -> Op:
        """Return the mask of lanes out of range. That of rows that are reduced fills them with the identity element."""
        (value,) = op.values()
        source, name = self.values[value.number], self.partial.get(value.number)
        lanes = len(source.dims) - 1
        if name is not None:
            if fill != identity(name, value.dtype):
                raise Declined("a mask between two reductions adds to them")
            self.partial[op.result.number] = name
        attrs = MaskAttrs(tuple(dict.fromkeys(min(dim, lanes) for dim in dims)), fill)
        return replace(op, operands=(source,), results=(self.lanes_of(op.result, source.dims[:-1]),), attrs=attrs)

    def accessed(self, op: Op, attrs: MemoryAttrs, ops: list[Op]) -> Op:
        """Return an access with the lanes along one dimension of its tile."""
        lanes = self.before(op.result)
        indices = [replace(each, positions=_places(each.positions, lanes)) for each in attrs.indices]
        subscripts = {each.operand for each in attrs.indices}
        operands = tuple(
            each
            if at in subscripts and not (isinstance(each, Value) and self.carries(each))
            else self.operand(each, ops)
            for at, each in enumerate(op.operands)
        )
        made = self.in_memory_order(attrs, indices, lanes) or tuple(indices)
        return replace(
            op,
            operands=operands,
            results=tuple(map(self.lane, op.results)),
            attrs=replace(attrs, indices=made, rank=lanes + 1),
        )


def _places(positions: tuple[int, ...], lanes: int) -> tuple[int, ...]:
    """Return dimensions of a tile after merging those from ``lanes`` on."""
    return tuple(dict.fromkeys(min(at, lanes) for at in positions))
