"""Epilogues over the pairs of neighboring columns: rotary embeddings, and gates between their inputs.

::

    gate, up = hl.split(acc.reshape(tile_m, tile_n // 2, 2))               →   gate in the first column of each pair
    out[tile_m, tile_n.begin // 2 + hl.arange(tile_n // 2)] = gate * up    →   out[tile_m, pairs of all columns]

A thread has both columns of a pair. The value of a pair is that of its first column.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from ....._compiler.ir.grammar import (
    Block,
    Index,
    IotaAttrs,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import dtype_name, fixed_at
from ...plan.epilogue import COLUMN_NUMBER, JOINED, PARTNER, EpilogueOperand, constant
from ...plan.refusal import Refusal
from ..chain import Chain, Reference, Written
from ..frame import Frame, Place
from ..names import name_of
from ..numbers import equal, known

PAIR = 2
"""Columns of a pair."""


def name_of_pairs(columns: int) -> str:
    """Return the name of a dimension of the pairs of block ``columns``, which no dimension of a program has."""
    return f"column pairs of {columns}"


def name_of_repeated(columns: int) -> str:
    """Return the name of a dimension of columns that block ``columns`` has again and again."""
    return f"repeated columns of {columns}"


def with_column_pairs(program: Program) -> Program:
    """Return the program with a dimension of all pairs of columns in place of those of each tile, in loads and stores.

    Loads of columns that a tile has again and again, as `bias[tile_n.index % 64]`, have a dimension of their own.
    """
    makers = {result.number: op for op in program.walk() for result in op.results}
    pairs = {block: columns for columns in _tiles(program) for block in blocks_of_pairs(program, columns)[0]}
    tiles = {block: program.blocks[block].extent for block in _tiles(program)}
    wide: dict[tuple[str, int], Block] = {}

    def changed(op: Op) -> Op:
        if op.regions:
            return dataclasses.replace(
                op, regions=tuple(dataclasses.replace(each, ops=tuple(map(changed, each.ops))) for each in op.regions)
            )
        if not isinstance(op.attrs, MemoryAttrs) or not op.attrs.indices:
            return op
        last = op.attrs.indices[-1]
        index = op.operands[last.operand] if last.kind == "tensor" and last.operand is not None else None
        block = index.dims[0].block if isinstance(index, Value) and len(index.dims) == 1 else None
        columns = pairs.get(block, block) if block is not None else None
        extent = tiles.get(columns) if columns is not None else None
        if index is None or block is None or columns is None or not isinstance(extent, int):
            return op
        if columns != block:
            index, repeated = _repeated(makers, index, extent // PAIR)
            name = name_of_pairs(columns)
            if extent % PAIR or not _is_of_tile(program, makers, index, block, columns):
                return op
        else:
            index, repeated = _repeated(makers, index, extent)
            name, made = name_of_repeated(columns), _made(makers, index)
            whole = made is None or made.attrs != IotaAttrs(block=columns, relative=False) or repeated == extent
            if op.kind != "load" or whole:
                return op
        made_block = Block(id=len(program.blocks) + len(wide), kind="tile", extent=repeated, name=name)
        every = wide.setdefault((name, repeated), made_block)
        operands, mask = [*op.operands], op.attrs.mask
        operands[last.operand or 0] = 0
        if mask is not None and _leaves_out_none(makers, op.operands[mask], index, extent // PAIR):
            operands[mask], mask = 0, None
        indices = (*op.attrs.indices[:-1], Index("block", every.id, last.positions))
        attrs = dataclasses.replace(op.attrs, indices=indices, mask=mask)
        return dataclasses.replace(op, operands=tuple(operands), attrs=attrs)

    roots = tuple(
        dataclasses.replace(root, body=dataclasses.replace(root.body, ops=tuple(map(changed, root.body.ops))))
        for root in program.roots
    )
    if not wide:
        return program
    return drop_dead(dataclasses.replace(program, roots=roots, blocks=(*program.blocks, *wide.values())))


def _tiles(program: Program) -> list[int]:
    return [axis.block for root in program.roots for axis in root.axes]


def _repeated(makers: Mapping[int, Op], index: Operand, pairs: int) -> tuple[Operand, int]:
    """Return an index of fewer than ``pairs`` elements that pairs have again and again, as ``index % 64``: that of all pairs,
    and the number of elements."""
    made = _made(makers, index)
    every = made.operands[1] if made is not None and made.attrs == PointwiseAttrs("remainder") else None
    if made is None or not isinstance(every, int) or isinstance(every, bool) or not 0 < every < pairs:
        return index, pairs
    return made.operands[0], every


def _is_of_tile(program: Program, makers: Mapping[int, Op], index: Operand, pairs: int, columns: int) -> bool:
    """Return whether an index is that of all pairs: also the first pair of a tile of columns, plus the numbers of its pairs."""
    made = _made(makers, index)
    if made is not None and made.attrs == IotaAttrs(block=pairs, relative=False):
        return True
    terms = made.operands if made is not None and made.attrs == PointwiseAttrs("add") else ()
    found = [_made(makers, term) for term in terms]
    numbers = [op for op in found if op is not None and op.attrs == IotaAttrs(block=pairs, relative=True)]
    starts = [op for op in found if op is not None and op.kind != "iota"]
    return len(numbers) == len(starts) == 1 and _is_first(program, makers, starts[0], columns)


def _is_first(program: Program, makers: Mapping[int, Op], start: Op, columns: int) -> bool:
    """Return whether a number is half of the first column of a tile."""
    if not isinstance(start.attrs, PointwiseAttrs) or len(start.operands) != PAIR:
        return False
    size = program.blocks[columns].size
    position = {"floordiv": "begin", "mul": "id"}.get(start.attrs.name)
    for tile, factor in (start.operands, start.operands[::-1]):
        made = _made(makers, tile)
        if made is None or not isinstance(made.attrs, TileAttrs) or made.attrs.block != columns:
            continue
        halved = factor == PAIR if position == "begin" else isinstance(size, int) and factor == size // PAIR
        if made.attrs.field == position and halved and (position == "id" or tile is start.operands[0]):
            return True
    return False


def _leaves_out_none(makers: Mapping[int, Op], mask: Operand, index: Operand, pairs: int) -> bool:
    """Return whether a mask leaves out nothing but pairs past the end of the matrix."""
    made = _made(makers, mask)
    terms = made.operands if made is not None and made.attrs == PointwiseAttrs("lt") else ()
    return len(terms) == PAIR and _made(makers, terms[0]) == _made(makers, index) and equal(terms[1], pairs)


def _made(makers: Mapping[int, Op], value: Operand) -> Op | None:
    """Return the op that makes a value, through views and casts of integers."""
    made = makers.get(value.number) if isinstance(value, Value) else None
    while made is not None and (made.kind == "view" or made.attrs == PointwiseAttrs("cast")):
        source = made.operands[0]
        made = makers.get(source.number) if isinstance(source, Value) else None
    return made


def blocks_of_pairs(program: Program, columns: int) -> tuple[frozenset[int], frozenset[int]]:
    """Return the blocks of the pairs of a tile of columns, and those of all of its columns after pairs are joined."""
    makers = {result.number: op for op in program.walk() for result in op.results}
    pairs, whole = set[int](), {columns}
    for op in program.walk():
        source = op.operands[0] if op.operands else None
        if op.kind == "split":
            view = makers.get(source.number) if isinstance(source, Value) else None
            wide = view.operands[0] if view is not None and _is_reshape(view) else None
            if not isinstance(wide, Value) or not isinstance(source, Value) or wide.dims[:-1] != source.dims[:-2]:
                continue
            if wide.dims and wide.dims[-1].block in whole and op.results[0].dims == source.dims[:-1]:
                pairs |= {block for block in (op.results[0].dims[-1].block,) if block is not None}
            continue
        joined = makers.get(source.number) if _is_reshape(op) and isinstance(source, Value) else None
        if joined is None or joined.kind != "join" or not isinstance(source, Value):
            continue
        if source.dims[-2].block in pairs and op.result.dims[:-1] == source.dims[:-2]:
            whole |= {block for block in (op.result.dims[-1].block,) if block is not None}
    return frozenset(pairs), frozenset(whole)


def _is_reshape(op: Op) -> bool:
    return isinstance(op.attrs, ViewAttrs) and op.attrs.name == "reshape"


def same_columns(program: Program, blocks: tuple[int, int, int]) -> dict[int, int]:
    """Return the blocks of pairs of columns, of columns that were pairs, and of columns that are repeated, with that of the
    columns. ``blocks`` are those of M, N and K. Raises ``Refusal``."""
    same: dict[int, int] = {}
    for columns in blocks[:2]:
        names = name_of_pairs(columns), name_of_repeated(columns)
        same |= {block.id: columns for block in program.blocks if block.name in names}
        pairs, whole = blocks_of_pairs(program, columns)
        if not pairs:
            continue
        extent = program.blocks[columns].extent
        if not isinstance(extent, int) or extent % PAIR:
            raise Refusal(f"pairs of {extent} columns are implemented for an even number that is known")
        found = {*pairs, *whole} - {columns}
        if found & {*blocks}:
            raise Refusal("pairs of columns next to another dimension of as many elements are not implemented")
        numbered = (op.attrs for op in program.walk() if isinstance(op.attrs, IotaAttrs))
        if any(each.block in found and (each.relative or each.block not in same) for each in numbered):
            raise Refusal("indices of pairs of a tile are implemented where they select elements of a matrix")
        return same | dict.fromkeys(found, columns)
    return same


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A number for each of ``pairs`` pairs of columns, or for ``repeated`` columns, which tensors have again and again."""

    pairs: int = 0
    repeated: int = 0


def table_of(frame: Frame, op: Op) -> Table | None:
    """Return what a tensor has for its columns; None for one that has all columns."""
    indices, program = op.attributes(MemoryAttrs).indices, frame.program
    block = indices[-1].block if indices else None
    columns = block if block is None else frame.named(block)
    if block is None or columns == block or columns not in (frame.m, frame.n):
        return None
    size, each = program.blocks[columns].size, program.blocks[block]
    of_tile = each.kind == "full" and isinstance(size, int) and equal(each.extent, size // PAIR)
    if not isinstance(each.extent, int) or not (
        of_tile or each.name in (name_of_pairs(columns), name_of_repeated(columns))
    ):
        return None
    return Table(repeated=each.extent) if each.name == name_of_repeated(columns) else Table(pairs=each.extent)


def pairs_of(frame: Frame, op: Op) -> int:
    """Return the columns of a tensor that has one element for each pair of columns; 0 for others."""
    table = table_of(frame, op)
    return 0 if table is None else table.pairs


class PairedChain(Chain):
    """A trace of an epilogue that may compute with pairs of columns."""

    def _made(self, value: Value) -> Reference:
        op = self.frame.maker(value)
        if op is not None and op.kind == "split":
            return self._half(op, op.results.index(value))
        joined = self.frame.maker(op.operands[0]) if op is not None and op.kind == "view" else None
        if joined is not None and joined.kind == "join":
            first, second = map(self._of_first_columns, joined.operands)
            return self.step(JOINED, (first, self.step(PARTNER, (second,))))
        return super()._made(value)

    def _of_first_columns(self, value: Operand) -> Reference:
        if not isinstance(value, Value) or not self._is_of_pairs(value):
            raise Refusal("hl.join in an epilogue is implemented for the elements of pairs of columns")
        return self.read(value)

    def _is_of_pairs(self, value: Value) -> bool:
        """Return whether a value has one element for each pair of columns."""
        block = value.dims[-1].block if value.dims else None
        return block is not None and block != self.frame.n and self.frame.named(block) == self.frame.n

    def _position(self, op: Op) -> Reference:
        """Read the index of a row, of a column, or of a pair of columns, which is half of that of its first column."""
        block = op.attributes(IotaAttrs).block
        if self.frame.program.blocks[block].name != name_of_pairs(self.frame.n):
            return super()._position(op)
        return self.step("mul", (self.step(COLUMN_NUMBER, ()), constant(1 / PAIR)))

    def _half(self, split: Op, at: int) -> Reference:
        """Return the first or the second element of each pair of columns, in the first column of the pair."""
        view, block = self.frame.maker(split.operands[0]), split.results[at].dims[-1].block
        if view is None or not _is_reshape(view) or block is None or self.frame.named(block) != self.frame.n:
            raise Refusal("hl.split in an epilogue is implemented for pairs of neighboring columns")
        value = self.read(view.operands[0])
        return value if at == 0 else self.step(PARTNER, (value,))

    def _pointwise(self, op: Op, dtype: torch.dtype) -> Reference:
        return self.read(op.operands[1]) if self._masks_tile(op) else super()._pointwise(op, dtype)

    def _masks_tile(self, op: Op) -> bool:
        """Return whether an op makes values past the end of a tile of columns 0, which no output has."""
        condition = self._through_views(op.operands[0]) if op.attrs == PointwiseAttrs("where") else None
        if condition is None or condition.attrs != PointwiseAttrs("lt"):
            return False
        index, end = map(self._through_views, condition.operands)
        if index is None or end is None or not isinstance(end.attrs, TileAttrs):
            return False
        return index.attrs == IotaAttrs(block=self.frame.n, relative=False) and (end.attrs.block, end.attrs.field) == (
            self.frame.n,
            "end",
        )

    def _through_views(self, value: Operand) -> Op | None:
        made = self.frame.maker(value)
        while made is not None and made.kind == "view":
            made = self.frame.maker(made.operands[0])
        return made

    # Memory ---------------------------------------------------------------------------------------------------------------

    def _load(self, op: Op) -> Reference:
        table = table_of(self.frame, op)
        if table is None:
            return super()._load(op)
        place = self._place_of_table(op, table.pairs or table.repeated)
        name = f"{name_of(self.frame.tensor(op))}_{'pairs' if table.pairs else 'repeated'}"
        self.read_from.append((op, place))
        columns = known(place.strides[1], f"a stride of {place.tensor.name}")
        operand = EpilogueOperand(
            name=name,
            kind="strided",
            dtype=dtype_name(place.tensor.dtype),
            column_pitch=columns,
            pairs=table.pairs,
            repeated=table.repeated,
        )
        return self._loaded(operand, place.tensor.id, known(place.strides[0], f"a stride of {place.tensor.name}"))

    def store(self, op: Op) -> None:
        """Add the store of ``op`` to the outputs, which may be of one element for each pair of columns."""
        pairs = pairs_of(self.frame, op)
        if not pairs:
            super().store(op)
            return
        place = self._place_of_table(op, pairs)
        if op.kind != "store" or not equal(pairs, self.frame.columns // PAIR):
            raise Refusal(f"{place.tensor.name} has one element for each pair of columns, and is not stored once")
        value = self._stored(op)
        pitch, columns = (known(stride, f"a stride of {place.tensor.name}") for stride in place.strides)
        self.outputs.append(
            Written(op=op, place=place, value=value, kind="strided", pitch=pitch, column_pitch=columns, pairs=pairs)
        )

    def _place_of_table(self, op: Op, count: int) -> Place:
        attrs, tensor, frame = op.attributes(MemoryAttrs), self.frame.tensor(op), self.frame
        rows = [at for at, index in enumerate(attrs.indices[:-1]) if index.kind == "block"]
        plain = all(fixed_at(index.shift, 0) and index.operand is None for index in attrs.indices)
        of_rows = [attrs.indices[at].block for at in rows] == [frame.m] or (op.kind == "load" and not rows)
        if attrs.mask is not None or not plain or not of_rows:
            raise Refusal(f"{tensor.name} is a table of columns, and is implemented as rows of the tile without masks")
        if any(not equal(tensor.shape[at], frame.extent(frame.m)) for at in rows) or not equal(tensor.shape[-1], count):
            raise Refusal(f"{tensor.name} is {tuple(tensor.shape)}, of which tiles cover {count} columns")
        if any(tensor.id in each for each in (frame.picks, frame.batch_strides)):
            raise Refusal(f"{tensor.name} is a table of columns, which is implemented without a batch and picked lines")
        pitch = tensor.strides[rows[0]] if rows else 0
        return Place(tensor=tensor, blocks=(frame.m, frame.n), strides=(pitch, tensor.strides[-1]))
