"""One access for two neighbouring elements that a kernel loads or stores one by one, such as the parts of complex numbers.

Each of two such accesses touches half of every sector. Two writes of half a sector cost more than one of a whole sector
(measurement ``pairs``). Before::

    %1 = load x[b0, 0]; %2 = load x[b0, 1]
    store out[b0, 0] <- %3; store out[b0, 1] <- %4

After, with a dimension ``b1`` of the two::

    %5: [b0, b1] = load x[b0, b1]; %1, %2 = split %5
    %6: [b0, 2] = join %3, %4; store out[b0, b1] <- %6

The pair begins at an even element of the last, contiguous dimension, and each row at an even address, so that one
instruction takes both. Two views of every second element of one tensor are such a pair as well::

    %1 = load even[b0, b1]; %2 = load odd[b0, b1]

becomes, with a tensor ``pairs[m, n, 2]`` that begins where ``even`` does::

    %5: [b0, b1, b2] = load pairs[b0, b1, b2]; %1, %2 = split %5

Kernels with matmuls stay as they are: their results would go through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....._compiler.ir.build import Builder, Numbers
from ....._compiler.ir.effects import effects_of
from ....._compiler.ir.grammar import Block, HostTensor, Index, MemoryAttrs, Op, Program, Region, Value
from ....._compiler.ir.rewrite import map_regions
from ....._compiler.rewrites.steps import StepInputs
from ....._shapes import Dim, fixed_at
from ....._support.records import dataclass, field, replace

_PAIR = 2


def pair_accesses(program: Program, inputs: StepInputs) -> Program:
    """Return the program with accesses of pairs in place of those of their elements."""
    if inputs.checked or not may_pair(program, inputs.block_accesses):
        return program
    boxed = inputs.block_accesses
    pairer = _Pairer(program=program, boxed=boxed, numbers=Numbers.after(program), block=_block(program))
    roots = tuple(replace(root, body=pairer.region(root.body)) for root in program.roots)
    if all(new.body is old.body for new, old in zip(roots, program.roots, strict=True)):
        return program
    tensors = (*program.tensors, *pairer.paired.values())
    return replace(program, roots=roots, tensors=tensors, blocks=(*program.blocks, pairer.block))


def may_pair(program: Program, boxed: frozenset[int] = frozenset()) -> bool:
    """Return whether the program has an element of a pair, and no matmul. Accesses with slots in ``boxed`` stay alone."""
    ops = tuple(program.walk())
    return not any(op.kind == "dot" for op in ops) and any(_place(program, op, boxed) for op in ops)


def _block(program: Program) -> Block:
    return Block(id=len(program.blocks), kind="full", extent=_PAIR, size=_PAIR, name="pair")


@dataclass(frozen=True, slots=True)
class _Place:
    """An access without its last index, or one of a view: all that the two of a pair have in common.

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
    if not all(isinstance(stride, int) and stride % _PAIR == 0 for stride in tensor.strides[:-1]):
        return None
    if is_every_second(tensor):
        assert tensor.part is not None
        whole, begin = tensor.part[0], tensor.part[1] // tensor.dtype.itemsize
        at, others = begin, attrs.indices
        memory: int | tuple[object, ...] = ("views", whole, tensor.shape, tensor.strides)
    else:
        others, last = attrs.indices[:-1], attrs.indices[-1]
        extent = tensor.shape[-1]
        if last.kind != "scalar" or last.operand is not None or not isinstance(last.shift, int):
            return None
        if not isinstance(extent, int) or not fixed_at(tensor.strides[-1], 1):
            return None
        at, memory = last.shift, attrs.tensor
        if at - at % _PAIR + _PAIR > extent:
            return None
    known = []
    for index in others:
        operand = None if index.operand is None else op.operands[index.operand]
        if operand is not None and not isinstance(operand, Value):
            return None
        known.append((replace(index, operand=None), None if operand is None else operand.number))
    place = _Place(op.kind, memory, tuple(known), value.dims, value.dtype, attrs.eviction, at // _PAIR)
    return place, at % _PAIR


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
    block: Block
    #: Tensors of pairs of the elements of two views, by the number of the first view.
    paired: dict[int, HostTensor] = field(default_factory=dict)

    def region(self, region: Region) -> Region:
        """Return a region with pairs of its own accesses, and of those of the regions inside."""
        ops = [map_regions(op, self.region) for op in region.ops]
        pairs = self._pairs(ops)
        made: list[Op] = []
        left = {first for first, second in pairs if ops[first].kind == "store"}
        left |= {second for first, second in pairs if ops[first].kind == "load"}
        at = {(second if ops[first].kind == "store" else first): (first, second) for first, second in pairs}
        for number, op in enumerate(ops):
            if number in at:
                self._access(sorted((ops[each] for each in at[number]), key=self._element), op, made)
            elif number not in left:
                made.append(op)
        same = len(made) == len(region.ops) and all(new is old for new, old in zip(made, region.ops, strict=True))
        return region if same else replace(region, ops=tuple(made))

    def _pairs(self, ops: Sequence[Op]) -> list[tuple[int, int]]:
        """Return the positions of the two accesses of each pair, with none between them that must keep its order."""
        found: list[tuple[int, int]] = []
        waiting: dict[tuple[_Place, int], int] = {}
        for number, op in enumerate(ops):
            place = _place(self.program, op, self.boxed)
            if place is None:
                continue
            first = waiting.pop((place[0], 1 - place[1]), None)
            if first is not None and not any(self._meets(op, between) for between in ops[first + 1 : number]):
                found.append((first, number))
            else:
                waiting[place] = number
        return found

    def _meets(self, access: Op, other: Op) -> bool:
        """Return whether an access may not pass another op."""
        own = effects_of(self.program, access)
        return any(
            each.fence
            or each.storage is None
            or any(each.storage == mine.storage and (each.writes or mine.writes) for mine in own)
            for each in effects_of(self.program, other)
        )

    def _element(self, op: Op) -> int:
        """Return which element of the last dimension an access takes, or how far a view's are from its begin."""
        attrs = op.attributes(MemoryAttrs)
        tensor, shift = self.program.tensors[attrs.tensor], attrs.indices[-1].shift
        if is_every_second(tensor):
            assert tensor.part is not None
            return tensor.part[1]
        assert isinstance(shift, int)
        return shift

    def _pairs_of(self, first: HostTensor) -> HostTensor:
        """Return the tensor of pairs that begins where the view of their first elements does."""
        if first.id not in self.paired:
            number, shape, strides = len(self.program.tensors) + len(self.paired), first.shape, first.strides
            name, shape, strides = f"{first.name}_pairs", (*shape, _PAIR), (*strides, 1)
            self.paired[first.id] = replace(first, id=number, name=name, shape=shape, strides=strides)
        return self.paired[first.id]

    def _access(self, both: Sequence[Op], at: Op, made: list[Op]) -> None:
        """Append one access for two. Its first element is that of the even one."""
        attrs = both[0].attributes(MemoryAttrs)
        tensor, (*others, last) = self.program.tensors[attrs.tensor], attrs.indices
        if is_every_second(tensor):
            tensor, others, last = self._pairs_of(tensor), [*others, last], replace(last, shift=0)
        pair = Index("block", block=self.block.id, positions=(attrs.rank,), shift=last.shift)
        access = replace(attrs, tensor=tensor.id, indices=(*others, pair), rank=attrs.rank + 1, aligned=0)
        out = Builder(self.numbers, at.location, made)
        lanes = Dim(1, (self.block.id,))
        if at.kind == "load":
            first, second = (op.result for op in both)
            read = out.emit("load", both[0].operands, first.dtype, (*first.dims, lanes), access, first.name)
            out.append("split", (read,), (first, second))
            return
        first, second = (next(iter(op.values())) for op in both)
        joined = out.emit("join", (first, second), first.dtype, (*first.dims, lanes))
        out.emit("store", (joined, *both[0].operands[1:]), first.dtype, joined.dims, access)


__all__ = ["may_pair", "pair_accesses"]
