"""Numbers of 4 bits of which neighbors along K share a byte: one dot of both, in place of one for each half of the bytes.

::

    for tile_p in hl.tile(k // 2):                              for tile_k in hl.tile(k):
        both = packed[tile_p, tile_n]
        acc = hl.dot(x[tile_m, tile_p, 0], low(both), acc=acc)      acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=acc)
        acc = hl.dot(x[tile_m, tile_p, 1], high(both), acc=acc) →

The halves of a dot over ``hl.join(low, high)`` are such dots as well. An operand is read as an expression of its elements,
given the line, the pair and the half. The conversion of a byte may be any: it is evaluated for all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ....._compiler.ir.grammar import (
    DotAttrs,
    ForAttrs,
    HostTensor,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    PointwiseAttrs,
    Program,
    Value,
    ViewAttrs,
)
from ....._compiler.ir.ops import OPS
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import ONE, Dim, fixed_at
from ....._support.records import dataclass, field
from ...plan.copied import E2M1
from ..numbers import equal
from .elements import Coordinate, Element, Position, Reader, Unreadable, evaluated, only_load, unreadable
from .nibbles import with_nibbles

_BYTES = (torch.int8, torch.uint8)
_NUMBERS = {
    "int4": [number - 16 * (number > 7) for number in range(16)],
    "uint4": [*range(16)],
    "float4_e2m1fn_x2": [*E2M1, *(-number for number in E2M1)],
}
"""The numbers of codes, by the type of 4 bits."""
_ENDS: Mapping[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
"""Operations on integers whose extremes are those of the ends of ranges."""
_EXACT = 1 << 24
"""Limit of the integers that are exact in fp32."""


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A ``program`` that loads matrices of 4-bit numbers. ``tensors`` has the argument of each matrix that it views, of which
    those ``packed`` share bytes: True where a byte has the even element in its high bits. Without any the program is the
    original one."""

    program: Program
    tensors: Mapping[int, int] = field(default_factory=dict)
    packed: Mapping[int, bool] = field(default_factory=dict)


def with_pairs(program: Program) -> Paired:
    """Return the program with one dot over K in place of the dots of both halves of bytes."""
    unchanged = Paired(program=program)
    if len(program.roots) != 1 or with_nibbles(program).block is not None:
        return unchanged
    loops = [op for op in program.roots[0].body.ops if op.kind == "for"]
    if len(loops) != 1 or any(op.regions for op in loops[0].regions[0].ops):
        return unchanged
    attrs = loops[0].attributes(ForAttrs)
    (axis, *others) = attrs.axes
    plain = not (axis.scalar or axis.merged or axis.split or axis.backwards) and axis.jagged is None
    bounds = fixed_at(axis.begin, 0) and fixed_at(axis.step, 1) and isinstance(axis.end, int)
    if others or not plain or not bounds or attrs.carried != 1 or len(loops[0].results) != 1:
        return unchanged
    try:
        return _Joiner(program, loops[0], axis).joined() or unchanged
    except Unreadable:
        return unchanged


class _Joiner:
    """A rewrite of the loop over pairs."""

    def __init__(self, program: Program, loop: Op, axis: LoopAxis) -> None:
        self.program, self.loop, self.axis = program, loop, axis
        self.reader = Reader(program, axis.block)
        assert isinstance(axis.end, int)
        self.k = 2 * axis.end

    def joined(self) -> Paired | None:
        halves = self._halves()
        if halves is None:
            return None
        (first, *_), sides = halves, list[Value]()
        writer = _Writer(self.program, self.axis.block, self.k)
        for side in (0, 1):
            line = first[0].operands[side]
            assert isinstance(line, Value)
            block = line.dims[side].block
            if block is None:
                return None
            self.reader.line = block
            elements = [self.reader.read(dot.operands[side], _coordinates(side, half)) for dot, half in halves]
            writer.line, writer.side = block, side
            sides.append(writer.written(elements[0], elements[1]))
        return self._rewritten(first[0], sides, writer) if writer.packed else None

    def _halves(self) -> list[tuple[Op, int | None]] | None:
        """Return two dots, one of each half of the bytes; or one dot of both halves twice, with their numbers."""
        body = self.loop.regions[0]
        dots = [op for op in body.ops if op.kind == "dot"]
        if any(OPS[op.kind].stays for op in body.ops):
            return None
        if any(op.attributes(DotAttrs).scaled is not None or len(op.operands) != 3 for op in dots):
            return None
        if not 1 <= len(dots) <= 2 or body.results[0] is not dots[-1].result:
            return None
        starts = [body.params[0], *(dot.result for dot in dots[:-1])]
        if any(dot.operands[2] is not start for dot, start in zip(dots, starts, strict=True)):
            return None
        left = dots[0].operands[0]
        assert isinstance(left, Value)
        merged = len(left.dims[1].blocks) == 2
        if merged == (len(dots) == 2):
            return None
        return [(dots[0], 0), (dots[0], 1)] if merged else [(dots[0], None), (dots[1], None)]

    def _rewritten(self, dot: Op, sides: list[Value], writer: _Writer) -> Paired:
        """Return the program whose loop goes over K, with one dot."""
        region = self.loop.regions[0]
        joined = dataclasses.replace(dot, operands=(*sides, region.params[0]))
        body = dataclasses.replace(region, ops=(*writer.ops, joined), results=(joined.result,))
        attrs = dataclasses.replace(
            self.loop.attributes(ForAttrs), axes=(dataclasses.replace(self.axis, begin=0, end=self.k),)
        )
        loop = dataclasses.replace(self.loop, attrs=attrs, regions=(body,))
        (root,) = self.program.roots
        ops = tuple(loop if op is self.loop else op for op in root.body.ops)
        blocks = tuple(
            dataclasses.replace(each, kind="tile", extent=self.k) if each.id == self.axis.block else each
            for each in self.program.blocks
        )
        roots = (dataclasses.replace(root, body=dataclasses.replace(root.body, ops=ops)),)
        tensors = (*self.program.tensors, *writer.tensors)
        changed = dataclasses.replace(self.program, tensors=tensors, blocks=blocks, roots=roots)
        return Paired(program=drop_dead(changed), tensors=writer.arguments, packed=writer.packed)


def _coordinates(side: int, half: int | None) -> tuple[Coordinate, ...]:
    """Return the coordinates of an operand of a dot."""
    along_k: Coordinate = "pair" if half is None else f"element{half}"
    return ("line", along_k) if side == 0 else (along_k, "line")


class _Writer:
    """The ops of the new loop body: elements along K of which both halves are known."""

    def __init__(self, program: Program, block: int, k: int) -> None:
        self.program, self.block, self.k = program, block, k
        self.line, self.side = -1, 0
        numbers = (number for op in program.walk() for number in (op.number, *(each.number for each in op.results)))
        self.free = 1 + max(numbers)
        self.ops: list[Op] = []
        self.tensors: list[HostTensor] = []
        self.arguments: dict[int, int] = {}
        self.packed: dict[int, bool] = {}
        self.ranges: dict[int, tuple[float, float]] = {}

    # Matching ------------------------------------------------------------------------------------------------------------

    def written(self, low: Element, high: Element) -> Value:
        """Return the value of elements along K, given those of even and of odd ones."""
        made = self._number(low, high)
        if isinstance(made, Value):
            return made
        return unreadable()

    def _number(self, low: Element, high: Element) -> Value | float:
        if low.op is None or high.op is None:
            return low.number if low == high else unreadable()
        if low != high and (packed := self._packed(low, high)) is not None:
            return packed
        if low.op.kind == "load" and high.op.kind == "load":
            return self._shared(low) if low == high else self._neighbors(low, high)
        same = low.op.attrs == high.op.attrs and low.op.result.dtype == high.op.result.dtype
        if low.op.kind != "pointwise" or not same or len(low.parts) != len(high.parts):
            return unreadable()
        parts = [self._number(*each) for each in zip(low.parts, high.parts, strict=True)]
        dtype = low.op.result.dtype
        return self._pointwise(low.op, parts) if dtype.is_floating_point else self._integer(low.op, parts)

    def _pointwise(self, op: Op, parts: Sequence[Value | float], dtype: torch.dtype | None = None) -> Value:
        """Append an operation on elements."""
        ranks = [x.dims for x in parts if isinstance(x, Value)]
        dims = tuple(next((dim for dim in column if not dim.is_one), ONE) for column in zip(*ranks, strict=True))
        return self._made("pointwise", tuple(parts), op.attrs, dtype or op.result.dtype, dims)

    def _integer(self, op: Op, parts: Sequence[Value | float]) -> Value:
        """Append an operation on small integers in fp32, which has them exactly. No result may exceed its type."""
        name, ranges = op.attributes(PointwiseAttrs).name, [self._range(each) for each in parts]
        known = [each for each in ranges if each is not None]
        if op.result.dtype == torch.bool or len(known) < len(parts) or name not in (*_ENDS, "cast"):
            return unreadable()
        ends = [*known[0]] if name == "cast" else [_ENDS[name](x, y) for x in known[0] for y in known[1]]
        limits = torch.iinfo(op.result.dtype)
        if min(ends) < max(limits.min, -_EXACT) or max(ends) > min(limits.max, _EXACT):
            return unreadable()
        wide = [self._wide(each) for each in parts]
        made = wide[0] if name == "cast" else self._pointwise(op, wide, torch.float32)
        if not isinstance(made, Value):
            return unreadable()
        self.ranges[made.number] = min(ends), max(ends)
        return made

    def _range(self, value: Value | float) -> tuple[float, float] | None:
        """Return the least and the greatest number that an integer may be; None for other values."""
        if not isinstance(value, Value):
            return (value, value) if float(value).is_integer() else None
        if value.dtype in _BYTES:
            limits = torch.iinfo(value.dtype)
            return limits.min, limits.max
        return self.ranges.get(value.number)

    def _wide(self, value: Value | float) -> Value | float:
        """Return a value in fp32."""
        if not isinstance(value, Value) or value.dtype == torch.float32:
            return value
        return self._made("pointwise", (value,), PointwiseAttrs("cast"), torch.float32, value.dims)

    def _packed(self, low: Element, high: Element) -> Value | None:
        """Return the numbers of 4 bits that both halves of the same bytes are, plus an offset."""
        source = only_load(low)
        if source is None or source != only_load(high) or source.op is None:
            return None
        tensor = self.program.tensors[source.op.attrs.tensor]
        if tensor.dtype not in _BYTES or not tensor.aligned or Position(pair=1) not in source.indices:
            return None
        every = torch.arange(256, dtype=torch.int16, device="cpu").to(torch.uint8)
        found = [evaluated(each, every.view(tensor.dtype)) for each in (low, high)]
        codes = [(every & 15).long(), (every >> 4).long()]
        if any(each is None for each in found) or low.op is None:
            return None
        for name, turned in itertools.product(_NUMBERS, (False, True)):
            numbers, dtype = torch.tensor(_NUMBERS[name], dtype=torch.float64, device="cpu"), getattr(torch, name, None)
            exact = [numbers[code] for code in (codes[::-1] if turned else codes)]
            differences = torch.stack([x.double() - y for x, y in zip(found, exact, strict=True) if x is not None])
            offset = float(differences[0, 0])
            if dtype is not None and bool((differences == offset).all()):
                made = self._offset(self._nibbles(source, tensor, dtype, turned), offset, low.op.result.dtype)
                self.ranges[made.number] = float(numbers.min()) + offset, float(numbers.max()) + offset
                return made
        return None

    # Writing -------------------------------------------------------------------------------------------------------------

    def _nibbles(self, source: Element, tensor: HostTensor, dtype: torch.dtype, turned: bool) -> Value:
        """Append the load of a matrix of 4-bit numbers. Those of odd elements are the low ones of their bytes if ``turned``."""
        if len(source.indices) != 2 or {*source.indices} != {"line", Position(pair=1)} or source.op is None:
            return unreadable()
        along = source.indices.index(Position(pair=1))
        if not equal(tensor.shape[along], self.k // 2):
            return unreadable()
        shape, strides = list(tensor.shape), list(tensor.strides)
        shape[along], strides[1 - along] = self.k, 2 * strides[1 - along]
        made = self._viewed(tensor, tuple(shape), tuple(strides), dtype)
        self.packed[made.id] = turned
        blocks = [self.line, self.line]
        blocks[along] = self.block
        return self._load(source.op, made, [_of_block(block) for block in blocks])

    def _neighbors(self, low: Element, high: Element) -> Value:
        """Append the load of neighbors along K: elements of one dimension, or a pair and a half of two."""
        assert low.op is not None and high.op is not None
        if low.op.attrs.tensor != high.op.attrs.tensor or low.op.result.dtype != high.op.result.dtype:
            return unreadable()
        tensor, indices, merged = self.program.tensors[low.op.attrs.tensor], list[Index](), -1
        for at, (even, odd) in enumerate(zip(low.indices, high.indices, strict=True)):
            if even == odd == "line":
                indices.append(_of_block(self.line))
            elif (even, odd) == (Position(pair=2), Position(pair=2, number=1)):
                indices.append(_of_block(self.block))
            elif even == odd == Position(pair=1) and at + 1 < len(low.indices):
                merged = at
                indices.append(_of_block(self.block))
            elif merged == at - 1 >= 0 and (even, odd) == (Position(number=0), Position(number=1)):
                continue
            else:
                return unreadable()
        if merged >= 0:
            (pairs, halves), steps = tensor.shape[merged : merged + 2], tensor.strides[merged : merged + 2]
            if not equal(pairs, self.k // 2) or not equal(halves, 2) or not equal(steps[0], 2 * steps[1]):
                return unreadable()
            shape = (*tensor.shape[:merged], self.k, *tensor.shape[merged + 2 :])
            strides = (*tensor.strides[:merged], steps[1], *tensor.strides[merged + 2 :])
            tensor = self._viewed(tensor, shape, strides, tensor.dtype)
        return self._load(low.op, tensor, indices)

    def _shared(self, element: Element) -> Value:
        """Append the load of numbers that neighbors along K share."""
        assert element.op is not None
        tensor, indices, operands = self.program.tensors[element.op.attrs.tensor], list[Index](), list[Value]()
        for index in element.indices:
            if isinstance(index, str):
                indices.append(_of_block(self.line))
            elif index == Position(number=index.number):
                indices.append(Index("scalar", shift=index.number))
            elif index == Position(pair=1, divisor=index.divisor):
                operands.append(self._counted(2 * index.divisor))
                indices.append(Index("tensor", positions=(0,), operand=0))
            else:
                return unreadable()
        return self._load(element.op, tensor, indices, tuple(operands))

    def _viewed(
        self, tensor: HostTensor, shape: tuple[Any, ...], strides: tuple[Any, ...], dtype: torch.dtype
    ) -> HostTensor:
        """Return another view of a tensor's memory."""
        made = dataclasses.replace(
            tensor, id=len(self.program.tensors) + len(self.tensors), shape=shape, strides=strides, dtype=dtype
        )
        self.tensors.append(made)
        self.arguments[made.id] = tensor.id
        return made

    def _counted(self, divisor: int) -> Value:
        """Append the index along K, divided by a number."""
        dims = (Dim(1, (self.block,)),)
        index = self._made("iota", (), IotaAttrs(self.block, relative=False), torch.int32, dims)
        return self._made("pointwise", (index, divisor), PointwiseAttrs("floordiv"), torch.int32, dims)

    def _load(self, like: Op, tensor: HostTensor, indices: list[Index], operands: tuple[Value, ...] = ()) -> Value:
        """Append a load, with its dimensions in the order of the dot's operand."""
        placed, blocks = list[Index](), list[int]()
        for index in indices:
            if index.kind != "scalar":
                blocks.append(self.block if index.kind == "tensor" or index.block is None else index.block)
                index = dataclasses.replace(index, positions=(len(blocks) - 1,))
            placed.append(index)
        attrs = dataclasses.replace(
            like.attributes(MemoryAttrs), tensor=tensor.id, indices=tuple(placed), rank=len(blocks)
        )
        made = self._made("load", operands, attrs, tensor.dtype, tuple(Dim(1, (block,)) for block in blocks), like)
        order = (self.line, self.block) if self.side == 0 else (self.block, self.line)
        if len(blocks) == 2:
            turned = tuple(blocks) != order
            return (
                self._made("view", (made,), ViewAttrs("permute", (1, 0)), made.dtype, made.dims[::-1])
                if turned
                else made
            )
        dims = tuple(Dim(1, (block,)) if block in blocks else ONE for block in order)
        return self._made("view", (made,), ViewAttrs("reshape"), made.dtype, dims)

    def _offset(self, value: Value, offset: float, dtype: torch.dtype) -> Value:
        """Append the conversion of 4-bit numbers, plus an offset."""
        value = self._made("pointwise", (value,), PointwiseAttrs("cast"), torch.float32, value.dims)
        if offset:
            value = self._made("pointwise", (value, offset), PointwiseAttrs("add"), torch.float32, value.dims)
        if dtype in (torch.bfloat16, torch.float16):
            return self._made("pointwise", (value,), PointwiseAttrs("cast"), dtype, value.dims)
        return value

    def _made(
        self, kind: str, operands: tuple[Any, ...], attrs: Any, dtype: torch.dtype, dims: Any, like: Op | None = None
    ) -> Value:
        number, self.free = self.free, self.free + 1
        made = Value(number=number, dtype=dtype, dims=dims)
        location = None if like is None else like.location
        self.ops.append(
            Op(number=number, kind=kind, operands=operands, results=(made,), attrs=attrs, location=location)
        )
        return made


def _of_block(block: int) -> Index:
    return Index("block", block)
