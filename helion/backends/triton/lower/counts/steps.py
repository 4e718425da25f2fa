"""Counting of conditions over the steps of a loop in fp32, for the reasons of ``reductions``.

Triton's integers take a comparison, an addition and a choice for each condition, floats a comparison and an addition
(measurement ``counted_steps``). That is so for comparisons of fp32: no other condition becomes a float in one
instruction, so counts of others stay integers. Before::

    %8 = for i in 0..33 carrying (%2 = 0): ...; %6 = cast %5 to int32; %7 = add %2, %6; yield %7

after::

    %9 = for i in 0..33 carrying (%3 = 0.0): ...; %6 = cast %5 to fp32; %7 = add %3, %6; yield %7
    %8 = cast %9 to int32

A loop has a known number of steps, and carries a tile that nothing but the additions reads. Its count is exact below
2^24.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from ....._compiler.ir.build import Builder, Numbers
from ....._compiler.ir.grammar import ForAttrs, LoopAxis, Op, Operand, PointwiseAttrs, Program, Region, Value
from ....._compiler.ir.rewrite import Makers, count_uses, expand_ops
from ....._compiler.passes.always.simplify import drop_dead
from ....._compiler.rewrites.steps import StepInputs
from ....._support.records import dataclass, replace

_EXACT = 1 << 24
#: Least conditions of a loop: the conversion of the result takes as long as several of them.
_LEAST = 8
_INTEGERS = (torch.int32, torch.int64)
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))


def count_steps(program: Program, inputs: StepInputs) -> Program:
    """Return the program with counts that loops carry in fp32, if sums of conditions are (``inputs``)."""
    if not inputs.float_counts or not any(_may_count(op) for op in program.walk()):
        return program
    uses, makers, numbers = count_uses(program), Makers.among(program.walk()), Numbers.after(program)

    def changed(op: Op) -> Iterable[Op]:
        counts = _counts(op, makers, uses) if _may_count(op) else ()
        return _in_floats(op, counts, makers, numbers) if counts else (op,)

    counted = expand_ops(program, changed)
    return program if counted is program else drop_dead(counted)


def _may_count(op: Op) -> bool:
    return isinstance(op.attrs, ForAttrs) and any(_is_tile(value) for value in op.results)


def _is_tile(value: Value) -> bool:
    return value.dtype in _INTEGERS and bool(value.dims)


@dataclass(frozen=True)
class _Count:
    """A carried count: its position, and the terms of each addition to it, by the number of its result."""

    at: int
    terms: Mapping[int, Operand]


def _counts(op: Op, makers: Makers, uses: Mapping[int, int]) -> tuple[_Count, ...]:
    """Return the counts that a loop carries, if it has a known number of steps."""
    steps = math.prod(map(_steps, op.attributes(ForAttrs).axes))
    found = []
    for at, (param, result) in enumerate(zip(op.regions[0].params, op.regions[0].results, strict=True)):
        if not _is_tile(param) or uses[param.number] != 1:
            continue
        terms = _terms(param, result, makers, uses)
        if terms and _LEAST <= steps * len(terms) < _EXACT:
            found.append(_Count(at, terms))
    return tuple(found)


def _steps(axis: LoopAxis) -> int:
    """Return the steps along an axis of single numbers, 0 if they are not known."""
    plain = axis.scalar and not (axis.jagged or axis.merged or axis.split or axis.backwards)
    bounds = (axis.begin, axis.end, axis.step)
    return len(range(*bounds)) if plain and all(isinstance(each, int) for each in bounds) else 0  # type: ignore[arg-type]


def _terms(param: Value, result: Operand, makers: Makers, uses: Mapping[int, int]) -> dict[int, Operand]:
    """Return the conditions that are added to ``param`` for ``result``, by the result of the addition; none if anything
    else is.
    """
    terms: dict[int, Operand] = {}
    while result is not param:
        maker = makers.of(result)
        if maker is None or maker.attrs != PointwiseAttrs("add") or uses[maker.result.number] != 1:
            return {}
        conditions = [_condition(operand, makers) for operand in maker.operands]
        if conditions[1] is None:
            conditions.reverse()
            result = maker.operands[1]
        else:
            result = maker.operands[0]
        if conditions[1] is None or not isinstance(result, Value) or result.dims != param.dims:
            return {}
        terms[maker.result.number] = conditions[1]
    return terms


def _condition(operand: Operand, makers: Makers) -> Value | None:
    """Return the comparison of fp32 that an integer is, through conversions."""
    while isinstance(operand, Value) and operand.dtype != torch.bool:
        maker = makers.of(operand)
        if maker is None or maker.attrs != PointwiseAttrs("cast") or operand.dtype.is_floating_point:
            return None
        operand = maker.operands[0]
    maker = makers.of(operand)
    if maker is None or not isinstance(maker.attrs, PointwiseAttrs) or maker.attrs.name not in _COMPARISONS:
        return None
    is_single = all(value.dtype == torch.float32 for value in maker.values())
    return operand if is_single and isinstance(operand, Value) else None


def _in_floats(op: Op, counts: Iterable[_Count], makers: Makers, numbers: Numbers) -> list[Op]:
    """Return the loop with its counts in fp32, between their initial values and the conversions of the results."""
    before, after = Builder(numbers, op.location, []), Builder(numbers, op.location, [])
    body = op.regions[0]
    operands, params, results, made = list(op.operands), list(body.params), list(body.results), list(op.results)
    terms: dict[int, Operand] = {}
    floats: dict[int, Value] = {}
    for count in counts:
        at, start, integer = count.at, op.operands[count.at], op.results[count.at]
        terms |= count.terms
        operands[at] = before.emit("full", (0.0,), torch.float32, integer.dims)
        param = numbers.value(torch.float32, integer.dims, params[at].name)
        floats[params[at].number] = params[at] = param
        made[at] = numbers.value(torch.float32, integer.dims, integer.name)
        total = after.cast(made[at], torch.int32)
        if not _is_zero(start, makers):
            total = after.pointwise("add", after.cast(total, integer.dtype), start)
        after.append("pointwise", (total,), (integer,), PointwiseAttrs("cast"))
    ops: list[Op] = []
    inside = Builder(numbers, op.location, ops)
    for inner in body.ops:
        if not inner.results or inner.results[0].number not in terms:
            ops.append(inner)
            continue
        term = terms[inner.result.number]
        assert isinstance(term, Value)
        (known,) = (floats[v.number] for v in inner.values() if v.number in floats)
        inside.location = inner.location
        floats[inner.result.number] = inside.pointwise("add", known, inside.cast(term, torch.float32))
    for count in counts:
        result = body.results[count.at]
        assert isinstance(result, Value)
        results[count.at] = floats[result.number]
    region = Region(tuple(params), tuple(ops), tuple(results))
    loop = replace(op, operands=tuple(operands), results=tuple(made), regions=(region,))
    return [*before.ops, loop, *after.ops]


def _is_zero(start: Operand, makers: Makers) -> bool:
    maker = makers.of(start)
    return start == 0 if maker is None else maker.kind == "full" and maker.operands[0] == 0
