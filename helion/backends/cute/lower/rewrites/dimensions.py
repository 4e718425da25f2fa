"""Two dimensions that are one in memory, as one dimension of a matmul.

::

    for tile_b, tile_s, tile_n in hl.tile([b, s, n]):             for tile_s, tile_n in hl.tile([b * s, n]):
        rows = x[tile_b, tile_s, tile_k].reshape(-1, k)      →        rows = x[tile_s, tile_k]
    for h in hl.grid(heads):                                      for tile_d in hl.tile(heads * d):
        for tile_d in hl.tile(d):                            →        acc = hl.dot(x[tile_m, tile_d], ...)
            acc = hl.dot(x[tile_m, h, tile_d], ...)

That is so where each tensor has both or none, and the first steps over all of the second. Sizes and strides are known.
A few indices of other loops around the loop over K are terms of a sum.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from ....._compiler.ir.grammar import (
    ForAttrs,
    HostTensor,
    Index,
    IotaAttrs,
    LoopAxis,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Operand,
    Program,
    ReduceAttrs,
    Region,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import Dim, Dims, fixed_at
from ....._support.records import dataclass
from ...plan.runtime import MAX_TERMS

POSITION = ("begin", "id", "index")
"""Fields of a one-element tile that give its index."""


class _Apart(Exception):
    """Reason for which two dimensions are not one."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A ``program`` in which one dimension has the elements of two. ``blocks`` are those that are gone; there are none where
    the program is the original one."""

    program: Program
    blocks: tuple[int, ...] = ()


def with_joined_dimensions(program: Program) -> Joined:
    """Return the program with one dimension for each two that its matmul multiplies as one."""
    found = Joined(program=program)
    while (pair := _pair(found.program)) is not None:
        joined = _as_one(found.program, *pair) or _unrolled(found.program, pair[0])
        if joined is None:
            break
        gone = [block for block in pair if not any(_uses(op, block) for op in joined.walk())]
        found = Joined(program=joined, blocks=(*found.blocks, *gone))
    return found


def _as_one(program: Program, outer: int, inner: int) -> Program | None:
    """Return the program with one dimension in place of two; None where they cannot be one."""
    try:
        return _Joiner(program, outer, inner).program_of()
    except _Apart:
        return None


def _unrolled(program: Program, outer: int) -> Program | None:
    """Return the program with one loop for each index of a loop around its loop over K; None if there is no such loop, or
    there are more indices than terms of a sum."""
    (root,), extent = program.roots, program.blocks[outer].extent
    loops = [op for op in root.body.ops if op.kind == "for"]
    inner = _inner(loops[0]) if len(loops) == 1 else None
    axes = loops[0].attributes(ForAttrs).axes if inner is not None else ()
    plain = [axis.block for axis in axes] == [outer] and all(map(fixed_at, (axes[0].begin, axes[0].step), (0, 1)))
    if inner is None or not plain or not isinstance(extent, int) or not 1 <= extent <= MAX_TERMS:
        return None
    ends = [(axis.begin, axis.end, program.blocks[axis.block].extent) for axis in inner.attributes(ForAttrs).axes]
    whole = all(fixed_at(begin, 0) and isinstance(end, int) and end == known for begin, end, known in ends)
    if not whole or not fixed_at(axes[0].end, extent) or not fixed_at(program.blocks[outer].size, 1):
        return None
    loop, carried = loops[0], inner.attributes(ForAttrs).carried
    numbers = itertools.count(1 + max(op.number for op in _numbered(program)))
    starts, made = loop.operands[:carried], list[Op]()
    for index in range(extent):
        known: dict[int, Operand] = {}
        for op in loop.regions[0].ops:
            if isinstance(op.attrs, TileAttrs) and op.attrs.block == outer:
                known[op.result.number] = index
                continue
            copy = _copied(op, known, numbers)
            if op is inner:
                copy = dataclasses.replace(copy, operands=(*starts, *copy.operands[carried:]))
                starts = copy.results
            made.append(copy)
    made[-1] = dataclasses.replace(made[-1], results=loop.results)
    ops = tuple(each for op in root.body.ops for each in (made if op is loop else (op,)))
    changed = dataclasses.replace(root, body=dataclasses.replace(root.body, ops=ops))
    found = drop_dead(dataclasses.replace(program, roots=(changed,)))
    return None if any(_uses(op, outer) for op in found.walk()) else found


def _numbered(program: Program) -> Iterator[Op | Value]:
    """Yield all that has a number."""
    for op in program.walk():
        yield op
        yield from op.results
        for region in op.regions:
            yield from region.params


def _copied(op: Op, known: dict[int, Operand], numbers: Iterator[int]) -> Op:
    """Return an op with results of its own. Operands are those of ``known`` values, to which the results are added."""

    def read(value: Operand) -> Operand:
        return known.get(value.number, value) if isinstance(value, Value) else value

    def new(value: Value) -> Value:
        copy = dataclasses.replace(value, number=next(numbers))
        known[value.number] = copy
        return copy

    operands = tuple(map(read, op.operands))
    regions = []
    for region in op.regions:
        params = tuple(map(new, region.params))
        ops = tuple(_copied(each, known, numbers) for each in region.ops)
        regions.append(Region(params=params, ops=ops, results=tuple(map(read, region.results))))
    results, attrs = tuple(map(new, op.results)), op.attrs
    if isinstance(attrs, MemoryAttrs):
        attrs = dataclasses.replace(attrs, indices=tuple(_at(index, operands) for index in attrs.indices))
    return dataclasses.replace(
        op, number=next(numbers), operands=operands, regions=tuple(regions), results=results, attrs=attrs
    )


def _at(index: Index, operands: Sequence[Operand]) -> Index:
    """Return the index of a number that is known."""
    number = None if index.operand is None else operands[index.operand]
    if index.kind != "scalar" or not isinstance(number, int) or not isinstance(index.shift, int):
        return index
    return dataclasses.replace(index, shift=index.shift + number, operand=None)


def _pair(program: Program) -> tuple[int, int] | None:
    """Return the blocks of two dimensions that a matmul multiplies as one, the outer one first; None if there are none."""
    if len(program.roots) != 1:
        return None
    (root,) = program.roots
    for op in root.body.walk():
        sides = [value for value in op.operands[:2] if isinstance(value, Value)] if op.kind == "dot" else []
        for dim in (dim for value in sides for dim in value.dims):
            if len(dim.blocks) == 2 and dim.const == 1:
                return dim.blocks[0], dim.blocks[1]
    loops = [op for op in root.body.ops if op.kind == "for"]
    for loop in loops if len(loops) == 1 and any(op.kind == "dot" for op in loops[0].walk()) else ():
        axes, inner = loop.attributes(ForAttrs).axes, _inner(loop)
        if len(axes) == 2:
            return axes[0].block, axes[1].block
        if len(axes) == 1 and inner is not None and len(inner.attributes(ForAttrs).axes) == 1:
            return axes[0].block, inner.attributes(ForAttrs).axes[0].block
    return None


def _inner(loop: Op) -> Op | None:
    """Return the loop that continues all sums of a loop, and is all that it does."""
    (region,) = loop.regions
    inner = [op for op in region.ops if op.regions]
    if len(inner) != 1 or inner[0].kind != "for" or not region.results or tuple(inner[0].results) != region.results:
        return None
    carried = inner[0].attributes(ForAttrs).carried
    plain = all(op.regions or op.kind in ("tile", "pointwise") for op in region.ops)
    return inner[0] if plain and tuple(inner[0].operands[:carried]) == region.params else None


class _Joiner:
    """A rewrite that makes the blocks ``outer`` and ``inner`` one: ``kept``, that of them whose tiles a config sizes."""

    def __init__(self, program: Program, outer: int, inner: int) -> None:
        self.program, self.outer, self.inner = program, outer, inner
        self.makers = {result.number: op for op in program.walk() for result in op.results}
        self.values: dict[int, Operand] = {}
        self.places: dict[int, tuple[int, int]] = {}
        """The dimensions of a tensor that are one, by its id."""
        first, second = (program.blocks[block].extent for block in (outer, inner))
        if not isinstance(first, int) or not isinstance(second, int) or min(first, second) < 1:
            raise _Apart
        self.extents = first, second
        tunable = [program.blocks[block].tunable for block in (outer, inner)]
        self.kept, self.gone = (outer, inner) if tunable == [True, False] else (inner, outer)

    def program_of(self) -> Program:
        """Return the program of one dimension. Raises ``_Apart``."""
        (root,) = self.program.roots
        body = self._region(root.body)
        extent = self.extents[0] * self.extents[1]
        blocks = tuple(
            dataclasses.replace(block, extent=extent) if block.id == self.kept else block
            for block in self.program.blocks
        )
        tensors = tuple(map(self._tensor, self.program.tensors))
        whole = dataclasses.replace(root, axes=self._axes(root.axes), body=body)
        found = drop_dead(dataclasses.replace(self.program, roots=(whole,), blocks=blocks, tensors=tensors))
        if any(_uses(op, self.gone) or _counts(op, self.kept) for op in found.walk()):
            raise _Apart
        return found

    # Loops ----------------------------------------------------------------------------------------------------------------

    def _axes(self, axes: Sequence[LoopAxis]) -> tuple[LoopAxis, ...]:
        """Return the axes of a loop without the outer dimension, whose elements the inner one has as well."""
        for axis in axes:
            if axis.block in (self.outer, self.inner):
                known = self.extents[axis.block == self.inner]
                plain = axis.jagged is None and not (axis.merged or axis.split or axis.backwards or axis.aligned)
                if not plain or not all(map(fixed_at, (axis.begin, axis.step, axis.end), (0, 1, known))):
                    raise _Apart
        extent = self.extents[0] * self.extents[1]
        kept = (axis for axis in axes if axis.block != self.gone)
        return tuple(dataclasses.replace(axis, end=extent) if axis.block == self.kept else axis for axis in kept)

    def _region(self, region: Region) -> Region:
        params = tuple(map(self._new, region.params))
        ops = tuple(made for op in region.ops for made in self._op(op))
        return Region(params=params, ops=ops, results=tuple(map(self._read, region.results)))

    def _op(self, op: Op) -> Iterator[Op]:
        if isinstance(op.attrs, ForAttrs):
            yield self._loop(op, op.attrs)
        elif isinstance(op.attrs, ViewAttrs):
            yield from self._view(op, op.attrs)
        elif isinstance(op.attrs, MaskAttrs) and op.attrs.fill == 0.0 and self._is_loaded(op.operands[0]):
            self.values[op.result.number] = self._read(op.operands[0])  # zeros are loaded out of range
        else:
            yield self._plain(op)

    def _loop(self, op: Op, attrs: ForAttrs) -> Op:
        """Return a loop. One over the outer dimension alone is the inner loop that it consists of."""
        inner = _inner(op) if [axis.block for axis in attrs.axes] == [self.outer] else None
        if inner is not None:
            self._axes(attrs.axes)
            starts = (*op.operands[: attrs.carried], *inner.operands[attrs.carried :])
            position = [each for each in op.regions[0].ops if not each.regions]
            for each in position:
                self.values[each.result.number] = each.result
            return self._loop(
                dataclasses.replace(inner, operands=starts, results=op.results), inner.attributes(ForAttrs)
            )
        regions = tuple(map(self._region, op.regions))
        axes = self._axes(attrs.axes)
        operands, results = tuple(map(self._read, op.operands)), tuple(map(self._new, op.results))
        return dataclasses.replace(
            op, operands=operands, results=results, regions=regions, attrs=dataclasses.replace(attrs, axes=axes)
        )

    def _is_loaded(self, value: Operand) -> bool:
        """Return whether a value is what a load returns, reshaped."""
        made = self._maker(value)
        while made is not None and made.kind == "view":
            made = self._maker(made.operands[0])
        return made is not None and made.kind == "load"

    # Values ---------------------------------------------------------------------------------------------------------------

    def _new(self, value: Value) -> Value:
        new = dataclasses.replace(value, dims=self._dims(value.dims))
        self.values[value.number] = new
        return new

    def _read(self, operand: Operand) -> Operand:
        return self.values.get(operand.number, operand) if isinstance(operand, Value) else operand

    def _dims(self, dims: Dims) -> Dims:
        """Return dimensions with the inner one in place of both, or of their product. Raises ``_Apart``."""
        found = list[Dim]()
        for at, dim in enumerate(dims):
            if dim.block == self.outer:
                if dims[at + 1 : at + 2] not in ((Dim(blocks=(self.inner,)),), (Dim(),)):
                    raise _Apart
                continue
            both = (self.outer, self.inner)
            if any(block in dim.blocks for block in both) and dim.blocks not in ((self.inner,), both):
                raise _Apart
            if dim.blocks == both and dim.const != 1:
                raise _Apart
            found.append(Dim(blocks=(self.kept,)) if dim.blocks in (both, (self.inner,)) else dim)
        return tuple(found)

    def _position(self, dims: Dims, at: int) -> int:
        """Return the new position of a dimension."""
        return at - sum(dim.block == self.outer for dim in dims[: at + 1]) + (dims[at].block == self.outer)

    def _view(self, op: Op, attrs: ViewAttrs) -> Iterator[Op]:
        source = op.operands[0]
        dims = source.dims if isinstance(source, Value) else ()
        if attrs.name == "permute" and any(self.outer in dim.blocks for dim in dims):
            raise _Apart
        read, new = self._read(source), self._dims(op.result.dims)
        if isinstance(read, Value) and read.dims == new and attrs.name == "reshape":
            self.values[op.result.number] = read
            return
        yield dataclasses.replace(
            op, operands=(read, *map(self._read, op.operands[1:])), results=(self._new(op.result),)
        )

    def _plain(self, op: Op) -> Op:
        attrs = op.attrs
        if op.regions:
            raise _Apart
        if isinstance(attrs, MemoryAttrs):
            attrs = self._memory(op, attrs)
        elif isinstance(attrs, (ReduceAttrs, MaskAttrs)):
            source = op.operands[0]
            dims = source.dims if isinstance(source, Value) else ()
            if isinstance(attrs, ReduceAttrs) and any(dims[at].block in (self.outer, self.inner) for at in attrs.dims):
                raise _Apart
            attrs = dataclasses.replace(attrs, dims=tuple(dict.fromkeys(self._position(dims, at) for at in attrs.dims)))
        elif op.kind == "pointwise" and self._differ(op):
            raise _Apart
        operands = tuple(map(self._read, op.operands))
        return dataclasses.replace(op, operands=operands, results=tuple(map(self._new, op.results)), attrs=attrs)

    def _differ(self, op: Op) -> bool:
        """Return whether operands with the outer dimension meet others of fewer dimensions."""
        values = [value for value in op.values() if value.dims]
        outer = any(dim.block == self.outer for value in values for dim in value.dims)
        return outer and len({len(value.dims) for value in values}) > 1

    # Memory ---------------------------------------------------------------------------------------------------------------

    def _memory(self, op: Op, attrs: MemoryAttrs) -> MemoryAttrs:
        """Return an access of the tensor whose two dimensions are one. Raises ``_Apart``."""
        indices = attrs.indices
        outer = [at for at, index in enumerate(indices) if self._is_outer(op, index)]
        inner = [at for at, index in enumerate(indices) if index.kind == "block" and index.block == self.inner]
        places = self.places.setdefault(attrs.tensor, (outer[0], inner[0]) if outer and inner else (-1, -1))
        if len(outer) != len(inner) or len(outer) > 1 or places != ((outer[0], inner[0]) if outer else (-1, -1)):
            raise _Apart
        if not outer:
            return attrs
        tensor, (first, second) = self.program.tensors[attrs.tensor], (outer[0], inner[0])
        covers = (tensor.shape[first], tensor.shape[second]) == self.extents
        step, next_one = tensor.strides[first], tensor.strides[second]
        if not covers or not isinstance(next_one, int) or step != self.extents[1] * next_one:
            raise _Apart
        gone = indices[first].positions
        if not fixed_at(indices[second].shift, 0) or indices[second].operand is not None:
            raise _Apart
        joined = dataclasses.replace(indices[second], block=self.kept)
        kept = (joined if at == second else index for at, index in enumerate(indices) if at != first)
        moved = tuple(
            dataclasses.replace(each, positions=tuple(at - sum(other < at for other in gone) for at in each.positions))
            for each in kept
        )
        return dataclasses.replace(attrs, indices=moved, rank=attrs.rank - len(gone))

    def _is_outer(self, op: Op, index: Index) -> bool:
        """Return whether an index is that of the outer dimension, alone."""
        if not fixed_at(index.shift, 0):
            return False
        made = None if index.operand is None else self._maker(op.operands[index.operand])
        if index.kind == "block":
            return index.block == self.outer and index.operand is None
        attrs = None if made is None else made.attrs
        single = isinstance(attrs, TileAttrs) and attrs.block == self.outer and attrs.field in POSITION
        return index.kind == "scalar" and single and self._steps_by_one()

    def _maker(self, value: Operand) -> Op | None:
        return self.makers.get(value.number) if isinstance(value, Value) else None

    def _steps_by_one(self) -> bool:
        block = self.program.blocks[self.outer]
        return block.kind == "grid" or fixed_at(block.size, 1)

    def _tensor(self, tensor: HostTensor) -> HostTensor:
        first, second = self.places.get(tensor.id, (-1, -1))
        if first < 0:
            return tensor
        shape = [*tensor.shape]
        shape[second] = self.extents[0] * self.extents[1]
        strides = [*tensor.strides]
        return dataclasses.replace(
            tensor,
            shape=tuple(shape[:first] + shape[first + 1 :]),
            strides=tuple(strides[:first] + strides[first + 1 :]),
        )


def _counts(op: Op, block: int) -> bool:
    """Return whether an op gives the position or the indices of a block."""
    return isinstance(op.attrs, (IotaAttrs, TileAttrs)) and op.attrs.block == block


def _uses(op: Op, block: int) -> bool:
    """Return whether an op has a block among its dimensions, positions or indices."""
    if _counts(op, block):
        return True
    if isinstance(op.attrs, MemoryAttrs) and any(index.block == block for index in op.attrs.indices):
        return True
    return any(block in dim.blocks for value in op.results for dim in value.dims)
