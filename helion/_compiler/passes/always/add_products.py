"""Sums of products that a loop subtracts become sums that it adds to, with the sign changed before and after.

A matrix unit adds to its accumulator and subtracts from none. A loop that subtracts waits for each product, and adds it in
other instructions (measurement ``subtracted_products``). Before::

    %5 = for b2 carrying (%1 = %0): %4 = dot %2, %3; %6 = sub %1, %4; yield %6

after::

    %7 = neg %0
    %8 = for b2 carrying (%1 = %7): %4 = dot %2, %3; %6 = add %1, %4; yield %6
    %5 = neg %8

Rounding is symmetric, so that each element is the same number; a zero may have another sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...ir.build import Builder, Numbers
from ...ir.grammar import ForAttrs, Op, PointwiseAttrs, Program, Region, Value
from ...ir.rewrite import expand_ops

_SUB, _ADD = PointwiseAttrs("sub"), PointwiseAttrs("add")
#: Bytes of operands that stay as they are: with A and B swapped, which then is the default, they take longer.
_WIDE = 4


def add_products(program: Program) -> Program:
    """Return the program with products added that loops subtract; the same program if there are none."""
    numbers: Numbers | None = None
    loops = [op for op in program.walk() if isinstance(op.attrs, ForAttrs)]
    given = {value.number for loop in loops for value in loop.operands if isinstance(value, Value)}
    chained = {value.number for loop in loops for value in loop.results} & given

    def changed(op: Op) -> Iterator[Op]:
        nonlocal numbers
        found = _subtracted(op, chained)
        if not found:
            yield op
            return
        numbers = numbers or Numbers.after(program)
        yield from _added(op, found, numbers)

    return expand_ops(program, changed)


def _subtracted(loop: Op, chained: set[int]) -> dict[int, Op]:
    """Return the ops that subtract products from values that a loop carries, by the position of the value.

    Values that one loop passes to the next, ``chained``, stay: all loops then add to the same accumulator.
    """
    if not isinstance(loop.attrs, ForAttrs):
        return {}
    (body,) = loop.regions
    makers = {result.number: op for op in body.ops for result in op.results}
    found: dict[int, Op] = {}
    for at, (param, result) in enumerate(zip(body.params, body.results, strict=True)):
        op = makers.get(result.number) if isinstance(result, Value) else None
        if op is None or op.attrs != _SUB or op.operands[0] is not param or op.result.dims != param.dims:
            continue
        passed = {each.number for each in (loop.operands[at], loop.results[at]) if isinstance(each, Value)}
        if passed & chained or not param.dtype.is_floating_point:
            continue
        product = op.operands[1]
        made = makers.get(product.number) if isinstance(product, Value) else None
        if made is None or made.kind != "dot" or len(made.operands) != 2 or made.result.dtype != param.dtype:
            continue
        if any(each.dtype.itemsize >= _WIDE for each in made.values()):
            continue
        if all(_reads(body, value) == 1 for value in (param, op.result, made.result)):
            found[at] = op
    return found


def _reads(body: Region, value: Value) -> int:
    """Return the times that a region reads a value, with the values that it yields."""
    return sum(each is value for op in body.walk() for each in op.reads()) + sum(each is value for each in body.results)


def _added(loop: Op, found: dict[int, Op], numbers: Numbers) -> Iterator[Op]:
    """Yield the ops in place of a loop that subtracts products."""
    (body,) = loop.regions
    before: list[Op] = []
    out = Builder(numbers, loop.location, before)
    operands, results, after = list(loop.operands), list(loop.results), list[Op]()
    for at in found:
        start, total = operands[at], loop.results[at]
        operands[at] = out.pointwise("neg", start, like=start.name) if isinstance(start, Value) else -start
        results[at] = numbers.value(total.dtype, total.dims, total.name)
        after.append(Op(numbers.op(), "pointwise", (results[at],), (total,), PointwiseAttrs("neg"), (), loop.location))
    changed = {op.number for op in found.values()}
    ops = tuple(replace(op, attrs=_ADD) if op.number in changed else op for op in body.ops)
    yield from before
    region = replace(body, ops=ops)
    yield replace(loop, operands=tuple(operands), results=tuple(results), regions=(region,))
    yield from after
