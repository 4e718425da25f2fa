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
