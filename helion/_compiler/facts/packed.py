"""Integers that a kernel rounds from floating-point numbers, and small ones that it packs into larger ones."""

from __future__ import annotations

import torch

from ..ir.grammar import IotaAttrs, Op, Operand, PointwiseAttrs, Program, Value
from .walk import MAX_HOPS

#: Bits of the widest integer.
_WORD = 64

_Makers = dict[int, Op]


def packed_starts(program: Program) -> tuple[int, ...]:
    """Return the bits, from the second field on, at which a kernel puts small integers into larger ones.

    They are constant distances of left shifts, and exponents of powers of two that rounded numbers are multiplied by. A
    shift by an index times a constant has all multiples of it.
    """
    makers = {value.number: op for op in program.walk() for value in op.results}
    found: set[int] = set()
    for op in program.walk():
        if _name(op) == "lshift":
            found |= _distances(makers, op.operands[1])
        elif _name(op) == "mul" and any(_is_rounded(makers, each, MAX_HOPS) for each in op.operands):
            found |= {each.bit_length() - 1 for each in op.operands if isinstance(each, int) and _is_power(each)}
    return tuple(sorted(found))


def rounded_dtypes(program: Program) -> tuple[torch.dtype, ...]:
    """Return the floating-point dtypes of which a kernel makes integers or truth values, by name."""
    found = {
        each.dtype
        for op in program.walk()
        if any(not result.dtype.is_floating_point for result in op.results)
        for each in op.operands
        if isinstance(each, Value) and each.dtype.is_floating_point
    }
    return tuple(sorted(found, key=str))


def _distances(makers: _Makers, operand: Operand) -> set[int]:
    """Return the distances of a shift: a constant, or the multiples of one that indices have."""
    if isinstance(operand, int):
        return {operand} if 0 < operand < _WORD else set()
    step = _step(makers, operand)
    return set(range(step, _WORD, step)) if step else set()


def _step(makers: _Makers, operand: Operand) -> int:
    """Return the constant that an index is multiplied by, 1 for the index itself, and 0 for other values."""
    made = makers.get(operand.number) if isinstance(operand, Value) else None
    if made is None:
        return 0
    if isinstance(made.attrs, IotaAttrs):
        return 1
    if isinstance(made.attrs, PointwiseAttrs) and made.attrs.name == "mul":
        constants = [each for each in made.operands if isinstance(each, int) and each > 0]
        return constants[0] * max(_step(makers, each) for each in made.operands) if constants else 0
    return _step(makers, made.operands[0]) if _name(made) in ("cast", "view") else 0


def _is_rounded(makers: _Makers, operand: Operand, hops: int) -> bool:
    """Return whether an integer is computed from a floating-point number."""
    if not isinstance(operand, Value) or operand.dtype.is_floating_point or not hops:
        return False
    made = makers.get(operand.number)
    if made is None or not (made.kind == "view" or isinstance(made.attrs, PointwiseAttrs)):
        return False
    floating = any(isinstance(each, Value) and each.dtype.is_floating_point for each in made.operands)
    return (floating and _name(made) == "cast") or any(_is_rounded(makers, each, hops - 1) for each in made.operands)


def _name(op: Op) -> str:
    """Return the name of a pointwise operation, and the kind of another."""
    return op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else op.kind


def _is_power(number: int) -> bool:
    """Return whether a number is a power of two of which a field has at least two bits."""
    return number >= 4 and number & (number - 1) == 0
