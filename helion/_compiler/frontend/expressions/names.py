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


def evaluate_named_expression(s: Scope, node: ast.NamedExpr) -> Any:
    if s.t.on_device:  # both sides of `and`, `or` and conditional expressions are evaluated there
        s.at(node)
        raise exc.StatementNotSupported(statement=f"`{ast.unparse(node)}`", where="device", remedy="")
    value = evaluate(s, node.value)
    s.at(node)
    assign(s, node.target, value)
    return value
