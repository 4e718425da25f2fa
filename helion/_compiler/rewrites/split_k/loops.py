"""Distributes loops that follow a split reduction over the programs of the second grid loop.

A norm over the rows of a batch reads all rows for its sums, and again to apply them. If the sums are split
(``split_accumulation``), only one program per tile of columns would run the second loop::

    grid b0: .. %1 = the sums over all parts; %2 = f %1; store means[b0] <- %2
                 for b2 in 0..m: store out[b2, b0] <- g %2

Instead, each program has the sums and runs a range of whole tiles of the loop. There are as many programs as partials.
The first program does the stores that happen once for a tile of the grid::

    grid b0, b4 in 0..4: .. %1 = ..; %2 = f %1; if b4 == 0: store means[b0] <- %2
                         for b2 in part b4 of 0..m: store out[b2, b0] <- g %2

Sums that depend on other sums (a variance about its mean) have consecutive loops. Each has a grid loop of its own,
which begins by reducing the partials of the previous ones.

Tiles are those of the grid loop before the split, so ops after the loops may depend on tiles. Iterations run in any
order and concurrently. So each must store its own elements, and no other iteration may read them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...._shapes import fixed_at
from ...ir.effects import apart_along, ordered, scalar_indices
from ...ir.grammar import ForAttrs, LoopAxis, MemoryAttrs, Op, OperandRef, Program, Region, Split, Value
from ...ir.rewrite import Declined

#: Ops whose result does not depend on the program that runs them, or on the number of repetitions.
_REPEATED = frozenset(
    ("number", "tile", "iota", "full", "load", "store", "pointwise", "reduce", "view", "mask", "join", "split", "seed", "random", "random4")
)  # fmt: skip


def split_loop_blocks(behind: Iterable[Op]) -> tuple[int, ...]:
    """Return the blocks of the loops among ``behind``, the ops after the sums."""
    return tuple(op.attrs.axes[0].block for op in behind if isinstance(op.attrs, ForAttrs))


def check_split_loops(program: Program, before: tuple[Op, ...], behind: tuple[Op, ...]) -> None:
    """Raise ``Declined`` if programs cannot share the loops among ``behind``, the ops after the sums.

    Each program also repeats the ops ``before`` the sums.
    """
    inside: dict[int, Op] = {}
    for op in behind:
        if isinstance(op.attrs, ForAttrs):
            _check_loop(op)
            inside.update((each.number, op) for each in op.walk())
        elif op.kind not in _REPEATED:
            raise Declined(f"the kernel has {op.kind} outside of the loops")
    once = done_once(program, behind)
    _check_memory(program, [each for op in (*before, *behind) for each in op.walk()], inside, once)


def done_once(program: Program, behind: tuple[Op, ...]) -> frozenset[int]:
    """Return the numbers of the ops that only the first program does.

    They are stores outside of loops, loads of the stored values, and all ops that depend on these. Raises ``Declined``
    if a loop needs one of them.
    """
    stores = [op for op in behind if op.kind == "store"]
    once: set[int] = set()
    made: set[int] = set()
    for op in behind:
        needs = any(value.number in made for each in op.walk() for value in each.reads())
        if isinstance(op.attrs, ForAttrs):
            if needs:
                raise Declined("a loop after the sums needs a value that only one program has")
        elif needs or op.kind == "store" or any(op.kind == "load" and ordered(program, op, s) for s in stores):
            once.add(op.number)
            made.update(result.number for result in op.results)
    return frozenset(once)


def _check_loop(loop: Op) -> None:
    attrs = loop.attributes(ForAttrs)
    (axis,) = attrs.axes if len(attrs.axes) == 1 else (None,)
    if axis is None or loop.operands or attrs.carried:
        raise Declined("a loop after the sums carries values, or its bounds depend on data")
    plain = not axis.scalar and axis.jagged is None and not axis.merged and axis.split is None
    if not plain or not fixed_at(axis.begin, 0) or isinstance(axis.end, OperandRef):
        raise Declined("a loop after the sums is not over tiles from 0")
    for op in loop.regions[0].walk():
        if op.kind not in _REPEATED and not isinstance(op.attrs, ForAttrs):
            raise Declined(f"a loop after the sums has {op.kind}")


def _check_memory(program: Program, ops: list[Op], inside: Mapping[int, Op], once: frozenset[int]) -> None:
    """Check that every two accesses that must keep their order are in one iteration, or in the first program alone."""
    accesses = [op for op in ops if isinstance(op.attrs, MemoryAttrs)]
    indices = scalar_indices(program)
    for a, b in itertools.combinations_with_replacement(accesses, 2):
        if not ordered(program, a, b):
            continue
        loop = inside.get(a.number)
        if loop is not inside.get(b.number):
            raise Declined("another loop reads or stores elements that are stored after the sums")
        if loop is None and {a.number, b.number} <= once:
            continue
        if loop is None:
            raise Declined("elements that are stored once for a tile are read before the sums")
        if not apart_along(program, a, b, loop.attributes(ForAttrs).axes[0].block, indices):
            raise Declined("iterations of a loop after the sums may access the same element")


def split_loop(op: Op, block: int, split: Split, read: frozenset[int], renamed: Mapping[int, Value]) -> Op:
    """Return the loop ``op`` over one of the ranges of ``split`` of its axis ``block``, with values renamed.

    It runs backwards if it reads a tensor of ``read``, those that the reduction loop has read. The ends of all ranges
    are then still in the cache.
    """
    attrs = op.attributes(ForAttrs)
    axes = tuple(
        replace(axis, split=split, backwards=_reads_again(op, axis, read)) if axis.block == block else axis
        for axis in attrs.axes
    )
    return renaming(replace(op, attrs=replace(attrs, axes=axes)), renamed)


def _reads_again(loop: Op, axis: LoopAxis, read: frozenset[int]) -> bool:
    return any(
        op.kind == "load"
        and op.attributes(MemoryAttrs).tensor in read
        and any(index.block == axis.block for index in op.attributes(MemoryAttrs).indices)
        for op in loop.regions[0].ops
    )


def renaming(op: Op, renamed: Mapping[int, Value]) -> Op:
    """Return ``op`` with some operands replaced, by number, also in its regions."""
    operands = tuple(renamed.get(o.number, o) if isinstance(o, Value) else o for o in op.operands)
    return replace(op, operands=operands, regions=tuple(_renaming(region, renamed) for region in op.regions))


def _renaming(region: Region, renamed: Mapping[int, Value]) -> Region:
    results = tuple(renamed.get(r.number, r) if isinstance(r, Value) else r for r in region.results)
    return replace(region, ops=tuple(renaming(op, renamed) for op in region.ops), results=results)


__all__ = ["check_split_loops", "done_once", "renaming", "split_loop", "split_loop_blocks"]
