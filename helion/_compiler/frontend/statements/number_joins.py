"""Joins of numbers and device values at the end of branches and loops."""

from __future__ import annotations

from typing import Any

import torch

from .... import exc
from ...._shapes import Expr
from ...ir.grammar import Op, Value
from .. import ops
from ..state.alignment import same_size
from ..values import DeviceValue, describe
from ..walk.scope import Scope
from .sequences import described


def join(s: Scope, name: str, then: Any, other: Any, then_ops: list[Op], else_ops: list[Op]) -> tuple[Value, Value]:
    """Return the two values of a name after an if, converted to one type if one of them is a number."""
    for value in (then, other):
        if not isinstance(value, (DeviceValue, int, float, Expr)):
            raise exc.CantCombineTypesInControlFlow(
                name=name, before=described(then), after=described(other), construct="if"
            )
    model = then if isinstance(then, DeviceValue) else other if isinstance(other, DeviceValue) else None
    number = other if model is then else then
    joined = []
    for value, recorded in ((then, then_ops), (other, else_ops)):
        if not isinstance(value, DeviceValue):
            check_number(name, value, model, "if")
            mixed = model is None and _is_float(other if value is then else then) and type(value) is int
            value = emit_number(s, recorded, float(value) if mixed else value, model, widen=_is_float(number))
        elif _is_float(number) and not value.dtype.is_floating_point:
            with s.t.builder.region() as extra:
                value = ops.cast(s.t, value, s.t.world.default_dtype())
            recorded.extend(extra)
        joined.append(value)
    joined[1] = _in_dims_of(s, joined[1], joined[0], else_ops)
    if {value.dtype for value in joined} == {torch.int32, torch.int64}:
        joined = [_as_long(s, value, recorded) for value, recorded in zip(joined, (then_ops, else_ops), strict=True)]
    if (joined[0].dtype, joined[0].dims) != (joined[1].dtype, joined[1].dims):
        raise exc.ControlFlowTensorMismatch(name=name, before=repr(joined[0]), after=repr(joined[1]), construct="if")
    return joined[0].value, joined[1].value


def _as_long(s: Scope, value: DeviceValue, recorded: list[Op]) -> DeviceValue:
    """Return an integer that is computed from indices and numbers in 64 bits, as the other branch has it."""
    if s.t.ranges.of(value) is None:
        return value
    with s.t.builder.region() as extra:
        value = ops.cast(s.t, value, torch.int64)
    recorded.extend(extra)
    return value


def _in_dims_of(s: Scope, value: DeviceValue, model: DeviceValue, recorded: list[Op]) -> DeviceValue:
    """Return ``value`` in the dimensions of ``model``, if they have the same constant sizes."""
    if value.dims == model.dims or value.ndim != model.ndim:
        return value
    if not all(same_size(s.t.blocks, a, b) for a, b in zip(value.dims, model.dims, strict=True)):
        return value
    with s.t.builder.region() as extra:
        result = ops.fitted(s.t, value, model.dims)
    recorded.extend(extra)
    return value if result is None else result


def check_number(name: str, value: Any, model: DeviceValue | None, construct: str) -> None:
    """Refuse a number whose kind does not fit the device value: 1 is no bool, and in a loop 0.5 is no int64."""
    if model is None:
        return
    kind = value.kind if isinstance(value, Expr) else type(value)
    ranks = {bool: 0, int: 1, float: 2}
    rank = 0 if model.dtype == torch.bool else 2 if model.dtype.is_floating_point else 1
    wider = ranks[kind] > rank and construct == "loop"
    if wider or (kind is bool) != (rank == 0):
        raise exc.ControlFlowTensorMismatch(name=name, before=repr(model), after=describe(value), construct=construct)


def emit_number(
    s: Scope, recorded: list[Op], value: Any, model: DeviceValue | None, widen: bool = False
) -> DeviceValue:
    """Return a number as a device value like ``model``; ``widen``: in the default float dtype if ``model`` is an
    integer.
    """
    with s.t.builder.region() as extra:
        result = ops.number(s.t, value)
        if model is not None:
            keep = model.dtype.is_floating_point or not widen
            dtype = model.dtype if keep else s.t.world.default_dtype()
            result = ops.broadcast(s.t, ops.cast(s.t, result, dtype), model.dims)
    s.t.ranges.note(result, s.t.ranges.of(value))
    recorded.extend(extra)
    return result


def _is_float(value: Any) -> bool:
    kind = value.kind if isinstance(value, Expr) else type(value)
    return kind is float
