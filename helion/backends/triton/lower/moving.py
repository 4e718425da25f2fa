"""Loads that move before an earlier op of their region, with the ops that compute their addresses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ...._compiler.ir.effects import Effect, effects_of
from ...._compiler.ir.grammar import Op, Operand, Program
from ...._compiler.ir.ops import OPS
from ...._compiler.ir.rewrite import Makers

#: Ops of a region between which loads may not move.
_FIXED = ("barrier", "check", "print")


def moved(program: Program, ops: Sequence[Op], operand: Operand, first: Op) -> list[Op]:
    """Return ``ops`` of a region with ``operand`` computed before ``first``, where nothing prevents that."""
    at = next(i for i, op in enumerate(ops) if op is first)
    after = Makers.among(ops[at:])
    needed: dict[int, Op] = {}
    ahead = [operand]
    while ahead:
        op = after.of(ahead.pop())
        if op is not None and op.number not in needed:
            needed[op.number] = op
            ahead += op.reads()
    moving = [op for op in ops[at:] if op.number in needed]
    if first.number in needed or not _may_move(program, ops[at:], moving):
        return list(ops)
    kept = [op for op in ops[at:] if op.number not in needed]
    return [*ops[:at], *moving, *kept]


def _may_move(program: Program, ops: Sequence[Op], moving: Sequence[Op]) -> bool:
    """Return whether ops, of which one is a load, may move before all other ``ops``.

    They are pure, or read what no other one writes.
    """
    if not any(op.kind == "load" for op in moving):
        return False
    if any(op.regions or not (op.kind == "load" or OPS[op.kind].mergeable) for op in moving):
        return False
    last = max(i for i, op in enumerate(ops) if op is moving[-1])
    others = [op for op in ops[:last] if not any(op is each for each in moving)]
    if any(inner.kind in _FIXED for op in others for inner in op.walk()):
        return False
    read = {effect.storage for effect in _effects(program, moving)}
    return not any(e.writes and (e.fence or e.storage is None or e.storage in read) for e in _effects(program, others))


def _effects(program: Program, ops: Iterable[Op]) -> Iterator[Effect]:
    for op in ops:
        yield from effects_of(program, op)
