"""Argmax and argmin along a dimension that is rolled into chunks.

Each lane keeps the extreme of its elements and the index of that. After the loop, the first index of the overall
extreme is the result.
"""

from __future__ import annotations

import torch

from ...._shapes import ONE
from ...ir.build import Builder
from ...ir.grammar import IotaAttrs, Op, PointwiseAttrs, ReduceAttrs, Value
from ...ir.reductions import identity
from .chunks import Pass


def place_of_extreme(op: Op, value: Value, loop: Pass, out: Builder) -> list[Op]:
    """Add the accumulators of ``op``, a reduction of ``value``, which holds one chunk. Return the ops after the loop,
    written by ``out``."""
    attrs = op.attributes(ReduceAttrs)
    (at,) = attrs.dims
    largest = attrs.name == "argmax"
    best = loop.carry(f"{attrs.name}_best", value.dtype, value.dims, identity(attrs.name, value.dtype))
    place = loop.carry(f"{attrs.name}_place", loop.index_dtype, value.dims, 0)
    body = loop.body
    lanes = body.emit("iota", (), loop.index_dtype, (value.dims[at],), IotaAttrs(loop.block, True))
    here = body.reshape(lanes, tuple(value.dims[at] if i == at else ONE for i in range(len(value.dims))))
    better = _is_better(body, "gt" if largest else "lt", value, best.before)
    best.after = _where(body, better, value, best.before)
    place.after = _where(body, better, here, place.before)
    return _first_place(op, best.total, place.total, at, out)


def _first_place(op: Op, best: Value, place: Value, at: int, out: Builder) -> list[Op]:
    """Append the minimum of the indices in the lanes that hold the extreme."""
    attrs = op.attributes(ReduceAttrs)
    kept = tuple(dim for i, dim in enumerate(best.dims) if i != at)
    reduction = "max" if attrs.name == "argmax" else "min"
    extreme = out.emit("reduce", (best,), best.dtype, kept, ReduceAttrs(reduction, (at,)))
    spread = out.reshape(extreme, (*best.dims[:at], ONE, *best.dims[at + 1 :]))
    holds = out.pointwise("eq", best, spread)
    if best.dtype.is_floating_point:
        both = (out.pointwise("isnan", v) for v in (best, spread))
        holds = out.pointwise("logical_or", holds, out.pointwise("logical_and", *both))
    last = torch.iinfo(place.dtype).max
    places = out.emit("pointwise", (holds, place, last), place.dtype, best.dims, PointwiseAttrs("where"))
    least = out.emit("reduce", (places,), place.dtype, kept, ReduceAttrs("min", (at,)))
    out.append("pointwise", (least,), op.results, PointwiseAttrs("cast"))
    return out.ops


def _is_better(out: Builder, name: str, value: Value, best: Value) -> Value:
    """Return whether a value replaces the best one so far; NaN replaces any number."""
    better = out.pointwise(name, value, best)
    if not value.dtype.is_floating_point:
        return better
    unknown, known = out.pointwise("isnan", value), out.pointwise("logical_not", out.pointwise("isnan", best))
    return out.pointwise("logical_or", better, out.pointwise("logical_and", unknown, known))


def _where(out: Builder, condition: Value, value: Value, other: Value) -> Value:
    return out.emit("pointwise", (condition, value, other), other.dtype, other.dims, PointwiseAttrs("where"))
