"""Joins lines of a grid that are too short for a matmul into tiles of several lines.

A kernel that convolves images has one line of pixels in each program. A tile of the matrix unit has more rows than such
a line has pixels. Here programs have the pixels of all lines, one line after another. Before, with lines of 28::

    grid b0 in 0..16, b1 in 0..28, b2 in 0..64: %1 = tile b0.begin; %2: [b1, b3] = load x[%1, b1 + 1, b3]; ..
    %4: [b1, b2] = dot %2, %3, ..; store out[%1, b1, b2] <- %4

After::

    grid b1 in 0..448, b2 in 0..64: %5: [b1] = iota b1; %6 = remainder %5, 28; %1: [b1] = truncdiv %5, 28; %7 = add %6, 1
    %2: [b1, b3] = load x[%1, %7, b3]; .. %4: [b1, b2] = dot %2, %3, ..; store out[b1, b2] <- %4

Axes with one index in each program are joined where only rows of tiles depend on them: those of one operand, of the
accumulator and of results. Loads of the other operand and bounds of loops must not.

Lines may also be columns: those of a tile for each head, or for each line of a patch. The tensors that tiles are loaded
from must have the columns of all lines in memory order then. Results may have them in pieces of whole sectors.

Some tensors have rows in memory order, and all accesses are to whole rows, as those of ``out``. They have one dimension
of rows from here on, and TMA loads their tiles. Other tiles are loaded row by row, each at its own indices (measurement
``joined_lines``). ``join_rows`` does so for backends that can.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator

import torch

from ...._shapes import ONE, WIDE, Dim, Dims, Expr, cdiv, fixed_at, hint_of, next_power_of_2, number_key, positive_part
from ...._support.records import dataclass, field, replace
from ...ir.build import Builder, Numbers
from ...ir.effects import is_fence, meets_other_gpus, stays
from ...ir.grammar import (
    Block,
    ForAttrs,
    HostTensor,
    Index,
    InlineAttrs,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    Program,
    ReduceAttrs,
    Region,
    Root,
    TileAttrs,
    Value,
)
from ...ir.loops import loops_of
from ...ir.rewrite import Declined

#: Rows of the smallest and of the usual tile of a warpgroup's matmul, and the least share of such a tile that rows fill.
_LEAST, _USUAL, _FILLED = 64, 128, 0.8
#: Bytes that memory reads or writes at once.
_SECTOR_BYTES = 32
#: Fields of a tile of one element that are its index.
_INDEX = frozenset(("begin", "id", "index"))
#: Ops that may have joined lines, besides accesses to memory.
_BY_LANE = frozenset(("pointwise", "view", "dot", "full", "reduce", "for"))


def join_lines(program: Program) -> Program:
    """Return the program with short lines joined in the grid loops that multiply matrices, where all rows are in memory
    order; the same program if there are none."""
    return _all_joined(program, by_rows=False)


def join_rows(program: Program) -> Program:
    """Return the program with lines joined that fit no tile, although rows are then loaded each by itself."""
    return _all_joined(program, by_rows=True)


def _all_joined(program: Program, by_rows: bool) -> Program:
    if meets_other_gpus(program) or any(map(is_fence, program.walk())):
        return program
    for number in range(len(program.roots)):
        program = _joined(program, number, by_rows)
    return program


def _joined(program: Program, number: int, by_rows: bool) -> Program:
    for contiguous in (False, True):
        for line in _short_lines(program, program.roots[number], contiguous):
            made = _with_joined(program, number, line, by_rows, contiguous)
            if made is not program:
                program = made
                break
    return program


def _with_joined(program: Program, number: int, line: LoopAxis, by_rows: bool, contiguous: bool) -> Program:
    """Return the program with lines joined along the axes where that gains."""
    root = program.roots[number]
    chosen: list[LoopAxis] = []
    made = program
    # The axis nearest to the line first: its lines are neighbors in memory.
    for axis in reversed([axis for axis in root.axes if _is_single(program, axis)]):
        wanted = [each for each in root.axes if each in chosen or each is axis]
        joiner = _Joiner.of(program, number, wanted, line)
        try:
            found = joiner.joined()
        except Declined:
            continue
        gains = joiner.stores_runs if contiguous else _gains_by_rows(hint_of(line.end), root)  # type: ignore[arg-type]
        if joiner.in_order or (by_rows and gains):
            chosen, made = wanted, found
    return made


# --- the axes -------------------------------------------------------------------------------------------------------------


def _short_lines(program: Program, root: Root, contiguous: bool) -> Iterator[LoopAxis]:
    """Yield the axes of rows or columns of all matmuls of a grid loop that are too short for their tiles.

    Their elements are neighbors in memory if ``contiguous``, and are not otherwise.
    """
    dots = [op for op in root.body.walk() if op.kind == "dot"]
    if not dots or not any(_is_single(program, axis) for axis in root.axes):
        return
    loops = (loop.axes if isinstance(loop, Root) else loop.attributes(ForAttrs).axes for loop in loops_of(program))
    around = [axis.block for axes in loops for axis in axes]
    for axis in root.axes:
        dim = Dim(1, (axis.block,))
        block = program.blocks[axis.block]
        if not block.tunable or block.registered or around.count(axis.block) != 1:
            continue
        if not _counts_from_zero(axis) or not _is_short(hint_of(axis.end)):  # type: ignore[arg-type]
            continue
        if all(dim in op.result.dims for op in dots) and _is_contiguous(program, root, axis.block) is contiguous:
            yield axis


def _is_short(line: int) -> bool:
    """Return whether lines of a length leave much of tiles of the matrix unit empty."""
    return 1 < line < _FILLED * _USUAL * cdiv(line, _USUAL)


def _gains_by_rows(line: int, root: Root) -> bool:
    """Return whether lines of a length are better joined if their tiles are then loaded row by row.

    Lines of the smallest tile gain where programs load each column of the other operand for many products, as those of
    taps do: tiles of two lines load it half as often (measurement ``joined_lines``).
    """
    return line < _USUAL and (line % _LEAST > 0 or _has_taps(root))


def _has_taps(root: Root) -> bool:
    """Return whether a grid loop runs several loops with matmuls, one after another or in another loop."""
    loops = [op for op in root.body.ops if op.kind == "for" and any(inner.kind == "dot" for inner in op.walk())]
    return len(loops) > 1 or any(len(op.attributes(ForAttrs).axes) > 1 or _has_loops(op) for op in loops)


def _has_loops(loop: Op) -> bool:
    return any(op.kind == "for" for op in loop.regions[0].ops)


def _is_contiguous(program: Program, root: Root, block: int) -> bool:
    """Return whether elements of a block are neighbors in memory, in an access to a tile of several dimensions."""
    for op in root.body.walk():
        if not isinstance(op.attrs, MemoryAttrs) or op.attrs.rank < 2:
            continue
        dims = op.result.dims
        for index, stride in zip(op.attrs.indices, program.tensors[op.attrs.tensor].strides, strict=True):
            if fixed_at(stride, 1) and any(block in dims[at].blocks for at in index.positions):
                return True
    return False


def _is_single(program: Program, axis: LoopAxis) -> bool:
    """Return whether a program has one index of an axis, from 0 on."""
    plain = fixed_at(axis.step, 1) if axis.scalar else fixed_at(program.blocks[axis.block].size, 1)
    return plain and _counts_from_zero(axis)


def _counts_from_zero(axis: LoopAxis) -> bool:
    if axis.merged or axis.split is not None or axis.jagged is not None or axis.backwards or axis.whole or axis.parted:
        return False
    return fixed_at(axis.begin, 0) and _is_positive(axis.end)


def _is_positive(end: object) -> bool:
    """Return whether an end is a number that the host knows, and not 0 as seen when binding."""
    if isinstance(end, OperandRef) or (isinstance(end, Expr) and not end.leaves_are("host")):
        return False
    return hint_of(end) > 0  # type: ignore[arg-type]


# --- the body -------------------------------------------------------------------------------------------------------------


@dataclass
class _Joiner:
    """The rewrite of the body of a grid loop.

    ``known`` has the values in place of others, by number: scalars of joined axes became rows. ``places`` has the
    index of each row along each joined axis, by block. ``flat`` has the dimensions of a tensor along the joined axes,
    by number: the tensor has one dimension of rows instead. ``in_order`` is true if all tiles of rows are of such tensors.
    ``stores_runs`` is true if all tiles that are loaded are, and lines of other results are whole sectors.
    """

    program: Program
    number: int
    axes: tuple[LoopAxis, ...]
    line: LoopAxis
    numbers: Numbers
    flat: dict[int, tuple[int, ...]] = field(default_factory=dict)
    in_order: bool = True
    stores_runs: bool = True
    known: dict[int, Value] = field(default_factory=dict)
    places: dict[int, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, number: int, wanted: Iterable[LoopAxis], line: LoopAxis) -> _Joiner:
        """Return the rewrite that joins lines along the axes ``wanted``, the slowest-varying first."""
        return cls(program, number, (*wanted, line), line, Numbers.after(program))

    @property
    def root(self) -> Root:
        return self.program.roots[self.number]

    @property
    def row(self) -> Dim:
        return Dim(1, (self.line.block,))

    def joined(self) -> Program:
        """Return the program with lines joined. Raises ``Declined`` if an op depends on a line as a whole."""
        program, root = self.program, self.root
        self.check_dims()
        block = self.rows()
        self.find_flat()
        ops: list[Op] = []
        self.number_rows(ops)
        self.region(root.body, ops)
        others = [axis for axis in self.axes if axis is not self.line]
        axes = [axis for axis in root.axes if axis not in others]
        axes[axes.index(self.line)] = replace(self.line, end=block.extent)  # type: ignore[arg-type]
        made = replace(root, axes=tuple(axes), body=Region((), tuple(ops), ()), joined=root.joined + len(others))
        return replace(
            program,
            tensors=tuple(self.flattened(tensor, block) for tensor in program.tensors),
            blocks=tuple(block if each.id == block.id else each for each in program.blocks),
            roots=(*program.roots[: self.number], made, *program.roots[self.number + 1 :]),
        )

    def check_dims(self) -> None:
        """Raise ``Declined`` if a value or an access has a joined axis as a dimension of its own."""
        gone = {axis.block for axis in self.axes if axis is not self.line}
        for op in self.root.body.walk():
            values = (*op.reads(), *op.results, *(each for region in op.regions for each in region.params))
            if any(gone.intersection(dim.blocks) for value in values for dim in value.dims):
                raise Declined("a value has a joined axis as a dimension")
            if isinstance(op.attrs, MemoryAttrs) and any(index.block in gone for index in op.attrs.indices):
                raise Declined("an access has a joined axis as a dimension")
            if isinstance(op.attrs, ForAttrs) and any(axis.block in gone for axis in op.attrs.axes):
                raise Declined("a loop is over a joined axis")

    def rows(self) -> Block:
        ends = [positive_part(axis.end) if isinstance(axis.end, Expr) else axis.end for axis in self.axes]
        if not all(isinstance(end, int) for end in ends) and not self.are_elements():
            raise Declined("the number of rows may have more bits than an index")
        total = math.prod(axis.end for axis in self.axes)  # type: ignore[misc]
        if self.program.index_dtype == torch.int32 and hint_of(total) > WIDE:
            raise Declined("the number of rows has more bits than an index")
        most = next_power_of_2(total) if isinstance(total, int) else None
        return replace(self.program.blocks[self.line.block], extent=total, max_size=most)

    def are_elements(self) -> bool:
        """Return whether some store has an element for each row, so that rows are numbered as elements are."""
        stores = (op for op in self.root.body.walk() if op.kind == "store")
        return any(self.places_in(op) is not None for op in stores)

    # --- tensors ---

    @functools.cached_property
    def singles(self) -> dict[int, int]:
        """The axis of which a scalar is the index, by its number."""
        return {
            op.result.number: op.attrs.block
            for op in self.root.body.walk()
            if isinstance(op.attrs, TileAttrs) and op.attrs.field in _INDEX and op.attrs.block != self.line.block
        }

    def places_in(self, op: Op) -> tuple[int, ...] | None:
        """Return the dimension of an access along each joined axis, if each is the index of one dimension by itself."""
        found: dict[int, int] = {}
        for dim, index in enumerate(op.attributes(MemoryAttrs).indices):
            operand = None if index.operand is None else op.operands[index.operand]
            block = index.block if index.kind == "block" and operand is None else None
            if index.kind == "scalar" and isinstance(operand, Value):
                block = self.singles.get(operand.number)
            if block is None or not fixed_at(index.shift, 0):
                continue
            if found.setdefault(block, dim) != dim:
                return None
        if not all(axis.block in found for axis in self.axes):
            return None
        return tuple(found[axis.block] for axis in self.axes)

    def find_flat(self) -> None:
        """Find the tensors that have rows in memory order, and whose accesses all are to rows."""
        own = {op.number for op in self.root.body.walk()}
        refused = {tensor.part[0] for tensor in self.program.tensors if tensor.part is not None}
        for op in self.program.walk():
            if isinstance(op.attrs, InlineAttrs):
                refused.update(op.attrs.tensors)
            if not isinstance(op.attrs, MemoryAttrs):
                continue
            at, places = op.attrs.tensor, None
            if op.number in own and op.kind in ("load", "store") and self.row in op.result.dims:
                places = self.places_in(op)
            run = places is not None and self.is_run(self.program.tensors[at], places)
            if not run or self.flat.setdefault(at, places) != places:  # type: ignore[arg-type]
                refused.add(at)
        self.flat = {at: places for at, places in self.flat.items() if at not in refused}

    def is_run(self, tensor: HostTensor, places: tuple[int, ...]) -> bool:
        """Return whether a tensor has the elements of all rows at equal distances."""
        if tensor.part is not None or tensor.member is not None:
            return False
        ends = [positive_part(axis.end) for axis in self.axes]
        if any(number_key(tensor.shape[dim]) != number_key(end) for dim, end in zip(places, ends, strict=True)):
            return False
        strides = [tensor.strides[dim] for dim in places]
        pairs = zip(strides, strides[1:], ends[1:], strict=False)
        return all(number_key(outer) == number_key(inner * end) for outer, inner, end in pairs)

    def flattened(self, tensor: HostTensor, block: Block) -> HostTensor:
        """Return a tensor with one dimension of rows instead of those of the joined axes."""
        if tensor.id not in self.flat:
            return tensor
        *outer, rows = self.flat[tensor.id]
        kept = [dim for dim in range(tensor.ndim) if dim not in outer]
        shape = tuple(block.extent if dim == rows else tensor.shape[dim] for dim in kept)
        return replace(tensor, shape=shape, strides=tuple(tensor.strides[dim] for dim in kept))  # type: ignore[arg-type]

    def number_rows(self, ops: list[Op]) -> None:
        """Append the index of each row along each axis."""
        out = Builder(self.numbers, self.root.location, ops)
        left = out.emit("iota", (), self.program.index_dtype, (self.row,), IotaAttrs(self.line.block, False))
        for axis in reversed(self.axes):
            if axis is self.axes[0]:
                self.places[axis.block] = left
                return
            end = self.end(axis, out)
            self.places[axis.block] = out.pointwise("remainder", left, end)
            left = out.pointwise("truncdiv", left, end)

    def end(self, axis: LoopAxis, out: Builder) -> Operand:
        if isinstance(axis.end, int):
            return axis.end
        assert isinstance(axis.end, Expr)
        number = out.emit("number", (), torch.int64, (), NumberAttrs(axis.end))
        return out.cast(number, self.program.index_dtype)

    # --- values ---

    def has_rows(self, value: Value) -> bool:
        return any(self.line.block in dim.blocks for dim in value.dims)

    def touches(self, op: Op) -> bool:
        """Return whether an op, or one in its regions, has rows or depends on a joined axis."""
        for inner in op.walk():
            attrs = inner.attrs
            if isinstance(attrs, (TileAttrs, IotaAttrs)) and attrs.block in self.places:
                return True
            values = (*inner.reads(), *inner.results, *(each for region in inner.regions for each in region.params))
            if any(value.number in self.known or self.has_rows(value) for value in values):
                return True
        return False

    def at(self, dims: Dims) -> int:
        """Return the position of the rows. Raises ``Declined`` if a value has none, or more."""
        if sum(self.line.block in dim.blocks for dim in dims) != 1 or self.row not in dims:
            raise Declined("a value depends on a line without its rows, or has them twice")
        return dims.index(self.row)

    def spread(self, value: Value, dims: Dims, out: Builder) -> Value:
        """Return the rows of a scalar along the dimension of rows of ``dims``."""
        if not dims:
            return value
        return out.reshape(value, (self.row, *(ONE for _ in dims[self.at(dims) + 1 :])))

    # --- ops ---

    def region(self, region: Region, ops: list[Op]) -> None:
        for op in region.ops:
            if not self.touches(op):
                if any(map(stays, op.walk())):
                    raise Declined("an op runs once for each line")
                ops.append(op)
            elif isinstance(op.attrs, (TileAttrs, IotaAttrs)):
                self.place(op, op.attrs, ops)
            elif isinstance(op.attrs, MemoryAttrs) and op.kind in ("load", "store"):
                self.access(op, op.attrs, Builder(self.numbers, op.location, ops))
            elif op.kind in _BY_LANE:
                self.by_lane(op, Builder(self.numbers, op.location, ops))
            else:
                raise Declined(f"{op.kind} has rows, or depends on a line")

    def place(self, op: Op, attrs: TileAttrs | IotaAttrs, ops: list[Op]) -> None:
        """Use the index of each row in place of that of its line, or of its place in the line."""
        of_line = attrs.block == self.line.block
        if isinstance(attrs, TileAttrs):
            wanted = not of_line and attrs.field in _INDEX
        else:
            wanted = of_line and not attrs.relative
        if not wanted:
            raise Declined("the position of a tile is read")
        made = self.places[attrs.block]
        self.known[op.result.number] = Builder(self.numbers, op.location, ops).cast(made, op.result.dtype)

    def by_lane(self, op: Op, out: Builder) -> None:
        if op.kind == "for":
            self.loop(op, out)
            return
        lifted = [value for value in op.values() if value.number in self.known]
        dims = op.result.dims
        if lifted and any(value.dims == () for value in lifted) and op.kind != "pointwise":
            raise Declined(f"{op.kind} depends on a line")
        self.in_order = self.in_order and not lifted
        if dims or not lifted:
            self.at(dims)
        if isinstance(op.attrs, ReduceAttrs):
            (value,) = op.values()
            if self.at(value.dims) in op.attrs.dims:
                raise Declined("rows are reduced")
        operands = tuple(self.operand(each, dims, out) for each in op.operands)
        result = op.result
        if not dims:
            result = self.known[result.number] = replace(result, dims=(self.row,))
        out.ops.append(replace(op, operands=operands, results=(result,)))

    def operand(self, operand: Operand, dims: Dims, out: Builder) -> Operand:
        """Return an operand of an op whose result had dimensions ``dims``."""
        if not isinstance(operand, Value) or operand.number not in self.known:
            return operand
        made = self.known[operand.number]
        return made if operand.dims else self.spread(made, dims, out)

    def loop(self, op: Op, out: Builder) -> None:
        (region,) = op.regions
        if any(isinstance(each, Value) and each.number in self.known for each in op.operands):
            raise Declined("a loop depends on a line")
        ops: list[Op] = []
        self.region(region, ops)
        results = tuple(self.carried(each) for each in region.results)
        out.ops.append(replace(op, regions=(Region(region.params, tuple(ops), results),)))

    def carried(self, operand: Operand) -> Operand:
        """Return a value that a loop carries: rows, but no scalar that became rows."""
        if not isinstance(operand, Value) or operand.number not in self.known:
            return operand
        if not operand.dims:
            raise Declined("a loop carries a number of a line")
        return self.known[operand.number]

    # --- memory ---

    def access(self, op: Op, attrs: MemoryAttrs, out: Builder) -> None:
        result, operands = op.result, list(op.operands)
        if attrs.mark is not None:
            raise Declined("an access waits for a mark")
        if result.dims:
            at = self.at(result.dims)
        elif op.kind == "store":
            raise Declined("an op runs once for each line")
        else:
            at, result = 0, replace(result, dims=(self.row,))
            self.known[op.result.number] = result
        if attrs.tensor in self.flat:
            *outer, rows = self.flat[attrs.tensor]
            index = Index("block", self.line.block, (at,))
            dims = [(dim, each) for dim, each in enumerate(attrs.indices) if dim not in outer]
            indices = tuple(index if dim == rows else self.index(each, at, operands, out) for dim, each in dims)
        else:
            self.in_order = False
            self.stores_runs = self.stores_runs and (self.is_whole(op, attrs) if op.kind == "store" else attrs.rank < 2)
            indices = tuple(self.index(index, at, operands, out) for index in attrs.indices)
        if op.kind == "store":
            operands[0] = self.operand(operands[0], op.result.dims, out)
        if attrs.mask is not None:
            operands[attrs.mask] = made = self.operand(operands[attrs.mask], op.result.dims, out)
            if not isinstance(made, Value) or made.dims != result.dims:
                raise Declined("a mask lacks the rows")
        # operands that no index reads any more are left out
        read = {index.operand for index in indices} | {attrs.mask} | ({0} if op.kind == "store" else set())
        kept = [slot for slot in range(len(operands)) if slot in read]
        places = {slot: number for number, slot in enumerate(kept)}
        indices = tuple(
            index if index.operand is None else replace(index, operand=places[index.operand]) for index in indices
        )
        mask = None if attrs.mask is None else places[attrs.mask]
        made_attrs = replace(attrs, indices=indices, mask=mask, rank=len(result.dims))
        out.ops.append(replace(op, operands=tuple(operands[s] for s in kept), results=(result,), attrs=made_attrs))

    def is_whole(self, op: Op, attrs: MemoryAttrs) -> bool:
        """Return whether a store writes lines of whole sectors, whose elements are neighbors in memory."""
        tensor, end = self.program.tensors[attrs.tensor], self.line.end
        steps = (
            stride
            for index, stride in zip(attrs.indices, tensor.strides, strict=True)
            if any(self.line.block in op.result.dims[at].blocks for at in index.positions)
        )
        whole = isinstance(end, int) and end * tensor.dtype.itemsize % _SECTOR_BYTES == 0
        return whole and all(fixed_at(stride, 1) for stride in steps)

    def index(self, index: Index, at: int, operands: list[Operand], out: Builder) -> Index:
        """Return an index along a dimension of a tensor, of each row where it was of a line or along it."""
        operand = None if index.operand is None else operands[index.operand]
        lifted = isinstance(operand, Value) and operand.number in self.known
        if index.kind == "block" and index.block == self.line.block:
            made = self.places[self.line.block]
            if operand is not None:
                other = self.known[operand.number] if lifted else operand  # type: ignore[union-attr]
                made = out.pointwise("add", made, out.cast(other, made.dtype) if isinstance(other, Value) else other)
        elif not lifted:
            return index
        elif index.kind == "block":
            raise Declined("lanes of another dimension begin at a place of their line")
        else:
            assert isinstance(operand, Value)
            made = self.known[operand.number]
            if operand.dims:
                operands[index.operand] = made  # type: ignore[index]
                return index
        if not fixed_at(index.shift, 0):
            if not isinstance(index.shift, int):
                raise Declined("an index has a shift of unknown size")
            made = out.pointwise("add", made, index.shift)
        operands.append(made)
        return Index("tensor", None, (at,), 0, len(operands) - 1)


__all__ = ["join_lines", "join_rows"]
