"""Values of a program as they are matched: through views, masks and exact casts."""

from __future__ import annotations

import math

import torch

from ....._compiler.ir.grammar import Op, Operand, PointwiseAttrs, ReduceAttrs, Value
from ..chain import ROUNDED
from .loops import Loops

LOWEST = -1e9
"""Initial maxima up to this one are below all scores, as minus infinity is."""
UNSEEN = -1e30
"""The maximum of a query that has seen no key, where outputs compare it with another one."""


def name_of_op(op: Op | None) -> str:
    """Return the name of a pointwise op, or an empty string."""
    return op.attrs.name if op is not None and isinstance(op.attrs, PointwiseAttrs) else ""


def same_value(loops: Loops, one: Operand, other: Operand) -> bool:
    """Return whether two operands are the same value through views, masks and exact casts."""
    return _core(loops, one) == _core(loops, other)


def _core(loops: Loops, value: Operand) -> tuple[str, float]:
    while isinstance(value, Value):
        made = loops.maker(value)
        widens = made is not None and name_of_op(made) == "cast" and is_widening(made)
        if made is None or not (made.kind in ("view", "mask") or widens):
            return "value", value.number
        value = made.operands[0]
    return "number", float(value)


def is_widening(op: Op) -> bool:
    source = op.operands[0]
    exact = isinstance(source, Value) and source.dtype in (*ROUNDED, torch.float32)
    return exact and op.result.dtype == torch.float32


def terms_of(loops: Loops, value: Operand, name: str) -> tuple[Operand, ...]:
    """Return the two operands of an op called ``name`` that makes a value, or nothing."""
    made = loops.stripped(value)
    if made is None or name_of_op(made) != name or len(made.operands) != 2 or not loops.is_aligned(made):
        return ()
    return made.operands


def by_number(op: Op) -> tuple[Operand, Operand]:
    """Return the operands of a product with a number, the number last; of a quotient as they are."""
    one, other = op.operands
    return (other, one) if not isinstance(one, Value) and name_of_op(op) == "mul" else (one, other)


def number_of(loops: Loops, value: Operand) -> Operand:
    """Return the number that a value is in all of its elements, or the value."""
    made = loops.stripped(value)
    return made.operands[0] if made is not None and made.kind == "full" else value


def is_lowest(loops: Loops, value: Operand) -> bool:
    """Return whether a value is minus infinity, or a number as low as that of a mask."""
    number = number_of(loops, value)
    return isinstance(number, (int, float)) and number <= LOWEST


def is_number(loops: Loops, value: Operand, wanted: float) -> bool:
    """Return whether a value is the number ``wanted`` in all of its elements."""
    number = number_of(loops, value)
    return isinstance(number, (int, float)) and number == wanted


def is_minus_infinity(loops: Loops, value: Operand) -> bool:
    number = number_of(loops, value)
    return isinstance(number, float) and number == -math.inf


def loaded_bound(loops: Loops, value: Operand) -> Op | None:
    """Return the load of an integer for each query, through views and casts, or None."""
    made = loops.stripped(value)
    while made is not None and name_of_op(made) == "cast" and made.result.dtype in (torch.int32, torch.int64):
        made = loops.stripped(made.operands[0])
    if made is None or made.kind != "load" or made.result.dtype not in (torch.int32, torch.int64):
        return None
    return made if loops.blocks(made.result) == (loops.queries,) else None


def end_of_tile(loops: Loops, value: object, name: str) -> Op | None:
    """Return the load whose least (``amin``), or greatest (``amax``), integer of the tile of queries a value is, or None."""
    made = loops.stripped(value) if isinstance(value, Value) else None
    while made is not None and (made.kind == "full" or made.attrs == PointwiseAttrs("cast")):
        made = loops.stripped(made.operands[0])
    if made is None or made.kind != "reduce" or made.attributes(ReduceAttrs).name not in (name, name[1:]):
        return None
    return None if loops.blocks(made.result) else loaded_bound(loops, made.operands[0])
