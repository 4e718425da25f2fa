"""One access for two neighbouring elements that a kernel loads or stores one by one, such as the parts of complex numbers.

Each of two such accesses touches half of every sector. Two writes of half a sector cost more than one of a whole sector
(measurement ``pairs``). Before::

    %1 = load x[b0, 0]; %2 = load x[b0, 1]
    store out[b0, 0] <- %3; store out[b0, 1] <- %4

After, with a dimension ``b1`` of the two::

    %5: [b0, b1] = load x[b0, b1]; %1, %2 = split %5
    %6: [b0, 2] = join %3, %4; store out[b0, b1] <- %6

The pair begins at an even element of the contiguous dimension, and each row at an even address, so that one
instruction takes both. Two pairs that begin at a multiple of four elements are one access as well, of at most 16 bytes
for each thread (measurement ``quads``)::

    %5: [b0, b1] = load x[b0, b1]; %6: [b0, 2, 2] = reshape %5
    %7: [b0, 2], %8: [b0, 2] = split %6; %1, %3 = split %7; %2, %4 = split %8

Two views of every second element of one tensor are such a pair as well::

    %1 = load even[b0, b1]; %2 = load odd[b0, b1]

becomes, with a tensor ``pairs[m, n, 2]`` that begins where ``even`` does::

    %5: [b0, b1, b2] = load pairs[b0, b1, b2]; %1, %2 = split %5

Kernels with matmuls load each element alone: operands would go through registers. They store pairs of results after
their loops (measurement ``paired_results``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ....._compiler.ir.build import Builder, Numbers
from ....._compiler.ir.effects import effects_of
from ....._compiler.ir.grammar import Block, HostTensor, Index, MemoryAttrs, Op, Program, Region, Value, ViewAttrs
from ....._compiler.ir.rewrite import map_regions
from ....._compiler.rewrites.copy_operands import multiplies
from ....._compiler.rewrites.steps import StepInputs
from ....._shapes import Dim, fixed_at
from ....._support.records import dataclass, field, replace
from .....hardware import VECTOR_BYTES

_PAIR, _QUAD = 2, 4


def pair_accesses(program: Program, inputs: StepInputs) -> Program:
    """Return the program with accesses of pairs in place of those of their elements."""
    if inputs.checked or not may_pair(program, inputs.block_accesses):
        return program
    boxed = inputs.block_accesses
    sizes = inputs.sizes_in(program)
    pairer = _Pairer(program=program, boxed=boxed, numbers=Numbers.after(program), sizes=sizes, threads=inputs.threads)
    roots = tuple(
        replace(root, body=pairer.results(root.body) if multiplies(root) else pairer.region(root.body))
        for root in program.roots
    )
    if all(new.body is old.body for new, old in zip(roots, program.roots, strict=True)):
        return program
    tensors = (*program.tensors, *pairer.paired.values())
    return replace(program, roots=roots, tensors=tensors, blocks=(*program.blocks, *pairer.blocks.values()))


def may_pair(program: Program, boxed: frozenset[int] = frozenset()) -> bool:
    """Return whether the program has an element of a pair that may be accessed with the other one.

    Accesses with slots in ``boxed`` stay alone, as do all but the last stores of a grid loop with a matmul.
    """
    return any(
        _place(program, op, boxed)
        for root in program.roots
        for op in (_results(root.body) if multiplies(root) else root.body.walk())
    )


def _results(region: Region) -> tuple[Op, ...]:
    """Return the stores of a grid loop's own region."""
    return tuple(op for op in region.ops if op.kind == "store")


@dataclass(frozen=True, slots=True)
class _Place:
    """An access without its index of the contiguous dimension, or one of a view: all that the two of a pair have in common.

    ``memory`` is the number of the tensor, or what two views of every second element have in common.
    """

    kind: str
    memory: int | tuple[object, ...]
    indices: tuple[tuple[Index, int | None], ...]
    dims: tuple[Dim, ...]
    dtype: torch.dtype
    eviction: str | None
    pair: int


def _place(program: Program, op: Op, boxed: frozenset[int]) -> tuple[_Place, int] | None:
    """Return the place of an access of single elements of a contiguous dimension, or of every second one, and which of
    its pair it takes.
    """
    attrs = op.attrs
    if op.kind not in ("load", "store") or not isinstance(attrs, MemoryAttrs) or not attrs.rank:
        return None
    tensor, value = program.tensors[attrs.tensor], op.result if op.kind == "load" else op.operands[0]
    plain = attrs.mask is None and attrs.mark is None and not attrs.padded and attrs.slot not in boxed
    if not plain or not isinstance(value, Value) or len(value.dims) != attrs.rank:
        return None
    if is_every_second(tensor):
        if not _begin_at(tensor.strides[:-1], _PAIR):
            return None
        assert tensor.part is not None
        whole, begin = tensor.part[0], tensor.part[1] // tensor.dtype.itemsize
        at, others = begin, attrs.indices
        memory: int | tuple[object, ...] = ("views", whole, tensor.shape, tensor.strides)
    else:
        dim = contiguous_dim(tensor)
        if dim is None or not _begin_at((*tensor.strides[:dim], *tensor.strides[dim + 1 :]), _PAIR):
            return None
        others, last = (*attrs.indices[:dim], *attrs.indices[dim + 1 :]), attrs.indices[dim]
        extent = tensor.shape[dim]
        if last.kind != "scalar" or last.operand is not None or not isinstance(last.shift, int):
            return None
        at, memory = last.shift, attrs.tensor
        if not isinstance(extent, int) or at - at % _PAIR + _PAIR > extent:
            return None
    known = []
    for index in others:
        operand = None if index.operand is None else op.operands[index.operand]
        if operand is not None and not isinstance(operand, Value):
            return None
        known.append((replace(index, operand=None), None if operand is None else operand.number))
    place = _Place(op.kind, memory, tuple(known), value.dims, value.dtype, attrs.eviction, at // _PAIR)
    return place, at % _PAIR


def contiguous_dim(tensor: HostTensor) -> int | None:
    """Return the last dimension whose elements follow each other in memory."""
    return next((dim for dim in reversed(range(tensor.ndim)) if fixed_at(tensor.strides[dim], 1)), None)


def _begin_at(strides: Sequence[object], multiple: int) -> bool:
    """Return whether rows with these distances begin at multiples of a number of elements."""
    return all(isinstance(stride, int) and stride % multiple == 0 for stride in strides)


def is_every_second(tensor: HostTensor) -> bool:
    """Return whether a tensor certainly has every second element of the last dimension of another one."""
    return (
        tensor.part is not None
        and tensor.part[1] % tensor.dtype.itemsize == 0
        and bool(tensor.shape)
        and all(isinstance(size, int) for size in tensor.shape)
        and fixed_at(tensor.strides[-1], _PAIR)
    )


@dataclass(frozen=True, kw_only=True)
class _Pairer:
    program: Program
    boxed: frozenset[int]
    numbers: Numbers
    sizes: dict[int, int]
    threads: int
    #: Blocks of the elements of an access, by their number.
    blocks: dict[int, Block] = field(default_factory=dict)
    #: Tensors of pairs of the elements of two views, by the number of the first view.
    paired: dict[int, HostTensor] = field(default_factory=dict)

    def region(self, region: Region) -> Region:
        """Return a region with pairs of its own accesses, and of those of the regions inside."""
        return self._grouped(region, [map_regions(op, self.region) for op in region.ops])

    def results(self, region: Region) -> Region:
        """Return the region of a grid loop with a matmul with pairs of its own stores."""
        return self._grouped(region, list(region.ops), stores=True)

    def _grouped(self, region: Region, ops: list[Op], *, stores: bool = False) -> Region:
        """Return a region with the accesses in ``ops`` in groups, or pairs of ``stores`` alone."""
        moved: dict[int, int] = {}
        groups = self._pairs(ops, moved, stores=stores)
        groups = groups if stores else self._quads(ops, groups, moved)
        at = {moved[group[0]]: group for group in groups}
        made: list[Op] = []
        for number, op in enumerate(ops):
            if number in at:
                self._access(sorted((ops[each] for each in at[number]), key=self._element), op, made)
            elif number not in moved:
                made.append(op)
        same = len(made) == len(region.ops) and all(new is old for new, old in zip(made, region.ops, strict=True))
        return region if same else replace(region, ops=tuple(made))

    def _pairs(self, ops: Sequence[Op], moved: dict[int, int], *, stores: bool) -> list[tuple[int, ...]]:
        """Return the positions of the two accesses of each pair, with none between them that must keep its order.

        ``moved`` gets the new position of each of them. Only ``stores`` are paired if that is set.
        """
        found: list[tuple[int, ...]] = []
        waiting: dict[tuple[_Place, int], int] = {}
        for number, op in enumerate(ops):
            place = _place(self.program, op, self.boxed) if not stores or op.kind == "store" else None
            if place is None:
                continue
            first = waiting.pop((place[0], 1 - place[1]), None)
            if first is not None and self._joins(ops, (first, number), moved):
                found.append((first, number))
            else:
                waiting[place] = number
        return found

    def _quads(
        self, ops: Sequence[Op], pairs: Sequence[tuple[int, ...]], moved: dict[int, int]
    ) -> list[tuple[int, ...]]:
        """Return the positions of the accesses of each pair, or of two pairs that one access of a thread takes."""
        found: list[tuple[int, ...]] = []
        waiting: dict[_Place, tuple[int, ...]] = {}
        for group in pairs:
            known = _place(self.program, ops[group[0]], self.boxed)
            assert known is not None
            place = known[0]
            other = waiting.pop(replace(place, pair=place.pair ^ 1), None)
            if other is not None and self._is_quad(ops[group[0]], place) and self._joins(ops, (*other, *group), moved):
                found[found.index(other)] = (*other, *group)
            else:
                waiting[place] = group
                found.append(group)
        return found

    def _is_quad(self, op: Op, place: _Place) -> bool:
        """Return whether a thread takes the four elements around a pair at once, in the layout of other values."""
        tensor = self.program.tensors[op.attributes(MemoryAttrs).tensor]
        dim = contiguous_dim(tensor)
        if is_every_second(tensor) or dim is None or place.dtype.itemsize * _QUAD > VECTOR_BYTES:
            return False
        whole = place.pair * _PAIR // _QUAD * _QUAD + _QUAD <= tensor.shape[dim]
        lanes = math.prod(each.lanes(self.sizes) for each in place.dims)
        return whole and lanes >= self.threads and _begin_at((*tensor.strides[:dim], *tensor.strides[dim + 1 :]), _QUAD)

    def _joins(self, ops: Sequence[Op], group: Sequence[int], moved: dict[int, int]) -> bool:
        """Move loads to the first of a group, or stores to the last one, if all ops keep the order that they need.

        Others may have moved before, so that the order of two ops is that of their new positions.
        """
        to = max(group) if ops[group[0]].kind == "store" else min(group)
        passed = {*range(min(group), max(group) + 1), *moved}.difference(group)
        for each in group:
            for other in passed:
                if (each < other) != (to < moved.get(other, other)) and self._meets(ops[each], ops[other]):
                    return False
        moved.update(dict.fromkeys(group, to))
        return True

    def _meets(self, access: Op, other: Op) -> bool:
        """Return whether an access may not pass another op."""
        if self._are_apart(access, other):
            return False
        own = effects_of(self.program, access)
        return any(
            each.fence
            or each.storage is None
            or any(each.storage == mine.storage and (each.writes or mine.writes) for mine in own)
            for each in effects_of(self.program, other)
        )

    def _are_apart(self, one: Op, other: Op) -> bool:
        """Return whether two accesses of one tensor take different elements of its contiguous dimension."""
        if not isinstance(one.attrs, MemoryAttrs) or not isinstance(other.attrs, MemoryAttrs) or other.regions:
            return False
        tensor = self.program.tensors[one.attrs.tensor]
        dim = contiguous_dim(tensor)
        if one.attrs.tensor != other.attrs.tensor or dim is None or not isinstance(tensor.shape[dim], int):
            return False
        rows = (*tensor.strides[:dim], *tensor.strides[dim + 1 :])
        both = one.attrs.indices[dim], other.attrs.indices[dim]
        single = all(i.kind == "scalar" and i.operand is None and isinstance(i.shift, int) for i in both)
        within = all(isinstance(stride, int) and stride >= tensor.shape[dim] for stride in rows)
        return single and within and both[0].shift != both[1].shift

    def _element(self, op: Op) -> int:
        """Return which element of the contiguous dimension an access takes, or how far a view's are from its begin."""
        attrs = op.attributes(MemoryAttrs)
        tensor = self.program.tensors[attrs.tensor]
        if is_every_second(tensor):
            assert tensor.part is not None
            return tensor.part[1]
        dim = contiguous_dim(tensor)
        shift = None if dim is None else attrs.indices[dim].shift
        assert isinstance(shift, int)
        return shift

    def _pairs_of(self, first: HostTensor) -> HostTensor:
        """Return the tensor of pairs that begins where the view of their first elements does."""
        if first.id not in self.paired:
            number, shape, strides = len(self.program.tensors) + len(self.paired), first.shape, first.strides
            name, shape, strides = f"{first.name}_pairs", (*shape, _PAIR), (*strides, 1)
            self.paired[first.id] = replace(first, id=number, name=name, shape=shape, strides=strides)
        return self.paired[first.id]

    def _access(self, group: Sequence[Op], at: Op, made: list[Op]) -> None:
        """Append one access for two or four. Its first element is that of the first one."""
        attrs = group[0].attributes(MemoryAttrs)
        tensor, indices = self.program.tensors[attrs.tensor], list(attrs.indices)
        block = self._block(len(group))
        if is_every_second(tensor):
            tensor = self._pairs_of(tensor)
            indices.append(Index("block", block=block.id, positions=(attrs.rank,)))
        else:
            dim = contiguous_dim(tensor)
            assert dim is not None
            indices[dim] = Index("block", block=block.id, positions=(attrs.rank,), shift=indices[dim].shift)
        access = replace(attrs, tensor=tensor.id, indices=tuple(indices), rank=attrs.rank + 1, aligned=0)
        out = Builder(self.numbers, at.location, made)
        lanes = Dim(1, (block.id,))
        if at.kind == "load":
            results = [op.result for op in group]
            first = results[0]
            read = out.emit("load", group[0].operands, first.dtype, (*first.dims, lanes), access, first.name)
            self._split(read, results, out)
            return
        joined = self._joined([next(iter(op.values())) for op in group], lanes, out)
        out.emit("store", (joined, *group[0].operands[1:]), joined.dtype, joined.dims, access)

    def _block(self, elements: int) -> Block:
        if elements not in self.blocks:
            number, name = len(self.program.blocks) + len(self.blocks), "pair" if elements == _PAIR else "quad"
            self.blocks[elements] = Block(id=number, kind="full", extent=elements, size=elements, name=name)
        return self.blocks[elements]

    def _split(self, value: Value, results: Sequence[Value], out: Builder) -> None:
        """Append ops that separate the elements of the last dimension."""
        if len(results) == _PAIR:
            out.append("split", (value,), tuple(results))
            return
        rest, two = results[0].dims, Dim(_PAIR)
        halves = out.emit("view", (value,), value.dtype, (*rest, two, two), ViewAttrs("reshape"))
        parts = tuple(out.value(value.dtype, (*rest, two)) for _ in range(_PAIR))
        out.append("split", (halves,), parts)
        for begin, part in enumerate(parts):
            out.append("split", (part,), tuple(results[begin::_PAIR]))

    def _joined(self, values: Sequence[Value], lanes: Dim, out: Builder) -> Value:
        """Append ops that make values elements of a last dimension of ``lanes``, and return their result."""
        rest, dtype, two = values[0].dims, values[0].dtype, Dim(_PAIR)
        if len(values) == _PAIR:
            return out.emit("join", tuple(values), dtype, (*rest, lanes))
        parts = [out.emit("join", tuple(values[begin::_PAIR]), dtype, (*rest, two)) for begin in range(_PAIR)]
        halves = out.emit("join", tuple(parts), dtype, (*rest, two, two))
        return out.emit("view", (halves,), dtype, (*rest, lanes), ViewAttrs("reshape"))


__all__ = ["may_pair", "pair_accesses"]
