"""Subscripts of values."""

from __future__ import annotations

import ast
from typing import Any

from .... import exc
from .... import language as hl
from ...._shapes import Expr
from ..runtime_values import Opaque, is_runtime, opaque, opaques
from ..values import DeviceValue, HostTensorValue, Tile, TileTuple, describe
from ..walk.iterations import item_of
from ..walk.lookup import name_tensor
from ..walk.scope import Scope, captured, evaluate
from .attributes import lifted
from .conditions import merged_value
from .displays import noted, plain
from .hl_calls import call_hl
from .overloads import overloaded

#: Values of the trace, which containers hold that the kernel's own code makes: nothing outside can change those.
_TRACED = (DeviceValue, HostTensorValue, Tile, Expr)


def evaluate_subscript(s: Scope, node: ast.Subscript) -> Any:
    value = evaluate(s, node.value)
    index = evaluate(s, node.slice)
    s.at(node)
    if isinstance(value, HostTensorValue):
        if s.t.on_device:
            name_tensor(s, value)
        return captured(s, _tensor_item(s, value, index), node)
    if isinstance(value, Opaque):
        return value
    if isinstance(value, hl.StackTensor):
        return call_hl(s, hl.load, (value, as_list(index)), {}, node)
    if isinstance(value, DeviceValue):
        return value[index]
    if isinstance(value, Tile):
        raise exc.IncorrectTileUsage(how="with a subscript")
    if isinstance(index, Expr) and isinstance(value, (list, tuple)) and s.t.numbers.changes(index):
        return captured(s, item_of(s, value, index, node), node)
    found = overloaded(s, "getitem", value, index)
    if found is not NotImplemented:
        return captured(s, found, node)
    if isinstance(index, Expr) and not s.t.on_device and is_runtime(s.t, index):
        return _open_item(s, value)
    if isinstance(index, (DeviceValue, HostTensorValue, Tile)) or is_runtime(s.t, index):
        if isinstance(value, (int, float, Expr)):
            raise _number_indexed(value, node)
        raise exc.InvalidSequenceSubscription(got=describe(index))
    try:
        index = plain(s, index)
        result = value[index]
        if isinstance(index, slice) and type(value) is list:
            return noted(s, result)
        if isinstance(value, (dict, list)) and not isinstance(index, slice) and not isinstance(result, _TRACED):
            s.t.world.assume("item", value, index, result)
        return lifted(s, result, node)
    except (TypeError, KeyError, IndexError) as error:
        if (
            isinstance(value, (list, tuple))
            and isinstance(index, (tuple, list, slice))
            and isinstance(error, TypeError)
        ):
            what = f"{ast.unparse(node.value)!r} is" if isinstance(node, ast.Subscript) else "The indexed value is"
            raise exc.TypeInferenceError(
                f"{what} a {type(value).__name__} of {len(value)} items, which takes one integer as index; pass a tensor."
            ) from error
        raise exc.TypeInferenceError(f"{type(error).__name__}: {error}.") from error


def _number_indexed(value: Any, node: ast.expr) -> exc.Base:
    """Return the error for a subscript of a number."""
    name = repr(ast.unparse(node.value)) if isinstance(node, ast.Subscript) else "The indexed value"
    kind = (value.kind if isinstance(value, Expr) else type(value)).__name__
    return exc.TypeInferenceError(
        f"{name} is a number ({kind}) in this call, which has no elements; use it without a subscript, or pass a tensor."
    )


def as_list(index: Any) -> list[Any]:
    """Return the subscript between brackets as the list that ``hl.load`` takes."""
    return list(index) if isinstance(index, tuple) and not isinstance(index, TileTuple) else [index]


def _tensor_item(s: Scope, value: HostTensorValue, index: Any) -> Any:
    """Return ``value[index]`` of a tensor."""
    if not s.t.on_device and next(opaques(index), None) is not None:
        return next(opaques(index))
    return value[index]


def _open_item(s: Scope, value: Any) -> Any:
    """Return an item of a sequence at an index that is known at run time."""
    found = merged_value(s, list(value)) if isinstance(value, (list, tuple)) and value else None
    return opaque(f"`{s.source_text()}`") if found is None else found
