"""Definitions of functions, imports and deletions."""

from __future__ import annotations

import ast
import sys
from typing import Any

from .... import exc
from ..expressions.displays import plain
from ..expressions.functions import define
from ..runtime_values import MUTABLE, opaque
from ..values import Missing
from ..walk.scope import Scope, assign, evaluate
from ..walk.unfollowed import forget_sources, outside


def walk_function_definition(s: Scope, node: ast.FunctionDef) -> None:
    for part in ast.walk(node):
        if isinstance(part, (ast.Global, ast.Nonlocal)):
            s.at(part)
            raise _no_scopes(part)
    if s.t.on_device and node.decorator_list:
        raise exc.NotAllowedOnDevice(what="A decorated function")
    if node.decorator_list or any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(node)):
        s.frame.names[node.name] = opaque(f"the function `{node.name}`")
        return
    assign(s, ast.Name(node.name, ast.Store()), define(s, node))


def walk_global(s: Scope, node: ast.Global) -> None:
    raise exc.NotAllowedOnDevice(what="A global statement") if s.t.on_device else _no_scopes(node)


def walk_nonlocal(s: Scope, node: ast.Nonlocal) -> None:
    raise exc.NotAllowedOnDevice(what="A nonlocal statement") if s.t.on_device else _no_scopes(node)


def walk_delete(s: Scope, node: ast.Delete) -> None:
    if s.t.on_device:
        raise exc.NotAllowedOnDevice(what="A del statement")
    for target in node.targets:
        if isinstance(target, ast.Name):
            forget_sources(s, target.id)
            s.frame.names[target.id] = Missing(_deleted(target.id))
            continue
        if isinstance(target, ast.Subscript) and outside(s, target.value) is None:
            container, index = evaluate(s, target.value), plain(s, evaluate(s, target.slice))
            if isinstance(container, MUTABLE):
                del container[index]  # type: ignore[union-attr]
                continue
        raise exc.InvalidAssignment(target=f"`{ast.unparse(target)}`")


def walk_import(s: Scope, node: ast.Import) -> None:
    if s.t.on_device:
        raise exc.NotAllowedOnDevice(what="An import statement")
    for alias in node.names:
        whole = sys.modules.get(alias.name if alias.asname else alias.name.split(".")[0])
        _bind_import(s, alias.asname or alias.name.split(".")[0], whole, alias.name in sys.modules)


def walk_import_from(s: Scope, node: ast.ImportFrom) -> None:
    if s.t.on_device:
        raise exc.NotAllowedOnDevice(what="An import statement")
    module = None if node.level else sys.modules.get(node.module or "")
    for alias in node.names:
        found = getattr(module, alias.name, None)
        _bind_import(s, alias.asname or alias.name, found, found is not None)
        if module is not None and found is not None:
            s.t.world.assume("attribute", module, alias.name, found)


def _bind_import(s: Scope, name: str, value: Any, known: bool) -> None:
    s.frame.names[name] = value if known else opaque(f"`{name}`", " (its module was not imported before)")


def _deleted(name: str) -> Any:
    return lambda: exc.UndefinedVariable(name=name, detail=" after it was deleted")


def _no_scopes(node: Any) -> exc.Base:
    kind = type(node).__name__.lower()
    return exc.StatementNotSupported(
        statement=f"`{kind} {', '.join(node.names)}`",
        where="host",
        remedy="; return the value, or keep it in a list or an object",
    )
