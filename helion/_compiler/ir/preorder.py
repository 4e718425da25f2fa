"""Ops with regions in program order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar


class _Nested(Protocol):
    @property
    def regions(self) -> Sequence[Any]: ...


_N = TypeVar("_N", bound=_Nested)


def preorder(ops: Iterable[_N]) -> Iterator[_N]:
    """Yield ops, each followed by the ops in its regions.

    One generator walks all levels: analyses walk programs many times.
    """
    levels = [iter(ops)]
    while levels:
        for op in levels[-1]:
            yield op
            if op.regions:
                levels.extend(iter(region.ops) for region in reversed(op.regions))
                break
        else:
            levels.pop()


class Ordered:
    """Storage of all ops in program order, which analyses walk many times (measurement ``seeding_calls``).

    It is no field: a copy has its own.
    """

    __slots__ = ("_in_order",)

    _in_order: tuple[Any, ...]

    def in_order(self, roots: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator over the ops of the bodies of ``roots``, which never change."""
        if not hasattr(self, "_in_order"):
            object.__setattr__(self, "_in_order", tuple(preorder([op for root in roots for op in root.body.ops])))
        return iter(self._in_order)
