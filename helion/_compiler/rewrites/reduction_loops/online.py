"""Computes sums of a row that depend on another reduction of the same row in the pass of that reduction.

A sum of ``f(x - centre)`` can be accumulated about any other centre and corrected later, if ``f`` is an exponential or
the square. So the sum does not wait for the pass that computes its centre.

Powers: lanes sum about their own running maximum, instead of the row's. Before::

    for b1 chunked: high = maximum(high, x)
    %1 = reduce max high
    for b1 chunked: acc = acc + exp(x - %1)
    %2 = reduce sum acc

After::

    for b1 chunked:
        step = exp(-abs(x - high))
        acc = where(x > high, acc * step + 1, acc + step)
        high = maximum(high, x)
    %1 = reduce max high
    %2 = reduce sum (acc * exp(high - %1))

The larger of ``x`` and ``high`` counts as 1, so there is one exponential per element. Two equal infinities count as 1
each: ``exp(high - %1)`` then gives the result of eager for a row with infinities.

Squares: all lanes sum about the mean of the first chunk. Before::

    for b1 chunked: acc = acc + x
    %1 = reduce sum acc; %2 = %1 / n
    for b1 chunked: acc = acc + (x - %2) * (x - %2)
    %3 = reduce sum acc

After::

    for b1 chunked:
        if begin == 0: shift = (reduce sum x) / end
        acc = acc + (x - shift); squares = squares + (x - shift) * (x - shift)
    %4 = reduce sum acc; %1 = %4 + n * shift; %2 = %1 / n
    %5 = %4 / n; %3 = reduce sum squares - %4 * %5 + n * (shift + %5 - %2) ** 2

This is the shifted-data algorithm of Chan, Golub and LeVeque (Algorithms for computing the sample variance, The
American Statistician 37, 1983). The chunk belongs to the row. So the distance of its mean from the row's, in standard
deviations, is at most the square root of the number of chunks. That number bounds the cancellation.

A running mean in each lane (Welford 1962) needs no shift, but rounds the mean at each chunk. Its relative error of the
variance reaches 3.5e-4; that of two passes and of shifted sums stays below 1e-5. The data are fp32 rows of 1000 to
131072 elements with mean 10000 and standard deviation 1. Chunks have 16 to 8192 elements; the reference is fp64 on a
CPU.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from ...._shapes import ONE, Dims, Number
from ...._support.records import dataclass, replace
from ...ir.build import Builder
from ...ir.grammar import MaskAttrs, Op, Operand, PointwiseAttrs, ReduceAttrs, Region, Value
from ...ir.rewrite import Makers
from .chunks import Carried, Pass

_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True, kw_only=True)
class Centred:
    """A reduction ``total`` that sums ``f(value - centre)`` over dimension ``dim`` of ``value``, and over no other.

    ``steps`` are the ops of ``f`` from the difference to the power; squares have none.
    """

    total: Op
    form: Literal["powers", "squares"]
    value: Value
    centre: Value
    dim: int
    steps: tuple[Op, ...] = ()

    @property
    def dtype(self) -> torch.dtype:
        return self.total.result.dtype


# --- pattern matching -------------------------------------------------------------------------------------------------


def summed(op: Op, makers: Makers, block: int) -> tuple[Value, int] | None:
    """Return the unmasked operand of a reduction over ``block`` alone, and the reduced dimension."""
    attrs = op.attributes(ReduceAttrs)
    (value,) = op.values()
    if len(attrs.dims) != 1 or value.dims[attrs.dims[0]].block != block:
        return None
    mask = makers.of(value)
    if mask is not None and isinstance(mask.attrs, MaskAttrs):
        if mask.attrs.dims != attrs.dims:
            return None
        value = next(mask.values())
    return value, attrs.dims[0]


def centred_sum(op: Op, makers: Makers, block: int) -> Centred | None:
    """Return the reduction ``op`` over ``block`` as a sum of powers or squares about a centre, if it is one."""
    if not isinstance(op.attrs, ReduceAttrs) or op.attrs.name != "sum" or op.result.dtype not in _DTYPES:
        return None
    found = summed(op, makers, block)
    if found is None:
        return None
    value, dim = found
    match _pointwise(value, makers):
        case ("exp" | "exp2", (Value() as gap,)):
            steps, gap = _rate(gap, makers)
            match _pointwise(gap, makers):
                case ("sub", (Value() as wide, Value() as centre)):
                    steps = (*steps, makers.ops[value.number])
                    powers = Centred(total=op, form="powers", value=wide, centre=centre, dim=dim, steps=steps)
                    return _checked(powers, "max", gap, makers, block)
        case ("mul", (Value() as gap, other)) if other is gap:
            return _squares(op, gap, dim, makers, block)
        case ("pow", (Value() as gap, 2 | 2.0)):
            return _squares(op, gap, dim, makers, block)
    return None


def _pointwise(value: Value, makers: Makers) -> tuple[str, tuple[Operand, ...]] | None:
    op = makers.of(value)
    return (op.attrs.name, op.operands) if op is not None and isinstance(op.attrs, PointwiseAttrs) else None


def _rate(value: Value, makers: Makers) -> tuple[tuple[Op, ...], Value]:
    """Return the multiplications by positive constants that lead to ``value``, first to last, and their input."""
    steps: list[Op] = []
    while True:
        match _pointwise(value, makers):
            case ("mul", (Value() as source, int() | float() as factor)) if 0 < factor < math.inf:
                pass
            case ("mul", (int() | float() as factor, Value() as source)) if 0 < factor < math.inf:
                pass
            case ("div", (Value() as source, int() | float() as factor)) if 0 < factor < math.inf:
                pass
            case _:
                return tuple(reversed(steps)), value
        steps.append(makers.ops[value.number])
        value = source


def _origin(value: Value, makers: Makers) -> Value:
    """Return the value that ``value`` is a positive multiple of, across floating-point casts."""
    while True:
        _, value = _rate(value, makers)
        match _pointwise(value, makers):
            case ("cast", (Value(dtype=dtype) as source,)) if dtype.is_floating_point:
                value = source
            case _:
                return value


def _squares(op: Op, gap: Value, dim: int, makers: Makers, block: int) -> Centred | None:
    match _pointwise(gap, makers):
        case ("sub", (Value() as left, Value() as right)):
            wide, centre = (right, left) if _spans(right, block) else (left, right)
            squares = Centred(total=op, form="squares", value=wide, centre=centre, dim=dim)
            return _checked(squares, "sum", gap, makers, block)
    return None


def _checked(found: Centred, name: str, gap: Value, makers: Makers, block: int) -> Centred | None:
    """Return ``found`` if the rewrite is legal.

    Its difference must be that of a value over the row and a centre that is not, in one precision throughout. The
    centre must depend on the reduction ``name`` of this value: about any other centre, infinities may have other
    results.
    """
    values = (found.value, found.centre, gap, *(step.result for step in found.steps))
    plain = all(value.dtype == found.dtype for value in values) and found.value.dims == gap.dims
    if not plain or not _spans(found.value, block) or _spans(found.centre, block):
        return None
    origin, stack, seen = _origin(found.value, makers), [found.centre], set[int]()
    while stack:
        op = makers.of(stack.pop())
        if op is None or op.number in seen:
            continue
        seen.add(op.number)
        if not any(_spans(operand, block) for operand in op.values()):
            stack += op.values()
        elif isinstance(op.attrs, ReduceAttrs) and op.attrs.name == name:
            source = summed(op, makers, block)
            if source is not None and _origin(source[0], makers) is origin:
                return found
    return None


def _spans(value: Value, block: int) -> bool:
    return any(block in dim.blocks for dim in value.dims)


# --- one pass ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Maximum:
    """The running maximum of ``value``, whose lanes out of range are below all others."""

    value: Value
    carried: Carried


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Sums of a row and of its squares about ``shift``, available after the loop."""

    shift: Value
    sum: Value
    squares: Value


def carry_maximum(loop: Pass, value: Value) -> Maximum:
    """Carry the maximum of each lane."""
    carried = loop.carry("high", value.dtype, value.dims, -math.inf)
    carried.after = loop.body.pointwise("maximum", carried.before, value)
    return Maximum(value=value, carried=carried)


def carry_powers(loop: Pass, high: Maximum, found: Centred) -> Carried:
    """Carry the sum of the powers of each lane, about its own maximum."""
    body, value = loop.body, high.value
    carried = loop.carry(f"{found.total.result.name or 'sum'}_acc", value.dtype, value.dims, 0.0)
    distance = body.pointwise("neg", body.pointwise("abs", body.pointwise("sub", value, high.carried.before)))
    # fmin turns NaN, the distance between two equal infinities, into 0. A NaN of the row is in the maximum.
    step = _power(body, body.pointwise("fmin", distance, 0.0), found.steps)
    rises = body.pointwise("gt", value, high.carried.before)
    kept = body.pointwise("mul", carried.before, body.pointwise("where", rises, step, 1.0))
    carried.after = body.pointwise("add", kept, body.pointwise("where", rises, 1.0, step), like=carried.before.name)
    return carried


def powers_total(found: Centred, sums: Carried, high: Maximum, out: Builder) -> None:
    """Append the sum of the row about its centre, which is now known."""
    power = _power(out, out.pointwise("sub", high.carried.total, found.centre), found.steps)
    total = out.pointwise("mul", sums.total, power)
    out.ops.append(replace(found.total, operands=(total,)))


def _power(out: Builder, gap: Value, steps: tuple[Op, ...]) -> Value:
    for step in steps:
        operands = tuple(gap if isinstance(operand, Value) else operand for operand in step.operands)
        gap = out.pointwise(step.attrs.name, *operands)
    return gap


def carry_moments(loop: Pass, value: Value, dim: int, behind: Builder) -> Moments:
    """Carry the sums about the mean of the first chunk; ``behind`` gets the ops that sum the whole row."""
    body, dtype = loop.body, value.dtype
    rows = _without(value.dims, dim)
    shift = loop.carry("shift", dtype, rows, 0.0)
    shift.after = body.value(dtype, rows, "shift")
    taken = Builder(body.numbers, body.location, [])
    mean = taken.sum(taken.mask(value, (dim,), 0.0), dim)
    mean = taken.pointwise("div", mean, taken.cast(loop.tile("end", taken), dtype))
    # An infinite shift would turn all sums into NaN; at most they are infinite.
    mean = taken.pointwise("where", taken.pointwise("isfinite", mean), mean, 0.0)
    branches = Region((), tuple(taken.ops), (mean,)), Region((), (), (shift.before,))
    first = body.pointwise("eq", loop.tile("begin", body), 0)
    body.append("if", (first,), (shift.after,), None, branches)
    about = body.reshape(shift.after, (*value.dims[:dim], ONE, *value.dims[dim + 1 :]))
    gap = body.mask(body.pointwise("sub", value, about), (dim,), 0.0)
    sums = loop.carry("sum_acc", dtype, value.dims, 0.0)
    sums.after = body.pointwise("add", sums.before, gap, like="sum_acc")
    squares = loop.carry("squares_acc", dtype, value.dims, 0.0)
    squares.after = body.pointwise("add", squares.before, body.pointwise("mul", gap, gap), like="squares_acc")
    return Moments(shift=shift.total, sum=behind.sum(sums.total, dim), squares=behind.sum(squares.total, dim))


def sum_total(total: Op, moments: Moments, count: Number, out: Builder) -> None:
    """Append the sum of the row about 0. ``count`` is the number of elements of the row."""
    moved = out.pointwise("mul", moments.shift, out.number(count, moments.shift.dtype))
    out.append("pointwise", (moved, moments.sum), (total.result,), PointwiseAttrs("add"))


def squares_total(found: Centred, moments: Moments, count: Number, out: Builder) -> None:
    """Append the sum of the squares of the row about its centre, which is now known."""
    number = out.number(count, moments.shift.dtype)
    mean = out.pointwise("div", moments.sum, number)
    # About the row's own mean; rounding must not make a sum of squares negative.
    least = out.pointwise("sub", moments.squares, out.pointwise("mul", moments.sum, mean))
    least = out.pointwise("maximum", least, 0.0)
    centre, rank = found.centre, len(found.value.dims)
    if centre.dims:
        centre = out.reshape(centre, _without((*(ONE,) * (rank - len(centre.dims)), *centre.dims), found.dim))
    gap = out.pointwise("sub", out.pointwise("add", moments.shift, mean), centre)
    moved = out.pointwise("mul", out.pointwise("mul", gap, gap), number)
    out.append("pointwise", (least, moved), (found.total.result,), PointwiseAttrs("add"))


def _without(dims: Dims, dim: int) -> Dims:
    return (*dims[:dim], *dims[dim + 1 :])
