"""Reductions of both dimensions of a tile, as of a scale for each block of rows and columns.

::

    scale = acc.abs().amax() / 448        →   the maximum of each row, and that of the rows of each tile
    scales[tile_m.id, tile_n.id] = scale  →   scales[block of rows, panel]

Rows of a tile have a size that the program sets, and tiles divide the matrix. Columns are those of a panel.
"""

from __future__ import annotations

import dataclasses

import torch

from ....._compiler.ir.grammar import Block, Index, MemoryAttrs, Op, Program, ReduceAttrs, TileAttrs, Value
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import fixed_at
from ...plan.epilogue import BLOCK_REDUCTIONS, constant
from ...plan.refusal import Refusal
from ..chain import Reference, Written
from ..frame import Frame, Place
from ..names import name_of
from ..numbers import equal
from .column_pairs import PairedChain

BLOCKS = "blocks of rows"
"""The name of the dimension of all blocks of rows, which no dimension of a program has."""
NAMES = {"sum": "block_sum", "max": "block_maximum", "min": "block_minimum"}


def with_row_blocks(program: Program) -> Program:
    """Return the program with a dimension of blocks of rows in place of the numbers of tiles, in stores of what tiles reduce."""
    (root, *others) = program.roots
    both = any(isinstance(op.attrs, ReduceAttrs) and len(op.attrs.dims) > 1 for op in root.body.ops)
    rows = root.axes[0].block if len(root.axes) == 1 else None
    size = rows_of_tile(program, rows) if both and not others and rows is not None else 0
    if not size or rows is None:
        return program
    extent = program.blocks[rows].extent
    assert isinstance(extent, int)
    made = {result.number: op for op in program.walk() for result in op.results}
    block = Block(id=len(program.blocks), kind="tile", extent=extent // size, name=BLOCKS)

    def at_block(op: Op, index: Index) -> Index:
        number = op.operands[index.operand] if index.kind == "scalar" and index.operand is not None else None
        found = made.get(number.number) if isinstance(number, Value) else None
        of_tile = found is not None and found.attrs == TileAttrs(block=rows, field="id")
        return Index("block", block.id, (0,)) if of_tile and fixed_at(index.shift, 0) else index

    def changed(op: Op) -> Op:
        if op.kind != "store" or not isinstance(op.attrs, MemoryAttrs):
            return op
        indices = tuple(at_block(op, index) for index in op.attrs.indices)

        operands = op.operands if indices == op.attrs.indices else (op.operands[0], *(0 for _ in op.operands[1:]))
        return dataclasses.replace(op, operands=operands, attrs=dataclasses.replace(op.attrs, indices=indices))

    body = dataclasses.replace(root.body, ops=tuple(map(changed, root.body.ops)))
    roots = (dataclasses.replace(root, body=body),)
    return drop_dead(dataclasses.replace(program, roots=roots, blocks=(*program.blocks, block)))


def rows_of_tile(program: Program, rows: int) -> int:
    """Return the rows of each tile, if the program sets their number and tiles divide the matrix; else 0."""
    size, extent = program.blocks[rows].size, program.blocks[rows].extent
    return size if isinstance(size, int) and isinstance(extent, int) and size > 1 and extent % size == 0 else 0


def same_rows(program: Program, rows: int) -> dict[int, int]:
    """Return the dimension of blocks of rows, with that of the rows."""
    return {block.id: rows for block in program.blocks if block.name == BLOCKS}


class BlockChain(PairedChain):
    """A trace of an epilogue that may reduce blocks of rows and columns."""

    def _reduced(self, op: Op, dtype: torch.dtype) -> Reference:
        source, attrs = op.operands[0], op.attributes(ReduceAttrs)
        assert isinstance(source, Value)
        reduced = [self.frame.block(source.dims[dim]) for dim in attrs.dims]
        if {*reduced} != {self.frame.m, self.frame.n}:
            return super()._reduced(op, dtype)
        rows = rows_of_tile(self.frame.program, self.frame.m)
        if self.tiles is not None or not self.frame.whole_rows or not rows or attrs.name not in NAMES:
            raise Refusal(
                "sums, maxima and minima over the rows and columns of a tile are implemented for tiles of sizes that the program"
                " sets, which divide the matrix"
            )
        if dtype != torch.float32:
            raise Refusal("reductions of the rows and columns of a tile are implemented in float32")
        name = NAMES[attrs.name]
        value = self.step(BLOCK_REDUCTIONS[name], (self.read(source),))
        return self.step(name, (value, constant(rows)))

    def store(self, op: Op) -> None:
        """Add the store of ``op`` to the outputs, which may be of one number for each block of rows."""
        indices = op.attributes(MemoryAttrs).indices
        named = [at for at, index in enumerate(indices) if self._is_of_blocks(self.frame, index)]
        if not named:
            super().store(op)
            return
        tensor, rows = self.frame.tensor(op), rows_of_tile(self.frame.program, self.frame.m)
        others = [index for at, index in enumerate(indices) if at not in named]
        first = all(index.kind == "scalar" and index.operand is None and fixed_at(index.shift, 0) for index in others)
        if len(named) != 1 or not first or op.kind != "store" or op.attributes(MemoryAttrs).mask is not None:
            raise Refusal(
                f"{tensor.name} has one number for each block of rows and columns, and is not stored as a whole"
            )
        if not equal(tensor.shape[named[0]], self.frame.extent(self.frame.m) // rows):
            raise Refusal(f"{tensor.name} is {tuple(tensor.shape)}, and has no number for each block of {rows} rows")
        step = tensor.strides[named[0]]
        place = Place(tensor=tensor, blocks=(self.frame.m,), strides=(step,))
        pitch = self._pitch(f"{name_of(tensor)}_output", step)
        value = self._stored(op)
        self.outputs.append(Written(op=op, place=place, value=value, kind="column", pitch=pitch, block=rows))

    @staticmethod
    def _is_of_blocks(frame: Frame, index: Index) -> bool:
        return index.block is not None and frame.program.blocks[index.block].name == BLOCKS
