"""A loop over the chunks of a row while it is being made: its ops, and what it carries from chunk to chunk."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..._shapes import Dims, Expr, Number, broadcast_dims
from ..ir.grammar import (
    Block,
    ForAttrs,
    Kind,
    LoopAxis,
    MaskAttrs,
    NumberAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    ReduceAttrs,
    Region,
    TileAttrs,
    TileField,
    Value,
    ViewAttrs,
)
from ..ir.pointwise import POINTWISE
from ..source import Location


class Writer:
    """Appends ops with one result to a list."""

    def __init__(self, numbers: itertools.count[int], location: Location | None) -> None:
        self.numbers = numbers
        self.location = location
        self.ops: list[Op] = []

    def value(self, dtype: torch.dtype, dims: Dims, name: str = "") -> Value:
        return Value(next(self.numbers), dtype, dims, name)

    def emit(
        self,
        kind: Kind,
        operands: Sequence[Operand],
        result: Value,
        attrs: object = None,
        regions: tuple[Region, ...] = (),
    ) -> Value:
        self.ops.append(Op(kind, tuple(operands), (result,), attrs, regions, self.location))
        return result

    def pointwise(self, name: str, *operands: Operand, like: str = "") -> Value:
        """An op whose values have one dtype, which is that of the result unless that is bool."""
        values = [operand for operand in operands if isinstance(operand, Value)]
        dims = broadcast_dims([value.dims for value in values])
        assert dims is not None
        dtype = torch.bool if POINTWISE[name].result == "bool" else values[-1].dtype
        return self.emit("pointwise", operands, self.value(dtype, dims, like), PointwiseAttrs(name))

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype == dtype:
            return value
        return self.emit("pointwise", (value,), self.value(dtype, value.dims, value.name), PointwiseAttrs("cast"))

    def mask(self, value: Value, dim: int, fill: float) -> Value:
        """``value`` with its lanes out of range along ``dim`` filled."""
        return self.emit("mask", (value,), self.value(value.dtype, value.dims, value.name), MaskAttrs((dim,), fill))

    def reshape(self, value: Value, dims: Dims) -> Value:
        if value.dims == dims:
            return value
        return self.emit("view", (value,), self.value(value.dtype, dims, value.name), ViewAttrs("reshape"))

    def sum(self, value: Value, dim: int, name: str = "") -> Value:
        dims = (*value.dims[:dim], *value.dims[dim + 1 :])
        return self.emit("reduce", (value,), self.value(value.dtype, dims, name), ReduceAttrs("sum", (dim,)))

    def number(self, number: Number, dtype: torch.dtype) -> Operand:
        """A number of the host as an operand of ops on ``dtype``."""
        if not isinstance(number, Expr):
            return float(number)
        return self.cast(self.emit("number", (), self.value(torch.int64, ()), NumberAttrs(number)), dtype)


@dataclass(kw_only=True)
class Carried:
    """A value that the loop carries: what it is before the loop, in it before and after one chunk, and behind it."""

    initial: Value
    before: Value
    total: Value
    after: Value | None = None


class Pass:
    """One walk over the chunks of a block. ``body`` gets the ops of one chunk."""

    def __init__(
        self, block: Block, index_dtype: torch.dtype, numbers: itertools.count[int], location: Location | None
    ) -> None:
        self.block = block.id
        self.extent = block.extent
        self.index_dtype = index_dtype
        self.location = location
        self.setup = Writer(numbers, location)
        self.body = Writer(numbers, location)
        self.carried: list[Carried] = []

    def locate(self, location: Location | None) -> None:
        """Ops that follow come from there."""
        self.setup.location = self.body.location = location

    def carry(self, name: str, dtype: torch.dtype, dims: Dims, start: float) -> Carried:
        """A new carried value, ``start`` before the first chunk; its ``after`` must be set."""
        initial, before, total = (self.setup.value(dtype, dims, name) for _ in range(3))
        self.setup.emit("full", (start,), initial)
        carried = Carried(initial=initial, before=before, total=total)
        self.carried.append(carried)
        return carried

    def tile(self, field: TileField, out: Writer) -> Value:
        """Where the current chunk begins or ends."""
        return out.emit("tile", (), out.value(self.index_dtype, ()), TileAttrs(self.block, field))

    def ops(self) -> list[Op]:
        """The initial values, and the loop."""
        assert isinstance(self.extent, (int, Expr))
        attrs = ForAttrs((LoopAxis(self.block, 0, self.extent),), len(self.carried), chunked=True)
        afters = [c.after for c in self.carried if c.after is not None]
        assert len(afters) == len(self.carried)
        region = Region(tuple(c.before for c in self.carried), tuple(self.body.ops), tuple(afters))
        totals = tuple(c.total for c in self.carried)
        loop = Op("for", tuple(c.initial for c in self.carried), totals, attrs, (region,), self.location)
        return [*self.setup.ops, loop]
