"""Reductions of tiles of a grid over rows and columns, as rows of the matmuls of a batch, each of which has one panel.

::

    for tile_m, tile_n in hl.tile([m, n], block_size=[None, 128]):    for tile_m, panel in hl.tile([m, n // 128]):
        acc = x[tile_m, :] @ w[:, tile_n]                                 acc = x[tile_m, :] @ w[:, panel, :]
        scale = acc.abs().amax(-1) / 448                             →    scale = acc.abs().amax(-1) / 448
        out[tile_m, tile_n] = acc / scale[:, None]                        out[tile_m, panel, :] = acc / scale[:, None]
        scales[tile_m, tile_n.id] = scale                                 scales[tile_m, panel] = scale

Tensors have a dimension of panels, and one of the lines of each, in place of that of tiles. All panels are full. Where the
program sets no size of tiles, sums of panels are added to memory by atomics, which any size serves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ....._compiler.ir.grammar import (
    HostTensor,
    Index,
    IotaAttrs,
    LoopAxis,
    MaskAttrs,
    MemoryAttrs,
    Op,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Region,
    TileAttrs,
    Value,
)
from ....._compiler.ir.operands import is_block
from ....._shapes import fixed_at
from ..numbers import equal

LEAST_LINES, MOST_LINES = 16, 256
"""Lines of a panel of a fixed size: columns of a tile."""
_SCALING = ("mul", "div", "neg", "cast")
"""Operations on a sum, their first operand, that commute with the sum over panels."""
MOST_IN_ONE = 4096
"""Lines of the only panel: those that a cluster of 16 CTAs holds."""


def lines_of_panels(size: object, extent: object) -> int | None:
    """Return the lines of each panel, given the size of tiles, None if it is free. Return None without whole panels."""
    if not isinstance(extent, int) or not isinstance(size, int | None):
        return None
    if size is not None:
        return size if LEAST_LINES <= size <= MOST_LINES and extent % size == 0 else None
    whole = (lines for lines in (128, 64, 256, 32) if extent % lines == 0)
    return next(whole, extent if extent <= MOST_IN_ONE else None)


def with_panels(program: Program) -> Program:
    """Return the program with a dimension of panels in place of tiles whose lines are reduced; the original one without such
    tiles."""
    axes = program.roots[0].axes if len(program.roots) == 1 else ()
    if len(axes) < 2:
        return program
    reduced = [each for each in axes if _is_reduced(program, each.block) and _is_panel(program, each)]
    axis = None if not reduced else reduced[-1 if _reduces_blocks(program) else 0]
    return program if axis is None else _Splitter(program, axis).program()


def _is_panel(program: Program, axis: LoopAxis) -> bool:
    """Return whether the tiles of an axis are whole panels, and all that the program has of a tile is its number."""
    block = program.blocks[axis.block]
    extent = block.extent
    if lines_of_panels(block.size, extent) is None or block.kind != "tile":
        return False
    plain = fixed_at(axis.begin, 0) and equal(axis.end, extent) and fixed_at(axis.step, 1) and not axis.merged
    if not plain or axis.scalar or axis.jagged is not None:
        return False
    if block.size is None and not _adds_up(program, axis.block):
        return False
    fields = ("id",) if block.size is not None else ()
    places: dict[int, set[tuple[int, ...]]] = {}
    for op in program.walk():
        if any(axis.block in dim.blocks and dim.block is None for value in _values(op) for dim in value.dims):
            return False
        if isinstance(op.attrs, IotaAttrs) and op.attrs.block == axis.block:
            return False
        if isinstance(op.attrs, TileAttrs) and op.attrs.block == axis.block and op.attrs.field not in fields:
            return False
        if isinstance(op.attrs, MemoryAttrs):
            walked = _walked(op.attrs, axis.block)
            places.setdefault(op.attrs.tensor, set()).add(walked)
            shape = program.tensors[op.attrs.tensor].shape
            if any(not is_block(op.attrs.indices[at]) or not equal(shape[at], extent) for at in walked):
                return False
    return all(len(found) == 1 and len(next(iter(found))) <= 1 for found in places.values())


def _adds_up(program: Program, block: int) -> bool:
    """Return whether all that programs have of reduced tiles is sums, times factors, which they add to memory. Then results do
    not depend on the size of tiles."""
    summed = set[int]()
    for op in program.walk():
        read = [value for value in op.reads() if value.number in summed]
        reduced = _reduces(op, block)
        if reduced and (op.attributes(ReduceAttrs).name != "sum" or read):
            return False
        if (op.kind == "view" and read) or reduced:
            summed.add(op.result.number)
        elif read and op.kind == "pointwise":
            first = op.attributes(PointwiseAttrs).name in _SCALING and read[0] is op.operands[0] and len(read) == 1
            if not first or not op.result.dtype.is_floating_point:
                return False
            summed.add(op.result.number)
        elif read and (op.kind != "atomic" or op.attributes(MemoryAttrs).atomic != "add"):
            return False
    return True


def _values(op: Op) -> Iterator[Value]:
    yield from op.results
    yield from (param for region in op.regions for param in region.params)


def _walked(attrs: MemoryAttrs, block: int) -> tuple[int, ...]:
    """Return the dimensions of a tensor that tiles of a block go over."""
    return tuple(at for at, index in enumerate(attrs.indices) if index.block == block)


def _is_reduced(program: Program, block: int) -> bool:
    """Return whether lines of a tile of a matmul are reduced."""
    matrix = {dim.block for op in program.walk() if op.kind == "dot" for dim in op.results[0].dims[-2:]}
    return block in matrix and any(_reduces(op, block) for op in program.walk())


def _reduces_blocks(program: Program) -> bool:
    """Return whether some reduction is over rows and columns of tiles."""
    return any(isinstance(op.attrs, ReduceAttrs) and len(op.attrs.dims) > 1 for op in program.walk())


def _reduces(op: Op, block: int) -> bool:
    source = op.operands[0] if isinstance(op.attrs, ReduceAttrs) else None
    return isinstance(source, Value) and block in {source.dims[at].block for at in op.attrs.dims}


class _Splitter:
    """A rewrite of a program whose axis goes over panels."""

    def __init__(self, program: Program, axis: LoopAxis) -> None:
        self.whole, self.axis = program, axis
        block = program.blocks[axis.block]
        size = lines_of_panels(block.size, block.extent)
        assert size is not None and isinstance(block.extent, int)
        self.size, self.count = size, block.extent // size
        self.lines = dataclasses.replace(block, kind="full", extent=self.size, size=None, min_size=1, max_size=None)
        self.panel = dataclasses.replace(self.lines, id=len(program.blocks), kind="grid", extent=self.count)
        self.split: dict[int, int] = {}
        """The dimension that is split, by tensor."""
        numbers = (number for op in program.walk() for number in (op.number, *(each.number for each in op.results)))
        free = 1 + max(numbers)
        result = Value(number=free, dtype=program.index_dtype, dims=())
        attrs = TileAttrs(block=self.panel.id, field="index")
        self.number = Op(number=free, kind="tile", operands=(), results=(result,), attrs=attrs)
        """The number of the panel."""

    def program(self) -> Program:
        (root,) = self.whole.roots
        panels = LoopAxis(block=self.panel.id, begin=0, end=self.count, scalar=True)
        axes = tuple(panels if each is self.axis else each for each in root.axes)
        body = self._region(root.body)
        changed = dataclasses.replace(root, axes=axes, body=dataclasses.replace(body, ops=(self.number, *body.ops)))
        blocks = tuple(self.lines if each.id == self.lines.id else each for each in self.whole.blocks)
        return dataclasses.replace(
            self.whole,
            blocks=(*blocks, self.panel),
            tensors=tuple(map(self._tensor, self.whole.tensors)),
            roots=(changed,),
        )

    def _tensor(self, tensor: HostTensor) -> HostTensor:
        if (at := self.split.get(tensor.id)) is None:
            return tensor
        shape = (*tensor.shape[:at], self.count, self.size, *tensor.shape[at + 1 :])
        step = tensor.strides[at]
        return dataclasses.replace(
            tensor, shape=shape, strides=(*tensor.strides[:at], step * self.size, step, *tensor.strides[at + 1 :])
        )

    def _region(self, region: Region) -> Region:
        return dataclasses.replace(region, ops=tuple(self._changed(region)))

    def _changed(self, region: Region) -> Iterator[Op]:
        for op in region.ops:
            attrs, operands = op.attrs, op.operands
            if isinstance(attrs, MemoryAttrs) and (walked := _walked(attrs, self.lines.id)):
                (at,) = walked
                self.split[attrs.tensor] = at
                first = Index("scalar", operand=len(operands))
                attrs = dataclasses.replace(attrs, indices=(*attrs.indices[:at], first, *attrs.indices[at:]))
                operands = (*operands, self.number.result)
            elif isinstance(attrs, MaskAttrs):
                kept = tuple(at for at in attrs.dims if op.result.dims[at].block != self.lines.id)
                attrs = dataclasses.replace(attrs, dims=kept)
            elif isinstance(attrs, TileAttrs) and attrs.block == self.lines.id:
                attrs = self.number.attrs
            regions = tuple(map(self._region, op.regions))
            yield dataclasses.replace(op, attrs=attrs, operands=operands, regions=regions)
