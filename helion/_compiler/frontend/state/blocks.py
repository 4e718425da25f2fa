"""Blocks of a trace: tiles, grids and whole dimensions, and what sizes in device code stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .... import exc
from ...._shapes import ONE, Dim, Dims, Expr, Number, is_power_of_2, number_key
from ...ir.grammar import Block, BlockKind
from ..journal import Part
from ..values import Tile, describe
from .host_numbers import HostNumbers


class Blocks(Part):
    """``padded``: tiles have powers of two of lanes."""

    def __init__(self, numbers: HostNumbers, padded: bool) -> None:
        self.numbers = numbers
        self.padded = padded
        self.all: list[Block] = []
        self.active: dict[int, Tile | None] = {}
        #: How the tiles in merged dimensions are ordered: their factors, outermost first; None where reshapes disagree.
        self.merged: dict[Dim, Dims | None] = {}
        self._whole: dict[Any, Block] = {}

    def __getitem__(self, block: int) -> Block:
        return self.all[block]

    def new(self, kind: BlockKind, extent: Number | None, **fields: Any) -> Block:
        block = Block(id=len(self.all), kind=kind, extent=extent, **fields)
        self.all.append(block)
        return block

    def update(self, block: int, **fields: Any) -> None:
        self.all[block] = replace(self.all[block], **fields)

    def whole(self, extent: Number) -> Block:
        """The block of whole dimensions of ``extent`` elements; equal extents share one."""
        extent = self.numbers.known(extent)
        key = number_key(extent)
        if key not in self._whole:
            self._whole[key] = self.new("full", extent, name=f"r{len(self._whole)}")
        return self._whole[key]

    def may_be_padded(self, dim: Dim) -> bool:
        """Whether some lanes of a dimension may lie out of range."""
        for block in dim.blocks:
            extent = self.all[block].extent
            known = self.all[block].kind == "full" and self.fills_lanes(extent)
            size = self.block_size(self.all[block])
            if not known and not (isinstance(size, int) and size == 1):
                return True
        return False

    def fills_lanes(self, extent: Number | None) -> bool:
        """Whether a whole dimension has no lanes besides its elements."""
        return isinstance(extent, int) and (is_power_of_2(extent) or not self.padded)

    def block_size(self, block: Block) -> Number:
        block = self.all[block.id]
        if block.kind == "full":
            assert block.extent is not None
            return block.extent
        if block.size is not None:
            return block.size
        return Expr("block", (block.id,), 64)

    def dim_text(self, dim: Dim) -> str:
        parts = [self.all[b].name if self.all[b].kind != "full" else str(self.all[b].extent) for b in dim.blocks]
        return "*".join([*([str(dim.const)] if dim.const != 1 or not parts else []), *parts])

    def dims_text(self, dims: Dims) -> str:
        return f"[{', '.join(map(self.dim_text, dims))}]"

    def size_of(self, dim: Dim) -> Number:
        size: Number = dim.const
        for block in dim.blocks:
            size = self.block_size(self.all[block]) * size
        return size

    def dim_of(self, size: Any) -> Dim:
        """The dimension a size in device code stands for: a tile, a block size, a constant, or a product of them."""
        if isinstance(size, Tile):
            return Dim(blocks=(size.block.id,))
        size = self.numbers.known(size)
        if isinstance(size, bool) or not isinstance(size, (int, Expr)):
            raise exc.ShapeSpecializingAllocation(size=describe(size))
        if isinstance(size, int):
            return ONE if size == 1 else Dim(blocks=(self.whole(size).id,))
        if size.op == "block":
            return Dim(blocks=size.args)
        if size.op == "mul":
            return self.dim_of(size.args[0]) * self.dim_of(size.args[1])
        if number_key(size) in self._whole:
            return Dim(blocks=(self._whole[number_key(size)].id,))
        raise exc.ShapeSpecializingAllocation(size=repr(size))

    def dims_of(self, shape: Any) -> Dims:
        if isinstance(shape, (Tile, int, Expr)):
            shape = (shape,)
        if not isinstance(shape, (tuple, list)):
            raise exc.ShapeSpecializingAllocation(size=describe(shape))
        return tuple(self.dim_of(size) for size in shape)
