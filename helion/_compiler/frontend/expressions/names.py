"""Names and constants."""

from __future__ import annotations

import ast
from typing import Any

from .... import exc
from ..walk.scope import Scope, assign, evaluate


def evaluate_constant(s: Scope, node: ast.Constant) -> Any:
    return node.value


def evaluate_name(s: Scope, node: ast.Name) -> Any:
    s.node = node
    return s.frame.lookup(s.t, node.id)


def refuse_assignment(s: Scope, node: ast.expr) -> None:
    """Refuse ``:=`` in an operand of device code, which is evaluated unconditionally."""
    for part in ast.walk(node) if s.t.on_device else ():
        if isinstance(part, ast.NamedExpr):
            s.at(part)
            remedy = " after `and`, `or` or a comparison; assign before"
            raise exc.StatementNotSupported(statement=f"`{ast.unparse(part)}`", where="device", remedy=remedy)


def evaluate_named_expression(s: Scope, node: ast.NamedExpr) -> Any:
    value = evaluate(s, node.value)
    s.at(node)
    assign(s, node.target, value)
    return value
