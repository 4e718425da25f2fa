"""Building blocks of rewrites. Parts that a rewrite does not change stay the same objects."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ..._support.records import dataclass, replace
from .grammar import Op, Operand, Program, Region, Value

_Answer = TypeVar("_Answer")


class Declined(Exception):
    """Reason for which a rewrite does not apply to a program."""


def remembered(question: Callable[[Program], _Answer]) -> Callable[[Program], _Answer]:
    """Cache the results of a function of a program for the last few programs, including ``Declined``."""

    @functools.lru_cache(maxsize=16)
    def answers(itself: _Itself) -> _Answer | _Refusal:
        try:
            return question(itself.program)
        except Declined as declined:
            return _Refusal(str(declined))

    @functools.wraps(question)
    def answer(program: Program) -> _Answer:
        found = answers(_Itself(program))
        if isinstance(found, _Refusal):
            raise Declined(found.reason)
        return found

    return answer


@dataclass(frozen=True)
class _Refusal:
    reason: str


class _Itself:
    """A program that is equal only to itself: a structural comparison takes longer than most analyses."""

    __slots__ = ("program",)

    def __init__(self, program: Program) -> None:
        self.program = program

    def __hash__(self) -> int:
        return id(self.program)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.program is self.program


def map_ops(program: Program, change: Callable[[Op], Op]) -> Program:
    """Return a program with every op changed; ops in an op's regions change before the op."""
    return expand_ops(program, lambda op: (change(op),))


def expand_ops(program: Program, change: Callable[[Op], Iterable[Op]]) -> Program:
    """Return a program with any number of ops in place of each; ops in an op's regions change before the op."""
    roots = []
    for root in program.roots:
        body = expand_region(root.body, change)
        roots.append(root if body is root.body else replace(root, body=body))
    return program if _same(roots, program.roots) else replace(program, roots=tuple(roots))


def expand_region(region: Region, change: Callable[[Op], Iterable[Op]]) -> Region:
    """Return a region with any number of ops in place of each, as ``expand_ops`` does."""
    ops: list[Op] = []
    for op in region.ops:
        ops += change(map_regions(op, lambda child: expand_region(child, change)))
    return region if _same(ops, region.ops) else replace(region, ops=tuple(ops))


def map_regions(op: Op, change: Callable[[Region], Region]) -> Op:
    """Return ``op`` with each of its regions changed."""
    if not op.regions:
        return op
    regions = tuple(map(change, op.regions))
    return op if _same(regions, op.regions) else replace(op, regions=regions)


def _same(new: Iterable[object], old: Iterable[object]) -> bool:
    new, old = tuple(new), tuple(old)
    return len(new) == len(old) and all(one is other for one, other in zip(new, old, strict=True))


@dataclass(frozen=True, slots=True)
class Makers:
    """The ops that define values, by the number of the value."""

    ops: dict[int, Op]

    @classmethod
    def among(cls, ops: Iterable[Op]) -> Makers:
        return cls({result.number: op for op in ops for result in op.results})

    def of(self, operand: Operand | None) -> Op | None:
        """Return the op that defines an operand; None for numbers, and for values that no op in the map defines."""
        return self.ops.get(operand.number) if isinstance(operand, Value) else None


def count_uses(program: Program) -> Counter[int]:
    """Count the reads of each value, by its number."""
    return Counter(value.number for op in program.walk() for value in op.reads())


def nested_regions(region: Region) -> Iterator[Region]:
    """Yield ``region`` and the regions nested in it, outer ones first."""
    yield region
    for op in region.ops:
        for child in op.regions:
            yield from nested_regions(child)
