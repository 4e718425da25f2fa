"""Appends ops to the region under construction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..._shapes import Dims
from ..source import Location
from .grammar import Kind, Op, Operand, Value


@dataclass(frozen=True)
class Mark:
    """How far a builder has come: the numbers it has given, and how many ops each open region has."""

    count: int
    lengths: tuple[int, ...]
    location: Location | None


class Builder:
    """Collects ops. ``location`` is attached to each op and is set by whoever walks the source."""

    def __init__(self) -> None:
        self._stack: list[list[Op]] = []
        self._count = 0
        self.location: Location | None = None

    def value(self, dtype: torch.dtype, dims: Dims, name: str = "") -> Value:
        self._count += 1
        return Value(self._count - 1, dtype, dims, name)

    def mark(self) -> Mark:
        """Where ``rewind`` goes back to."""
        return Mark(self._count, tuple(map(len, self._stack)), self.location)

    def rewind(self, mark: Mark) -> None:
        """Forget what was built since ``mark`` was taken in the same region."""
        self._count, self.location = mark.count, mark.location
        for ops, length in zip(self._stack, mark.lengths, strict=True):
            del ops[length:]

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
