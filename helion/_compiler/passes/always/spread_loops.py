"""Spreads loops that are all that a grid loop does over programs of their own.

A program of a grid loop runs its inner loops one iteration after another. If one inner loop is all that it does, and
its iterations are independent, each of them becomes a program. Before::

    grid b0 in 0..3: %1 = tile index b0; for b1 in 0..5: %2: [b1] = load x[%1, b1]; store out[%1, b1] <- %2

After::

    grid b0 in 0..3, b1 in 0..5: %1 = tile index b0; %2: [b1] = load x[%1, b1]; store out[%1, b1] <- %2

Ops before the loop are repeated by every program, so only index arithmetic and loads of single elements may precede it.
A loop over indices keeps its iterations where each computes single elements, or where the grid has enough programs.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...._shapes import Expr, hint_of
from ...ir.effects import is_fence, meets_other_gpus, written_by
from ...ir.grammar import ForAttrs, LoopAxis, MemoryAttrs, Op, OperandRef, Program, Region, Root
from ..analysis.iterations import may_permute

#: Ops that each of the new programs may repeat, besides loads of single elements.
_REPEATED = frozenset(("tile", "number", "iota", "full", "pointwise", "view"))
#: Indices of a grid beyond which more programs fill no GPU better: far more than any GPU runs at once.
_ENOUGH_INDICES = 1 << 20


def spread_loops(program: Program) -> Program:
    """Return the program with independent iterations of inner loops as programs of their grids."""
    if meets_other_gpus(program) or any(map(is_fence, program.walk())):
        return program
    roots = tuple(_spread(program, root) for root in program.roots)
    if all(new is old for new, old in zip(roots, program.roots, strict=True)):
        return program
    return replace(program, roots=roots)


def _spread(program: Program, root: Root) -> Root:
    while (loop := _only_loop(program, root)) is not None:
        at = root.body.ops.index(loop)
        (inner,) = loop.regions
        body = Region((), (*root.body.ops[:at], *inner.ops), ())
        axes = loop.attributes(ForAttrs).axes
        root = replace(root, axes=(*root.axes, *axes), body=body, spread=root.spread + len(axes))
    return root


def _only_loop(program: Program, root: Root) -> Op | None:
    """Return the loop in a grid loop that may be spread; None if there is none."""
    *before, last = root.body.ops or (None,)
    if last is None or not isinstance(last.attrs, ForAttrs) or last.attrs.carried:
        return None
    if not all(_is_bound_by_host(axis) for axis in (*root.axes, *last.attrs.axes)):
        return None
    if not _gains(root, last):
        return None
    written = written_by(program, last.walk())
    if not all(_repeats(program, op, written) for op in before) or not may_permute(program, last):
        return None
    return last


def _gains(root: Root, loop: Op) -> bool:
    """Return whether programs for the iterations of ``loop`` have enough work each. Tiles have, of the config's sizes."""
    scalar = [axis for axis in loop.attributes(ForAttrs).axes if axis.scalar]
    if not scalar:
        return True
    indices = math.prod(_extent(axis) for axis in (*root.axes, *scalar) if axis.scalar)
    return indices <= _ENOUGH_INDICES and any(value.dims for op in loop.walk() for value in op.results)


def _extent(axis: LoopAxis) -> int:
    """Return the length of an axis that the host bounds, as seen when binding."""
    assert not isinstance(axis.begin, OperandRef) and not isinstance(axis.end, OperandRef)
    return int(hint_of(axis.end)) - int(hint_of(axis.begin))


def _repeats(program: Program, op: Op, written: frozenset[int | None]) -> bool:
    """Return whether programs may repeat an op: index arithmetic, or a load of one element that no loop changes."""
    if isinstance(op.attrs, MemoryAttrs):
        return op.kind == "load" and not op.result.dims and program.tensors[op.attrs.tensor].storage not in written
    return op.kind in _REPEATED


def _is_bound_by_host(axis: LoopAxis) -> bool:
    """Return whether an axis is a plain range of numbers that the host knows."""
    plain = axis.jagged is None and axis.split is None and not axis.merged and not axis.backwards
    return plain and all(
        isinstance(bound, int) or _is_host_number(bound) for bound in (axis.begin, axis.end, axis.step)
    )


def _is_host_number(number: object) -> bool:
    """Return whether the host evaluates a number without a config: it names no block size."""
    if not isinstance(number, Expr):
        return isinstance(number, int)
    return number.op != "block" and all(_is_host_number(arg) for arg in number.args if not isinstance(arg, str))


__all__ = ["spread_loops"]
