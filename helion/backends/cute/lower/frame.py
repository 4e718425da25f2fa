"""The loops of a GEMM, the definitions of its values, and the layout of its tensors."""

from __future__ import annotations

from collections.abc import Mapping

from ...._compiler.ir.grammar import HostTensor, Index, MemoryAttrs, Op, Operand, Program, TileAttrs, Value
from ...._shapes import Dim, Expr, Number, dtype_name, fixed_at, next_power_of_2
from ...._support.records import dataclass, field, replace
from ..plan.epilogue import LineNumbers, OperandKind
from ..plan.records import TMA_ALIGNMENT_BYTES, Major
from ..plan.refusal import Refusal
from .names import name_of
from .numbers import equal, known, size
from .rewrites.picks import Pick
from .rewrites.sums import LineSum


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The loops of the program, and the op that defines each value.

    ``whole_rows``: a program has all columns of its rows. Then ``n`` is a block of all of them, or each program
    iterates over them, ``by_tiles``. ``same`` maps blocks of later loops to the ``n`` and ``k`` of the first loop with
    the same range.
    """

    program: Program
    makers: Mapping[int, Op]
    m: int
    n: int
    k: int
    whole_rows: bool = False
    by_tiles: bool = False
    same: Mapping[int, int] = field(default_factory=dict)
    batch_strides: Mapping[int, tuple[Number, ...]] = field(default_factory=dict)
    """Elements from one matrix to the next along each dimension of a batch, by tensor."""
    groups: frozenset[int] = frozenset()
    """Blocks that count groups of columns, or that have the columns of one."""
    picks: Mapping[int, Pick] = field(default_factory=dict)
    """Tensors of picked lines, by id."""
    sums: Mapping[int, LineSum] = field(default_factory=dict)
    """Vectors of sums along K, by id."""
    k_extent: int | None = None
    """Extent of K if its loop iterates over a part of K."""
    pairs: Mapping[int, bool] = field(default_factory=dict)
    """Tensors of 4-bit numbers of which neighbors along K share a byte, by id: True where the even one has the high bits."""
    along_m: bool = False
    """True if TMA stores the output in tiles that are contiguous along M."""
    bucket: range | None = None
    """Numbers of columns that the kernel is for, if only the launch knows their number."""

    def named(self, block: int) -> int:
        """Return M, N or K for a block that is the same dimension."""
        return self.same.get(block, block)

    def block(self, dim: Dim) -> int | None:
        """Return the block of a dimension; None for one element."""
        if dim.is_one:
            return None
        return -1 if dim.block is None else self.named(dim.block)

    def maker(self, value: Operand) -> Op | None:
        return self.makers.get(value.number) if isinstance(value, Value) else None

    def tensor(self, op: Op) -> HostTensor:
        return self.program.tensors[op.attrs.tensor]

    @property
    def column_blocks(self) -> tuple[int, ...]:
        """The blocks that iterate over columns."""
        return (self.n, *(block for block, stands_for in self.same.items() if stands_for == self.n))

    @property
    def columns(self) -> int:
        """Columns of a row, the most of its bucket. Raises ``Refusal`` if only the launch knows them, without a bucket."""
        found = self.extent(self.n) if self.bucket is None else self.bucket[-1]
        if not isinstance(found, int):
            raise Refusal(
                "whole rows have a number of columns that is known when the kernel is compiled; use hl.specialize"
            )
        return found

    def is_columns(self, number: object) -> bool:
        """Return whether a number is that of columns, which only the launch knows."""
        return self.bucket is not None and equal(number, self.extent(self.n))

    def tile_columns(self, block: int) -> int:
        """Return the columns of each tile of ``block``, if their number is fixed, and a part of those of a row; else 0.

        Rows of a matmul have none: its tiles are those of the accumulator.
        """
        whole = self.k < 0 and self.named(block) == self.n and self.bucket is None
        size = self.program.blocks[block].size if whole else None
        return size if isinstance(size, int) and 1 < size < self.columns and self.columns % size == 0 else 0

    def tiles_in(self, extent: Number) -> int | None:
        """Return an extent that counts tiles of columns, given one tile with all columns; None for others."""
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
    """The target of an access: a tensor, the blocks that iterate over its dimensions, and their strides."""

    tensor: HostTensor
    blocks: tuple[int, ...]
    strides: tuple[Number, ...]


def blocks_of(frame: Frame, op: Op) -> tuple[int, ...]:
    """Return the block that iterates over each dimension of the tensor that `op` accesses, without those at index 0."""
    return walked_blocks(frame, op)[0]


def walked_blocks(frame: Frame, op: Op) -> tuple[tuple[int, ...], bool]:
    """Return ``blocks_of``, and whether the index of a column tile picks a part of the tensor, which has one part per
    tile."""
    attrs = op.attributes(MemoryAttrs)
    picked = [at for at, index in enumerate(attrs.indices) if _is_number_of_tile(frame, op, index)]
    if attrs.mask is not None or not all(at in picked or _is_plain(index) for at, index in enumerate(attrs.indices)):
        raise Refusal("loads and stores of whole tiles, without offsets and masks, are implemented")
    tensor = frame.tensor(op)
    for at in picked:
        if frame.tiles_in(tensor.shape[at]) != 1 and not _is_one_per_tile(frame, op, at):
            raise Refusal(f"the index of a tile of columns picks one of {tensor.shape[at]!r} parts of {tensor.name}")
    return tuple(frame.named(index.block) for index in attrs.indices if index.block is not None), bool(picked)


def _is_one_per_tile(frame: Frame, op: Op, at: int) -> bool:
    """Return whether dimension ``at`` of a tensor has one element for each tile of columns of a fixed size."""
    index = op.attributes(MemoryAttrs).indices[at]
    made = frame.maker(op.operands[index.operand]) if index.operand is not None else None
    group = frame.tile_columns(made.attrs.block) if made is not None and isinstance(made.attrs, TileAttrs) else 0
    return group > 0 and equal(frame.tensor(op).shape[at], frame.columns // group)


def one_per_tile(frame: Frame, op: Op) -> bool:
    """Return whether an access is of one element for each row and each tile of columns of a fixed size."""
    indices = op.attributes(MemoryAttrs).indices
    last = len(indices) - 1
    picked = last == 1 and _is_number_of_tile(frame, op, indices[last])
    return picked and blocks_of(frame, op) == (frame.m,) and _is_one_per_tile(frame, op, last)


def _is_number_of_tile(frame: Frame, op: Op, index: Index) -> bool:
    made = frame.maker(op.operands[index.operand]) if frame.by_tiles and index.operand is not None else None
    if made is None or not isinstance(made.attrs, TileAttrs) or not _is_plain(replace(index, operand=None)):
        return False
    return made.attrs.field == "id" and index.block is None and frame.named(made.attrs.block) == frame.n


def _is_plain(index: Index) -> bool:
    unmoved = fixed_at(index.shift, 0) and index.operand is None
    return index.kind in ("block", "scalar") and unmoved


def place_of(frame: Frame, op: Op, *, aligned: bool = True) -> Place:
    """Return the place that `op` accesses, and check that the loops cover the tensor's extents, and that it is ``aligned``
    to 16 bytes. Threads access numbers of rows one by one, and single numbers, which may begin anywhere."""
    blocks, tensor = blocks_of(frame, op), frame.tensor(op)
    walked = [at for at, index in enumerate(op.attributes(MemoryAttrs).indices) if index.kind == "block"]
    shape, wanted = tuple(tensor.shape[at] for at in walked), tuple(frame.extent(block) for block in blocks)
    if len(shape) != len(wanted) or not all(map(equal, shape, wanted)):
        raise Refusal(f"{tensor.name} is {tuple(tensor.shape)}, of which tiles cover {wanted}")
    if aligned and blocks not in ((), (frame.m,)) and not tensor.aligned:
        raise Refusal(f"{tensor.name} may begin at an address that is no multiple of 16 bytes")
    return Place(tensor=tensor, blocks=blocks, strides=tuple(tensor.strides[at] for at in walked))


def picked_lines(frame: Frame, op: Op, place: Place, along: str = "m") -> Pick | None:
    """Return the pick of an access ``along`` M, or along any of ``mn``; None if it picks nothing. Raises ``Refusal`` for other
    dimensions."""
    pick = frame.picks.get(place.tensor.id)
    if pick is None:
        return None
    block = op.attributes(MemoryAttrs).indices[pick.along].block
    if block is None or frame.named(block) not in [getattr(frame, side) for side in along]:
        raise Refusal(f"{pick.lines.name} picks from {pick.tensor.name} along another dimension than its lines")
    return pick


def numbers_of(lines: HostTensor) -> LineNumbers:
    """Return a vector of numbers of lines."""
    step = known(lines.strides[0], f"the stride of {lines.name}")
    return LineNumbers(name=name_of(lines), dtype=dtype_name(lines.dtype), pitch=step)


def upright(frame: Frame, place: Place) -> Place:
    """Return the place with the dimension along M first."""
    if place.blocks != (frame.n, frame.m):
        return place
    return Place(tensor=place.tensor, blocks=place.blocks[::-1], strides=place.strides[::-1])


def major_of(frame: Frame, place: Place) -> tuple[Major, Number]:
    """Return the contiguous dimension and the stride of the other; K where both strides are 1."""
    along_k = place.blocks.index(frame.k)
    k_stride, other = place.strides[along_k], place.strides[1 - along_k]
    if equal(k_stride, 1):
        return "k", other
    if equal(other, 1):
        return "mn", k_stride
    raise Refusal(f"{place.tensor.name} has strides {place.strides}, of which none is 1")


def suits_tma(frame: Frame, place: Place) -> bool:
    """Return whether TMA moves tiles of a matrix with contiguous rows. Strides that only the launch knows have to be
    multiples of 16 bytes."""
    size, steps = place.tensor.dtype.itemsize, (place.strides[0], *frame.batch_strides.get(place.tensor.id, ()))
    aligned = all(not isinstance(step, int) or step * size % TMA_ALIGNMENT_BYTES == 0 for step in steps)
    return aligned and (equal(place.strides[1], 1) or not isinstance(place.strides[1], int))


def kind_of(frame: Frame, place: Place) -> tuple[OperandKind, Number]:
    """Return the kind of an operand and its pitch.

    Strides of 0 are checked first: an expanded vector is read as a vector, and a single element as a column with pitch
    0.
    """
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
