"""Builder of values and ops: it numbers them and appends them to the region under construction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..._shapes import Dims, Expr, Number, broadcast_dims
from ..._support.records import dataclass, replace
from ..source import Location
from .grammar import (
    Kind,
    MaskAttrs,
    NumberAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Region,
    Value,
    ViewAttrs,
)
from .pointwise import POINTWISE


@dataclass
class Numbers:
    """The next free numbers of one program, for values and for ops. No op has number 0."""

    values: int = 0
    ops: int = 1

    @classmethod
    def after(cls, program: Program) -> Numbers:
        """Return the first free numbers of ``program``, for a rewrite to assign."""
        last, last_value = 0, -1
        for op in program.walk():
            if op.number > last:
                last = op.number
            for value in op.results:
                if value.number > last_value:
                    last_value = value.number
            for region in op.regions:
                for value in region.params:
                    if value.number > last_value:
                        last_value = value.number
        return cls(last_value + 1, last + 1)

    def value(self, dtype: torch.dtype, dims: Dims, name: str = "") -> Value:
        self.values += 1
        return Value(self.values - 1, dtype, dims, name)

    def op(self) -> int:
        self.ops += 1
        return self.ops - 1


@dataclass(frozen=True)
class Mark:
    """A position of a builder: the numbers that it has assigned, and the length of each open region."""

    values: int
    ops: int
    lengths: tuple[int, ...]
    location: Location | None


class Builder:
    """Builder that collects ops. ``location`` is attached to each op; the caller that traverses the source sets it.

    A rewrite begins with one open region, ``ops``; the front end opens each region itself.
    """

    def __init__(
        self, numbers: Numbers | None = None, location: Location | None = None, ops: list[Op] | None = None
    ) -> None:
        self.numbers = numbers or Numbers()
        self.location = location
        self._stack: list[list[Op]] = [] if ops is None else [ops]

    @property
    def ops(self) -> list[Op]:
        """The ops of the innermost open region."""
        return self._stack[-1]

    def value(self, dtype: torch.dtype, dims: Dims, name: str = "") -> Value:
        return self.numbers.value(dtype, dims, name)

    def mark(self) -> Mark:
        """Return the current position, for ``rewind``."""
        return Mark(self.numbers.values, self.numbers.ops, tuple(map(len, self._stack)), self.location)

    def rewind(self, mark: Mark) -> None:
        """Discard the ops built since ``mark`` was taken in the same region."""
        self.numbers.values, self.numbers.ops, self.location = mark.values, mark.ops, mark.location
        for ops, length in zip(self._stack, mark.lengths, strict=True):
            del ops[length:]

    def append(
        self,
        kind: Kind,
        operands: Sequence[Operand],
        results: Sequence[Value],
        attrs: Any = None,
        regions: tuple[Region, ...] = (),
    ) -> Op:
        """Append an op that gives ``results``."""
        op = Op(self.numbers.op(), kind, tuple(operands), tuple(results), attrs, regions, self.location)
        self._stack[-1].append(op)
        return op

    def repeat(self, op: Op, **changes: Any) -> Op:
        """Append a copy of ``op`` with a new number and the same location. Its results are among the ``changes``."""
        made = replace(op, number=self.numbers.op(), **changes)
        self._stack[-1].append(made)
        return made

    def emit(
        self,
        kind: Kind,
        operands: Sequence[Operand],
        dtype: torch.dtype,
        dims: Dims,
        attrs: Any = None,
        name: str = "",
    ) -> Value:
        """Append an op with one result and return the result."""
        result = self.value(dtype, dims, name)
        self._stack[-1].append(Op(self.numbers.op(), kind, tuple(operands), (result,), attrs, (), self.location))
        return result

    @contextmanager
    def region(self) -> Iterator[list[Op]]:
        """Collect the ops emitted inside into the yielded list."""
        ops: list[Op] = []
        self._stack.append(ops)
        try:
            yield ops
        finally:
            self._stack.pop()

    @property
    def depth(self) -> int:
        """The number of open regions."""
        return len(self._stack)

    @property
    def active(self) -> bool:
        return bool(self._stack)

    # --- shorthands for rewrites --------------------------------------------------------------------------------------

    def pointwise(self, name: str, *operands: Operand, like: str = "") -> Value:
        """Append a pointwise op on values of one dtype, which is also the dtype of the result unless that is bool."""
        values = [operand for operand in operands if isinstance(operand, Value)]
        dims = broadcast_dims([value.dims for value in values])
        assert dims is not None
        dtype = torch.bool if POINTWISE[name].result == "bool" else values[-1].dtype
        return self.emit("pointwise", operands, dtype, dims, PointwiseAttrs(name), like)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype == dtype:
            return value
        return self.emit("pointwise", (value,), dtype, value.dims, PointwiseAttrs("cast"), value.name)

    def mask(self, value: Value, dims: tuple[int, ...], fill: float, other: Value | None = None) -> Value:
        """Mask ``value``: its lanes out of range along ``dims`` become ``fill``, or the lanes of ``other`` if given."""
        operands = (value,) if other is None else (value, other)
        return self.emit("mask", operands, value.dtype, value.dims, MaskAttrs(dims, fill), value.name)

    def reshape(self, value: Value, dims: Dims) -> Value:
        if value.dims == dims:
            return value
        return self.emit("view", (value,), value.dtype, dims, ViewAttrs("reshape"), value.name)

    def sum(self, value: Value, dim: int, name: str = "") -> Value:
        dims = (*value.dims[:dim], *value.dims[dim + 1 :])
        return self.emit("reduce", (value,), value.dtype, dims, ReduceAttrs("sum", (dim,)), name)

    def number(self, number: Number, dtype: torch.dtype) -> Operand:
        """Return a host number as an operand of ops on ``dtype``."""
        if not isinstance(number, Expr):
            return float(number)
        return self.cast(self.emit("number", (), torch.int64, (), NumberAttrs(number)), dtype)
