"""Sorts whose positions only select the sorted elements become sorts of the elements alone, in keys of 32 bits.

Keys of a stable sort are the order of an element and its position, of 64 bits. Before::

    %3 = sort %2, x, False                keys of x
    %4 = minimum(%3 & 0xffffffff, 999)    positions
    %5 = gather x, %4                     the sorted elements

After::

    %6 = where(lanes < 1000, bits of x in the order of x, 0x7fffffff)
    %7 = sort %6
    %5 = the elements of these bits

Zeros of both signs keep their signs, and negative ones come first. A sort whose positions have another use keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from ...._support.records import dataclass, replace
from ...ir.build import Builder, Numbers
from ...ir.grammar import GatherAttrs, Op, Operand, PointwiseAttrs, Program, Value
from ...ir.rewrite import Makers, expand_ops
from .simplify import drop_dead

_LAST, _WIDE_LAST = torch.iinfo(torch.int32).max, torch.iinfo(torch.int64).max
_PLACES = 0xFFFFFFFF


def narrow_sorts(program: Program) -> Program:
    """Sort elements alone where that is enough, and drop the elements of other sorts. Return the same program if it has
    no sort."""
    sorts = [op for op in program.walk() if op.kind == "sort"]
    if not sorts:
        return program
    users, makers = _users(program), Makers.among(program.walk())
    narrow: dict[int, _Narrow] = {}
    for op in sorts:
        found = _narrowed(op, users, makers)
        if found is not None:
            narrow |= {op.number: found, **dict.fromkeys(found.gathers, found)}
    numbers = Numbers.after(program)
    ranked: dict[int, Value] = {}

    def changed(op: Op) -> Iterator[Op]:
        found = narrow.get(op.number)
        if found is None:
            yield replace(op, operands=op.operands[:1]) if op.kind == "sort" else op
            return
        ops: list[Op] = []
        builder = Builder(numbers, op.location, ops)
        if op.kind == "sort":
            ranked[op.number] = found.sorted(builder)
        else:
            found.selected(builder, ranked[found.sort], op)
        yield from ops

    return drop_dead(expand_ops(program, changed))


@dataclass(frozen=True)
class _Narrow:
    """A sort, the elements it sorts, those of its keys that are in range (None for all), and gathers of the elements."""

    sort: int
    elements: Value
    inside: Operand | None
    descending: bool
    gathers: tuple[int, ...]

    def sorted(self, b: Builder) -> Value:
        """Append the sort of the elements' order."""
        dtype = self.elements.dtype
        if dtype.is_floating_point:
            number = b.cast(self.elements, torch.float32)
            missing = b.pointwise("isnan", number)
            number = b.emit(
                "pointwise", (missing, float("nan"), number), torch.float32, number.dims, PointwiseAttrs("where")
            )
            order = _in_order(b, _bits(b, number, torch.int32))
        elif dtype == torch.uint32:
            order = b.pointwise("bitwise_xor", _bits(b, self.elements, torch.int32), torch.iinfo(torch.int32).min)
        else:
            order = b.cast(self.elements, torch.int32)
        if self.descending:
            order = b.pointwise("bitwise_xor", order, -1)
        if self.inside is not None:
            order = b.emit("pointwise", (self.inside, order, _LAST), torch.int32, order.dims, PointwiseAttrs("where"))
        return b.emit("sort", (order,), torch.int32, order.dims)

    def selected(self, b: Builder, order: Value, gather: Op) -> None:
        """Append the elements of a sorted order, as the result of ``gather``."""
        dtype = self.elements.dtype
        if self.descending:
            order = b.pointwise("bitwise_xor", order, -1)
        if dtype.is_floating_point:
            order = _bits(b, _in_order(b, order), torch.float32)
        elif dtype == torch.uint32:
            order = b.pointwise("bitwise_xor", order, torch.iinfo(torch.int32).min)
        how = "bitcast" if dtype in (torch.int32, torch.uint32) else "cast"
        b.repeat(gather, kind="pointwise", operands=(order,), attrs=PointwiseAttrs(how))


def _bits(b: Builder, value: Value, dtype: torch.dtype) -> Value:
    return b.emit("pointwise", (value,), dtype, value.dims, PointwiseAttrs("bitcast"))


def _in_order(b: Builder, bits: Value) -> Value:
    """Append the integers in the order of floats with these bits, or the bits of these integers."""
    sign = b.pointwise("rshift", bits, 31)
    return b.pointwise("bitwise_xor", bits, b.pointwise("bitwise_and", sign, _LAST))


def _users(program: Program) -> Mapping[int, list[Op]]:
    """Return the ops that read each value, by its number; a region's result is read by the op of the region."""
    users: dict[int, list[Op]] = {}
    for op in program.walk():
        for value in op.reads():
            users.setdefault(value.number, []).append(op)
    return users


def _narrowed(op: Op, users: Mapping[int, list[Op]], makers: Makers) -> _Narrow | None:
    """Return the sort if its result only selects the elements that it sorts."""
    if len(op.operands) < 2:
        return None
    keys, elements, descending = op.operands
    assert isinstance(elements, Value)
    read = [op]
    for is_next in (_is_places, _is_inside, _is_index):
        read = [user for each in read for user in users.get(each.result.number, ())]
        if not all(map(is_next, read)):
            return None
    gathers = [user for each in read for user in users.get(each.result.number, ())]
    if not gathers or not all(_selects(gather, elements) for gather in gathers):
        return None
    maker = makers.of(keys)
    inside: Operand | None = None
    if _name(maker) == "where":
        assert maker is not None
        inside, _, fill = maker.operands
        if fill != _WIDE_LAST:
            return None
    elif _name(maker) != "bitwise_or":
        return None
    numbers = tuple(gather.number for gather in gathers)
    return _Narrow(op.number, elements, inside, bool(descending), numbers)


def _name(op: Op | None) -> str:
    return op.attrs.name if op is not None and isinstance(op.attrs, PointwiseAttrs) else ""


def _is_places(op: Op) -> bool:
    return _name(op) == "bitwise_and" and op.operands[1] == _PLACES


def _is_inside(op: Op) -> bool:
    return _name(op) == "minimum" and isinstance(op.operands[1], int)


def _is_index(op: Op) -> bool:
    return _name(op) == "cast" and op.result.dtype == torch.int32


def _selects(op: Op, elements: Value) -> bool:
    """Return whether an op gathers the elements along their last dimension."""
    return op.attrs == GatherAttrs(len(elements.dims) - 1) and op.operands[0] is elements
