"""``if`` statements and conditional expressions: resolved at compile time if the condition is known, recorded
otherwise.
"""

from __future__ import annotations

import ast
from typing import Any

from .... import exc
from ...._shapes import Expr
from ...ir.grammar import Op, Region
from .. import ops
from ..expressions.conditions import chosen, is_known_on_device_only, is_open, truth_on_host
from ..torch.pointwise import truth
from ..values import DeviceValue, Missing, Tile
from ..walk.scope import Scope, evaluate
from ..walk.unfollowed import execute_all
from .carried import hint
from .host_branches import open_if
from .number_joins import join
from .sequences import Sequences

_ABSENT = object()
#: The name of a conditional expression's value while its branches are joined; no user's name has a space.
_CHOSEN = "conditional value"


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
    _device_if(s, node, _scalar_condition(s, test, f"if {ast.unparse(node.test)}"))


def evaluate_conditional(s: Scope, node: ast.IfExp) -> Any:
    """Return the value of ``body if test else orelse``; device code that tests it evaluates one of the two."""
    test = evaluate(s, node.test)
    s.at(node)
    if not is_known_on_device_only(s, test):
        return chosen(s, node, test)
    condition = _scalar_condition(s, test, ast.unparse(node))
    target = ast.Name(_CHOSEN, ast.Store())
    branches: list[ast.stmt] = [
        ast.copy_location(ast.Assign([target], part), part) for part in (node.body, node.orelse)
    ]
    statement = ast.copy_location(ast.If(node.test, branches[:1], branches[1:]), node)
    _device_if(s, ast.fix_missing_locations(statement), condition)
    result = s.frame.names.pop(_CHOSEN)
    if isinstance(result, Missing):
        raise result.error()
    return result


def _scalar_condition(s: Scope, test: Any, statement: str) -> DeviceValue:
    """Return a condition as a device value of one element. Raises exc.ConditionNotScalar for one of more."""
    condition = ops.as_device(s.t, truth(s.t, test))
    if any(not d.is_one for d in condition.dims):
        raise exc.ConditionNotScalar(statement=statement, shape=repr(condition))
    return ops.reshape(s.t, condition, ())


def _device_if(s: Scope, node: ast.If, condition: DeviceValue) -> None:
    before = dict(s.frame.names)
    branches: list[tuple[list[Op], dict[str, Any]]] = []
    for body in (node.body, node.orelse):
        s.frame.names = dict(before)
        s.t.blocks.branches += 1
        with s.t.builder.region() as recorded:
            execute_all(s, body)
        s.t.blocks.branches -= 1
        branches.append((recorded, s.frame.names))
    s.at(node)
    (then_ops, then_names), (else_ops, else_names) = branches
    sequences = Sequences.in_both(then_names, else_names, _differing(then_names, else_names))
    then_names, else_names = (sequences.spread(names, "if", lambda _: False) for names in (then_names, else_names))
    merged = _differing(then_names, else_names)
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
    values = [s.t.builder.value(then.dtype, then.dims, hint(name)) for name, then, _ in results]
    regions = (
        Region((), tuple(then_ops), tuple(then for _, then, _ in results)),
        Region((), tuple(else_ops), tuple(other for _, _, other in results)),
    )
    s.t.builder.append("if", (condition.value,), values, None, regions)
    for (name, then, other), value in zip(results, values, strict=True):
        names[name] = ops.wrap(s.t, value)
        either = (condition, ops.wrap(s.t, then), ops.wrap(s.t, other))
        s.t.ranges.note(names[name], s.t.ranges.of_op("where", either))
    s.frame.names = sequences.gathered(names)


def _differing(then_names: dict[str, Any], else_names: dict[str, Any]) -> list[str]:
    """Return the names that are not the same value after both branches."""
    return [n for n in {**then_names, **else_names} if then_names.get(n, _ABSENT) is not else_names.get(n, _ABSENT)]


def _unlike(error: exc.Base) -> Missing:
    """Return a placeholder for a name with values of two kinds, which cannot be read after the if."""
    return Missing(lambda: error)


def _defined_in_one_branch(name: str) -> Missing:
    return Missing(
        lambda: exc.UndefinedVariable(
            name=name, detail=" on every path through the if statement; assign it before, or in both branches"
        )
    )
