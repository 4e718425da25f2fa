"""Appends ops to the region under construction."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..._shapes import Dims
from ..source import Location
from .grammar import Kind, Op, Operand, Value


class Builder:
    """Collects ops. ``location`` is attached to each op and is set by whoever walks the source."""

    def __init__(self) -> None:
        self._stack: list[list[Op]] = []
        self._numbers = itertools.count()
        self.location: Location | None = None

    def value(self, dtype: torch.dtype, dims: Dims, name: str = "") -> Value:
        return Value(next(self._numbers), dtype, dims, name)

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
        self._stack[-1].append(Op(kind, tuple(operands), (result,), attrs, (), self.location))
        return result

    def append(self, op: Op) -> None:
        self._stack[-1].append(op)

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
        """How many regions are open."""
        return len(self._stack)

    @property
    def active(self) -> bool:
        return bool(self._stack)
