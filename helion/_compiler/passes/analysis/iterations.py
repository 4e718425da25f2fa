"""Legality of reordering the iterations of a loop over several dimensions.

It is legal if iterations are independent. Each must write its own elements. Each carried value must be a sum, a product
or an extremum of terms that do not depend on it.
"""

from __future__ import annotations

import itertools

from ...ir.effects import apart_along, effects_of, ordered, scalar_indices
from ...ir.grammar import ForAttrs, MaskAttrs, Op, Operand, PointwiseAttrs, Program, Region, Value
from ...ir.operands import accumulator_of
from ...ir.rewrite import Makers

#: Elementwise functions with results that do not depend on the order of combination.
_COMMUTATIVE = frozenset(
    ("add", "mul", "maximum", "minimum", "logical_and", "logical_or", "bitwise_and", "bitwise_or", "bitwise_xor")
)
_ATOMIC = frozenset(("add", "max", "min", "and", "or", "xor"))


def may_permute(program: Program, loop: Op) -> bool:
    """Return whether the axes of ``loop``, a device loop, may run in any order."""
    attrs = loop.attributes(ForAttrs)
    (region,) = loop.regions
    makers = Makers.among(region.walk())
    if not all(_accumulates(region, at, makers) for at in range(len(region.params))):
        return False
    indices = scalar_indices(program)
    read = {v.number for op in region.walk() for v in op.reads()}
    ops = [op for op in region.walk() if not op.regions and effects_of(program, op)]
    for a, b in itertools.combinations_with_replacement(ops, 2):
        if not ordered(program, a, b) or (
            _commutes(a, read) and _commutes(b, read) and a.attrs.atomic == b.attrs.atomic
        ):
            continue
        if not all(apart_along(program, a, b, axis.block, indices) for axis in attrs.axes):
            return False
    return True


def _commutes(op: Op, read: set[int]) -> bool:
    """Return whether an op is an atomic that commutes with others of its kind: no op reads its result."""
    return op.kind == "atomic" and op.attrs.atomic in _ATOMIC and op.result.number not in read


def _accumulates(region: Region, at: int, makers: Makers) -> bool:
    """Return whether carried value ``at`` is only combined with terms that do not depend on carried values."""
    param, value = region.params[at], region.results[at]
    names: set[str] = set()
    while value is not param:
        op = makers.of(value)
        found = None if op is None else _step(op, param, makers)
        if op is None or found is None:
            return False
        value, others, name = found
        if any(_depends(other, region, makers) for other in others):
            return False
        names |= {name} if name else set()
    return len(names) <= 1


def _step(op: Op, param: Value, makers: Makers) -> tuple[Operand, list[Operand], str] | None:
    """Return the operand of ``op`` that leads to ``param``, the other operands, and the combination; None for other
    ops."""
    match op.attrs:
        case PointwiseAttrs(name) if name in _COMMUTATIVE and len(op.operands) == 2:
            first, second = op.operands
            inner, other = (first, second) if _leads_to(first, param, makers) else (second, first)
            return inner, [other], name
        case MaskAttrs() if len(op.operands) == 2 and op.operands[1] is param:
            return op.operands[0], [], ""
    if op.kind == "dot" and (accumulator := accumulator_of(op)) is not None:
        return accumulator, [operand for operand in op.operands if operand is not accumulator], "add"
    return None


def _leads_to(value: Operand, param: Value, makers: Makers) -> bool:
    """Return whether ``value`` depends on ``param``."""
    stack, seen = [value], set[int]()
    while stack:
        each = stack.pop()
        if each is param:
            return True
        if not isinstance(each, Value) or each.number in seen:
            continue
        seen.add(each.number)
        op = makers.of(each)
        if op is not None:
            stack += [*op.values(), *(v for x in op.walk() for r in x.regions for v in r.results)]
            stack += [v for x in op.walk() for v in x.values()]
    return False


def _depends(value: Operand, region: Region, makers: Makers) -> bool:
    return any(_leads_to(value, param, makers) for param in region.params)
