"""Tuples, lists, dicts, sets, slices and formatted text."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from .... import exc
from ..runtime_values import numbers_in, opaques, settle
from ..values import DeviceValue, HostTensorValue
from ..walk.kinds import tensors_in
from ..walk.scope import Scope, evaluate, kept
from .run_time import try_settle, unknown


def evaluate_tuple(s: Scope, node: ast.Tuple) -> Any:
    return tuple(kept(s, item) for item in evaluate_items(s, node.elts))


def evaluate_list(s: Scope, node: ast.List) -> Any:
    return noted(s, [kept(s, item) for item in evaluate_items(s, node.elts)])


def noted(s: Scope, items: list[Any]) -> list[Any]:
    """Note where device code makes a list: only there may it change."""
    if s.t.on_device:
        s.t.world.lists[id(items)] = (items, s.t.builder.depth)
    return items


def evaluate_items(s: Scope, nodes: list[ast.expr]) -> list[Any]:
    """Return the values of a sequence of expressions, with ``*items`` unpacked."""
    items: list[Any] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            items.extend(evaluate(s, node.value))
        else:
            items.append(evaluate(s, node))
    return items


def evaluate_dict(s: Scope, node: ast.Dict) -> Any:
    made: dict[Any, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            made.update(evaluate(s, value))
        else:
            made[plain(s, evaluate(s, key))] = evaluate(s, value)
    return made


def plain(s: Scope, value: Any) -> Any:
    """Return a value with plain numbers, which Python can hash."""
    return settle(s.t, value) if next(numbers_in(value), None) is not None else value


def evaluate_set(s: Scope, node: ast.Set) -> Any:
    return set(plain(s, evaluate_items(s, node.elts)))


def evaluate_slice(s: Scope, node: ast.Slice) -> slice:
    return slice(*(None if part is None else evaluate(s, part) for part in (node.lower, node.upper, node.step)))


def evaluate_joined_text(s: Scope, node: ast.JoinedStr) -> Any:
    parts = [evaluate(s, part) for part in node.values]
    waits = next(opaques(parts), None)
    return waits if waits is not None else "".join(parts)


def evaluate_formatted_value(s: Scope, node: ast.FormattedValue) -> Any:
    value = evaluate(s, node.value)
    spec = "" if node.format_spec is None else evaluate(s, node.format_spec)
    s.at(node)
    settled = try_settle(s, value)
    waits = next(opaques((value, spec)), None)
    if s.t.on_device and isinstance(value, DeviceValue):
        raise exc.TypeInferenceError(
            f"The text of `{s.source_text()}` needs numbers that are known on the GPU only; pass the value itself: print('name', value)."
        )
    if waits is not None or (settled is None and value is not None) or _has_tensors(value):
        return unknown(s, format, ()) if waits is None else waits
    convert: dict[int, Callable[[Any], Any]] = {ord("r"): repr, ord("s"): str, ord("a"): ascii}
    return format(convert.get(node.conversion, lambda v: v)(settled), spec)


def _has_tensors(value: Any) -> bool:
    return isinstance(value, (HostTensorValue, DeviceValue)) or bool(tensors_in(value))
