"""A dot over all of K at once, as the loop over K that computes it.

::

    out[tile_m, tile_n] = hl.dot(x[tile_m, :], y[:, tile_n])   →   for tile_k: acc = hl.dot(x[tile_m, tile_k], ..., acc=acc)

Tiles of that loop are as deep as one line of swizzled shared memory: the program has none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...._compiler.ir.grammar import ForAttrs, LoopAxis, Op, Operand, Program, Region, Value
from ...._shapes import Expr
from ...._support.records import dataclass

_BY_ELEMENT = ("load", "view", "pointwise", "iota", "tile", "full", "number")
"""Kinds of ops that compute a tile of an operand from a tile of each input."""


@dataclass(frozen=True, kw_only=True)
class Looped:
    """A ``program`` with a loop over K. ``held`` is False where the program has its own, and is the original one."""

    program: Program
    held: bool = False


def with_loop(program: Program) -> Looped:
    """Return the program with a loop over K in place of dots over all of K, also in a loop over columns."""
    unchanged = Looped(program=program)
    if len(program.roots) != 1:
        return unchanged
    whole = program.roots[0].body
    outer = _loop_with_dots(whole)
    body = whole if outer is None else outer.regions[0]
    dots = [op for op in body.ops if op.kind == "dot"]
    block = _depth(program, dots)
    if block is None or any(op.regions and op is not outer for op in (*whole.ops, *body.ops)):
        return unchanged
    before = () if outer is None else whole.ops
    inside = _operands((*before, *body.ops), dots)
    first = body.ops.index(dots[0])
    known = {result.number for op in (*before, *body.ops[:first]) for result in op.results}
    if inside is None or any(isinstance(start, Value) and start.number not in known for start in _starts(dots)):
        return unchanged
    moved = [] if outer is None else inside
    if _others(program, moved, dots):
        return unchanged
    ops = [op for op in body.ops if op not in dots and op not in moved]
    at = first - sum(op in moved for op in body.ops[:first])
    ops[at:at] = _loop(program, dots, inside, block)
    changed = dataclasses.replace(body, ops=tuple(ops))
    if outer is not None:
        nested = dataclasses.replace(outer, regions=(changed,))
        rest = tuple(nested if op is outer else op for op in whole.ops if op not in moved)
        changed = dataclasses.replace(whole, ops=rest)
    blocks = tuple(dataclasses.replace(each, kind="tile") if each.id == block else each for each in program.blocks)
    root = dataclasses.replace(program.roots[0], body=changed)
    return Looped(program=dataclasses.replace(program, blocks=blocks, roots=(root,)), held=True)


def _loop_with_dots(body: Region) -> Op | None:
    """Return the only loop of a grid, if it has dots and no loop inside."""
    loops = [op for op in body.ops if op.kind == "for"]
    if len(loops) != 1 or any(op.kind == "dot" for op in body.ops):
        return None
    ops = loops[0].regions[0].ops
    return loops[0] if any(op.kind == "dot" for op in ops) and not any(op.regions for op in ops) else None


def _others(program: Program, moved: Sequence[Op], dots: Sequence[Op]) -> bool:
    """Return whether anything but dots, and operands of dots that move, reads what moves into the loop over K."""
    results = {result.number for op in moved for result in op.results}
    own = {op.number for op in (*moved, *dots)}
    return any(op.number not in own and any(value.number in results for value in op.reads()) for op in program.walk())


def _depth(program: Program, dots: Sequence[Op]) -> int | None:
    """Return the block of K, a whole dimension that all dots share; None if there is none."""
    sides = [value for dot in dots for value in dot.operands[:2]]
    if not dots or not all(isinstance(value, Value) and len(value.dims) == 2 for value in sides):
        return None
    found = {value.dims[1 - at % 2].block for at, value in enumerate(sides) if isinstance(value, Value)}
    (block, *others) = found
    return block if not others and block is not None and program.blocks[block].kind == "full" else None


def _operands(ops: Sequence[Op], dots: Sequence[Op]) -> list[Op] | None:
    """Return the ops that compute the operands of dots, in order; None if a tile of K is not enough for one of them."""
    makers = {result.number: op for op in ops for result in op.results}
    waiting, found = [value for dot in dots for value in dot.operands[:2]], set[int]()
    while waiting:
        value = waiting.pop()
        op = makers.get(value.number) if isinstance(value, Value) else None
        if op is not None and op.number not in found:
            if op.kind not in _BY_ELEMENT:
                return None
            found.add(op.number)
            waiting += op.operands
    return [op for op in ops if op.number in found]


def _starts(dots: Sequence[Op]) -> list[Operand]:
    """Return the accumulators that dots add to."""
    return [start for dot in dots for start in dot.operands[2:3]]


def _loop(program: Program, dots: Sequence[Op], inside: Sequence[Op], block: int) -> list[Op]:
    """Return the loop over the tiles of ``block``, and the zeros that its accumulators start from."""
    extent = program.blocks[block].extent
    assert isinstance(extent, (int, Expr))
    free = 1 + max(number for op in program.walk() for number in (op.number, *(each.number for each in op.results)))
    zeros, starts, params, added = list[Op](), list[Operand](), list[Value](), list[Op]()
    for at, dot in enumerate(dots):
        number = free + 4 * at
        param, total, zero = (dataclasses.replace(dot.result, number=number + part) for part in range(3))
        if len(dot.operands) == 2:
            zeros.append(Op(number=zero.number, kind="full", operands=(0.0,), results=(zero,), attrs=None))
        starts.append(zero if len(dot.operands) == 2 else dot.operands[2])
        params.append(param)
        added.append(dataclasses.replace(dot, operands=(*dot.operands[:2], param), results=(total,)))
    region = Region(params=tuple(params), ops=(*inside, *added), results=tuple(op.result for op in added))
    loop = Op(
        number=free + 4 * len(dots),
        kind="for",
        operands=tuple(starts),
        results=tuple(dot.result for dot in dots),
        attrs=ForAttrs(axes=(LoopAxis(block=block, begin=0, end=extent),), carried=len(dots)),
        regions=(region,),
        location=dots[0].location,
    )
    return [*zeros, loop]
