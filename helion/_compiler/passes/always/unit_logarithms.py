"""Logarithms of one plus a number from 0 to 1 become the op for that range, which has no branches.

Example::

    %2 = exp(-abs(x))                 %2 = exp(-abs(x))
    %3 = log1p(%2)              ->    %3 = log1p_unit(%2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...ir.grammar import Op, Operand, PointwiseAttrs, Program, Region, Value

_LOG, _UNIT = PointwiseAttrs("log1p"), PointwiseAttrs("log1p_unit")
_MOST_DEPTH = 8


def narrow_logarithms(program: Program) -> Program:
    """Replace ``log1p`` of a number from 0 to 1, such as ``exp(-abs(x))``. Return the same program if it has none.

    NaN stays NaN in both ops.
    """
    makers = {result.number: op for op in program.walk() for result in op.results if op.attrs is not None}
    found = {op.result.number for op in makers.values() if op.attrs == _LOG and _is_in_unit(op.operands[0], makers)}
    return program.map_regions(lambda body: _changed(body, found)) if found else program


def _changed(region: Region, found: set[int]) -> Region:
    def changed(op: Op) -> Op:
        regions = tuple(_changed(inner, found) for inner in op.regions)
        is_found = op.attrs == _LOG and op.result.number in found
        return replace(op, attrs=_UNIT if is_found else op.attrs, regions=regions)

    return replace(region, ops=tuple(map(changed, region.ops)))


def _is_in_unit(operand: Operand, makers: Mapping[int, Op]) -> bool:
    name, operands = _op(operand, makers)
    if name == "sigmoid":
        return True
    return name in ("exp", "exp2") and _has_sign(operands[0], makers, -1, _MOST_DEPTH)


def _has_sign(operand: Operand, makers: Mapping[int, Op], sign: int, depth: int) -> bool:
    """Return whether a number is known to be NaN, or zero or of the sign, 1 or -1."""
    if not isinstance(operand, Value):
        return isinstance(operand, (int, float)) and operand * sign >= 0
    if not depth:
        return False
    name, operands = _op(operand, makers)

    def each(wanted: int) -> list[bool]:
        return [_has_sign(each, makers, wanted, depth - 1) for each in operands]

    if name == "neg":
        return _has_sign(operands[0], makers, -sign, depth - 1)
    if name in ("abs", "relu", "exp", "exp2", "sqrt", "sigmoid"):
        return sign > 0
    if name == "mul" or (name == "div" and not isinstance(operands[1], Value) and operands[1]):
        square = name == "mul" and sign > 0 and operands[0] is operands[1]
        return square or any(each(way)[0] and each(way * sign)[1] for way in (1, -1))
    if name == "sub":
        return each(sign)[0] and each(-sign)[1]
    if name in ("maximum", "minimum"):
        return (any if (name == "maximum") == (sign > 0) else all)(each(sign))
    return name in ("add", "where") and all(each(sign)[name == "where" :])


def _op(operand: Operand, makers: Mapping[int, Op]) -> tuple[str, tuple[Operand, ...]]:
    """Return the pointwise op of a float and its operands, past views and casts. Integers wrap: their signs say nothing."""
    while isinstance(operand, Value):
        op = makers.get(operand.number)
        if op is None or not op.result.dtype.is_floating_point:
            break
        if isinstance(op.attrs, PointwiseAttrs) and op.attrs.name != "cast":
            return op.attrs.name, op.operands
        if op.kind not in ("pointwise", "view", "broadcast"):
            break
        operand = op.operands[0]
    return "", ()
