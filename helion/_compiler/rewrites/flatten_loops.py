"""Flattens a grid over several dimensions: tiles become ranges of consecutive elements of all of them.

Before, with tiles of 4 x 8::

    grid b0 in 0..512, b1 in 0..1000:  %1: [b0, b1] = load x[b0, b1]; %2: [b1] = load y[b1]; %3: [b0, b1] = add %1, %2

After, with tiles of 32 elements::

    grid b2 in 0..512000:  %1: [b2] = load x[0, b2]; %2: [b2] = load y[b1]; %3: [b2] = add %1, %2

Only the last tile extends past the end, whatever the sizes of the dimensions are. Every lane has one index of each
merged dimension; the last dimension of the order varies fastest. Divisions of the lane number give those indices. A
tensor with elements in the memory order of the lanes, such as ``x``, needs only the lane number. ``tile.index`` of a
merged dimension is that index of each lane. So is ``tile.begin`` of a dimension whose tiles have one element.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch

from ..._shapes import ONE, WIDE, Dim, fixed_at, hint_of, number_key, positive_part
from ..._support.records import dataclass, replace
from ..ir.build import Builder, Numbers
from ..ir.grammar import (
    Block,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    Program,
    Region,
    Root,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ..ir.loops import loops_of
from ..ir.ops import OPS
from ..ir.rewrite import Declined, remembered
from ..passes.analysis.iterations import may_permute

#: Properties of a tile that require one dimension per lane, and those that are the index in a tile of one element.
_POSITIONAL = frozenset(("begin", "end", "id", "count", "index"))
_OF_ONE = frozenset(("begin", "id"))


@dataclass(frozen=True, kw_only=True)
class Nest:
    """A loop over several dimensions.

    - ``loop``: its number among all loops in program order, where a grid loop precedes its inner loops.
    - ``root``: its number among the grid loops, if it is one.
    - ``mergeable``: true if it has an entry in ``flatten_loops``: tiles begin at 0 and no op reads their positions.
    - ``indexed``: true if ops read no other positions than the indices of elements, such as ``tile.index``, or
      ``tile.begin`` in tiles of one.
    - ``permutable``: true if its axes may run in any order, as programs do.
    """

    loop: int
    axes: tuple[LoopAxis, ...]
    root: int | None
    mergeable: bool
    indexed: bool
    permutable: bool


def positional_blocks(program: Program) -> frozenset[int]:
    """Return the blocks with uses of tile properties that merged dimensions do not have."""
    tiles = (op.attrs for op in program.walk() if isinstance(op.attrs, TileAttrs) and op.attrs.field in _POSITIONAL)
    return frozenset(attrs.block for attrs in tiles if not _is_of_one(attrs, program))


def indexed_blocks(program: Program) -> frozenset[int]:
    """Return the blocks whose elements are numbered, as by ``tile.index``."""
    return frozenset(
        op.attrs.block for op in program.walk() if isinstance(op.attrs, IotaAttrs) and not op.attrs.relative
    )


def _is_of_one(attrs: TileAttrs, program: Program) -> bool:
    """Return whether a tile has one element, of which a property is the index."""
    return attrs.field in _OF_ONE and fixed_at(program.blocks[attrs.block].size, 1)


def blocks_of_one(program: Program) -> frozenset[int]:
    """Return the blocks with tiles of one element whose position ops read."""
    tiles = (op.attrs for op in program.walk() if isinstance(op.attrs, TileAttrs))
    return frozenset(attrs.block for attrs in tiles if _is_of_one(attrs, program))


def nests(program: Program) -> tuple[Nest, ...]:
    """Return the loops over several dimensions in program order; a grid loop precedes its inner loops."""
    positional, indexed = positional_blocks(program), indexed_blocks(program) | blocks_of_one(program)
    roots = itertools.count()
    found = []
    for number, loop in enumerate(loops_of(program)):
        root = next(roots) if isinstance(loop, Root) else None
        axes = loop.axes if isinstance(loop, Root) else loop.attrs.axes
        if len(axes) > 1:
            anywhere = all(_from_zero(a) and a.block not in positional for a in axes)
            numbered = any(a.block in indexed for a in axes)
            nest = Nest(
                loop=number,
                axes=axes,
                root=root,
                mergeable=anywhere and not numbered,
                indexed=anywhere and numbered,
                permutable=isinstance(loop, Root) or may_permute(program, loop),
            )
            found.append(nest)
    return tuple(found)


def _from_zero(axis: LoopAxis) -> bool:
    return not axis.scalar and fixed_at(axis.begin, 0)


def can_flatten(program: Program, root_number: int) -> str | None:
    """Return the reason why the grid of a root cannot be flattened, None if it can."""
    return _refusals(program).get(root_number)


@remembered
def _refusals(program: Program) -> Mapping[int, str]:
    """Return the reason by number of the roots that cannot be flattened."""
    found = {}
    for number in range(len(program.roots)):
        try:
            flatten(program, number)
        except Declined as reason:
            found[number] = str(reason)
    return found


def flatten(program: Program, root_number: int, order: Sequence[int] = ()) -> Program:
    """Return the program with the axes of a root merged into one over a new block. The root must satisfy
    ``can_flatten``.

    ``order`` lists the axes by position, the slowest-varying among the lanes of a tile first.
    """
    root = program.roots[root_number]
    axes = tuple(root.axes[at] for at in order or range(len(root.axes)))
    if len(axes) < 2:
        raise Declined("the grid has one dimension")
    block = merged_block(program, axes)
    body = Flattener(program, axes, block).body(root.body)
    merged = replace(root, axes=(LoopAxis(block.id, 0, block.extent, merged=axes),), body=body)  # type: ignore[arg-type]
    roots = (*program.roots[:root_number], merged, *program.roots[root_number + 1 :])
    return replace(program, blocks=(*program.blocks, block), roots=roots)


def merged_block(program: Program, axes: tuple[LoopAxis, ...]) -> Block:
    """Return a new block over all elements of ``axes``. Raise ``Declined`` if they cannot be numbered."""
    if not all(map(_from_zero, axes)):
        raise Declined("a dimension does not begin at 0")
    if any(isinstance(axis.end, OperandRef) or axis.jagged is not None for axis in axes):
        raise Declined("the end of a dimension depends on data")
    total = math.prod(hint_of(axis.end) for axis in axes)  # type: ignore[arg-type]
    if program.index_dtype == torch.int32 and total > WIDE:
        raise Declined(f"{total} elements cannot be numbered with 32-bit indices")
    return Block(
        id=len(program.blocks),
        kind="tile",
        extent=math.prod(axis.end for axis in axes),  # type: ignore[misc]
        name=" x ".join(program.blocks[axis.block].name for axis in axes),
        merged=tuple(axis.block for axis in axes),
    )


class Flattener:
    """The rewrite of one loop's body."""

    #: Kinds of ops over merged dimensions, besides those that any grid may have.
    within: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, program: Program, axes: tuple[LoopAxis, ...], block: Block) -> None:
        self.program = program
        self.axes = axes
        self.block = block.id
        self.merged = frozenset(block.merged)
        #: those whose tiles have several elements
        self.tiled = frozenset(b for b in block.merged if not fixed_at(program.blocks[b].size, 1))
        #: by the number of a scalar, the merged dimension of which it is the index
        self.places: dict[int, int] = {}
        self.lanes = (Dim(1, (block.id,)),)
        self.values: dict[int, Value] = {}
        self.numbers = Numbers.after(program)

    def body(self, region: Region) -> Region:
        ops: list[Op] = []
        for op in region.ops:
            self.check(op)
            if (block := self.place_of(op)) is not None:
                self.places[op.result.number] = block
                ops.append(replace(op, kind="iota", attrs=IotaAttrs(block, False), results=(self.lane(op.result),)))
            elif self.is_wide(op):
                self.narrow(op, ops)
            else:
                ops.append(op)
        return Region(region.params, tuple(ops), region.results)

    def is_wide(self, op: Op) -> bool:
        """Return whether the op, or one in its regions, touches a merged dimension."""
        return any(self.carries(value) for inner in op.walk() for value in _values(inner))

    def carries(self, value: Value) -> bool:
        return value.number in self.values or any(b in self.merged for dim in value.dims for b in dim.blocks)

    def place_of(self, op: Op) -> int | None:
        """Return the merged dimension of which a scalar is the index."""
        attrs = op.attrs
        if not isinstance(attrs, TileAttrs) or attrs.block not in self.merged:
            return None
        return attrs.block if _is_of_one(attrs, self.program) else None

    # --- legality -----------------------------------------------------------------------------------------------------

    def check(self, op: Op) -> None:
        for inner in op.walk():
            if _place_read(inner) in self.merged and (inner is not op or self.place_of(op) is None):
                raise Declined("the position of a tile is read")
            if OPS[inner.kind].stays and not isinstance(inner.attrs, MemoryAttrs):
                raise Declined(f"the body has {_article(inner.kind)}, which would see other tiles")
            # An op that runs once per tile would run for another number of tiles, with other contents.
            if OPS[inner.kind].stays and not self.tiled <= {d.block for d in inner.result.dims}:
                raise Declined(f"{_article(inner.kind)} does not span all of the dimensions")
        if not self.is_wide(op):
            return
        if "flatten" not in OPS[op.kind].divided_by and op.kind not in self.within:
            raise Declined(f"{_article(op.kind)} uses a merged dimension")
        for value in _values(op):
            self.check_dims(value)

    def check_dims(self, value: Value) -> None:
        places = [dim for dim in value.dims if any(b in self.merged for b in dim.blocks)]
        if any(dim.block is None for dim in places):
            raise Declined("a reshape merges a dimension with another")
        if len(set(places)) != len(places):
            raise Declined("a value has a dimension twice")
        if self.carries(value) and any(not dim.is_one for dim in value.dims if dim not in places):
            raise Declined("a value has another dimension besides the merged ones")

    # --- ops of one dimension -----------------------------------------------------------------------------------------

    def narrow(self, op: Op, ops: list[Op]) -> None:
        match op.attrs:
            case ViewAttrs(name, _):
                (value,) = op.values()
                if name == "permute" or (name == "reshape" and solid(value) != solid(op.result)):
                    raise Declined(f"a {name} uses a merged dimension")
                if self.carries(value):
                    # Lanes keep their values.
                    self.values[op.result.number] = self.values[value.number]
                    return
                operand = self.single(value, ops) if value.dims else self.reshaped(value, ops)
                ops.append(
                    replace(op, operands=(operand,), results=(self.lane(op.result),), attrs=ViewAttrs("broadcast"))
                )
                return
            case MemoryAttrs():
                op = self.placed(op)
                op = replace(op, attrs=self.access(op.attributes(MemoryAttrs)))
        operands = tuple(self.operand(operand, ops) for operand in op.operands)
        ops.append(replace(op, operands=operands, results=tuple(map(self.lane, op.results))))

    def lane(self, value: Value) -> Value:
        self.values[value.number] = made = replace(value, dims=self.lanes)
        return made

    def operand(self, operand: Operand, ops: list[Op]) -> Operand:
        if not isinstance(operand, Value):
            return operand
        return self.values[operand.number] if self.carries(operand) else self.single(operand, ops)

    def single(self, value: Value, ops: list[Op]) -> Value:
        """Return a one-element value with at most one dimension."""
        if any(not dim.is_one for dim in value.dims):
            raise Declined("a value of other dimensions is used with the merged ones")
        return value if len(value.dims) <= 1 else self.reshaped(value, ops)

    def reshaped(self, value: Value, ops: list[Op]) -> Value:
        return Builder(self.numbers, ops=ops).reshape(value, (ONE,))

    # --- memory -------------------------------------------------------------------------------------------------------

    def placed(self, op: Op) -> Op:
        """Return an access with subscripts by lanes instead of by scalars that have become lanes."""
        attrs, operands = op.attributes(MemoryAttrs), list(op.operands)
        indices = list(attrs.indices)
        for dim, index in enumerate(indices):
            if index.operand is None:
                continue
            operand = operands[index.operand]
            if not isinstance(operand, Value) or operand.dims or not self.carries(operand):
                continue
            if index.kind == "scalar" and operand.number in self.places:
                indices[dim] = Index("block", self.places[operand.number], (0,), index.shift)
                operands[index.operand] = 0
            elif index.kind == "scalar" and fixed_at(index.shift, 0):
                indices[dim] = replace(index, kind="tensor", positions=(0,))
            else:
                raise Declined("a subscript adds the position of a tile to another index")
        return replace(op, operands=tuple(operands), attrs=replace(attrs, indices=tuple(indices)))

    def access(self, attrs: MemoryAttrs) -> MemoryAttrs:
        indices = [replace(index, positions=(0,) if index.positions else ()) for index in attrs.indices]
        return replace(attrs, indices=self.in_memory_order(attrs, indices) or tuple(indices), rank=1)

    def in_memory_order(self, attrs: MemoryAttrs, indices: list[Index], lanes: int = 0) -> tuple[Index, ...] | None:
        """Return subscripts by lane number alone, along dimension ``lanes``, if memory order equals lane order; else None."""
        # a dimension of one element is always at 0
        long = [axis for axis in self.axes if axis.end is not None and not fixed_at(axis.end, 1)]
        tensor = self.program.tensors[attrs.tensor]
        places: list[int] = []
        for axis in long:
            found = [d for d, index in enumerate(indices) if index.kind == "block" and index.block == axis.block]
            if len(found) != 1 or indices[found[0]].operand is not None or not fixed_at(indices[found[0]].shift, 0):
                return None
            places += found
        for outer, inner, axis in zip(places, places[1:], long[1:], strict=False):
            stride, step, count = tensor.strides[outer], tensor.strides[inner], positive_part(axis.end)
            if number_key(stride) != number_key(step * count):
                return None
        if not places:
            return None
        made = list(indices)
        for dim, index in enumerate(indices):
            if index.kind == "block" and index.block in self.merged:
                made[dim] = Index("scalar", shift=index.shift, operand=index.operand)
        made[places[-1]] = Index("block", self.block, (lanes,))
        return tuple(made)


def _place_read(op: Op) -> int | None:
    """Return the block whose tile's position an op reads, or whose lanes it numbers from there; None for other ops."""
    match op.attrs:
        case TileAttrs(block, _) | IotaAttrs(block, relative=True):
            return block
    return None


def _values(op: Op) -> Iterator[Value]:
    yield from op.values()
    yield from op.results
    for region in op.regions:
        yield from region.params
        yield from (v for v in region.results if isinstance(v, Value))


def solid(value: Value) -> list[Dim]:
    return [dim for dim in value.dims if not dim.is_one]


def _article(kind: str) -> str:
    names = {
        "reduce": "reduction",
        "dot": "matmul",
        "for": "loop",
        "while": "loop",
        "if": "branch",
        "asm": "asm",
    }
    name = names.get(kind, kind)
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
