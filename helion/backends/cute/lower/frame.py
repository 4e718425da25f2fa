"""Which loops a product has, what makes each value, and where tensors lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...._compiler.ir.grammar import HostTensor, Index, MemoryAttrs, Op, Operand, Program, TileAttrs, Value
from ...._shapes import Dim, Expr, Number, next_power_of_2
from ..plan.epilogue import OperandKind
from ..plan.records import Major
from ..plan.refusal import Refusal
from .numbers import equal, size


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The loops of the program, and which op gives each value.

    ``whole_rows``: a program has all columns of its rows, and ``n`` is either a block of all of them or walked over in each
    program, ``by_tiles``. ``same`` are blocks of later loops over what ``n`` and ``k`` are those of the first over.
    """

    program: Program
    makers: Mapping[int, Op]
    m: int
    n: int
    k: int
    whole_rows: bool = False
    by_tiles: bool = False
    same: Mapping[int, int] = field(default_factory=dict)
    k_extent: int | None = None
    """Of K where its loop goes over a block of it."""

    def named(self, block: int) -> int:
        """M, N or K for a block that stands for it."""
        return self.same.get(block, block)

    def block(self, dim: Dim) -> int | None:
        """Of a dimension; None for one of a single element."""
        if dim.is_one:
            return None
        return -1 if dim.block is None else self.named(dim.block)

    def maker(self, value: Operand) -> Op | None:
        return self.makers.get(value.number) if isinstance(value, Value) else None

    def tensor(self, op: Op) -> HostTensor:
        return self.program.tensors[op.attrs.tensor]

    @property
    def column_blocks(self) -> tuple[int, ...]:
        """Those that walk over columns."""
        return (self.n, *(block for block, stands_for in self.same.items() if stands_for == self.n))

    @property
    def columns(self) -> int:
        """Of a row. Raises ``Refusal`` where only a launch knows."""
        found = self.extent(self.n)
        if not isinstance(found, int):
            raise Refusal(
                "whole rows have a number of columns that is known when the kernel is compiled; use hl.specialize"
            )
        return found

    def tiles_in(self, extent: Number) -> int | None:
        """An extent that counts tiles of columns where one tile has all of them; None for others."""
        if not isinstance(extent, Expr):
            return None
        if not all(leaf.op == "block" and self.named(leaf.args[0]) == self.n for leaf in extent.leaves()):
            return None
        return int(extent.evaluate(lambda leaf: next_power_of_2(self.columns)))

    def extent(self, block: int) -> Number:
        if block == self.k and self.k_extent is not None:
            return self.k_extent
        return size(self.program.blocks[block].extent)


@dataclass(frozen=True, kw_only=True)
class Place:
    """What an access reaches: a tensor, the blocks that walk over its dimensions, and the strides of these."""

    tensor: HostTensor
    blocks: tuple[int, ...]
    strides: tuple[Number, ...]


def blocks_of(frame: Frame, op: Op) -> tuple[int, ...]:
    """Which block walks over each dimension of the tensor that `op` addresses; an index of 0 walks over none."""
    return walked_blocks(frame, op)[0]


def walked_blocks(frame: Frame, op: Op) -> tuple[tuple[int, ...], bool]:
    """``blocks_of``, and whether the number of a tile of columns picks a part of the tensor, which has one for each tile."""
    attrs = op.attributes(MemoryAttrs)
    picked = [at for at, index in enumerate(attrs.indices) if _is_number_of_tile(frame, op, index)]
    if attrs.mask is not None or not all(at in picked or _is_plain(index) for at, index in enumerate(attrs.indices)):
        raise Refusal("loads and stores of whole tiles, without offsets and masks, are implemented")
    tensor = frame.tensor(op)
    for at in picked:
        if frame.tiles_in(tensor.shape[at]) != 1:
            raise Refusal(f"the number of a tile of columns picks one of {tensor.shape[at]!r} parts of {tensor.name}")
    return tuple(frame.named(index.block) for index in attrs.indices if index.block is not None), bool(picked)


def _is_number_of_tile(frame: Frame, op: Op, index: Index) -> bool:
    made = frame.maker(op.operands[index.operand]) if frame.by_tiles and index.operand is not None else None
    if made is None or not isinstance(made.attrs, TileAttrs) or not _is_plain(replace(index, operand=None)):
        return False
    return made.attrs.field == "id" and index.block is None and frame.named(made.attrs.block) == frame.n


def _is_plain(index: Index) -> bool:
    unmoved = isinstance(index.shift, int) and index.shift == 0 and index.operand is None
    return index.kind in ("block", "scalar") and unmoved


def place_of(frame: Frame, op: Op) -> Place:
    """What `op` reaches: the extents of the tensor are those of the loops over it."""
    blocks, tensor = blocks_of(frame, op), frame.tensor(op)
    walked = [at for at, index in enumerate(op.attributes(MemoryAttrs).indices) if index.kind == "block"]
    shape, wanted = tuple(tensor.shape[at] for at in walked), tuple(frame.extent(block) for block in blocks)
    if len(shape) != len(wanted) or not all(map(equal, shape, wanted)):
        raise Refusal(f"{tensor.name} is {tuple(tensor.shape)}, of which tiles cover {wanted}")
    if not tensor.aligned:
        raise Refusal(f"{tensor.name} may begin at an address that is no multiple of 16 bytes")
    return Place(tensor=tensor, blocks=blocks, strides=tuple(tensor.strides[at] for at in walked))


def upright(frame: Frame, place: Place) -> Place:
    """The same with the dimension along M in front."""
    if place.blocks != (frame.n, frame.m):
        return place
    return Place(tensor=place.tensor, blocks=place.blocks[::-1], strides=place.strides[::-1])


def major_of(frame: Frame, place: Place) -> tuple[Major, Number]:
    """Which dimension is contiguous, and the stride of the other; K where both strides are 1."""
    along_k = place.blocks.index(frame.k)
    k_stride, other = place.strides[along_k], place.strides[1 - along_k]
    if equal(k_stride, 1):
        return "k", other
    if equal(other, 1):
        return "mn", k_stride
    raise Refusal(f"{place.tensor.name} has strides {place.strides}, of which none is 1")


def kind_of(frame: Frame, place: Place) -> tuple[OperandKind, Number]:
    """The kind of an operand and its pitch. A stride of 0 is looked for before an exact operand: an expanded vector is
    read as the vector that it is, and one element as a column in which every row has it."""
    blocks, strides = place.blocks, place.strides
    moving = [not equal(stride, 0) for stride in strides]
    if not any(moving):
        return "column", 0
    if blocks == (frame.n,):
        return "row", strides[0]
    if blocks == (frame.m,):
        return "column", strides[0]
    if blocks == (frame.m, frame.n):
        if moving == [False, True]:
            return "row", strides[1]
        if moving == [True, False]:
            return "column", strides[0]
        if moving[0] and equal(strides[1], 1):
            return "exact", strides[0]
    raise Refusal(f"{place.tensor.name} with strides {strides} is no matrix, row or column of the epilogue")
