"""Truth values, boolean operators and conditional expressions."""

from __future__ import annotations

import ast
from typing import Any

import torch

from .... import exc
from ...._shapes import Expr, NeedsValue
from ...ir.grammar import Region
from ...ir.ops import OPS
from ...ir.preorder import preorder
from .. import ops
from ..host import tensors as host_tensors
from ..runtime_values import SAMPLES, Opaque, is_runtime, opaque, settle
from ..torch.pointwise import truth
from ..values import DeviceValue, HostTensorValue, Tile
from ..walk.kinds import type_of
from ..walk.scope import HARD, Scope, evaluate
from ..walk.shared_memory import one_of_several
from .names import refuse_assignment
from .overloads import overloaded
from .run_time import runtime_number


def is_open(s: Scope, value: Any) -> bool:
    """Return whether the truth of a value of host code is known at run time only."""
    return isinstance(value, (Opaque, HostTensorValue)) or is_runtime(s.t, value)


def truth_on_host(s: Scope, value: Any) -> bool:
    """Return a condition that must be known at compile time; run-time numbers become part of the specialization key."""
    if isinstance(value, Expr):
        if host_tensors.is_item(s.t, value):
            raise exc.TypeInferenceError(
                "A branch on the `.item()` of a tensor cannot be followed when the kernel is compiled; pass the number as an argument, or branch outside of the kernel."
            )
        return bool(s.t.numbers.specialize(value))
    if isinstance(value, Tile):
        raise exc.IncorrectTileUsage(how="as a condition")
    for name in ("bool", "len"):
        found = overloaded(s, name, value)
        if found is not NotImplemented:
            return truth_on_host(s, found)
    try:
        return bool(value)
    except NeedsValue:
        return bool(settle(s.t, value))


def evaluate_boolean(s: Scope, node: ast.BoolOp) -> Any:
    result = evaluate(s, node.values[0])
    for other in node.values[1:]:
        s.at(node)
        refuse_assignment(s, other)
        if is_static(result):
            value = evaluate(s, other)
            if isinstance(value, (bool, int)) or is_static(value):
                result = _static_boolean(isinstance(node.op, ast.And), result, value)
                continue
        if isinstance(result, DeviceValue) or (isinstance(result, Expr) and s.t.on_device):
            result = _device_boolean(s, node, result, other)
            continue
        if not s.t.on_device and is_open(s, result):
            return _open_boolean(s, node)
        known = truth_on_host(s, result)
        if known is isinstance(node.op, ast.Or):
            return result
        result = evaluate(s, other)
    return result


def _device_boolean(s: Scope, node: ast.BoolOp, first: Any, other: ast.expr) -> DeviceValue:
    """Return ``first and other`` or ``first or other`` of numbers of the device: one of the two, as in Python.

    An ``other`` that reads memory is evaluated in a branch: ``i > 0 and x[i - 1] > 0`` must not read at -1.
    """
    both = isinstance(node.op, ast.And)
    s.t.blocks.branches += 1
    with s.t.builder.region() as evaluated:
        value = evaluate(s, other)
    s.t.blocks.branches -= 1
    s.at(node)
    if any(isinstance(v, DeviceValue) and v.dims for v in (first, value)):
        raise exc.ConditionNotScalar(statement=ast.unparse(node), shape=repr(first))
    reads = any(OPS[op.kind].reads or OPS[op.kind].writes for op in preorder(evaluated))
    is_bool = _is_truth(first) and _is_truth(value)
    if not reads:
        s.t.builder.ops.extend(evaluated)
        if is_bool:
            return ops.pointwise(s.t, "logical_and" if both else "logical_or", first, value)
    condition = ops.as_device(s.t, truth(s.t, first))
    dtype = torch.bool if is_bool else ops.promote(s.t, "add", (first, value))
    with s.t.builder.region() as kept:
        first = ops.cast(s.t, first, dtype)
    with s.t.builder.region() as converted:
        value = ops.cast(s.t, value, dtype)
    if not reads:
        s.t.builder.ops.extend((*kept, *converted))
        return ops.pointwise(s.t, "where", condition, *((value, first) if both else (first, value)), dtype=dtype)
    regions = (Region((), (*evaluated, *converted), (value.value,)), Region((), tuple(kept), (first.value,)))
    result = s.t.builder.value(dtype, ())
    s.t.builder.append("if", (condition.value,), (result,), None, regions if both else regions[::-1])
    return ops.wrap(s.t, result)


def is_static(value: Any) -> bool:
    """Return whether a number is known for each config: a function of block sizes and tunables."""
    return isinstance(value, Expr) and value.leaves_are("block", "tunable")


def _static_boolean(both: bool, first: Any, second: Any) -> Any:
    """Combine numbers that are known for each config by ``and`` (``both``) or ``or``; integers give one of the two."""
    if _is_truth(first) and _is_truth(second):
        return first & second if both else first | second
    return (first != 0) * second if both else first + (first == 0) * second


def _is_truth(value: Any) -> bool:
    """Return whether a number is a bool."""
    if isinstance(value, DeviceValue):
        return value.dtype == torch.bool
    return (value.kind if isinstance(value, Expr) else type(value)) is bool


def _open_boolean(s: Scope, node: ast.BoolOp) -> Any:
    """Evaluate ``and`` and ``or`` whose first operand decides at run time."""
    values = [_under_condition(s, value) for value in node.values]
    s.at(node)
    return _merged_or_opaque(s, values, node)


def is_known_on_device_only(s: Scope, test: Any) -> bool:
    """Return whether generated device code tests a condition: a device value, or a number of the run or config."""
    return s.t.on_device and (isinstance(test, DeviceValue) or is_static(test) or is_runtime(s.t, test))


def chosen(s: Scope, node: ast.IfExp, test: Any) -> Any:
    """Return the value of a conditional expression whose test is known to the compiler or to the host code."""
    if not s.t.on_device and is_open(s, test):
        values = [_under_condition(s, part) for part in (node.body, node.orelse)]
        if values[0] is values[1]:
            return values[0]
        return _merged_or_opaque(s, values, node)
    return evaluate(s, node.body if truth_on_host(s, test) else node.orelse)


def _under_condition(s: Scope, node: ast.expr) -> Any:
    """Return the value of an expression that the run may skip."""
    s.walk.uncertain += 1
    relied = len(s.t.tensors.relied)
    try:
        return evaluate(s, node)
    except HARD:
        raise
    except exc.Base as error:
        return Opaque(error)
    finally:
        s.walk.uncertain -= 1
        del s.t.tensors.relied[relied:]


def _merged_or_opaque(s: Scope, values: list[Any], node: ast.expr) -> Any:
    found = merged_value(s, values)
    return opaque(f"`{ast.unparse(node)}`") if found is None else found


def merged_value(s: Scope, values: list[Any]) -> Any:
    """Return a number or tensor that represents one of several values at run time; None unless they are of one kind."""
    if values and all(isinstance(value, HostTensorValue) for value in values):
        return one_of_several(s.walk, values)
    kinds = {type_of(value) if isinstance(value, (int, float, Expr)) else None for value in values}
    kind = kinds.pop() if kinds else None
    return runtime_number(s, kind) if not kinds and kind in SAMPLES else None
