"""Groups of rows: a program that iterates over the rows of each group becomes one over the rows of all groups.

::

    for tile_g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[tile_g.begin], offsets[tile_g.begin + 1]):      x[tile_m, tile_k]

    for g in hl.grid(groups):                                      ↓
        start, end = offsets[g], offsets[g + 1]
        for tile_m, tile_n in hl.tile([end - start, n]):              x[start + tile_m.index, tile_k]

                                                                   ↓

    for tile_g, tile_m, tile_n in hl.tile([groups, rows, n]):         x[tile_m, tile_k]

    for tile_g, tile_m, tile_n in hl.tile([groups, longest, n]):
        row = offsets[tile_g.begin] + tile_m.index                    (the same, of at most ``longest`` rows of a group)
        hl.load(x, [row, tile_k], extra_mask=row < offsets[tile_g.begin + 1])

    for tile_m in hl.tile(counts[g]):                                 (the first rows of each of ``x[groups, span, k]``)
        x[g, tile_m, tile_k]                                              x[tile_m, tile_k] of all groups * span rows

    for tile_m, tile_n in hl.tile([rows, n], block_size=[64, None]):      (blocks of rows with the numbers of their groups)
        g = group_of[tile_m.id]

The groups are a batch of the result, and a tile has the rows of one group. Loops by ``hl.jagged_tile`` over groups of
one element are of the second kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch

from ...._compiler.ir.grammar import (
    Block,
    Bound,
    ForAttrs,
    HostTensor,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Root,
    TileAttrs,
    Value,
)
from ...._compiler.ir.ops import OPS
from ...._compiler.passes.always.simplify import drop_dead
from ...._shapes import Expr, Number, dtype_name, fixed_at, number_key
from ...._support.records import dataclass
from ..plan.records import Groups
from ..plan.refusal import Refusal
from .names import name_of
from .numbers import equal, example, known
from .rewrites.slots import Joiner

OFFSET_DTYPES = (torch.int32, torch.int64)
_NOT_EMPTY = ("ne", "gt")
"""Comparisons of a length with 0, under which the rows of a group are computed."""


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """A ``program`` over all rows. ``offsets`` is None without groups, where ``program`` is the original one; ``block``
    iterates over the rows, of a group at most ``longest``. With ``rows`` the offsets are the groups of blocks of rows. With a
    ``span`` they are counts of rows, of which each group has so many at most."""

    program: Program
    offsets: HostTensor | None = None
    block: int = -1
    longest: Number | None = None
    rows: int | None = None
    span: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Nest:
    """The loops of a root without anything carried, from the grid inward: their axes, the ops of all bodies in order, the
    conditions between them, and the values of the bounds of the axes."""

    axes: tuple[LoopAxis, ...]
    ops: tuple[Op, ...]
    conditions: tuple[Operand, ...]
    bounds: Mapping[int, tuple[Operand | Bound, Operand | Bound]]
    """Begin and end of the axes whose extent depends on data, by block."""


def described_groups(offsets: HostTensor, size: Number) -> Groups:
    """Return the groups that a tensor of offsets delimits."""
    return Groups(
        name=name_of(offsets),
        size=example(size),
        dtype=dtype_name(offsets.dtype),
        pitch=known(offsets.strides[0], f"the stride of {offsets.name}"),
    )


def without_groups(program: Program) -> Grouped:
    """Return the program over all rows. Raises ``Refusal`` for groups whose use is not implemented."""
    nest = _nest(program.roots[0]) if len(program.roots) == 1 else None
    if nest is not None and not nest.bounds and not nest.conditions:
        return _of_blocks(program, nest) or _of_masked_rows(program, nest)
    if nest is None or len(nest.bounds) != 1:
        return Grouped(program=program)
    ((block, (begin, end)),) = nest.bounds.items()
    counted = _of_counts(program, nest, block, begin, end)
    if counted is not None:
        return counted
    reader = _Reader(program, nest, block)
    start, tensor = reader.rows(begin, end)
    for condition in nest.conditions:
        reader.check_condition(condition)
    rows = reader.all_rows()
    ops = _used([reader.over_all_rows(op, start) for op in nest.ops])
    reader.check_rest(ops, start)
    axes = tuple(
        dataclasses.replace(axis, begin=0, end=rows, jagged=None) if axis.block == block else axis for axis in nest.axes
    )
    body = dataclasses.replace(program.roots[0].body, ops=ops)
    blocks = tuple(dataclasses.replace(each, extent=rows) if each.id == block else each for each in program.blocks)
    root = dataclasses.replace(program.roots[0], axes=axes, body=body)
    changed = dataclasses.replace(program, blocks=blocks, roots=(root,))
    return Grouped(program=changed, offsets=tensor, block=block)


def _of_counts(
    program: Program, nest: _Nest, block: int, begin: Operand | Bound, end: Operand | Bound
) -> Grouped | None:
    """Return the program over all rows, if a loop goes over as many rows of a group as a count that it loads; else None."""
    reader = _Reader(program, nest, block)
    if not fixed_at(begin, 0) or nest.conditions or not reader.is_offset(end, 0):
        return None
    reader.check_loops()
    joiner = Joiner(program, reader.group_of, block)
    ops = _used([joiner.joined(op) for op in nest.ops])
    counts, span = program.tensors[reader.tensor], joiner.span
    if span is None:
        raise Refusal(f"no tensor is accessed by the rows that {counts.name} counts")
    tensors = tuple(joiner.tensor(each) for each in program.tensors)
    rows = joiner.groups * span
    blocks = tuple(dataclasses.replace(each, extent=rows) if each.id == block else each for each in program.blocks)
    axes = tuple(
        dataclasses.replace(axis, begin=0, end=rows, jagged=None) if axis.block == block else axis for axis in nest.axes
    )
    root = dataclasses.replace(program.roots[0], axes=axes, body=dataclasses.replace(program.roots[0].body, ops=ops))
    changed = dataclasses.replace(program, tensors=tensors, blocks=blocks, roots=(root,))
    reader.check_rest(ops, True)
    return Grouped(program=changed, offsets=counts, block=block, span=span)


def _of_blocks(program: Program, nest: _Nest) -> Grouped | None:
    """Return the program with a loop over groups, if each block of rows loads the number of its group; else None."""
    ops = tuple(_all(nest.ops))
    makers = {result.number: op for op in ops for result in op.results}
    for load in ops:
        axis = _block_of_number(program, nest, makers, load)
        if axis is None:  # also an op without results
            continue
        picked = [(op, at) for op in ops for at in _picked(op, load.results[0])]
        shapes = (program.tensors[op.attributes(MemoryAttrs).tensor].shape[at] for op, at in picked)
        sizes = {number_key(each): each for each in shapes}
        reads = [op for op in ops if any(value is load.results[0] for value in op.operands)]
        if len(sizes) != 1 or len(reads) != len(picked):
            continue
        (size,), (root,), offsets = sizes.values(), program.roots, program.tensors[load.attributes(MemoryAttrs).tensor]
        rows = program.blocks[axis.block].size
        assert isinstance(size, (int, Expr)) and isinstance(rows, int)
        group = Block(id=len(program.blocks), kind="grid", extent=size, size=1, name=f"group of {offsets.name}")
        counted = dataclasses.replace(load, kind="tile", operands=(), attrs=TileAttrs(group.id, "begin"))
        body = dataclasses.replace(root.body, ops=tuple(counted if op is load else op for op in root.body.ops))
        axes = (LoopAxis(block=group.id, begin=0, end=size, scalar=True), *root.axes)
        changed = dataclasses.replace(
            program, blocks=(*program.blocks, group), roots=(dataclasses.replace(root, axes=axes, body=body),)
        )
        if any(isinstance(op.attrs, MemoryAttrs) and op.attrs.tensor == offsets.id for op in _all(body.ops)):
            raise Refusal(f"{offsets.name} is read for more than the groups of blocks of rows")
        return Grouped(program=drop_dead(changed), offsets=offsets, block=axis.block, rows=rows)
    return None


def _block_of_number(program: Program, nest: _Nest, makers: Mapping[int, Op], load: Op) -> LoopAxis | None:
    """Return the axis of blocks of rows whose number indexes a load of integers; None for another load."""
    attrs = load.attrs
    if load.kind != "load" or not isinstance(attrs, MemoryAttrs) or load not in program.roots[0].body.ops:
        return None
    if len(attrs.indices) != 1:
        return None
    tensor, index = program.tensors[attrs.tensor], attrs.indices[0]
    if tensor.ndim != 1 or tensor.dtype not in OFFSET_DTYPES or attrs.mask is not None or index.kind != "scalar":
        return None
    picked = load.operands[index.operand] if index.operand is not None else None
    made = makers.get(picked.number) if isinstance(picked, Value) else None
    if made is None or made.kind != "tile" or made.attributes(TileAttrs).field != "id" or not fixed_at(index.shift, 0):
        return None
    for axis in nest.axes:
        plain = not (axis.scalar or axis.merged or axis.split) and fixed_at(axis.begin, 0)
        if (
            axis.block == made.attributes(TileAttrs).block
            and plain
            and isinstance(program.blocks[axis.block].size, int)
        ):
            return axis
    return None


def _picked(op: Op, value: Value) -> Iterator[int]:
    """Yield the dimensions of a load that an integer indexes."""
    for at, index in enumerate(op.attrs.indices if isinstance(op.attrs, MemoryAttrs) and op.kind == "load" else ()):
        picked = op.operands[index.operand] if index.kind == "scalar" and index.operand is not None else None
        if picked is value and fixed_at(index.shift, 0):
            yield at


def _of_masked_rows(program: Program, nest: _Nest) -> Grouped:
    """Return the program over all rows, if the grid goes over as many rows of each group, and masks leave out those of
    other groups."""
    ops = tuple(_all(nest.ops))
    stores = [op for op in ops if op.kind in ("store", "atomic")]
    for axis in nest.axes:
        inner = dataclasses.replace(nest, ops=ops, bounds={axis.block: (axis.begin, axis.end)})
        reader = _Reader(program, inner, axis.block)
        if not isinstance(axis.end, OperandRef) and stores and all(map(reader.is_masked, stores)):
            break
    else:
        return Grouped(program=program)
    reader.check_loops()
    if not fixed_at(axis.begin, 0):
        raise Refusal("masked rows of groups are implemented from the first row of each group on")
    rows = reader.all_rows()
    body = dataclasses.replace(
        program.roots[0].body, ops=tuple(reader.over_all_rows(reader.unmasked(op), True) for op in nest.ops)
    )
    axes = tuple(dataclasses.replace(each, begin=0, end=rows) if each is axis else each for each in nest.axes)
    blocks = tuple(dataclasses.replace(each, extent=rows) if each.id == axis.block else each for each in program.blocks)
    root = dataclasses.replace(program.roots[0], axes=axes, body=body)
    changed = drop_dead(dataclasses.replace(program, blocks=blocks, roots=(root,)))
    reader.check_rest(changed.roots[0].body.ops, True)
    offsets = program.tensors[reader.tensor]
    return Grouped(program=changed, offsets=offsets, block=axis.block, longest=axis.end)


@dataclass(frozen=True, kw_only=True)
class GroupedK:
    """A ``program`` whose loops go over all of K. Without groups ``offsets`` is None; else ``group`` iterates over them."""

    program: Program
    offsets: HostTensor | None = None
    group: int = -1


def without_groups_of_k(program: Program) -> GroupedK:
    """Return the program with a loop over all of K in place of one over the elements of a group; loads of offsets stay.
    Programs with another loop are unchanged. Raises ``Refusal`` for groups whose use is not implemented."""
    unchanged = GroupedK(program=program)
    nest = _nest(program.roots[0]) if len(program.roots) == 1 else None
    loops = [op for op in nest.ops if op.kind == "for"] if nest is not None else []
    if nest is None or nest.bounds or nest.conditions or len(loops) != 1:
        return unchanged
    (loop,) = loops
    attrs = loop.attributes(ForAttrs)
    if len(attrs.axes) != 1 or not isinstance(attrs.axes[0].end, OperandRef):
        return unchanged
    (axis,) = attrs.axes
    begin, end = _bound(loop, axis.begin), _bound(loop, axis.end)
    inner = dataclasses.replace(
        nest, axes=(*nest.axes, axis), ops=(*nest.ops, *_all(loop.regions[0].ops)), bounds={axis.block: (begin, end)}
    )
    reader = _Reader(program, inner, axis.block)
    if not reader.is_loaded(end):
        return unchanged
    relative, tensor = reader.rows(begin, end)
    extent = reader.all_rows()
    whole = dataclasses.replace(axis, begin=0, end=extent, jagged=None)

    def changed(op: Op) -> Op:
        if op is loop:
            op = reader.over_all_rows(op, relative)
            return dataclasses.replace(
                op, operands=op.operands[: attrs.carried], attrs=dataclasses.replace(attrs, axes=(whole,))
            )
        regions = (dataclasses.replace(each, ops=tuple(map(changed, each.ops))) for each in op.regions)
        return dataclasses.replace(op, regions=tuple(regions)) if op.regions else op

    (root,) = program.roots
    body = dataclasses.replace(root.body, ops=tuple(map(changed, root.body.ops)))
    blocks = tuple(
        dataclasses.replace(each, extent=extent) if each.id == axis.block else each for each in program.blocks
    )
    over_all = dataclasses.replace(program, blocks=blocks, roots=(dataclasses.replace(root, body=body),))
    reader.check_rest(drop_dead(over_all).roots[0].body.ops, relative)
    _check_lengths(over_all, axis.block, extent)
    return GroupedK(program=over_all, offsets=tensor, group=reader.group)


def _check_lengths(program: Program, block: int, extent: int | Expr) -> None:
    """Check that all loads along K have as many elements. Raises ``Refusal``."""
    for op in program.walk():
        for at, index in enumerate(op.attrs.indices if isinstance(op.attrs, MemoryAttrs) else ()):
            tensor = program.tensors[op.attrs.tensor]
            if index.kind == "block" and index.block == block and not equal(tensor.shape[at], extent):
                raise Refusal(
                    f"{tensor.name} is {tuple(tensor.shape)}; loops over groups of K are implemented where all operands have"
                    f" {extent} elements along it"
                )


def _nest(root: Root) -> _Nest | None:
    """Return the loops of a root around its loop over K; None for a root of another form."""
    axes, ops, conditions = [*root.axes], [*root.body.ops], list[Operand]()
    bounds: dict[int, tuple[Operand | Bound, Operand | Bound]] = {}
    while True:
        nested = [op for op in ops if op.regions]
        if len(nested) != 1 or any(OPS[op.kind].stays for op in ops if op is not nested[0]):
            break
        (inner,) = nested
        if inner.kind == "if" and not inner.results and not inner.regions[1].ops:
            conditions.append(inner.operands[0])
        elif inner.kind == "for" and not inner.results and not inner.attributes(ForAttrs).carried:
            for axis in inner.attributes(ForAttrs).axes:
                axes.append(axis)
                if isinstance(axis.begin, OperandRef) or isinstance(axis.end, OperandRef):
                    bounds[axis.block] = (_bound(inner, axis.begin), _bound(inner, axis.end))
        else:
            break
        at = ops.index(inner)
        ops[at : at + 1] = inner.regions[0].ops
    return _Nest(axes=tuple(axes), ops=tuple(ops), conditions=tuple(conditions), bounds=bounds)


def _bound(op: Op, bound: Bound) -> Operand | Bound:
    return op.operands[bound.at] if isinstance(bound, OperandRef) else bound


def _used(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Return the ops without those whose results have no use."""
    kept: list[Op] = []
    read: set[int] = set()
    for op in reversed(ops):
        if OPS[op.kind].stays or any(OPS[each.kind].stays for each in op.walk()) or _is_read(op, read):
            kept.append(op)
            read |= {value.number for each in op.walk() for value in each.reads()}
    return tuple(reversed(kept))


def _is_read(op: Op, read: set[int]) -> bool:
    return any(result.number in read for result in op.results)


class _Reader:
    """A reader of the bounds of the rows of a group, and of what is indexed by them. ``block`` iterates over the rows."""

    def __init__(self, program: Program, nest: _Nest, block: int) -> None:
        self.program, self.nest, self.block = program, nest, block
        self.makers = {result.number: op for op in nest.ops for result in op.results}
        (self.axis,) = (axis for axis in nest.axes if axis.block == block)
        self.tensor = -1
        self.group = -1

    # Bounds ---------------------------------------------------------------------------------------------------------------

    def rows(self, begin: Operand | Bound, end: Operand | Bound) -> tuple[bool, HostTensor]:
        """Return whether rows are counted from the first row of the group, and the tensor of offsets."""
        relative = fixed_at(begin, 0)
        first, after = self._length(end) if relative else (begin, end)
        if not self.is_offset(first, 0) or not self.is_offset(after, 1):
            raise Refusal(
                "a loop over rows that begins or ends at numbers on the device is implemented from offsets[g] to"
                " offsets[g + 1] of a loop over groups g, or over their difference"
            )
        self.check_loops()
        return relative, self.program.tensors[self.tensor]

    def check_loops(self) -> None:
        """Check the loops over groups and over the rows of one. Raises ``Refusal``."""
        axis = next(each for each in self.nest.axes if each.block == self.group)
        size = self.program.blocks[axis.block].size
        if not (axis.scalar or fixed_at(size, 1)) or not self._is_plain_loop():
            raise Refusal(
                "groups of rows are implemented with a program for each group, and a plain loop over its rows"
            )

    def is_loaded(self, value: Operand | Bound) -> bool:
        """Return whether a number is computed from a loaded one, and not from the bounds of tiles alone."""
        made = self._made(value)
        return made is not None and (made.kind == "load" or any(map(self.is_loaded, made.operands)))

    def _is_plain_loop(self) -> bool:
        axis = self.axis
        return not (axis.scalar or axis.merged or axis.split or axis.backwards) and fixed_at(axis.step, 1)

    def _length(self, end: Operand | Bound) -> tuple[Operand | Bound, Operand | Bound]:
        """Return the operands of a difference: the first row of a group, and the row after its last one."""
        made = self._made(end)
        while made is not None and self._keeps_length(made):
            made = self._made(made.operands[0])
        if made is None or made.attrs != PointwiseAttrs("sub"):
            raise Refusal("a loop over as many rows as a number on the device, which is no offsets[g + 1] - offsets[g]")
        return made.operands[1], made.operands[0]

    def _keeps_length(self, op: Op) -> bool:
        """Return whether an op gives the length that it reads, of the only group, or 0 of a negative one."""
        if op.attrs == PointwiseAttrs("maximum"):
            return fixed_at(op.operands[1], 0)
        return op.kind == "mask" or (isinstance(op.attrs, ReduceAttrs) and op.attrs.name == "max")

    def _made(self, value: Operand | Bound) -> Op | None:
        """Return the op that makes a value, through views and casts between integers."""
        op = self.makers.get(value.number) if isinstance(value, Value) else None
        while op is not None and (op.kind == "view" or self._is_integer_cast(op)):
            source = op.operands[0]
            op = self.makers.get(source.number) if isinstance(source, Value) else None
        return op

    def _is_integer_cast(self, op: Op) -> bool:
        source = op.operands[0] if op.attrs == PointwiseAttrs("cast") else None
        return isinstance(source, Value) and source.dtype in OFFSET_DTYPES and op.result.dtype in OFFSET_DTYPES

    def is_offset(self, value: Operand | Bound, distance: int) -> bool:
        """Return whether a value is the element of the offsets ``distance`` after that of the group."""
        load = self._made(value)
        if load is None or load.kind != "load":
            return False
        attrs = load.attributes(MemoryAttrs)
        tensor = self.program.tensors[attrs.tensor]
        if tensor.ndim != 1 or tensor.dtype not in OFFSET_DTYPES or attrs.mask is not None:
            return False
        if self.tensor not in (-1, tensor.id) or self._distance(load, attrs.indices[0]) != distance:
            return False
        self.tensor = tensor.id
        return True

    def group_of(self, op: Op, index: Index) -> bool:
        """Return whether an index without dimensions is the number of the group."""
        return index.kind == "scalar" and self._distance(op, index) == 0

    def _distance(self, load: Op, index: Index) -> int | None:
        """Return the distance of an index from that of the group; None if it is no such index."""
        if not isinstance(index.shift, int):
            return None
        if index.kind == "block" and index.operand is None:
            return index.shift if self._is_group(index.block) else None
        picked = load.operands[index.operand] if index.kind == "scalar" and index.operand is not None else None
        made, moved = self._made(picked) if picked is not None else None, 0
        if made is not None and made.attrs == PointwiseAttrs("add"):
            values = [each for each in made.operands if isinstance(each, Value)]
            numbers = [each for each in made.operands if isinstance(each, int)]
            made, moved = self._made(values[0]) if len(values) == 1 else None, sum(numbers)
        if made is None or made.kind != "tile" or made.attributes(TileAttrs).field not in ("begin", "id", "index"):
            return None
        return index.shift + moved if self._is_group(made.attributes(TileAttrs).block) else None

    def _is_group(self, block: int | None) -> bool:
        """Return whether a block is that of groups, which the first question decides."""
        known = {axis.block for axis in self.nest.axes} - {*self.nest.bounds}
        if block is None or block not in known or self.group not in (-1, block):
            return False
        self.group = block
        return True

    def check_condition(self, value: Operand) -> None:
        """Check that a condition around the rows of a group holds for all groups with rows. Raises ``Refusal``."""
        made = self._made(value)
        name = made.attrs.name if made is not None and isinstance(made.attrs, PointwiseAttrs) else ""
        if made is not None and name in _NOT_EMPTY and fixed_at(made.operands[1], 0):
            first, after = self._length(made.operands[0])
            if self.is_offset(first, 0) and self.is_offset(after, 1):
                return
        if made is not None and name in ("lt", "ne", "gt"):
            first, after = made.operands[::-1] if name == "gt" else made.operands
            if self.is_offset(first, 0) and self.is_offset(after, 1):
                return
        raise Refusal("a condition for a group is implemented if it asks for its rows: offsets[g] < offsets[g + 1]")

    # Bodies ---------------------------------------------------------------------------------------------------------------

    def all_rows(self) -> int | Expr:
        """Return the number of rows of the tensor that is stored, or else of one that is loaded."""
        accesses = sorted(
            (op for op in self.nest.ops if op.kind in ("store", "atomic", "load")), key=lambda op: op.kind == "load"
        )
        for op in accesses:
            for at, index in enumerate(op.attrs.indices):
                if self._walks_rows(op, index):
                    rows = self.program.tensors[op.attrs.tensor].shape[at]
                    assert isinstance(rows, (int, Expr))
                    return rows
        raise Refusal("no tensor is accessed by the rows of groups")

    def over_all_rows(self, op: Op, relative: bool) -> Op:
        """Return an op, and those within, with indices of rows of all groups."""
        regions = tuple(
            dataclasses.replace(region, ops=tuple(self.over_all_rows(each, relative) for each in region.ops))
            for region in op.regions
        )
        op = dataclasses.replace(op, regions=regions) if regions else op
        if not isinstance(op.attrs, MemoryAttrs):
            return op
        walked = [at for at, index in enumerate(op.attrs.indices) if self._walks_rows(op, index)]
        indices, operands = list(op.attrs.indices), list(op.operands)
        for at in walked:
            index = indices[at]
            if (index.operand is not None) != relative:
                raise Refusal(f"{self.program.tensors[op.attrs.tensor].name} is not indexed by the rows of its group")
            if index.operand is not None:
                positions = self._positions(operands[index.operand], index)
                operands[index.operand] = 0
                indices[at] = Index("block", self.block, positions)
        attrs = dataclasses.replace(op.attrs, indices=tuple(indices))
        return dataclasses.replace(op, attrs=attrs, operands=tuple(operands)) if walked else op

    def _walks_rows(self, op: Op, index: Index) -> bool:
        """Return whether an index is that of the rows of a group: of the loop, or the first row plus it."""
        picked = op.operands[index.operand] if index.operand is not None else None
        if index.kind == "block" and index.block == self.block:
            return fixed_at(index.shift, 0) and (picked is None or self.is_offset(picked, 0))
        return index.kind == "tensor" and fixed_at(index.shift, 0) and picked is not None and self._is_row(picked)

    def _is_row(self, value: Operand) -> bool:
        """Return whether a value is the first row of a group plus positions in it."""
        made = self._made(value)
        return (
            made is not None
            and made.attrs == PointwiseAttrs("add")
            and any(
                self.is_offset(first, 0) and self._is_position(second)
                for first, second in (made.operands, made.operands[::-1])
            )
        )

    def is_masked(self, op: Op) -> bool:
        """Return whether the mask of an access is that of the rows before the end of a group."""
        at = op.attributes(MemoryAttrs).mask
        made = self._made(op.operands[at]) if at is not None else None
        if made is None or made.attrs not in (PointwiseAttrs("lt"), PointwiseAttrs("gt")):
            return False
        row, end = made.operands if made.attrs == PointwiseAttrs("lt") else made.operands[::-1]
        return self._is_row(row) and self.is_offset(end, 1)

    def unmasked(self, op: Op) -> Op:
        """Return an op, and those within, without such masks."""
        regions = (dataclasses.replace(region, ops=tuple(map(self.unmasked, region.ops))) for region in op.regions)
        op = dataclasses.replace(op, regions=tuple(regions)) if op.regions else op
        if not isinstance(op.attrs, MemoryAttrs) or op.attrs.mask is None or not self.is_masked(op):
            return op
        operands = tuple(0 if at == op.attrs.mask else each for at, each in enumerate(op.operands))
        return dataclasses.replace(op, operands=operands, attrs=dataclasses.replace(op.attrs, mask=None))

    def _is_position(self, value: Operand) -> bool:
        made = self._made(value)
        return made is not None and isinstance(made.attrs, IotaAttrs) and made.attrs == IotaAttrs(self.block, False)

    def _positions(self, picked: Operand, index: Index) -> tuple[int, ...]:
        """Return the dimension of the rows among those of an index."""
        if index.kind == "block":
            return index.positions
        assert isinstance(picked, Value)
        return tuple(place for place, dim in zip(index.positions, picked.dims, strict=True) if dim.block == self.block)

    def check_rest(self, ops: Sequence[Op], relative: bool) -> None:
        """Check that nothing else depends on offsets, or on the position of a row within its group."""
        for op in _all(ops):
            of_rows = isinstance(op.attrs, (IotaAttrs, TileAttrs)) and op.attrs.block == self.block
            if of_rows and (relative or op.kind == "tile"):
                raise Refusal("the position of a row within its group is used for more than its index")
            if isinstance(op.attrs, MemoryAttrs) and op.attrs.tensor == self.tensor:
                raise Refusal(f"{self.program.tensors[self.tensor].name} is read for more than the rows of a group")


def _all(ops: Sequence[Op]) -> Iterator[Op]:
    for op in ops:
        yield from op.walk()
