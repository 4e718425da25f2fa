"""Batched matmuls: a program over a batch becomes that of one matmul, with batch strides.

The batch is more dimensions of the grid, ``hl.tile([b, h, m, n])``, of which each program takes one element. Or it is
loops around the tiles, ``for i in hl.grid(b)``. Their indices pick a matrix of each tensor, or none, where all matmuls
read the same one. An index may be divided by a number, or be taken modulo one: ``k[i // heads, i % heads // shared]``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping

from ...._compiler.ir.grammar import (
    ForAttrs,
    HostTensor,
    Index,
    LoopAxis,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Region,
    Root,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ...._shapes import Dims, Number, fixed_at
from ...._support.records import dataclass
from ..plan.refusal import Refusal
from .numbers import equal, size

POSITION = ("begin", "id", "index")
"""Fields of a one-element tile that give its index."""
DIVISIONS, REMAINDERS = ("floordiv", "truncdiv"), ("remainder", "fmod")
"""Operations on an index, which is not negative."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One dimension of a batch, of ``size`` matmuls. ``strides`` are the elements from one to the next, by tensor."""

    size: Number
    strides: Mapping[int, Number]


@dataclass(frozen=True, kw_only=True)
class Batched:
    """A ``program`` of one matmul of a batch, whose ``levels`` are its dimensions, innermost first.

    ``blocks`` iterate over the batch. There are none without a batch, where ``program`` is the original one.
    """

    program: Program
    blocks: tuple[int, ...] = ()
    levels: tuple[Level, ...] = ()

    @property
    def strides(self) -> dict[int, tuple[Number, ...]]:
        """Elements from one matmul to the next along each dimension, by tensor, of tensors that have a batch."""
        tensors = {tensor for level in self.levels for tensor in level.strides}
        return {tensor: tuple(level.strides.get(tensor, 0) for level in self.levels) for tensor in tensors}


def without_batch(program: Program) -> Batched:
    """Remove the batch from a program. Raises ``Refusal`` for a batch whose use is not implemented.

    Whole matrices for each program would leave most of an instruction's rows empty (measurement ``tiny_matrices``).
    """
    if len(program.roots) != 1:
        return Batched(program=program)
    root = _flattened(program.roots[0])
    if (of_matrix := _of_matrix(root)) and not of_matrix & {axis.block for axis in root.axes}:
        raise Refusal(
            "each program multiplies whole matrices, which is not implemented; hl.tile over their rows as well gives tiles"
        )
    blocks, levels = [], list[Level]()
    stripped = program
    while (axis := _axis_of_batch(root)) is not None:
        taker = _Taker(stripped, root, axis)
        body = taker.region(root.body)
        root = dataclasses.replace(root, axes=tuple(each for each in root.axes if each is not axis), body=body)
        stripped = dataclasses.replace(stripped, tensors=taker.tensors(), roots=(root,))
        blocks.append(axis.block)
        levels += taker.levels()
    return Batched(program=stripped, blocks=tuple(blocks), levels=tuple(levels))


def _flattened(root: Root) -> Root:
    """Turn loops around the tiles into more dimensions of the grid, which is equivalent."""
    while True:
        inner = [op for op in root.body.ops if op.regions]
        rest = [op for op in root.body.ops if not op.regions]
        if len(inner) != 1 or inner[0].kind != "for" or {axis.block for axis in root.axes} & _of_matrix(root):
            return root
        attrs = inner[0].attributes(ForAttrs)
        if attrs.carried or inner[0].results or any(op.kind not in ("tile", "pointwise") for op in rest):
            return root
        (region,) = inner[0].regions
        body = dataclasses.replace(region, ops=(*rest, *region.ops))
        root = dataclasses.replace(root, axes=(*root.axes, *attrs.axes), body=body)


def _axis_of_batch(root: Root) -> LoopAxis | None:
    """Return the innermost axis that is no matrix dimension."""
    of_matrix = _of_matrix(root)
    rest = [axis for axis in root.axes if axis.block not in of_matrix]
    return rest[-1] if of_matrix and len(rest) < len(root.axes) and rest else None


def _of_matrix(root: Root) -> set[int | None]:
    """Return the blocks of the accumulator's rows and columns."""
    dot = next((op for op in root.body.walk() if op.kind == "dot"), None)
    return {dim.block for dim in dot.results[0].dims[-2:]} if dot is not None else set()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Form:
    """A value that is computed from the index of an axis: ``index // step % count``. An axis has one object for each."""

    step: int
    count: Number


class _Axis:
    """One axis of the batch: its size, and the values that are computed from its index, by their numbers."""

    def __init__(self, program: Program, root: Root, axis: LoopAxis) -> None:
        self.block = program.blocks[axis.block]
        self.name = self.block.name or str(self.block.id)
        self.size = size(self.block.extent)
        if axis.merged or not all(map(equal, (axis.begin, axis.step, size(axis.end)), (0, 1, self.size))):
            raise Refusal(f"dimension {self.name} of the batch is no plain loop from 0 to an extent that is known")
        if self.block.min_size > 1 or self.block.size not in (None, 1):
            raise Refusal(f"dimension {self.name} of the batch has tiles of more than one matmul")
        self.whole = _Form(step=1, count=self.size)
        self.forms: dict[int, _Form] = {}
        self._known: dict[tuple[int, int], _Form] = {}
        for op in root.body.walk():
            form = self._form(op)
            if form is not None:
                self.forms[op.result.number] = form

    def _form(self, op: Op) -> _Form | None:
        if op.kind == "tile" and op.attributes(TileAttrs).block == self.block.id:
            if op.attributes(TileAttrs).field not in POSITION:
                raise Refusal(f"the {op.attrs.field} of a tile of the batch is not implemented")
            return self.whole
        source = self.of(op.operands[0]) if op.kind == "pointwise" else None
        if source is None:
            return None
        name, by = op.attributes(PointwiseAttrs).name, op.operands[-1]
        if name == "cast" and not op.result.dtype.is_floating_point:
            return source
        if (
            name not in (*DIVISIONS, *REMAINDERS)
            or not isinstance(by, int)
            or not isinstance(source.count, int)
            or by < 1
        ):
            return None
        if source.count % by and name in DIVISIONS:
            raise Refusal(f"the index of {self.name}, of {source.count}, is divided by {by}, which leaves a remainder")
        if source.count % by and source.count > by:
            raise Refusal(f"the index of {self.name} is taken modulo {by}, which does not divide {source.count}")
        key = (source.step * by, source.count // by) if name in DIVISIONS else (source.step, min(by, source.count))
        return self._known.setdefault(key, self.whole if key == (1, self.size) else _Form(step=key[0], count=key[1]))

    def of(self, value: Operand) -> _Form | None:
        """Return the form of a value that is computed from the index."""
        return self.forms.get(value.number) if isinstance(value, Value) else None

    def points(self, used: Iterable[_Form]) -> list[int]:
        """Return the steps of the index at which a new dimension of the batch begins, in order."""
        found = {1} | {form.step for form in used}
        found |= {form.step * form.count for form in used if isinstance(form.count, int) and form is not self.whole}
        points = sorted(each for each in found if each == 1 or not isinstance(self.size, int) or each < self.size)
        for first, second in itertools.pairwise(points):
            if second % first:
                raise Refusal(f"the index of {self.name} is divided by {first} and by {second}, which is no multiple")
        return points


class _Taker:
    """A rewrite that removes the batch from a program, value by value."""

    def __init__(self, program: Program, root: Root, axis: LoopAxis) -> None:
        self.program, self.axis = program, _Axis(program, root, axis)
        self.block = axis.block
        self.values: dict[int, Operand] = {}
        self.dropped: dict[int, tuple[tuple[int, _Form], ...]] = {}
        """The dimensions that the batch iterates over, by tensor, and their indices."""

    def levels(self) -> list[Level]:
        """Return the dimensions of the batch that the axis is, innermost first."""
        points = self.axis.points({form for taken in self.dropped.values() for _, form in taken})
        if len(points) == 1:
            strides = {tensor: self._along(tensor, 1) for tensor, taken in self.dropped.items() if taken}
            return [Level(size=self.axis.size, strides=strides)]
        assert isinstance(self.axis.size, int)
        sizes = [after // first for first, after in itertools.pairwise((*points, self.axis.size))]
        return [
            Level(
                size=size,
                strides={tensor: self._along(tensor, point) for tensor, taken in self.dropped.items() if taken},
            )
            for point, size in zip(points, sizes, strict=True)
        ]

    def _along(self, tensor: int, point: int) -> Number:
        """Return the elements of a tensor from one index to that ``point`` later, where nothing else changes."""
        strides, found = self.program.tensors[tensor].strides, list[Number]()
        for at, form in self.dropped[tensor]:
            inside = form is self.axis.whole or (isinstance(form.count, int) and point < form.step * form.count)
            if form.step <= point and inside:
                found.append(strides[at] if point == form.step else strides[at] * (point // form.step))
        return sum(found[1:], found[0]) if found else 0

    def region(self, region: Region) -> Region:
        params = tuple(self._new(value) for value in region.params)
        ops = tuple(self._without(region.ops))
        return dataclasses.replace(region, params=params, ops=ops, results=tuple(map(self._read, region.results)))

    def tensors(self) -> tuple[HostTensor, ...]:
        return tuple(map(self._tensor, self.program.tensors))

    def _tensor(self, tensor: HostTensor) -> HostTensor:
        gone = {at for at, _ in self.dropped.get(tensor.id, ())}
        shape, strides = (
            tuple(number for at, number in enumerate(numbers) if at not in gone)
            for numbers in (tensor.shape, tensor.strides)
        )
        return dataclasses.replace(tensor, shape=shape, strides=strides) if gone else tensor

    def _without(self, ops: Iterable[Op]) -> Iterator[Op]:
        for op in ops:
            if any(result.number in self.axis.forms for result in op.results):
                continue
            if op.kind == "view" and self._is_gone(op):
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
        elif any(self.axis.of(each) is not None for each in op.operands):
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
        if any(self.axis.of(value) is not None for value in values):
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
        found = [(at, form) for at, index in enumerate(attrs.indices) if (form := self._walked(op, index)) is not None]
        if self.dropped.setdefault(tensor.id, tuple(found)) != tuple(found):
            raise Refusal(f"{tensor.name} is addressed by the batch in different ways, or not always")
        for at, form in found:
            if not equal(tensor.shape[at], form.count):
                raise Refusal(
                    f"{tensor.name} has {tensor.shape[at]!r} matrices, of which the batch walks over {form.count!r}"
                )
        gone = {at for at, _ in found}
        positions = tuple(place for at in gone for place in attrs.indices[at].positions)
        kept = tuple(self._shifted(index, positions) for at, index in enumerate(attrs.indices) if at not in gone)
        return dataclasses.replace(attrs, indices=kept, rank=attrs.rank - len(positions)) if gone else attrs

    def _walked(self, op: Op, index: Index) -> _Form | None:
        """Return the index of a dimension that the batch iterates over; None for other dimensions."""
        if index.kind == "block" and index.block == self.block:
            if not fixed_at(index.shift, 0) or index.operand is not None:
                raise Refusal("matrices of a batch are selected by its index, without offsets")
            return self.axis.whole
        form = self.axis.of(op.operands[index.operand]) if index.operand is not None else None
        if form is not None and (index.kind != "scalar" or not fixed_at(index.shift, 0)):
            raise Refusal("matrices of a batch are selected by its index, without offsets")
        return form

    def _shifted(self, index: Index, gone: tuple[int, ...]) -> Index:
        positions = tuple(each - sum(other < each for other in gone) for each in index.positions)
        return dataclasses.replace(index, positions=positions)
