"""``if`` statements: resolved when compiling where the condition is known, recorded where it is not."""

from __future__ import annotations

import ast
from typing import Any

from .... import exc
from ...._shapes import Expr
from ...ir.grammar import Op, Region
from .. import ops
from ..expressions.conditions import is_open, truth_on_host
from ..torch_pointwise import truth
from ..values import DeviceValue, Missing, Tile
from ..walk.scope import Scope, evaluate
from ..walk.unfollowed import execute_all
from .host_branches import open_if
from .number_joins import join

_ABSENT = object()


def walk_if(s: Scope, node: ast.If) -> None:
    test = evaluate(s, node.test)
    s.at(node.test)
    if isinstance(test, Tile):
        raise exc.IncorrectTileUsage(how="as a condition")
    if not s.t.on_device and is_open(s, test):
        open_if(s, node, test)
        return
    if not s.t.on_device or not isinstance(test, (DeviceValue, Expr)):
        execute_all(s, node.body if truth_on_host(s, test) else node.orelse)
        return
    condition = ops.as_device(s.t, truth(s.t, test))
    if any(not d.is_one for d in condition.dims):
        raise exc.ConditionNotScalar(statement=f"if {ast.unparse(node.test)}", shape=repr(condition))
    _device_if(s, node, ops.reshape(s.t, condition, ()))


def _device_if(s: Scope, node: ast.If, condition: DeviceValue) -> None:
    before = dict(s.frame.names)
    branches: list[tuple[list[Op], dict[str, Any]]] = []
    for body in (node.body, node.orelse):
        s.frame.names = dict(before)
        with s.t.builder.region() as recorded:
            execute_all(s, body)
        branches.append((recorded, s.frame.names))
    s.at(node)
    (then_ops, then_names), (else_ops, else_names) = branches
    merged = [n for n in {**then_names, **else_names} if then_names.get(n, _ABSENT) is not else_names.get(n, _ABSENT)]
    unchanged = {n: v for n, v in then_names.items() if else_names.get(n, _ABSENT) is v}
    names, results = {**before, **unchanged}, []
    for name in merged:
        pair = (then_names.get(name), else_names.get(name))
        if name not in then_names or name not in else_names or any(isinstance(v, Missing) for v in pair):
            names[name] = _defined_in_one_branch(name)
            continue
        if all(isinstance(v, (int, float, str)) or v is None for v in pair) and pair[0] == pair[1]:
            names[name] = pair[0]
            continue
        try:
            results.append((name, *join(s, name, *pair, then_ops, else_ops)))
        except (exc.ControlFlowTensorMismatch, exc.CantCombineTypesInControlFlow) as error:
            names[name] = _unlike(error.at(s.location()))
    values = [s.t.builder.value(then.dtype, then.dims, name) for name, then, _ in results]
    regions = (
        Region((), tuple(then_ops), tuple(then for _, then, _ in results)),
        Region((), tuple(else_ops), tuple(other for _, _, other in results)),
    )
    s.t.builder.append("if", (condition.value,), values, None, regions)
    for (name, _, _), value in zip(results, values, strict=True):
        names[name] = ops.wrap(s.t, value)
    s.frame.names = names


def _unlike(error: exc.Base) -> Missing:
    """A name for values of two kinds: nobody may read it behind the if."""
    return Missing(lambda: error)


def _defined_in_one_branch(name: str) -> Missing:
    return Missing(
        lambda: exc.UndefinedVariable(
            name=name, detail=" on every way through the if statement; assign it before, or in both branches"
        )
    )
