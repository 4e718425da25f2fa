"""Accesses of whole records, such as small matrices, of which a kernel loads and stores elements one by one.

Lanes that each take an element of a record of their own read a line of memory each. All elements of the records of all
programs are then in flight, which is more than the caches have: each line comes from memory several times (measurement
``whole_records``). Before, with records of 64 elements::

    %1: [b0] = load x[0, 0, b0]; %2: [b0] = load x[1, 0, b0]; ..
    store out[0, 0, b0] <- %3; store out[1, 0, b0] <- %4; ..

After, with a dimension ``b1`` of all elements of a record, and tensors of two dimensions in the same memory::

    %5: [b0, b1] = load x_records[b0, b1]; %6: [b0, 32, 2] = reshape %5; %7, %8 = split %6; ..
    %9: [b0, 2] = join %3, %4; ..; store out_records[b0, b1] <- %10, mask of the elements that were stored

Consecutive lanes take consecutive elements, and each thread then gets the elements of its own record. A thread has one record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from ....._compiler.ir.build import Builder, Numbers
from ....._compiler.ir.effects import effects_of
from ....._compiler.ir.grammar import (
    Block,
    HostTensor,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    Program,
    Region,
    Root,
    Value,
    ViewAttrs,
)
from ....._compiler.passes.analysis.whole_records import LEAST_ACCESSES, is_whole, record_of
from ....._compiler.rewrites.steps import StepInputs
from ....._shapes import Dim, fixed_at, next_power_of_2
from ....._support.records import dataclass, field, replace


def access_records(program: Program, inputs: StepInputs) -> Program:
    """Return the program with records loaded and stored as a whole where a thread has one of them."""
    if inputs.checked:
        return program
    sizes, numbers = inputs.sizes_in(program), None
    roots = list(program.roots)
    made = _Made(program=program)
    for at, root in enumerate(roots):
        axis = _axis_of_records(root, sizes, inputs.threads)
        groups = [] if axis is None else list(_groups(program, root.body, axis, inputs.block_accesses))
        if groups:
            numbers = numbers or Numbers.after(program)
            roots[at] = replace(root, body=_changed(root.body, groups, numbers, made))
    if all(new is old for new, old in zip(roots, program.roots, strict=True)):
        return program
    tensors, blocks = (*program.tensors, *made.tensors.values()), (*program.blocks, *made.blocks.values())
    return replace(program, roots=tuple(roots), tensors=tensors, blocks=blocks)


@dataclass(frozen=True, kw_only=True)
class _Group:
    """All accesses of one kind of a tensor, by the element of a record that each takes; ``again`` are more loads of such."""

    tensor: HostTensor
    along: int
    record: int
    ops: Mapping[int, Op]
    again: Mapping[int, Value]

    @property
    def is_load(self) -> bool:
        return next(iter(self.ops.values())).kind == "load"

    @property
    def at(self) -> int:
        """The number of the op in whose place the access of records is."""
        return (min if self.is_load else max)(op.number for op in self.ops.values())


@dataclass(frozen=True, kw_only=True)
class _Made:
    """Tensors of records and blocks of their elements that the program gets."""

    program: Program
    tensors: dict[int, HostTensor] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)

    def tensor(self, group: _Group) -> HostTensor:
        first = group.tensor
        if first.id not in self.tensors:
            self.tensors[first.id] = replace(
                first,
                id=len(self.program.tensors) + len(self.tensors),
                name=f"{first.name}_records",
                shape=(first.shape[group.along], group.record),
                strides=(first.strides[group.along], 1),
            )
        return self.tensors[first.id]

    def block(self, elements: int) -> Block:
        if elements not in self.blocks:
            number, size = len(self.program.blocks) + len(self.blocks), next_power_of_2(elements)
            self.blocks[elements] = Block(id=number, kind="full", extent=elements, size=size, name="record")
        return self.blocks[elements]


# --- legality ---------------------------------------------------------------------------------------------------------


def _axis_of_records(root: Root, sizes: Mapping[int, int], threads: int) -> LoopAxis | None:
    """Return the axis of a grid loop over one dimension with a lane for each thread, whose body has no loops."""
    if len(root.axes) != 1 or any(op.regions for op in root.body.ops):
        return None
    (axis,) = root.axes
    plain = not (
        axis.scalar or axis.jagged or axis.merged or axis.split or axis.aligned or axis.parted or axis.backwards
    )
    return axis if plain and sizes[axis.block] == threads else None


def _groups(program: Program, region: Region, axis: LoopAxis, boxed: frozenset[int]) -> Iterator[_Group]:
    """Yield the accesses of a region that whole records replace."""
    found: dict[tuple[int, str], dict[int, Op]] = {}
    again: dict[tuple[int, str], dict[int, Value]] = {}
    records: dict[int, tuple[int, int]] = {}
    for op in region.ops:
        if op.kind not in ("load", "store") or not isinstance(op.attrs, MemoryAttrs):
            continue
        element = _element(program, op, axis.block, boxed, records)
        if element is None:
            continue
        key = op.attrs.tensor, op.kind
        same = found.setdefault(key, {})
        if element in same:
            again.setdefault(key, {})[op.number] = same[element].result
        else:
            same[element] = op
    for key, ops in found.items():
        tensor, kind = key
        along, record = records[tensor]
        more = again.get(key, {})
        if len(ops) >= LEAST_ACCESSES and not (more and kind == "store"):
            group = _Group(tensor=program.tensors[tensor], along=along, record=record, ops=ops, again=more)
            if _is_alone(program, region, group):
                yield group


def _element(
    program: Program, op: Op, block: int, boxed: frozenset[int], records: dict[int, tuple[int, int]]
) -> int | None:
    """Return the element of a record that an access of each lane's own record takes, None for another access."""
    attrs = op.attributes(MemoryAttrs)
    tensor = program.tensors[attrs.tensor]
    value = op.result if op.kind == "load" else op.operands[0]
    plain = attrs.mask is None and attrs.mark is None and not attrs.padded and attrs.slot not in boxed
    if not plain or not isinstance(value, Value) or value.dims != (Dim(1, (block,)),):
        return None
    along, element = None, 0
    for at, (index, stride) in enumerate(zip(attrs.indices, tensor.strides, strict=True)):
        if index.operand is not None or not isinstance(index.shift, int) or not isinstance(stride, int):
            return None
        if index.kind == "block" and index.block == block and fixed_at(index.shift, 0) and along is None:
            along = at
        elif index.kind == "scalar":
            element += index.shift * stride
        else:
            return None
    if along is None:
        return None
    record = record_of(tensor.shape, tensor.strides, along)
    records[tensor.id] = along, record
    return element if is_whole(record, tensor.dtype.itemsize) and 0 <= element < record else None


def _is_alone(program: Program, region: Region, group: _Group) -> bool:
    """Return whether no op of a region other than its accesses meets the memory of a group."""
    own = {*(op.number for op in group.ops.values()), *group.again}
    others = (effect for op in region.ops if op.number not in own for effect in effects_of(program, op))
    return all(not each.fence and each.storage is not None and each.storage != group.tensor.storage for each in others)


# --- the rewrite ------------------------------------------------------------------------------------------------------


def _changed(region: Region, groups: Sequence[_Group], numbers: Numbers, made: _Made) -> Region:
    """Return a region with one access for each group."""
    gone = {op.number for group in groups for op in group.ops.values()}
    again = {number: value for group in groups for number, value in group.again.items()}
    same = {op.result.number: again[op.number] for op in region.ops if op.number in again}
    places = {group.at: group for group in groups}
    ops: list[Op] = []
    for op in region.ops:
        if op.number in places:
            group, out = places[op.number], Builder(numbers, op.location, ops)
            (_load if group.is_load else _store)(group, out, made, same)
        elif op.number not in gone and op.number not in again:
            ops.append(replace(op, operands=tuple(_first(each, same) for each in op.operands)))
    return replace(region, ops=tuple(ops))


def _first(operand: Operand, same: Mapping[int, Value]) -> Operand:
    """Return the value that was loaded first in place of one that was loaded again."""
    return same.get(operand.number, operand) if isinstance(operand, Value) else operand


def _access(group: _Group, made: _Made, block: Block) -> MemoryAttrs:
    first = group.ops[min(group.ops)].attributes(MemoryAttrs)
    lanes = replace(first.indices[group.along], positions=(0,))
    elements = Index("block", block=block.id, positions=(1,))
    return replace(first, tensor=made.tensor(group).id, indices=(lanes, elements), rank=2, aligned=0)


def _load(group: _Group, out: Builder, made: _Made, same: Mapping[int, Value]) -> None:
    """Append the load of whole records, and the ops that separate them into the results of the group."""
    block = made.block(group.record)
    any_result = next(iter(group.ops.values())).result
    (rows,), dtype = any_result.dims, any_result.dtype
    value = out.emit(
        "load", (), dtype, (rows, Dim(1, (block.id,))), _access(group, made, block), f"{group.tensor.name}_record"
    )
    size = next_power_of_2(group.record)
    parts: dict[int, Value] = {0: value}
    step = 1
    while step < size:
        length, halves = size // step, {}
        for first, part in parts.items():
            if not any(element % step == first for element in group.ops):
                continue
            shape = (rows, Dim(length // 2), Dim(2)) if length > 2 else (rows, Dim(2))
            pairs = out.emit("view", (part,), dtype, shape, ViewAttrs("reshape")) if part.dims != shape else part
            results = []
            for which in (first, first + step):
                op = group.ops.get(which) if length == 2 else None
                results.append(op.result if op is not None else out.value(dtype, shape[:-1]))
                halves[which] = results[-1]
            out.append("split", (pairs,), tuple(results))
        parts, step = halves, 2 * step


def _store(group: _Group, out: Builder, made: _Made, same: Mapping[int, Value]) -> None:
    """Append the ops that put the values of the group together, and the store of whole records."""
    block, size = made.block(group.record), next_power_of_2(group.record)
    values = {element: next(iter(op.values())) for element, op in group.ops.items()}
    values = {element: same.get(value.number, value) for element, value in values.items()}
    any_value = next(iter(values.values()))
    (rows,), dtype = any_value.dims, any_value.dtype
    nothing = any_value
    if len(values) < size:
        nothing = out.emit("full", (0.0 if dtype.is_floating_point else 0,), dtype, (rows,))

    def joined(first: int, step: int) -> Value:
        """Return the elements ``first``, ``first + step`` .. as the last dimension."""
        length = size // step
        if length == 1:
            return values.get(first, nothing)
        one, two = joined(first, 2 * step), joined(first + step, 2 * step)
        dims = (*one.dims, Dim(2))
        both = out.emit("join", (one, two), dtype, dims)
        merged = Dim(1, (block.id,)) if step == 1 else Dim(length)
        return (
            both if dims == (rows, merged) else out.emit("view", (both,), dtype, (rows, merged), ViewAttrs("reshape"))
        )

    value, access = joined(0, 1), _access(group, made, block)
    operands: tuple[Value, ...] = (value,)
    if len(values) < group.record:
        operands, access = (value, _mask(values, value, block, out)), replace(access, mask=1)
    out.emit("store", operands, dtype, value.dims, access)


def _mask(values: Mapping[int, Value], value: Value, block: Block, out: Builder) -> Value:
    """Return the lanes of the elements that have a value: bits of a number, by element."""
    bits = sum(1 << element for element in values)
    bits -= 1 << 64 if bits >> 63 else 0
    lanes = out.emit("iota", (), torch.int64, (value.dims[1],), IotaAttrs(block=block.id, relative=True))
    number = out.emit("full", (bits,), torch.int64, (value.dims[1],))
    bit = out.pointwise("bitwise_and", out.pointwise("rshift", number, lanes), 1)
    row = out.reshape(out.pointwise("ne", bit, 0), (Dim(), value.dims[1]))
    return out.emit("view", (row,), torch.bool, value.dims, ViewAttrs("broadcast"))


__all__ = ["access_records"]
