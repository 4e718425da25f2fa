"""Matmuls whose operands the front end pads with zeros along K, without them.

A fixed tile of K may be shorter than that of a plain matmul, as pages of 16 keys are: zeros between its elements make up for it.
Attention multiplies weights with blocks of any multiple of 16 keys.
"""

from __future__ import annotations

from dataclasses import replace

from ....._compiler.ir.grammar import IotaAttrs, Op, Operand, PointwiseAttrs, Program, TileAttrs, Value
from ....._compiler.ir.rewrite import Makers, map_ops
from ....._compiler.passes.always.simplify import drop_dead


def without_padding(program: Program) -> Program:
    """Return the program with the operands that are padded, or the same one."""
    makers = Makers.among(program.walk())

    def changed(op: Op) -> Op:
        if op.kind != "dot":
            return op
        pairs = [_unpadded(makers, each) for each in op.operands[:2]]
        if None in pairs:
            return op
        return replace(op, operands=(*(each for each in pairs if each is not None), *op.operands[2:]))

    found = map_ops(program, changed)
    return program if found is program else drop_dead(found)


def _unpadded(makers: Makers, operand: Operand) -> Value | None:
    """Return the value that zeros are inserted into, or None."""
    made = _stripped(makers, operand)
    if made is None or made.attrs != PointwiseAttrs("where") or made.operands[2] != 0:
        return None
    condition, kept, _ = made.operands
    view = makers.of(kept)
    if not _is_first(makers, condition) or view is None or view.kind != "view":
        return None
    (source,) = view.operands
    ones = [dim for dim in view.result.dims if not dim.is_one]
    same = isinstance(source, Value) and [dim for dim in source.dims if not dim.is_one] == ones
    return source if same and isinstance(source, Value) else None


def _stripped(makers: Makers, value: Operand) -> Op | None:
    made = makers.of(value)
    while made is not None and made.kind in ("view", "mask"):
        made = makers.of(made.operands[0])
    return made


def _is_first(makers: Makers, condition: Operand) -> bool:
    """Return whether a condition holds for the first lane of a padded element, and within its tile."""
    made = _stripped(makers, condition)
    if made is None:
        return False
    if made.attrs == PointwiseAttrs("logical_and"):
        one, other = made.operands
        return _is_first(makers, one) and _is_within(makers, other)
    lane = _stripped(makers, made.operands[0]) if made.attrs == PointwiseAttrs("eq") else None
    return lane is not None and isinstance(lane.attrs, IotaAttrs) and lane.attrs.relative and made.operands[1] == 0


def _is_within(makers: Makers, condition: Operand) -> bool:
    made = _stripped(makers, condition)
    if made is None or made.attrs != PointwiseAttrs("lt"):
        return False
    index, end = (_stripped(makers, each) for each in made.operands)
    counted = index.attrs.block if index is not None and isinstance(index.attrs, IotaAttrs) else None
    return end is not None and end.attrs == TileAttrs(counted, "end") if counted is not None else False
