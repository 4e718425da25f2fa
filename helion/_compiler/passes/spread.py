"""Loops behind sums in parts, which the programs of the second grid loop share, too.

A norm over the rows of a batch reads all rows for its sums, and again to apply them. Where programs share the sums
(``split_sums``), one program for each tile of columns would be left with the second reading::

    grid b0: .. %1 = the sums over all parts; %2 = f %1; store means[b0] <- %2; for b2 in 0..m: store out[b2, b0] <- g %2

Each of as many programs as there are parts has the sums, and takes a run of whole tiles of the loop; what is stored once for
a tile of the grid, the first of them does::

    grid b0, b4 in 0..4: .. %1 = ..; %2 = f %1; if b4 == 0: store means[b0] <- %2
                         for b2 in part b4 of 0..m: store out[b2, b0] <- g %2

Sums about other sums (a variance about its mean) stand in loops one behind the other: each has a grid loop of its own, which begins with the
sums over all parts of those before it.

Tiles are those of the grid loop before it was split, so whatever depends on tiles may stand there. Iterations come in any order and
at the same time, so each must store elements of its own, which no other one reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..._shapes import fixed_at
from ..ir.effects import apart_along, ordered, scalar_indices
from ..ir.grammar import ForAttrs, LoopAxis, MemoryAttrs, Op, OperandRef, Program, Region, Split, Value
from ..ir.rewrite import Declined

#: Ops that do the same whichever program does them, and however often.
_REPEATED = frozenset(
    ("number", "tile", "iota", "full", "load", "store", "pointwise", "reduce", "view", "mask", "join", "split", "seed", "random", "random4")
)  # fmt: skip


def spread_blocks(behind: Iterable[Op]) -> tuple[int, ...]:
    """The blocks of the loops among the ops behind the sums."""
    return tuple(op.attrs.axes[0].block for op in behind if isinstance(op.attrs, ForAttrs))


def check_spread(program: Program, before: tuple[Op, ...], behind: tuple[Op, ...]) -> None:
    """Raises ``Declined`` where programs cannot share the loops among ``behind``, the ops behind the sums, beside which those
    ``before`` the sums are done again."""
    inside: dict[int, Op] = {}
    for op in behind:
        if isinstance(op.attrs, ForAttrs):
            _check_loop(op)
            inside.update((each.number, op) for each in op.walk())
        elif op.kind not in _REPEATED:
            raise Declined(f"{op.kind} stands beside the loops")
    once = done_once(program, behind)
    _check_memory(program, [each for op in (*before, *behind) for each in op.walk()], inside, once)


def done_once(program: Program, behind: tuple[Op, ...]) -> frozenset[int]:
    """The numbers of the ops that the first program does alone: stores outside of loops, loads of what they store, and what
    is made of these. Raises ``Declined`` where a loop needs that."""
    stores = [op for op in behind if op.kind == "store"]
    once: set[int] = set()
    made: set[int] = set()
    for op in behind:
        needs = any(value.number in made for each in op.walk() for value in each.reads())
        if isinstance(op.attrs, ForAttrs):
            if needs:
                raise Declined("a loop behind the sums needs what one program alone has read")
        elif needs or op.kind == "store" or any(op.kind == "load" and ordered(program, op, s) for s in stores):
            once.add(op.number)
            made.update(result.number for result in op.results)
    return frozenset(once)


def _check_loop(loop: Op) -> None:
    attrs = loop.attributes(ForAttrs)
    (axis,) = attrs.axes if len(attrs.axes) == 1 else (None,)
    if axis is None or loop.operands or attrs.carried:
        raise Declined("a loop behind the sums carries values, or its bounds depend on data")
    plain = not axis.scalar and axis.jagged is None and not axis.merged and axis.split is None
    if not plain or not fixed_at(axis.begin, 0) or isinstance(axis.end, OperandRef):
        raise Declined("a loop behind the sums is not over tiles from 0 on")
    for op in loop.regions[0].walk():
        if op.kind not in _REPEATED and not isinstance(op.attrs, ForAttrs):
            raise Declined(f"{op.kind} stands in a loop behind the sums")


def _check_memory(program: Program, ops: list[Op], inside: Mapping[int, Op], once: frozenset[int]) -> None:
    """Every two accesses that must keep their order are either of one iteration, or of the first program alone."""
    accesses = [op for op in ops if isinstance(op.attrs, MemoryAttrs)]
    indices = scalar_indices(program)
    for a, b in itertools.combinations_with_replacement(accesses, 2):
        if not ordered(program, a, b):
            continue
        loop = inside.get(a.number)
        if loop is not inside.get(b.number):
            raise Declined("what is stored behind the sums is read or stored again in another loop")
        if loop is None and {a.number, b.number} <= once:
            continue
        if loop is None:
            raise Declined("what is stored once for a tile is read in front of the sums")
        if not apart_along(program, a, b, loop.attributes(ForAttrs).axes[0].block, indices):
            raise Declined("iterations of a loop behind the sums may meet in memory")


def spread(op: Op, split: Split, read: frozenset[int], renamed: Mapping[int, Value]) -> Op:
    """The loop ``op`` over one of the runs of ``split``, with values renamed. It goes backwards where it reads a tensor of
    ``read``, those that the loop of the sums has read last: the ends of all runs are then in the cache."""
    attrs = op.attributes(ForAttrs)
    (axis,) = attrs.axes
    axis = replace(axis, split=split, backwards=_reads_again(op, axis, read))
    return renaming(replace(op, attrs=replace(attrs, axes=(axis,))), renamed)


def _reads_again(loop: Op, axis: LoopAxis, read: frozenset[int]) -> bool:
    return any(
        op.kind == "load"
        and op.attributes(MemoryAttrs).tensor in read
        and any(index.block == axis.block for index in op.attributes(MemoryAttrs).indices)
        for op in loop.regions[0].ops
    )


def renaming(op: Op, renamed: Mapping[int, Value]) -> Op:
    """``op`` reading other values in place of some, by number, also in its regions."""
    operands = tuple(renamed.get(o.number, o) if isinstance(o, Value) else o for o in op.operands)
    return replace(op, operands=operands, regions=tuple(_renaming(region, renamed) for region in op.regions))


def _renaming(region: Region, renamed: Mapping[int, Value]) -> Region:
    results = tuple(renamed.get(r.number, r) if isinstance(r, Value) else r for r in region.results)
    return replace(region, ops=tuple(renaming(op, renamed) for op in region.ops), results=results)


__all__ = ["check_spread", "done_once", "renaming", "spread", "spread_blocks"]
