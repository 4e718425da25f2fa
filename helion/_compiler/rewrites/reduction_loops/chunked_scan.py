"""Rolls scans along a dimension into loops over chunks: each chunk is scanned separately, then combined with a carried
prefix.

Before::

    %2 = scan %1 along b1: add

After::

    for b1 chunked carrying before = 0:
        own = scan %1 along b1: add
        %2 = before + own
        before = before + (the last lane of own)

The loop-carried dependence is one combination of two numbers, not the scan. Without a known identity element, the first
chunk is used unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...._shapes import ONE, Dims, broadcast_dims
from ...ir.build import Builder
from ...ir.grammar import IotaAttrs, Op, Operand, PointwiseAttrs, Region, ScanAttrs, Value, ViewAttrs
from ...ir.rewrite import Declined
from .chunks import Pass


def check_scan(op: Op, block: int) -> None:
    """Raise ``Declined`` if the scan ``op`` along ``block`` cannot run in ascending chunks."""
    attrs = op.attributes(ScanAttrs)
    if not runs_along(op, block):
        return
    if attrs.reverse:
        raise Declined("a scan begins at the end of the dimension")
    if any(result.dtype == torch.bool for result in op.results):
        raise Declined("a scan of booleans uses the dimension")


def runs_along(op: Op, block: int) -> bool:
    return isinstance(op.attrs, ScanAttrs) and op.results[0].dims[op.attrs.dim].block == block


def scan_chunk(op: Op, operands: Sequence[Operand], loop: Pass) -> list[Value]:
    """Return the results of ``op`` in the current chunk, with values ``operands``; ``loop`` carries the prefix."""
    attrs, body = op.attributes(ScanAttrs), loop.body
    own = [body.value(result.dtype, result.dims) for result in op.results]
    body.repeat(op, operands=tuple(operands), results=tuple(own), regions=(fresh_region(op.regions[0], body),))
    starts = attrs.identity or tuple(0.0 if v.dtype.is_floating_point else 0 for v in own)
    carried = [
        loop.carry(f"{result.name or 'scan'}_before", value.dtype, _without(value.dims, attrs.dim), start)
        for result, value, start in zip(op.results, own, starts, strict=True)
    ]
    first = None if attrs.identity else body.pointwise("eq", loop.tile("begin", body), 0)
    before = [_spread(c.before, attrs.dim, body) for c in carried]
    results = _combined(op.regions[0], before, own, first, body)
    ends = _last_lanes(own, attrs.dim, loop)
    afters = _combined(op.regions[0], [c.before for c in carried], ends, first, body)
    for one, after in zip(carried, afters, strict=True):
        one.after = after
    return results


def fresh_region(region: Region, out: Builder) -> Region:
    """Return a copy of a region of scalars with new values and ops."""
    new = {v.number: out.value(v.dtype, v.dims, v.name) for v in (*region.params, *_made(region))}
    ops = tuple(
        Op(out.numbers.op(), op.kind, tuple(_renamed(o, new) for o in op.operands), (new[op.result.number],), op.attrs, (), op.location)
        for op in region.ops
    )  # fmt: skip
    params = tuple(new[v.number] for v in region.params)
    return Region(params, ops, tuple(_renamed(o, new) for o in region.results))


def _made(region: Region) -> list[Value]:
    return [result for op in region.ops for result in op.results]


def _renamed(operand: Operand, to: Mapping[int, Value]) -> Operand:
    return to[operand.number] if isinstance(operand, Value) else operand


def _combined(
    region: Region, left: Sequence[Value], right: Sequence[Value], first: Value | None, out: Builder
) -> list[Value]:
    """Return ``region`` applied to tiles instead of scalars; ``right`` alone where ``first`` is true."""
    known = {param.number: value for param, value in zip(region.params, (*left, *right), strict=True)}
    for op in region.ops:
        operands = [_renamed(o, known) for o in op.operands]
        if op.kind == "pointwise":
            dims = _broadcast(operands)
            known[op.result.number] = out.emit("pointwise", operands, op.result.dtype, dims, op.attrs)
        else:
            known[op.result.number] = out.emit(op.kind, operands, op.result.dtype, (), op.attrs)
    found = [_widened(_renamed(o, known), value, out) for o, value in zip(region.results, right, strict=True)]
    if first is None:
        return found
    return [
        out.emit("pointwise", (first, mine, both), mine.dtype, mine.dims, PointwiseAttrs("where"))
        for mine, both in zip(right, found, strict=True)
    ]


def _broadcast(operands: Sequence[Operand]) -> Dims:
    dims = broadcast_dims([operand.dims for operand in operands if isinstance(operand, Value)])
    assert dims is not None
    return dims


def _widened(value: Operand, like: Value, out: Builder) -> Value:
    """Return a result of the function with the dimensions of a tile. It may be one of the operands, or a constant."""
    assert isinstance(value, Value)
    if value.dims == like.dims:
        return value
    if not value.dims:
        value = out.reshape(value, (ONE,) * len(like.dims))
    return out.emit("view", (value,), value.dtype, like.dims, ViewAttrs("broadcast"))


def _without(dims: Dims, at: int) -> Dims:
    return (*dims[:at], *dims[at + 1 :])


def _spread(value: Value, at: int, out: Builder) -> Value:
    """Return a value with a dimension of 1 inserted at ``at``."""
    return out.reshape(value, (*value.dims[:at], ONE, *value.dims[at:])) if value.dims else value


def _last_lanes(values: Sequence[Value], at: int, loop: Pass) -> list[Value]:
    """Return the last lanes of whole chunks. The results for the last, partial chunk have no use."""
    body, dim = loop.body, values[0].dims[at]
    lanes = body.emit("iota", (), loop.index_dtype, (dim,), IotaAttrs(loop.block, False))
    is_last = body.pointwise("eq", lanes, body.pointwise("sub", loop.tile("end", body), 1))
    is_last = body.reshape(is_last, tuple(dim if i == at else ONE for i in range(len(values[0].dims))))
    return [
        body.sum(body.emit("pointwise", (is_last, v, 0), v.dtype, v.dims, PointwiseAttrs("where")), at) for v in values
    ]
