"""Batched matmuls: a program over a batch becomes that of one matmul, with batch strides.

The batch is a third dimension of the grid, ``hl.tile([b, m, n])``, of which each program takes one. Or it is a loop
around the tiles, ``for i in hl.grid(b)``. Its index picks a matrix of each tensor, or none, where all matmuls read the
same one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...._compiler.ir.grammar import (
    ForAttrs,
    HostTensor,
    Index,
    LoopAxis,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Operand,
    Program,
    ReduceAttrs,
    Region,
    Root,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ...._shapes import Dims, Number, fixed_at
from ..plan.refusal import Refusal
from .numbers import equal, size

POSITION = ("begin", "id", "index")
"""Fields of a one-element tile that give its index."""


@dataclass(frozen=True, kw_only=True)
class Batched:
    """A ``program`` of one matmul out of ``size``; ``strides`` by tensor, for those with a batch dimension.

    ``block`` iterates over the batch. It is None without a batch, where ``program`` is the original one.
    """

    program: Program
    block: int | None = None
    size: Number = 1
    strides: dict[int, Number] = dataclasses.field(default_factory=dict)


def without_batch(program: Program) -> Batched:
    """Remove the batch from a program. Raises ``Refusal`` for a batch whose use is not implemented."""
    if len(program.roots) != 1:
        return Batched(program=program)
    root = _flattened(program.roots[0])
    axis = _axis_of_batch(program, root)
    if axis is None:
        return Batched(program=program)
    products = _size(program, axis)
    taker = _Taker(program, axis.block, products)
    body = taker.region(root.body)
    taken = dataclasses.replace(root, axes=tuple(each for each in root.axes if each is not axis), body=body)
    stripped = dataclasses.replace(program, tensors=taker.tensors(), roots=(taken,))
    return Batched(program=stripped, block=axis.block, size=products, strides=taker.strides)


def _flattened(root: Root) -> Root:
    """Turn a loop around the tiles into one more dimension of the grid, which is equivalent."""
    inner = [op for op in root.body.ops if op.kind != "tile"]
    if len(root.axes) != 1 or len(inner) != 1 or inner[0].kind != "for" or root.axes[0].block in _of_matrix(root):
        return root
    attrs = inner[0].attributes(ForAttrs)
    if len(attrs.axes) > 2 or attrs.carried or inner[0].results:
        return root
    (region,) = inner[0].regions
    positions = tuple(op for op in root.body.ops if op.kind == "tile")
    body = dataclasses.replace(region, ops=(*positions, *region.ops))
    return dataclasses.replace(root, axes=(*root.axes, *attrs.axes), body=body)


def _axis_of_batch(program: Program, root: Root) -> LoopAxis | None:
    """Return the axis that is no matrix dimension: one of three axes, or of two where programs hold whole rows."""
    of_matrix = _of_matrix(root)
    rest = [axis for axis in root.axes if axis.block not in of_matrix]
    return rest[0] if of_matrix and len(root.axes) in (2, 3) and len(rest) == 1 else None


def _of_matrix(root: Root) -> set[int | None]:
    """Return the blocks of the accumulator's rows and columns."""
    dot = next((op for op in root.body.walk() if op.kind == "dot"), None)
    return {dim.block for dim in dot.results[0].dims[-2:]} if dot is not None else set()


def _size(program: Program, axis: LoopAxis) -> Number:
    block = program.blocks[axis.block]
    name = block.name or block.id
    extent = size(block.extent)
    if axis.merged or not all(map(equal, (axis.begin, axis.step, size(axis.end)), (0, 1, extent))):
        raise Refusal(f"dimension {name} of the batch is no plain loop from 0 to an extent that is known")
    if block.min_size > 1 or block.size not in (None, 1):
        raise Refusal(f"dimension {name} of the batch has tiles of more than one matmul")
    return extent


class _Taker:
    """A rewrite that removes the batch from a program, value by value."""

    def __init__(self, program: Program, block: int, size: Number) -> None:
        self.program, self.block, self.size = program, block, size
        self.values: dict[int, Operand] = {}
        self.positions: set[int] = set()
        """Values that are the batch index."""
        self.dropped: dict[int, int | None] = {}
        """The batch dimension by tensor, if any."""
        self.strides: dict[int, Number] = {}

    def region(self, region: Region) -> Region:
        params = tuple(self._new(value) for value in region.params)
        ops = tuple(self._without(region.ops))
        return dataclasses.replace(region, params=params, ops=ops, results=tuple(map(self._read, region.results)))

    def tensors(self) -> tuple[HostTensor, ...]:
        return tuple(self._tensor(tensor, self.dropped.get(tensor.id)) for tensor in self.program.tensors)

    def _tensor(self, tensor: HostTensor, at: int | None) -> HostTensor:
        if at is None:
            return tensor
        shape, strides = (numbers[:at] + numbers[at + 1 :] for numbers in (tensor.shape, tensor.strides))
        return dataclasses.replace(tensor, shape=shape, strides=strides)

    def _without(self, ops: Iterable[Op]) -> Iterator[Op]:
        for op in ops:
            if op.kind == "tile" and op.attributes(TileAttrs).block == self.block:
                if op.attributes(TileAttrs).field not in POSITION:
                    raise Refusal(f"the {op.attrs.field} of a tile of the batch is not implemented")
                self.positions.add(op.result.number)
            elif op.kind == "view" and self._is_gone(op):
                self.values[op.result.number] = self._read(op.operands[0])
            else:
                yield self._op(op)

    def _op(self, op: Op) -> Op:
        attrs, operands = op.attrs, tuple(map(self._read, op.operands))
        if isinstance(attrs, MemoryAttrs):
            attrs = self._memory(op, attrs)
        elif op.kind == "view" and op.attrs.name == "permute":
            attrs = ViewAttrs("permute", self._order(op))
        elif op.kind == "pointwise":
            self._check_alignment(op)
        elif isinstance(attrs, (ReduceAttrs, MaskAttrs)):
            attrs = dataclasses.replace(attrs, dims=self._dims(op, attrs.dims))
        elif any(isinstance(each, Value) and each.number in self.positions for each in op.operands):
            raise Refusal("the batch index selects matrices, and is used for nothing else")
        regions = tuple(self.region(region) for region in op.regions)
        results = tuple(self._new(value) for value in op.results)
        return dataclasses.replace(op, operands=operands, results=results, attrs=attrs, regions=regions)

    # Values ---------------------------------------------------------------------------------------------------------------

    def _new(self, value: Value) -> Value:
        at = self._place(value.dims)
        new = value if at is None else dataclasses.replace(value, dims=value.dims[:at] + value.dims[at + 1 :])
        self.values[value.number] = new
        return new

    def _read(self, operand: Operand) -> Operand:
        return self.values.get(operand.number, operand) if isinstance(operand, Value) else operand

    def _place(self, dims: Dims) -> int | None:
        """Return the position of the batch in `dims`: with three of them, the first if it has one element."""
        if any(self.block in dim.blocks and dim.block != self.block for dim in dims):
            raise Refusal("a reshape that merges the batch with another dimension is not implemented")
        found = [at for at, dim in enumerate(dims) if dim.block == self.block]
        if found or len(dims) < 3:
            return found[0] if found else None
        if not dims[0].is_one:
            raise Refusal("values of three dimensions have the batch in front, or one element")
        return 0

    def _check_alignment(self, op: Op) -> None:
        """Check that a batched value broadcasts only with values of the same rank and batch position."""
        values = list(op.values())
        if any(value.number in self.positions for value in values):
            raise Refusal("the batch index selects matrices, and is used for nothing else")
        batched = [value for value in values if any(dim.block == self.block for dim in value.dims)]
        if batched and self._place(op.result.dims) != 0:
            raise Refusal("arithmetic of the epilogue has the batch in front, then the dimensions of the output")
        if any(len(value.dims) != len(op.result.dims) for value in batched):
            raise Refusal("a value of one matmul is combined with others of different dimensions")

    def _dims(self, op: Op, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Return positions of dimensions of the first operand, without the batch."""
        value = op.operands[0]
        at = self._place(value.dims) if isinstance(value, Value) else None
        if at is not None and at in dims:
            raise Refusal("a reduction over the matmuls of a batch is not implemented")
        return dims if at is None else tuple(each - (each > at) for each in dims)

    def _is_gone(self, op: Op) -> bool:
        """Return whether a view only moved the batch."""
        before = self._read(op.operands[0])
        if op.attrs.name == "permute":
            order = self._order(op)
            return order == tuple(range(len(order)))
        at = self._place(op.result.dims)
        dims = op.result.dims if at is None else op.result.dims[:at] + op.result.dims[at + 1 :]
        return isinstance(before, Value) and before.dims == dims

    def _order(self, op: Op) -> tuple[int, ...]:
        value = op.operands[0]
        at = self._place(value.dims) if isinstance(value, Value) else None
        order = op.attributes(ViewAttrs).order
        return order if at is None else tuple(each - (each > at) for each in order if each != at)

    # Memory ---------------------------------------------------------------------------------------------------------------

    def _memory(self, op: Op, attrs: MemoryAttrs) -> MemoryAttrs:
        tensor = self.program.tensors[attrs.tensor]
        found = [at for at, index in enumerate(attrs.indices) if self._walks(op, index)]
        at = found[0] if found else None
        if len(found) > 1 or self.dropped.setdefault(tensor.id, at) != at:
            raise Refusal(f"{tensor.name} is addressed by the batch in more than one dimension, or not always")
        if at is None:
            return attrs
        if not equal(tensor.shape[at], self.size):
            raise Refusal(
                f"{tensor.name} has {tensor.shape[at]!r} matrices, of which the batch walks over {self.size!r}"
            )
        self.strides[tensor.id] = tensor.strides[at]
        gone = attrs.indices[at].positions
        kept = tuple(self._shifted(index, gone) for index in attrs.indices[:at] + attrs.indices[at + 1 :])
        return dataclasses.replace(attrs, indices=kept, rank=attrs.rank - len(gone))

    def _walks(self, op: Op, index: Index) -> bool:
        """Return whether the batch iterates over the dimension."""
        if index.kind == "block" and index.block == self.block:
            if not fixed_at(index.shift, 0) or index.operand is not None:
                raise Refusal("matrices of a batch are selected by its index, without offsets")
            return True
        picked = op.operands[index.operand] if index.operand is not None else None
        if isinstance(picked, Value) and picked.number in self.positions:
            if index.kind != "scalar" or not fixed_at(index.shift, 0):
                raise Refusal("matrices of a batch are selected by its index, without offsets")
            return True
        return False

    def _shifted(self, index: Index, gone: tuple[int, ...]) -> Index:
        positions = tuple(each - sum(other < each for other in gone) for each in index.positions)
        return dataclasses.replace(index, positions=positions)
