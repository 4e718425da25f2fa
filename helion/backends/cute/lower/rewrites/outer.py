"""Tiles of outer products: rows and columns that are each a tile of a loop times all of a dimension, as rows and columns.

::

    for tile_i, tile_j in hl.tile([i, j]):                          for tile_m, tile_n in hl.tile([i * c, j * e]):
        x = a[tile_k, tile_i, :].reshape(tile_k, tile_i * c)            x = a[tile_k, tile_m]
        acc = hl.dot(x.T, y, acc=acc)                          →        acc = hl.dot(x.T, y, acc=acc)
        both = acc.reshape(tile_i, c, tile_j, e)                        out[tile_m, tile_n] = acc, of rows in parts of c,
        out[tile_i, tile_j, :, :] = both.permute(0, 2, 1, 3)                                       and columns in parts of e

A config then has the rows and the columns of a tile.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from ....._compiler.ir.grammar import (
    Block,
    HostTensor,
    Index,
    IotaAttrs,
    LoopAxis,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Operand,
    Program,
    Region,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ....._compiler.ir.rewrite import Declined
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import Dim, Dims, Number, fixed_at
from ...plan.epilogue import Parts
from ..numbers import equal, is_known
from .divisions import Divided, Division
from .partials import is_plain

_KEPT = frozenset(("cast", "dot", "full", "number", "pointwise"))
"""Ops whose values have one dimension in place of two."""


def with_outer_products(program: Program) -> Divided:
    """Return the program with rows and columns in place of tiles of outer products; the original one without such tiles."""
    if len(program.roots) != 1 or len(program.roots[0].axes) != 2:
        return Divided(program=program)
    loops = [op for op in program.roots[0].body.ops if op.regions]
    if len(loops) != 1 or loops[0].kind != "for" or len(loops[0].results) != 1:
        return Divided(program=program)
    try:
        return _Outer(program, loops[0]).rewritten()
    except Declined:
        return Divided(program=program)


class _Outer:
    """A rewrite of a program whose accumulator has two dimensions of two blocks each."""

    def __init__(self, program: Program, loop: Op) -> None:
        self.program, self.loop = program, loop
        (self.root,) = program.roots
        axes = {axis.block: axis for axis in self.root.axes}
        self.inner: dict[int, int] = {}
        """The whole dimension that follows each tile."""
        for dim in loop.result.dims:
            if dim.const != 1 or len(dim.blocks) != 2 or dim.blocks[0] not in axes:
                raise Declined("an accumulator of other dimensions")
            self.inner[dim.blocks[0]] = dim.blocks[1]
        if len(self.inner) != 2 or not all(map(self._is_whole, axes.values())):
            raise Declined("dimensions that are no tiles of whole ones")
        self.values: dict[int, Value] = {}
        self.orders: dict[int, tuple[tuple[int, bool], ...]] = {}
        """The order of tiles and of whole dimensions of values that have both as dimensions: of each its tile, and True for a tile."""
        self.tensors: list[HostTensor] = []
        self.of: dict[int, int] = {}
        """The tensors of the program by the ids of their matrices."""
        self.divisions: dict[int, Division] = {}

    def _is_whole(self, axis: LoopAxis) -> bool:
        block, inner = self.program.blocks[axis.block], self.program.blocks[self.inner[axis.block]]
        tiled = block.kind == "tile" and block.size is None and is_plain(axis) and equal(axis.end, block.extent)
        return tiled and inner.kind == "full" and isinstance(block.extent, int) and isinstance(inner.extent, int)

    def _extent(self, block: int) -> int:
        extent = self.program.blocks[block].extent
        assert isinstance(extent, int)
        return extent

    def _lines(self, tile: int) -> int:
        return self._extent(tile) * self._extent(self.inner[tile])

    def rewritten(self) -> Divided:
        """Return the program with rows and columns. Raises ``Declined``."""
        body = self._region(self.root.body)
        axes = tuple(dataclasses.replace(axis, end=self._lines(axis.block)) for axis in self.root.axes)
        blocks = tuple(self._block(block) for block in self.program.blocks)
        root = dataclasses.replace(self.root, axes=axes, body=body)
        tensors = (*self.program.tensors, *self.tensors)
        program = dataclasses.replace(self.program, tensors=tensors, blocks=blocks, roots=(root,))
        stored = {self.of[number] for number in self.divisions}
        if not stored or any(isinstance(op.attrs, MemoryAttrs) and op.attrs.tensor in stored for op in program.walk()):
            raise Declined("an output that is read, or none")
        return Divided(program=drop_dead(program), divisions=self.divisions, tensors=self.of)

    def _block(self, block: Block) -> Block:
        return dataclasses.replace(block, extent=self._lines(block.id)) if block.id in self.inner else block

    # Ops ------------------------------------------------------------------------------------------------------------------

    def _region(self, region: Region) -> Region:
        params = tuple(self._value(each) for each in region.params)
        ops = tuple(made for op in region.ops if (made := self._op(op)) is not None)
        return dataclasses.replace(region, params=params, ops=ops, results=tuple(map(self._read, region.results)))

    def _read(self, operand: Operand) -> Operand:
        return self.values.get(operand.number, operand) if isinstance(operand, Value) else operand

    def _value(self, value: Value) -> Value:
        made = dataclasses.replace(value, dims=tuple(map(self._joined, value.dims)))
        self.values[value.number] = made
        return made

    def _joined(self, dim: Dim) -> Dim:
        """Return the dimension of rows or columns in place of one of two blocks."""
        tile = dim.blocks[0] if dim.blocks else None
        if tile in self.inner and dim == Dim(blocks=(tile, self.inner[tile])):
            return Dim(blocks=(tile,))
        if any(block in self.inner for block in dim.blocks):
            raise Declined("a tile without its whole dimension")
        return dim

    def _same(self, op: Op, order: tuple[tuple[int, bool], ...] | None = None) -> None:
        """Give the result of an op the value of its operand."""
        source = op.operands[0]
        assert isinstance(source, Value)
        self.values[op.result.number] = self.values.get(source.number, source)
        if order is not None:
            self.orders[op.result.number] = order

    def _op(self, op: Op) -> Op | None:
        if op is self.loop:
            regions = tuple(map(self._region, op.regions))
            operands = tuple(map(self._read, op.operands))
            return dataclasses.replace(op, operands=operands, regions=regions, results=(self._value(op.result),))
        source = next(op.values(), None)
        apart = self.orders.get(source.number) if source is not None else None
        if op.kind == "load":
            return self._load(op)
        if op.kind == "store":
            return self._store(op, apart)
        if isinstance(op.attrs, ViewAttrs) and source is not None:
            return self._view(op, op.attrs, source, apart)
        if isinstance(op.attrs, MaskAttrs):
            self._mask(op)
            return None
        of_tile = isinstance(op.attrs, (IotaAttrs, TileAttrs)) and op.attrs.block in {*self.inner, *self.inner.values()}
        if op.regions or of_tile or (op.kind not in _KEPT and not isinstance(op.attrs, (IotaAttrs, TileAttrs))):
            raise Declined(f"{op.kind} next to outer products")
        operands = tuple(map(self._read, op.operands))
        if apart is None and all(each.number not in self.orders for each in op.values()):
            return dataclasses.replace(op, operands=operands, results=tuple(map(self._value, op.results)))
        alike = all(self.orders.get(each.number) == apart and each.dims == op.result.dims for each in op.values())
        if apart is None or source is None or not alike or op.kind != "pointwise":
            raise Declined("values next to tiles of outer products")
        made = dataclasses.replace(op.result, dims=self.values[source.number].dims)
        self.values[op.result.number], self.orders[op.result.number] = made, apart
        return dataclasses.replace(op, operands=operands, results=(made,))

    def _view(self, op: Op, attrs: ViewAttrs, source: Value, apart: tuple[tuple[int, bool], ...] | None) -> Op | None:
        """Return the view of rows and columns; None for one that only divides them, or joins their parts."""
        blocks = self._apart(op.result.dims)
        if attrs.name == "reshape" and apart is None and blocks is not None and self._is_whole_view(source, op.result):
            self._same(op, blocks)
            return None
        if attrs.name == "permute" and apart is not None:
            self._same(op, tuple(apart[at] for at in attrs.order))
            return None
        if attrs.name == "reshape" and apart is not None and self._is_whole_view(op.result, source):
            value = self._read(source)
            same = isinstance(value, Value) and value.dims == tuple(map(self._joined, op.result.dims))
            if not same or self._apart(source.dims) != apart:
                raise Declined("rows and columns in another order")
            self._same(op)
            return None
        if apart is not None:
            raise Declined("another view of tiles")
        return dataclasses.replace(op, operands=(self._read(source),), results=(self._value(op.result),))

    def _is_whole_view(self, joined: Value, apart: Value) -> bool:
        """Return whether one value has the blocks of another one in the same order, some as one dimension."""
        return [b for dim in joined.dims for b in dim.blocks] == [b for dim in apart.dims for b in dim.blocks] and all(
            dim.const == 1 for value in (joined, apart) for dim in value.dims
        )

    def _apart(self, dims: Dims) -> tuple[tuple[int, bool], ...] | None:
        """Return the tile of each dimension, and True for the tile itself, False for the whole dimension after it.

        Other dimensions are -1. Return None if a whole dimension is missing, or there is no tile.
        """
        found, tile = list[tuple[int, bool]](), None
        for dim in dims:
            if tile is not None:
                if dim.block != self.inner[tile]:
                    return None
                found.append((tile, False))
                tile = None
            elif dim.block in self.inner:
                tile = dim.block
                found.append((tile, True))
            else:
                found.append((-1, False))
        return tuple(found) if tile is None and any(is_tile for _, is_tile in found) else None

    def _mask(self, op: Op) -> None:
        """Leave out a mask of lanes of a load, which are 0 out of range."""
        attrs, source = op.attributes(MaskAttrs), op.operands[0]
        if not isinstance(source, Value) or attrs.fill != 0 or len(op.operands) > 1 or source.number not in self.loaded:
            raise Declined("a mask of computed values")
        self._same(op, self.orders.get(source.number))

    @functools.cached_property
    def loaded(self) -> frozenset[int]:
        """Numbers of values that are loads, through views and masks."""
        found = set[int]()
        for op in self.program.walk():
            source = op.operands[0] if op.operands else None
            passed = (
                isinstance(op.attrs, (ViewAttrs, MaskAttrs)) and isinstance(source, Value) and source.number in found
            )
            if op.kind == "load" or passed:
                found.add(op.result.number)
        return frozenset(found)

    # Memory ---------------------------------------------------------------------------------------------------------------

    def _load(self, op: Op) -> Op:
        attrs = op.attributes(MemoryAttrs)
        order = self._apart(op.result.dims)
        if order is None:
            return dataclasses.replace(
                op, operands=tuple(map(self._read, op.operands)), results=(self._value(op.result),)
            )
        tiles = [tile for tile, is_tile in order if is_tile]
        places = [at for at, index in enumerate(attrs.indices) if index.block in tiles]
        tensor = self.program.tensors[attrs.tensor]
        if len(tiles) != 1 or len(places) != 1 or attrs.mask is not None or places[0] + 1 == tensor.ndim:
            raise Declined("a load of several tiles")
        (tile,), (at,) = tiles, places
        plain = all(_is_plain(attrs.indices[each]) for each in (at, at + 1))
        follows = plain and attrs.indices[at + 1].block == self.inner[tile] and self._covers(tensor, at, tile)
        sizes = tensor.strides[at], tensor.strides[at + 1]
        if not follows or not all(map(is_known, sizes)) or sizes[0] != sizes[1] * self._extent(self.inner[tile]):
            raise Declined("a tile whose whole dimension does not follow it in memory")
        shape = (*tensor.shape[:at], self._lines(tile), *tensor.shape[at + 2 :])
        matrix = self._matrix(tensor, shape, (*tensor.strides[:at], *tensor.strides[at + 1 :]))
        dropped = attrs.indices[at].positions[0]
        first = op.result.dims.index(Dim(blocks=(tile,)))
        if dropped != first:
            raise Declined("a load in another order")
        indices = tuple(
            dataclasses.replace(index, positions=tuple(p - (p > first) for p in index.positions))
            for each, index in enumerate(attrs.indices)
            if each != at + 1
        )
        dims = tuple(dim for each, dim in enumerate(op.result.dims) if each != first + 1)
        result = dataclasses.replace(op.result, dims=dims)
        self.values[op.result.number], self.orders[op.result.number] = result, order
        attrs = dataclasses.replace(attrs, tensor=matrix, indices=indices, rank=len(dims))
        return dataclasses.replace(op, operands=tuple(map(self._read, op.operands)), attrs=attrs, results=(result,))

    def _matrix(self, tensor: HostTensor, shape: Sequence[Number], strides: Sequence[Number]) -> int:
        """Return the id of a matrix of a tensor."""
        number = len(self.program.tensors) + len(self.tensors)
        self.tensors.append(dataclasses.replace(tensor, id=number, shape=tuple(shape), strides=tuple(strides)))
        self.of[number] = tensor.id
        return number

    def _covers(self, tensor: HostTensor, at: int, tile: int) -> bool:
        wanted = self._extent(tile), self._extent(self.inner[tile])
        return all(map(equal, tensor.shape[at : at + 2], wanted))

    def _store(self, op: Op, apart: tuple[tuple[int, bool], ...] | None) -> Op:
        """Return the store of rows and columns to a matrix whose dimensions are in parts."""
        attrs, value = op.attributes(MemoryAttrs), self._read(op.operands[0])
        tensor = self.program.tensors[attrs.tensor]
        known = attrs.mask is None and all(map(_is_plain, attrs.indices)) and all(map(is_known, tensor.strides))
        if apart is None or not known or len(attrs.indices) != 4 or not isinstance(value, Value):
            raise Declined("a store of other values")
        steps = dict[tuple[int, bool], int]()
        for at, index in enumerate(attrs.indices):
            tile, is_tile = apart[index.positions[0]]
            stride, extent = tensor.strides[at], self._extent(tile if is_tile else self.inner.get(tile, -1))
            if tile not in self.inner or not equal(tensor.shape[at], extent) or not is_known(stride):
                raise Declined("a store that covers no tensor")
            steps[tile, is_tile] = stride
        tiles = [dim.block for dim in value.dims if dim.block is not None]
        if len(steps) != 4 or {*tiles} != {*self.inner} or tensor.id in self.of.values():
            raise Declined("a store of other values")
        number = self._matrix(tensor, [*map(self._lines, tiles)], [steps[tile, False] for tile in tiles])
        parts = {tile: Parts(size=self._extent(self.inner[tile]), step=steps[tile, True]) for tile in tiles}
        self.divisions[number] = Division(parts=parts)
        indices = tuple(Index("block", tile, (at,)) for at, tile in enumerate(tiles))
        attrs = dataclasses.replace(attrs, tensor=number, indices=indices, rank=2)
        result = dataclasses.replace(op.result, dims=value.dims)
        return dataclasses.replace(op, operands=(value,), attrs=attrs, results=(result,))


def _is_plain(index: Index) -> bool:
    return index.kind == "block" and index.operand is None and fixed_at(index.shift, 0)
