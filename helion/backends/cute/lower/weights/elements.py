"""Operands of a dot over pairs of neighbors along K, as expressions of one element: given its line, pair and half."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from ....._compiler.ir.grammar import (
    IotaAttrs,
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
from ....._compiler.ir.pointwise import POINTWISE
from ....._shapes import Dim, fixed_at
from ....._support.records import dataclass
from .groups import lies_in_groups

Coordinate = str | int | None
"""A coordinate of a value's dimension: ``line``, ``pair``, ``element`` of two merged ones, a half, or None for one element."""


@dataclass(frozen=True)
class Position:
    """An integer: ``pair * the pair + lane * the pair in its tile + begin * the first pair of the tile + number``, divided by
    ``divisor`` and rounded down."""

    pair: int = 0
    lane: int = 0
    begin: int = 0
    number: int = 0
    divisor: int = 1


@dataclass(frozen=True)
class Element:
    """An element of a value: of a load by its ``indices``, of an operation by its ``parts``, or a ``number``."""

    op: Op | None
    indices: tuple[Position | str, ...] = ()
    parts: tuple[Element, ...] = ()
    number: float = 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Element) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        if self.op is None:
            return (self.number,)
        what = self.op.attrs.tensor if self.op.kind == "load" else self.op.attrs
        return self.op.kind, what, self.op.result.dtype, self.indices, self.parts


class Unreadable(Exception):
    """An operand that is no expression of the line, the pair and the half."""


class Reader:
    """A trace from an operand of the dot back to loads, as an expression of one element.

    ``block`` iterates over pairs, and ``line`` over the lines of the operand.
    """

    def __init__(self, program: Program, block: int) -> None:
        self.program, self.block, self.line = program, block, -1
        self.makers = {result.number: op for op in program.walk() for result in op.results}

    def read(self, value: Operand, at: tuple[Coordinate, ...]) -> Element:
        """Return the element of a value at coordinates, one for each dimension."""
        if not isinstance(value, Value):
            return Element(None, number=float(value)) if isinstance(value, (int, float)) else unreadable()
        op = self.makers.get(value.number)
        if op is None or not all(map(self._fits, value.dims, at)):
            return unreadable()
        if op.kind == "load":
            return self._loaded(op, at)
        if op.kind == "mask" and op.attributes(MaskAttrs).fill == 0.0:
            return self.read(op.operands[0], at)
        if op.kind == "view":
            (source,) = op.operands
            assert isinstance(source, Value)
            return self.read(source, self._before(op, source, at))
        if op.kind == "join" and isinstance(at[-1], int):
            return self.read(op.operands[at[-1]], at[:-1])
        if op.kind == "full":
            return self.read(op.operands[0], ())
        if op.kind == "pointwise":
            return Element(op, parts=tuple(self.read(x, _broadcast(x, at)) for x in op.operands))
        return unreadable()

    def _fits(self, dim: Dim, coordinate: Coordinate) -> bool:
        """Return whether a dimension has the blocks of a coordinate."""
        if coordinate is None or dim.is_one:
            return coordinate is None and dim.is_one
        if isinstance(coordinate, int):
            return dim.block is not None and self._is_two(dim.block)
        if coordinate in ("line", "pair"):
            return dim.block == (self.line if coordinate == "line" else self.block)
        return dim.const == 1 and len(dim.blocks) == 2 and dim.blocks[0] == self.block and self._is_two(dim.blocks[1])

    def _is_two(self, block: int) -> bool:
        """Return whether a block is a whole dimension of both halves."""
        whole = self.program.blocks[block]
        return whole.kind == "full" and fixed_at(whole.extent, 2)

    def _before(self, op: Op, source: Value, at: tuple[Coordinate, ...]) -> tuple[Coordinate, ...]:
        """Return the coordinates of what a view is of."""
        attrs = op.attributes(ViewAttrs)
        if attrs.name == "permute":
            found: list[Coordinate] = [None] * len(at)
            for to, dimension in enumerate(attrs.order):
                found[dimension] = at[to]
            return tuple(found)
        if attrs.name == "broadcast":
            return _broadcast(source, at)
        # dimensions of one element come and go, and a pair is merged with the half
        given = [coordinate for dim, coordinate in zip(op.result.dims, at, strict=True) if not dim.is_one]
        split = [part for coordinate in given for part in _parts(coordinate)]
        wanted = [dim for dim in source.dims if not dim.is_one]
        parts = split if len(wanted) == len(split) else given
        if len(parts) != len(wanted):
            return unreadable()
        left = iter(parts)
        return tuple(None if dim.is_one else next(left) for dim in source.dims)

    def _loaded(self, op: Op, at: tuple[Coordinate, ...]) -> Element:
        """Return the element of a load, with an index for each dimension of the tensor."""
        attrs, indices = op.attributes(MemoryAttrs), list[Position | str]()
        if attrs.mask is not None:
            return unreadable()
        for index in attrs.indices:
            shift = index.shift if isinstance(index.shift, int) else unreadable()
            if index.kind == "scalar" and index.operand is None:
                indices.append(Position(number=shift))
                continue
            if index.kind == "block" and index.operand is None and shift == 0:
                coordinate = at[index.positions[0]]
                indices.append(_position_of(coordinate))
                continue
            if index.operand is None or shift or index.kind == "block":
                return unreadable()
            indices.append(self.position(op.operands[index.operand], tuple(at[each] for each in index.positions)))
        return Element(op, indices=tuple(indices))

    def position(self, value: Operand, at: tuple[Coordinate, ...]) -> Position:
        """Return the integer that an index is."""
        if isinstance(value, int):
            return Position(number=value)
        op = self.makers.get(value.number) if isinstance(value, Value) else None
        if op is None:
            return unreadable()
        if isinstance(op.attrs, IotaAttrs):
            return self._counted(op.attrs, at)
        if isinstance(op.attrs, TileAttrs) and op.attrs.block == self.block and op.attrs.field == "begin":
            return Position(begin=1)
        if op.kind == "view":
            (source,) = op.operands
            assert isinstance(source, Value)
            return self.position(source, self._before(op, source, at))
        if op.kind != "pointwise" or not isinstance(value, Value) or not all(map(self._fits, value.dims, at)):
            return unreadable()
        given = [self.position(each, _broadcast(each, at)) for each in op.operands]
        return self._computed(op.attributes(PointwiseAttrs).name, given)

    def _counted(self, attrs: IotaAttrs, at: tuple[Coordinate, ...]) -> Position:
        if attrs.start or attrs.step != 1:
            return unreadable()
        (coordinate,) = at
        if attrs.block == self.block and coordinate == "pair":
            return Position(lane=1) if attrs.relative else Position(pair=1)
        return Position(number=coordinate) if isinstance(coordinate, int) else unreadable()

    def _computed(self, name: str, given: list[Position]) -> Position:
        if name == "cast":
            return given[0]
        one, other = given
        if name == "floordiv" and other == Position(number=other.number) and other.number > 0:
            tiles = self.program.blocks[self.block]
            if one == Position(begin=1) and lies_in_groups(tiles, other.number):
                one = Position(pair=1)
            return dataclasses.replace(one, divisor=other.number) if one == Position(pair=1) else unreadable()
        if one.divisor > 1 or other.divisor > 1:
            return unreadable()
        if name == "mul" and Position(number=one.number) == one:
            one, other = other, one
        if name == "mul" and Position(number=other.number) == other:
            return Position(*(each * other.number for each in (one.pair, one.lane, one.begin, one.number)))
        if name != "add":
            return unreadable()
        pair, lane, begin = one.pair + other.pair, one.lane + other.lane, one.begin + other.begin
        if lane == begin:
            pair, lane, begin = pair + lane, 0, 0
        return Position(pair, lane, begin, one.number + other.number)


def unreadable() -> Any:
    """Raise ``Unreadable``."""
    raise Unreadable


def _broadcast(value: Operand, at: tuple[Coordinate, ...]) -> tuple[Coordinate, ...]:
    """Return the coordinates of an operand with fewer dimensions, or some of one element."""
    dims = value.dims if isinstance(value, Value) else ()
    own = at[len(at) - len(dims) :]
    return tuple(None if dim.is_one else coordinate for dim, coordinate in zip(dims, own, strict=True))


def _parts(coordinate: Coordinate) -> list[Coordinate]:
    """Return the pair and the half of an element of both."""
    if isinstance(coordinate, str) and coordinate.startswith("element"):
        return ["pair", int(coordinate.removeprefix("element"))]
    return [coordinate]


def _position_of(coordinate: Coordinate) -> Position | str:
    if coordinate == "line":
        return "line"
    if coordinate == "pair":
        return Position(pair=1)
    return Position(number=coordinate) if isinstance(coordinate, int) else unreadable()


def _loads(element: Element) -> Iterator[Element]:
    if element.op is not None and element.op.kind == "load":
        yield element
    for part in element.parts:
        yield from _loads(part)


def only_load(element: Element) -> Element | None:
    """Return the only load that an element is computed from."""
    found = {*_loads(element)}
    return found.pop() if len(found) == 1 else None


def evaluated(element: Element, given: torch.Tensor) -> torch.Tensor | None:
    """Return the results of the operations on the only load, by eager torch."""
    op = element.op
    if op is None:
        return torch.tensor(element.number, device="cpu")
    if op.kind == "load":
        return given
    parts = [evaluated(each, given) for each in element.parts]
    if any(each is None for each in parts):
        return None
    name, dtype = op.attributes(PointwiseAttrs).name, op.result.dtype
    if name in ("cast", "bitcast"):
        (tensor,) = parts
        assert tensor is not None
        if name == "bitcast" and tensor.dtype.itemsize != dtype.itemsize:
            return None
        return tensor.to(dtype) if name == "cast" else tensor.view(dtype)
    eager = POINTWISE[name].eager
    if eager is None:
        return None
    operands = [
        part if each.op is not None else _exact(each.number, op)
        for each, part in zip(element.parts, parts, strict=True)
    ]
    return eager(*operands).to(dtype)


def _exact(number: float, op: Op) -> float:
    """Return a number as the operation has it: an integer among integers."""
    return int(number) if not op.result.dtype.is_floating_point and number.is_integer() else number
