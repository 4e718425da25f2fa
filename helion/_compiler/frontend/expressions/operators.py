"""Operators and comparisons."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable
from typing import Any

from .... import exc
from ...._shapes import Expr, NeedsValue
from .. import ops
from ..purity import operator_of
from ..runtime_values import Opaque, is_runtime, opaque
from ..torch.shapes import refuse_host
from ..values import DeviceValue, HostTensorValue, Tile, describe
from ..walk.kinds import type_of
from ..walk.scope import Scope, evaluate
from ..walk.shared_memory import may_share
from .conditions import is_open, is_static, truth_on_host
from .displays import noted
from .names import refuse_assignment
from .overloads import overloaded
from .python_calls import refuse_host_on_device
from .run_time import runtime_number, try_settle

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}  # fmt: skip
_IN_PLACE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.iadd, ast.Sub: operator.isub, ast.Mult: operator.imul, ast.Div: operator.itruediv,
    ast.FloorDiv: operator.ifloordiv, ast.Mod: operator.imod, ast.Pow: operator.ipow, ast.BitAnd: operator.iand,
    ast.BitOr: operator.ior, ast.BitXor: operator.ixor, ast.LShift: operator.ilshift, ast.RShift: operator.irshift,
}  # fmt: skip
_REFLECTED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def evaluate_binary(s: Scope, node: ast.BinOp) -> Any:
    left, right = evaluate(s, node.left), evaluate(s, node.right)
    s.at(node)
    result = binary(s, type(node.op), left, right)
    return noted(s, result) if type(result) is list and {type(left), type(right)} <= {list, int} else result


def _between(s: Scope, name: str, left: Any, right: Any) -> Any:
    """Apply an operator to two values, one of which may be a user's object."""
    for method, one, other in ((name, left, right), (_REFLECTED.get(name, f"r{name}"), right, left)):
        found = overloaded(s, method, one, other)
        if found is not NotImplemented:
            return found
    return NotImplemented


def _text_operand(s: Scope, right: Any) -> Any:
    """Return ``right`` of a formatting operator with plain numbers instead of symbolic ones."""
    settled = try_settle(s, right)
    return opaque(f"`{s.source_text()}`") if settled is None and right is not None else settled


def binary(s: Scope, op: type, left: Any, right: Any) -> Any:
    """Return ``left op right``; ``op`` is a class of syntax."""
    if isinstance(left, (str, bytes)) and op is ast.Mod:
        right = _text_operand(s, right)
    if isinstance(left, Opaque) or isinstance(right, Opaque):
        return left if isinstance(left, Opaque) else right
    if s.t.on_device:
        for operand in (left, right):
            refuse_host(operand, s.t, "in an expression")
            if isinstance(operand, Tile) and op not in (ast.Add, ast.Sub):
                raise exc.IncorrectTileUsage(how="as a number")
        # operators of device values have precedence over those of numbers and host expressions
        if isinstance(left, Tile) and isinstance(right, DeviceValue) and right.dims:
            raise exc.IncorrectTileUsage(how="as a number")
        if isinstance(left, DeviceValue) and isinstance(right, Tile) and (left.dims or op is ast.Sub):
            raise exc.IncorrectTileUsage(how="as a number")
    found = _between(s, _BINARY[op].__name__.strip("_"), left, right)
    if found is not NotImplemented:
        return found
    return _apply(s, _BINARY[op], left, right)


def in_place(s: Scope, op: type, tensor: HostTensorValue, value: Any) -> Any:
    """Evaluate ``tensor += value`` and the like in host code: the tensor object stays the same."""
    return _apply(s, _IN_PLACE[op] if op in _IN_PLACE else _BINARY[op], tensor, value)


def _apply(s: Scope, fn: Callable[..., Any], *operands: Any) -> Any:
    try:
        try:
            return fn(*operands)
        except NeedsValue:
            settled = try_settle(s, operands)
            return opaque(f"`{s.source_text()}`") if settled is None else fn(*settled)
    except NeedsValue:
        raise
    except (TypeError, ZeroDivisionError) as error:
        shown = " and ".join(describe(o) for o in operands)
        raise exc.TypeInferenceError(f"{type(error).__name__}: {error} (with {shown}).") from error


def evaluate_unary(s: Scope, node: ast.UnaryOp) -> Any:
    value = evaluate(s, node.operand)
    s.at(node)
    if isinstance(node.op, ast.Not):
        return negate(s, value)
    refuse_host_on_device(s.t, value)
    return _apply(s, _UNARY[type(node.op)], value)


def negate(s: Scope, value: Any) -> Any:
    """Return ``not value``."""
    if isinstance(value, DeviceValue):
        return ops.pointwise(s.t, "logical_not", value)
    if isinstance(value, Expr) and (s.t.on_device or is_static(value)):
        return value == 0
    if is_open(s, value):
        return runtime_number(s, bool)
    return not truth_on_host(s, value)


def evaluate_comparison(s: Scope, node: ast.Compare) -> Any:
    left = evaluate(s, node.left)
    result: Any = None
    for right_node in node.comparators[1:]:
        refuse_assignment(s, right_node)
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = evaluate(s, right_node)
        s.at(node)
        if not isinstance(op, (ast.Is, ast.IsNot)):
            refuse_host_on_device(s.t, left)
            refuse_host_on_device(s.t, right)
        step = compare(s, type(op), left, right)
        result = step if result is None else _both(s, result, step)
        left = right
    return result


def compare(s: Scope, op: type, left: Any, right: Any) -> Any:
    """Return ``left op right`` of a comparison; ``op`` is a class of syntax."""
    if op in (ast.Is, ast.IsNot, ast.In, ast.NotIn):
        found = _apply(s, functools.partial(_is_same if op in (ast.Is, ast.IsNot) else _contains, s), left, right)
        return found if op in (ast.Is, ast.In) else negate(s, found)
    if isinstance(left, Opaque) or isinstance(right, Opaque):
        return left if isinstance(left, Opaque) else right
    found = _between(s, _COMPARE[op].__name__, left, right)
    return _apply(s, _COMPARE[op], left, right) if found is NotImplemented else found


def _both(s: Scope, first: Any, second: Any) -> Any:
    if isinstance(first, DeviceValue) or isinstance(second, DeviceValue):
        return ops.pointwise(s.t, "logical_and", first, second)
    if is_static(first) and (isinstance(second, bool) or is_static(second)):
        return first & second
    if not s.t.on_device and is_open(s, first):
        return runtime_number(s, bool)
    return truth_on_host(s, first) and second


def _is_same(s: Scope, left: Any, right: Any) -> Any:
    """Return ``left is right``."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Opaque):
            return runtime_number(s, bool)
        if isinstance(one, Expr):
            if other is None or isinstance(other, (str, Tile, HostTensorValue, DeviceValue)):
                return False
            if not isinstance(other, (bool, int, float, Expr)):
                return False
            if one.kind is not type_of(other):
                return False
            if one.kind is not bool or is_runtime(s.t, one) or is_runtime(s.t, other):
                return runtime_number(s, bool)  # equal integers may be one object or two
            return s.t.numbers.specialize(one) is (s.t.numbers.specialize(other) if isinstance(other, Expr) else other)
    if isinstance(left, HostTensorValue) and isinstance(right, HostTensorValue):
        # a view of a tensor may be that tensor
        return runtime_number(s, bool) if may_share(s.walk, left, right) else False
    return left is right


def _contains(s: Scope, item: Any, container: Any) -> Any:
    """Return ``item in container``."""
    if isinstance(container, Opaque) or isinstance(item, Opaque):
        return runtime_number(s, bool)
    if isinstance(container, HostTensorValue):
        raise exc.TypeInferenceError(
            "Whether a number is in a tensor is known at run time only; write `bool((x == n).any())`."
        )
    if is_runtime(s.t, item) or operator_of(container, "__contains__") or operator_of(container, "__getitem__"):
        return runtime_number(s, bool)
    try:
        return item in container
    except NeedsValue:
        settled = try_settle(s, (item, container))
        return runtime_number(s, bool) if settled is None else settled[0] in settled[1]
