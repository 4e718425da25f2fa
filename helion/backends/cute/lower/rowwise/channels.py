"""``with_flat_columns``: turn rows of two dimensions, such as channels and pixels, into rows of columns.

::

    x[tile, :, :]                                x.view(m, c * p)[tile, :].reshape(tile, c, p)
    x.sum((-2, -1))                      →       x.reshape(tile, c * p).sum(-1)
    out[tile, :, :] = x                          out.view(m, c * p)[tile, :] = x.reshape(tile, c * p)

Channels are groups of columns then. A number of each channel, as a weight, is one of its columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ....._compiler.ir.grammar import (
    Block,
    HostTensor,
    Index,
    MemoryAttrs,
    Op,
    Operand,
    Program,
    ReduceAttrs,
    Region,
    Value,
    ViewAttrs,
)
from ....._compiler.ir.operands import is_block
from ....._shapes import Dim, dtype_name
from ...plan.epilogue import EpilogueOperand
from ..frame import Frame, place_of
from ..names import name_of
from ..numbers import Number, equal
from .parts import PARTS


def with_flat_columns(program: Program) -> Program:
    """Return the program with one dimension of columns, or the same one if rows have one, or are not contiguous."""
    accesses = [op for op in program.walk() if op.kind in ("load", "store")]
    pairs = {pair for op in accesses if (pair := _pair(program, op)) is not None}
    if len(pairs) != 1 or not all(_is_contiguous(program, op) for op in accesses if _pair(program, op)):
        return program
    return _Flat(program, *pairs).program()


def _pair(program: Program, op: Op) -> tuple[int, int] | None:
    """Return the blocks of the last two dimensions of an access, if they are whole ones after those of rows."""
    blocks = [index.block for index in op.attributes(MemoryAttrs).indices[-PARTS:]]
    if len(op.attributes(MemoryAttrs).indices) <= PARTS or None in blocks:
        return None
    first, last = (program.blocks[block] for block in blocks if block is not None)
    return (first.id, last.id) if first.kind == last.kind == "full" else None


def _is_contiguous(program: Program, op: Op) -> bool:
    attrs = op.attributes(MemoryAttrs)
    tensor = program.tensors[attrs.tensor]
    plain = all(map(is_block, attrs.indices[-PARTS:]))
    extents = [program.blocks[index.block].extent for index in attrs.indices[-PARTS:] if index.block is not None]
    known = all(isinstance(each, int) for each in (*extents, *tensor.shape[-PARTS:], *tensor.strides[-PARTS:]))
    if attrs.mask is not None or not plain or not known or [*tensor.shape[-PARTS:]] != extents:
        return False
    return tensor.strides[-1] == 1 and tensor.strides[-2] == extents[-1]


class _Flat:
    def __init__(self, source: Program, pair: tuple[int, int]) -> None:
        self.source, self.pair = source, pair
        extents = [source.blocks[block].extent for block in pair]
        self.columns = math.prod(extent for extent in extents if isinstance(extent, int))
        self.block = Block(id=len(source.blocks), kind="full", extent=self.columns, name="columns")
        self.tensors: dict[int, HostTensor] = {}
        self.next = 1 + max(number for op in source.walk() for number in (op.number, *(v.number for v in op.results)))

    def program(self) -> Program:
        roots = tuple(replace(root, body=self._region(root.body)) for root in self.source.roots)
        tensors = tuple(self.tensors.get(tensor.id, tensor) for tensor in self.source.tensors)
        return replace(self.source, blocks=(*self.source.blocks, self.block), tensors=tensors, roots=roots)

    def _region(self, region: Region) -> Region:
        return replace(region, ops=tuple(each for op in region.ops for each in self._op(op)))

    def _op(self, op: Op) -> list[Op]:
        """Return an op, and the reshapes around it."""
        op = replace(op, regions=tuple(map(self._region, op.regions)))
        if op.kind in ("load", "store") and _pair(self.source, op) is not None:
            return self._access(op)
        source = op.operands[0] if op.kind == "reduce" else None
        rank = len(source.dims) if isinstance(source, Value) else 0
        dims = [*op.attributes(ReduceAttrs).dims] if rank else []
        if not isinstance(source, Value) or dims != [rank - PARTS, rank - 1] or not self._has_pair(source.dims):
            return [op]
        view = self._view(op, source)
        attrs = replace(op.attributes(ReduceAttrs), dims=(rank - PARTS,))
        return [view, replace(op, operands=(view.result, *op.operands[1:]), attrs=attrs)]

    def _has_pair(self, dims: Sequence[Dim]) -> bool:
        return tuple(dim.block for dim in dims[-PARTS:]) == self.pair

    def _access(self, op: Op) -> list[Op]:
        attrs = op.attributes(MemoryAttrs)
        tensor = self.source.tensors[attrs.tensor]
        self.tensors[tensor.id] = replace(
            tensor, shape=(*tensor.shape[:-PARTS], self.columns), strides=(*tensor.strides[:-PARTS], 1)
        )
        column = Index(kind="block", block=self.block.id, positions=(attrs.rank - PARTS,))
        flat = replace(attrs, indices=(*attrs.indices[:-PARTS], column), rank=attrs.rank - 1)
        if op.kind == "load":
            loaded = self._flat(op.result)
            back = self._reshaped(op, loaded, op.result)
            return [replace(op, results=(loaded,), attrs=flat), back]
        value = op.operands[0]
        if not isinstance(value, Value) or not self._has_pair(value.dims):
            return [replace(op, results=tuple(map(self._same, op.results)), attrs=flat)]
        view = self._view(op, value)
        operands: tuple[Operand, ...] = (view.result, *op.operands[1:])
        return [view, replace(op, operands=operands, results=tuple(map(self._same, op.results)), attrs=flat)]

    def _same(self, value: Value) -> Value:
        return replace(value, dims=(*value.dims[:-PARTS], Dim(blocks=(self.block.id,))))

    def _flat(self, value: Value) -> Value:
        self.next += 1
        return replace(self._same(value), number=self.next - 1)

    def _view(self, op: Op, value: Value) -> Op:
        return self._reshaped(op, value, self._flat(value))

    def _reshaped(self, op: Op, value: Value, result: Value) -> Op:
        self.next += 1
        return Op(self.next - 1, "view", (value,), (result,), ViewAttrs("reshape"), location=op.location)


def numbers_of_groups(frame: Frame, op: Op) -> tuple[EpilogueOperand, Number] | None:
    """Return the operand that a load of one number for each group of columns reads, and its stride of rows; None for
    other loads. Groups have one number each for all rows if no dimension is that of rows."""
    last = op.attributes(MemoryAttrs).indices[-1].block
    extent = frame.program.blocks[last].extent if last is not None and last in frame.groups else None
    if not isinstance(extent, int):
        return None
    place = place_of(frame, op, aligned=False)
    if place.blocks not in ((frame.m, last), (last,)) or not equal(place.strides[-1], 1):
        return None
    operand = EpilogueOperand(
        name=f"{name_of(place.tensor)}_group",
        kind="group",
        dtype=dtype_name(place.tensor.dtype),
        group=frame.columns // extent,
    )
    return operand, place.strides[0] if len(place.blocks) > 1 else 0
