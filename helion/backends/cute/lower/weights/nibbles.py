"""Weights of 4 bits, two in a byte, as a matrix of them in one dot for each group of K.

::

    for g in hl.grid(groups):                                  for tile_k in hl.tile(k, block_size=128):
        both = packed[tile_n, g, :]                                part = hl.dot(w[tile_n, tile_k].to(...), x[tile_m, tile_k].T)
        part = hl.dot(low(both), x[tile_m, g, 0, :].T)      →      acc = acc + part * scale[tile_n, tile_k.id][:, None]
        part = hl.dot(high(both), x[tile_m, g, 1, :].T, acc=part)
        acc = acc + part * scale[tile_n, g][:, None]

The conversion of a byte may be any: it is evaluated for all of them, and is that of a nibble if its results are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import torch

from ....._compiler.ir.grammar import (
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
    TileAttrs,
    Value,
    ViewAttrs,
)
from ....._compiler.ir.operands import is_block
from ....._compiler.ir.pointwise import POINTWISE
from ....._compiler.passes.always.simplify import drop_dead
from ....._shapes import Dim, Dims, Number, fixed_at
from ....._support.records import dataclass
from ...plan.copied import NIBBLE_GROUP
from ..frame import Place
from ..numbers import equal

_HALF = NIBBLE_GROUP // 2
_BYTES = (torch.int8, torch.uint8)
_NIBBLES: dict[bool, torch.dtype] = {name == "int4": getattr(torch, name) for name in ("int4", "uint4")}
"""Types of 4 bits, which stubs of torch lack, by whether they are signed."""
_POSITIONS = ("index", "begin", "id")
"""Fields of an iteration of ``hl.grid`` that are its number."""


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """A ``program`` that loads matrices of nibbles. ``tensors`` has the argument of each matrix that it views; it is empty
    where the program is the original one. ``block`` iterates over K."""

    program: Program
    tensors: Mapping[int, int]
    block: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Nibble:
    """A nibble of each byte that ``load`` reads, low or ``high``, signed or not, plus ``offset``."""

    load: Op
    high: bool
    signed: bool
    offset: int


def with_nibbles(program: Program) -> Unpacked:
    """Return the program with a dot of nibbles in place of two dots of the halves of bytes."""
    unchanged = Unpacked(program=program, tensors={})
    if len(program.roots) != 1:
        return unchanged
    loops = [op for op in program.roots[0].body.ops if op.kind == "for"]
    if len(loops) != 1 or any(op.regions for op in loops[0].regions[0].ops):
        return unchanged
    (axis, *others) = loops[0].attributes(ForAttrs).axes
    if (
        others
        or not axis.scalar
        or not fixed_at(axis.begin, 0)
        or not fixed_at(axis.step, 1)
        or not isinstance(axis.end, int)
    ):
        return unchanged
    return _Unpacker(program, loops[0], axis).unpacked() or unchanged


class _Unpacker:
    """A rewrite of the loop over groups."""

    def __init__(self, program: Program, loop: Op, axis: LoopAxis) -> None:
        self.program, self.loop, self.axis = program, loop, axis
        self.makers = {result.number: op for op in program.walk() for result in op.results}
        numbers = (number for op in program.walk() for number in (op.number, *(each.number for each in op.results)))
        self.free = 1 + max(numbers)
        assert isinstance(axis.end, int)
        self.groups = axis.end

    def unpacked(self) -> Unpacked | None:
        dots = [op for op in self.loop.regions[0].ops if op.kind == "dot"]
        if len(dots) != 2 or [len(dot.operands) for dot in dots] != [2, 3] or dots[1].operands[2] is not dots[0].result:
            return None
        for side in (0, 1):
            low, high = (self._nibble(dot.operands[side]) for dot in dots)
            if low is None or high is None or (low.high, high.high) != (False, True):
                continue
            if dataclasses.replace(low, high=True) != high:
                return None
            first, second = (self._half(dot.operands[1 - side], at) for at, dot in enumerate(dots))
            packed = self._packed(low.load)
            if packed is None or first is None or second is None:
                return None
            if first[1].tensor is not second[1].tensor or first[1].blocks != second[1].blocks:
                return None
            return self._rewritten(dots[1], side, low, packed, first)
        return None

    # Reading -------------------------------------------------------------------------------------------------------------

    def _made(self, value: Operand) -> Op | None:
        return self.makers.get(value.number) if isinstance(value, Value) else None

    def _straight(self, value: Operand) -> Operand:
        """Return a matrix before it is transposed or masked with zeros, which leave its elements as they are."""
        op = self._made(value)
        while op is not None and _keeps(op):
            value = op.operands[0]
            op = self._made(value)
        return value

    def _nibble(self, value: Operand) -> _Nibble | None:
        """Return the nibble of loaded bytes that a value is; None for others."""
        every = torch.arange(256, dtype=torch.int16, device="cpu").to(torch.uint8)
        load = self._source(value)
        dtype = self.program.tensors[load.attrs.tensor].dtype if load is not None else None
        if load is None or dtype not in _BYTES:
            return None
        found = self._evaluated(value, load, every.view(dtype))
        if found is None:
            return None
        for high in (False, True):
            bits = (every >> 4 if high else every & 15).to(torch.int64)
            for signed in (True, False):
                exact = (bits ^ 8) - 8 if signed else bits
                offsets = (found.double() - exact).unique()
                if offsets.numel() == 1 and offsets.item().is_integer() and abs(offsets.item()) <= 64:
                    return _Nibble(load=load, high=high, signed=signed, offset=int(offsets.item()))
        return None

    def _source(self, value: Operand) -> Op | None:
        """Return the only load that a value is computed from, element by element."""
        found, waiting = list[Op](), [value]
        while waiting:
            op = self._made(waiting.pop())
            if op is None or not (op.kind in ("load", "pointwise") or _keeps(op)):
                return None
            if op.kind == "load":
                found.append(op)
            else:
                waiting += [each for each in op.operands if isinstance(each, Value)]
        return found[0] if found and all(op is found[0] for op in found) else None

    def _evaluated(self, value: Operand, load: Op, given: torch.Tensor) -> torch.Tensor | None:
        """Return the results of the operations on a load, by eager torch."""
        op = self._made(value)
        if op is None or op is load:
            return given
        operands = [self._evaluated(x, load, given) if isinstance(x, Value) else x for x in op.operands]
        if any(x is None for x in operands):
            return None
        if _keeps(op):
            assert isinstance(operands[0], torch.Tensor)
            return operands[0]
        name, dtype = op.attributes(PointwiseAttrs).name, op.result.dtype
        if name in ("cast", "bitcast"):
            (tensor,) = operands
            assert isinstance(tensor, torch.Tensor)
            if name == "bitcast" and tensor.dtype.itemsize != dtype.itemsize:
                return None
            return tensor.to(dtype) if name == "cast" else tensor.view(dtype)
        eager = POINTWISE[name].eager
        return None if eager is None else eager(*operands).to(dtype)

    def _number(self, load: Op, index: Index) -> bool:
        """Return whether an index is the number of the group."""
        made = self._made(load.operands[index.operand]) if index.operand is not None else None
        attrs = made.attrs if made is not None else None
        plain = index.kind == "scalar" and fixed_at(index.shift, 0) and isinstance(attrs, TileAttrs)
        return plain and isinstance(attrs, TileAttrs) and (attrs.block == self.axis.block and attrs.field in _POSITIONS)

    def _place(self, load: Op) -> Place | None:
        """Return the place of (lines, groups, elements of a group or a half of it) that a load reads, without its groups."""
        attrs, tensor = load.attributes(MemoryAttrs), self.program.tensors[load.attrs.tensor]
        if len(attrs.indices) not in (3, 4) or attrs.mask is not None or not tensor.aligned:
            return None
        line, group, last = attrs.indices[0], attrs.indices[1], attrs.indices[-1]
        plain = is_block(line) and is_block(last)
        if not plain or line.block is None or last.block is None or not self._number(load, group):
            return None
        whole = self.program.blocks[last.block]
        if whole.kind != "full" or not _are(
            ((whole.extent, _HALF), (tensor.strides[-1], 1), (tensor.shape[1], self.groups))
        ):
            return None
        return Place(tensor=tensor, blocks=(line.block,), strides=(tensor.strides[0],))

    def _packed(self, load: Op) -> Place | None:
        """Return the place of packed weights: a group is 64 contiguous bytes, one after the other."""
        place = self._place(load)
        if place is None or place.tensor.ndim != 3 or not isinstance(place.strides[0], int):
            return None
        return place if equal(place.tensor.strides[1], _HALF) else None

    def _half(self, value: Operand, half: int) -> tuple[Op, Place] | None:
        """Return the load of half number ``half`` of each group of an input, possibly transposed, and its place."""
        load = self._made(self._straight(value))
        if load is None or load.kind != "load":
            return None
        place, indices = self._place(load), load.attributes(MemoryAttrs).indices
        if place is None or len(indices) != 4:
            return None
        steps = zip((*place.tensor.strides[1:3], place.tensor.shape[2]), (NIBBLE_GROUP, _HALF, 2), strict=True)
        middle = indices[2]
        picked = middle.kind == "scalar" and middle.operand is None and fixed_at(middle.shift, half)
        return (load, place) if picked and _are(steps) else None

    # Writing -------------------------------------------------------------------------------------------------------------

    def _rewritten(self, dot: Op, side: int, nibble: _Nibble, packed: Place, read: tuple[Op, Place]) -> Unpacked:
        """Return the program whose loop goes over tiles of a group, given the last dot and the side of the weights."""
        load, given = read
        k = self.groups * NIBBLE_GROUP
        count = len(self.program.tensors)
        dtype = _NIBBLES[nibble.signed]
        weights = self._matrix(packed, count, dtype, (2 * packed.strides[0], 1), k)
        inputs = self._matrix(given, count + 1, given.tensor.dtype, (given.strides[0], 1), k)
        number = self._numbered()
        tile = Op(
            number=number,
            kind="tile",
            operands=(),
            results=(Value(number=number, dtype=torch.int32, dims=()),),
            attrs=TileAttrs(block=self.axis.block, field="id"),
        )
        new, sides = [tile], list[Value]()
        for at in (0, 1):
            if at == side:
                made = self._load(weights, packed, nibble.load, new)
                made = self._converted(made, nibble.offset, given.tensor.dtype, new)
            else:
                made = self._load(inputs, given, load, new)
            if (
                made.dims[-1 - at].block != self.axis.block
            ):  # K is the last dimension on the left, the first on the right
                made = self._step(made, "view", ViewAttrs(name="permute", order=(1, 0)), made.dims[::-1], new)
            sides.append(made)
        new.append(dataclasses.replace(dot, operands=tuple(sides)))
        return self._program(dot, new, (weights, inputs), k, {weights.id: packed.tensor.id, inputs.id: given.tensor.id})

    def _numbered(self) -> int:
        self.free += 1
        return self.free - 1

    def _matrix(self, place: Place, number: int, dtype: torch.dtype, strides: tuple[Number, int], k: int) -> HostTensor:
        shape = (place.tensor.shape[0], k)
        return dataclasses.replace(place.tensor, id=number, dtype=dtype, shape=shape, strides=strides)

    def _load(self, tensor: HostTensor, place: Place, like: Op, new: list[Op]) -> Value:
        """Append the load of a tile of a matrix."""
        blocks = (place.blocks[0], self.axis.block)
        indices = tuple(Index(kind="block", block=block, positions=(at,)) for at, block in enumerate(blocks))
        attrs = dataclasses.replace(like.attributes(MemoryAttrs), tensor=tensor.id, indices=indices, rank=2)
        number = self._numbered()
        made = Value(number=number, dtype=tensor.dtype, dims=tuple(Dim(1, (block,)) for block in blocks))
        new.append(Op(number=number, kind="load", operands=(), results=(made,), attrs=attrs, location=like.location))
        return made

    def _step(
        self, value: Value, kind: str, attrs: PointwiseAttrs | ViewAttrs, dims: Dims, new: list[Op], *more: float
    ) -> Value:
        """Append an operation on a value: a view, a cast to fp32, or arithmetic with numbers."""
        number = self._numbered()
        dtype = value.dtype if kind == "view" or more else torch.float32
        made = Value(number=number, dtype=dtype, dims=dims)
        new.append(Op(number=number, kind=kind, operands=(value, *more), results=(made,), attrs=attrs))
        return made

    def _converted(self, value: Value, offset: int, dtype: torch.dtype, new: list[Op]) -> Value:
        """Append the conversion of nibbles, plus an offset, to the type of the dot."""
        value = self._step(value, "pointwise", PointwiseAttrs("cast"), value.dims, new)
        if offset:
            value = self._step(value, "pointwise", PointwiseAttrs("add"), value.dims, new, float(offset))
        number = self._numbered()
        made = dataclasses.replace(value, number=number, dtype=dtype)
        new.append(
            Op(number=number, kind="pointwise", operands=(value,), results=(made,), attrs=PointwiseAttrs("cast"))
        )
        return made

    def _program(
        self, dot: Op, new: list[Op], matrices: tuple[HostTensor, ...], k: int, tensors: Mapping[int, int]
    ) -> Unpacked:
        region, position = self.loop.regions[0], new[0].result
        ops = list[Op]()
        for op in region.ops:
            if op is dot:
                ops += new
            elif op.kind != "dot":
                ops.append(dataclasses.replace(op, operands=tuple(self._of_group(x, position) for x in op.operands)))
        ops.sort(key=lambda op: op is not new[0])  # the position comes first
        axis = dataclasses.replace(self.axis, scalar=False, end=k)
        attrs = dataclasses.replace(self.loop.attributes(ForAttrs), axes=(axis,))
        loop = dataclasses.replace(self.loop, attrs=attrs, regions=(dataclasses.replace(region, ops=tuple(ops)),))
        (root,) = self.program.roots
        body = tuple(loop if op is self.loop else op for op in root.body.ops)
        blocks = tuple(
            dataclasses.replace(each, kind="tile", extent=k, size=NIBBLE_GROUP) if each.id == self.axis.block else each
            for each in self.program.blocks
        )
        roots = (dataclasses.replace(root, body=dataclasses.replace(root.body, ops=body)),)
        changed = dataclasses.replace(
            self.program, tensors=(*self.program.tensors, *matrices), blocks=blocks, roots=roots
        )
        return Unpacked(program=drop_dead(changed), tensors=tensors, block=self.axis.block)

    def _of_group(self, value: Operand, position: Value) -> Operand:
        """Return the position of the tile in place of that of the group."""
        op = self._made(value)
        named = op is not None and isinstance(op.attrs, TileAttrs) and op.attrs.block == self.axis.block
        return position if named else value


def _are(pairs: Iterable[tuple[object, object]]) -> bool:
    """Return whether all pairs of numbers are equal in every launch."""
    return all(equal(one, other) for one, other in pairs)


def _keeps(op: Op) -> bool:
    """Return whether an op transposes a value, or replaces what is out of range by zeros."""
    if op.kind == "mask":
        return op.attributes(MaskAttrs).fill == 0.0
    return op.kind == "view" and op.attributes(ViewAttrs).name == "permute"
