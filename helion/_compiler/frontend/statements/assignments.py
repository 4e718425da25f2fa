"""Assignments, to names, items, attributes and tuples of them."""

from __future__ import annotations

import ast
import inspect
import types
from typing import Any

import torch

from .... import exc
from .... import language as hl
from ...._shapes import Expr
from .. import memory, ops
from ..expressions.attributes import attribute_of
from ..expressions.displays import plain
from ..expressions.hl_calls import call_hl
from ..expressions.items import as_list
from ..expressions.operators import binary, in_place
from ..expressions.python_calls import may_change
from ..runtime_values import Opaque, opaque
from ..state.alignment import same_size
from ..values import DeviceValue, HostTensorValue, Tile, describe
from ..walk.lookup import name_tensor
from ..walk.scope import Scope, assign, call, evaluate, kept
from ..walk.unfollowed import forget_outside, forget_sources, outside, refuse_change

#: Methods that change a container as operators with ``=`` do.
_CHANGES: dict[tuple[type, type], str] = {
    (list, ast.Add): "extend", (dict, ast.BitOr): "update", (set, ast.BitOr): "update", (set, ast.Sub): "difference_update",
    (set, ast.BitAnd): "intersection_update", (set, ast.BitXor): "symmetric_difference_update",
}  # fmt: skip


def walk_assign(s: Scope, node: ast.Assign) -> None:
    value = evaluate(s, node.value)
    s.at(node)
    for target in node.targets:
        assign(s, target, value)


def walk_annotated_assign(s: Scope, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign(s, node.target, evaluate(s, node.value))


def walk_augmented_assign(s: Scope, node: ast.AugAssign) -> None:
    target = node.target
    if isinstance(target, ast.Name):
        _update_name(s, node, target)
    elif isinstance(target, ast.Subscript):
        if not _assign_outside(s, target):
            _update_item(s, node, target)
    elif not s.t.on_device:
        current = attribute_of(s, evaluate(s, target.value), target.attr)
        assign_attribute(s, target, binary(s, type(node.op), current, evaluate(s, node.value)))
    else:
        raise exc.InvalidAssignment(target=f"`{ast.unparse(target)}`")


def _update_name(s: Scope, node: ast.AugAssign, target: ast.Name) -> None:
    if s.t.on_device and target.id in s.frame.host_names:
        raise exc.CannotModifyHostVariableOnDevice(name=target.id)
    current = s.frame.lookup(s.t, target.id)
    value = evaluate(s, node.value)
    s.at(node)
    if isinstance(node.op, ast.Add) and isinstance(current, DeviceValue) and _is_product(node.value):
        s.t.world.warn(exc.TiledKMatmulAccumulationWarning())
    if isinstance(current, HostTensorValue) and not s.t.on_device:
        result = in_place(s, type(node.op), current, value)
    else:
        result = _updated(s, node, current, value)
    if s.t.on_device and isinstance(current, DeviceValue) and isinstance(result, DeviceValue):
        result = _like(s, node, current, result)
    assign(s, target, result)


def _updated(s: Scope, node: ast.AugAssign, current: Any, value: Any) -> Any:
    """Return ``current += value`` and the like: a container stays the same object, which other names see change."""
    method = _CHANGES.get((type(current), type(node.op)))
    if method is not None:
        call(s, getattr(current, method), (value,), {}, node)
    elif type(current) is list and isinstance(node.op, ast.Mult) and type(value) is int:
        function, args = (current.extend, (list(current) * (value - 1),)) if value > 0 else (current.clear, ())
        call(s, function, args, {}, node)
    else:
        return binary(s, type(node.op), current, value)
    return current


def _like(s: Scope, node: ast.AugAssign, current: DeviceValue, result: DeviceValue) -> DeviceValue:
    """Cast the result of ``x += y`` to the dtype of x, as in eager; refuse a change of its shape."""
    _check_kept(node, current, result)
    if result.dims != current.dims and current.dims and not _same_sizes(s, result, current):
        raise exc.ShapeMismatch(
            lhs=repr(current), rhs=repr(result), detail=": an in-place operation cannot change the shape"
        )
    return ops.cast(s.t, result, current.dtype)


def _check_kept(node: ast.AugAssign, current: DeviceValue | HostTensorValue, result: Any) -> None:
    """Check that ``x += y`` keeps the kind of number of x, as in torch: a quotient of integers is no integer."""
    if isinstance(result, DeviceValue) and not torch.can_cast(result.dtype, current.dtype):
        raise exc.TypeInferenceError(
            f"`{ast.unparse(node)}` gives {result.dtype}, which cannot be stored back into {current!r} in place; convert one of them."
        )


def _same_sizes(s: Scope, one: DeviceValue, other: DeviceValue) -> bool:
    pairs = zip(one.dims, other.dims, strict=False)
    return one.ndim == other.ndim and all(same_size(s.t.blocks, a, b) for a, b in pairs)


def _update_item(s: Scope, node: ast.AugAssign, target: ast.Subscript) -> None:
    container, index = evaluate(s, target.value), evaluate(s, target.slice)
    value = evaluate(s, node.value)
    s.at(node)
    if isinstance(container, HostTensorValue):
        if s.t.on_device:
            name_tensor(s, container)
            result = binary(s, type(node.op), container[index], value)
            _check_kept(node, container, result)
            container[index] = result
        return
    if isinstance(container, hl.StackTensor):
        current = call_hl(s, hl.load, (container, as_list(index)), {}, node)
    else:
        current = container[index]
    _store_item(s, container, index, _updated(s, node, current, value), target)


def assign_name(s: Scope, target: ast.Name, value: Any) -> None:
    name, value = target.id, kept(s, value)
    if s.t.on_device:
        if name in s.frame.host_names:
            raise exc.CannotModifyHostVariableOnDevice(name=name)
        if isinstance(value, DeviceValue) and not value.value.name:
            # the value is under construction and has no other user yet
            object.__setattr__(value.value, "name", name)
    elif s.frame.is_kernel:
        forget_sources(s, name)
        if isinstance(value, HostTensorValue):
            value.source = value.source or name
            _adopt_deferred_numbers(s, value)
    s.frame.names[name] = value


def _adopt_deferred_numbers(s: Scope, value: HostTensorValue) -> None:
    """Read sizes and strides of an unnamed tensor from a named view of it."""
    for what, numbers in (("size", value.shape), ("stride", value.strides)):
        for dim, number in enumerate(numbers):
            if isinstance(number, Expr) and number.op == "host" and number.args[0] in s.t.numbers.deferred:
                owner, _ = s.t.numbers.deferred[number.args[0]]
                if not owner.source:
                    s.t.numbers.deferred[number.args[0]] = (value, f"{what}({dim})")


def assign_sequence(s: Scope, target: ast.Tuple | ast.List, value: Any) -> None:
    if isinstance(value, Tile):
        raise exc.FailedToUnpackTile(count=len(target.elts))
    if isinstance(value, Opaque):
        for element in target.elts:
            assign(s, element.value if isinstance(element, ast.Starred) else element, value)
        return
    if isinstance(value, (DeviceValue, HostTensorValue, Expr)) or not hasattr(value, "__iter__"):
        raise exc.FailedToUnpackTupleAssign(value=describe(value), count=len(target.elts))
    items = list(value)
    starred = [i for i, element in enumerate(target.elts) if isinstance(element, ast.Starred)]
    if starred:
        at, extra = starred[0], len(items) - len(target.elts) + 1
        items = [*items[:at], list(items[at : at + extra]), *items[at + extra :]]
    if len(items) != len(target.elts):
        raise exc.FailedToUnpackTupleAssign(value=f"{len(items)} values", count=len(target.elts))
    for element, item in zip(target.elts, items, strict=True):
        assign(s, element.value if isinstance(element, ast.Starred) else element, item)


def assign_item(s: Scope, target: ast.Subscript, value: Any) -> None:
    if _assign_outside(s, target):
        return
    container, index = evaluate(s, target.value), evaluate(s, target.slice)
    s.at(target)
    _store_item(s, container, index, value, target)


def _store_item(s: Scope, container: Any, index: Any, value: Any, node: ast.Subscript) -> None:
    if isinstance(container, hl.StackTensor):
        call_hl(s, hl.store, (container, as_list(index), value), {}, node)
        return
    if isinstance(container, HostTensorValue):
        if s.t.on_device:
            name_tensor(s, container)
            if isinstance(value, HostTensorValue):
                name_tensor(s, value)
                value = memory.whole_of(s.t, container, index, value)
        container[index] = value
    elif isinstance(container, DeviceValue):
        raise exc.DeviceTensorSubscriptAssignmentNotAllowed(name=ast.unparse(node.value))
    elif isinstance(container, (list, dict)) and (not s.t.on_device or may_change(s, container)):
        index = plain(s, index)
        old = container[index] if isinstance(container, list) or index in container else None
        if isinstance(old, HostTensorValue):
            old.source = ""
        container[index] = value
    else:
        raise exc.NonTensorSubscriptAssign(got=_described(container))


def _described(container: Any) -> str:
    """Return a description of what has no items to assign, with a remedy for lists, which loops carry as a whole."""
    if not isinstance(container, list):
        return describe(container)
    return "a list that was made outside of this loop or branch; assign a new list to its name"


def assign_attribute(s: Scope, target: ast.Attribute, value: Any) -> None:
    """Record ``owner.name = value``, which runs at run time; later reads see the value."""
    owner = evaluate(s, target.value)
    s.at(target)
    if s.t.on_device or isinstance(owner, (HostTensorValue, Expr, Opaque)):
        raise exc.InvalidAssignment(target=f"`{ast.unparse(target)}`")
    s.t.world.effects += 1
    s.t.world.acts = True
    if isinstance(inspect.getattr_static(type(owner), "__setattr__"), types.FunctionType) or isinstance(
        vars(type(owner)).get(target.attr), property
    ):
        value = opaque(f"`{ast.unparse(target)}`")
    s.t.world.attributes[(id(owner), target.attr)] = (owner, value)


def _assign_outside(s: Scope, target: ast.Subscript) -> bool:
    """Return whether an assignment is to an item of a container from outside, which is opaque after it."""
    if s.t.on_device:
        refuse_change(s, target.value)
        return False
    container = outside(s, target.value)
    if container is None:
        return False
    forget_outside(s, container, opaque(f"the content of `{ast.unparse(target.value)}` after an assignment"))
    return True


def _is_product(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.matmul", "torch.mm", "torch.bmm")
