"""``with`` and ``try`` statements of host code."""

from __future__ import annotations

import ast
import copy

import torch

from .... import exc
from ..frames import assigned_names
from ..purity import acts, may_swallow
from ..runtime_values import Opaque, opaque
from ..values import Missing
from ..walk.lookup import peek
from ..walk.scope import Raised, Return, Scope, assign, evaluate
from ..walk.unfollowed import changed_containers, execute_all, forget, forget_sources, head_of, restore_host, save_host
from .grid_loops import holds_grid_loop
from .host_branches import merge_ways
from .launches import walk_host

_ABSENT = Missing(lambda: exc.UndefinedVariable(name="", detail=""))
#: Context managers that change the results of torch functions.
_MODES = frozenset(("device", "autocast", "suppress", "FakeTensorMode", "set_default_dtype", "catch"))


def walk_with(s: Scope, node: ast.With) -> None:
    if s.t.on_device:
        raise exc.NotAllowedOnDevice(what="A with statement")
    _enter(s, node)
    s.walk.uncertain += 1
    try:
        execute_all(s, node.body)
    finally:
        s.walk.uncertain -= 1


def _enter(s: Scope, node: ast.With) -> None:
    """Evaluate the context managers of a ``with`` statement, which are entered at run time."""
    for item in node.items:
        manager = evaluate(s, item.context_expr)
        text = ast.unparse(item.context_expr)
        if isinstance(manager, torch.device) or _name_of(s, item.context_expr) in _MODES:
            raise exc.StatementNotSupported(
                statement=f"`with {text}:`", where="host", remedy="; it changes the results of the calls in it"
            )
        expression = item.context_expr
        if may_swallow(peek(s, expression.func) if isinstance(expression, ast.Call) else type(manager)):
            raise exc.StatementNotSupported(
                statement=f"`with {text}:`", where="host", remedy="; it may suppress errors"
            )
        s.t.world.effects += 1
        s.t.world.acts |= not isinstance(manager, Opaque) and acts(type(manager))
        if item.optional_vars is not None:
            assign(s, item.optional_vars, opaque(f"`{text}`"))


def walk_try(s: Scope, node: ast.Try) -> None:
    if s.t.on_device:
        raise exc.NotAllowedOnDevice(what="A try statement")
    ways = [[*node.body, *node.orelse], *(handler.body for handler in node.handlers)]
    if node.handlers:
        for name in {handler.name for handler in node.handlers if handler.name}:
            s.frame.names[name] = opaque(f"`{name}`")
        _interrupted(s, node)
        merge_ways(s, ways, node)
        execute_all(s, node.finalbody)
        return
    s.walk.uncertain += 1
    try:
        execute_all(s, ways[0])
    except (Return, Raised) as leaving:
        execute_all(s, node.finalbody)
        raise leaving
    finally:
        s.walk.uncertain -= 1
    execute_all(s, node.finalbody)


def _interrupted(s: Scope, node: ast.Try) -> None:
    """Refuse handlers after a body that changes names or containers: a handler may run after any part of the body."""
    before = save_host(s)
    s.walk.uncertain += 1
    try:
        execute_all(s, node.body)
    except (Return, Raised):
        pass
    finally:
        s.walk.uncertain -= 1
    after, changed = s.frame.names, changed_containers(before)
    restore_host(s, before)
    unknown = opaque(f"what `{head_of(node)}` leaves")
    if any(after.get(name) is not value for name, value in before.names.items()) or changed:
        raise unknown.error


def launches_within(s: Scope, node: ast.With | ast.Try) -> None:
    """Walk a ``with`` or ``try`` statement around grid loops, which stays around their launches."""
    s.at(node)
    wrapped = copy.copy(node)
    if isinstance(node, ast.With):
        _enter(s, node)
    elif any(holds_grid_loop(s, part) for handler in node.handlers for part in handler.body):
        raise exc.NestedGridLoop(name="hl.tile", parent="an except clause")
    s.walk.uncertain += 1
    try:
        leaving = _walk_part(s, wrapped, "body")
        if isinstance(wrapped, ast.Try):
            leaving = _after_body(s, wrapped, leaving)
    finally:
        s.walk.uncertain -= 1
    s.walk.body.append(wrapped)
    if leaving is not None:
        raise leaving


def _after_body(s: Scope, wrapped: ast.Try, leaving: Exception | None) -> Exception | None:
    """Walk the clauses of a ``try`` statement and return the exception that leaves it, if any."""
    before = [*wrapped.body, *wrapped.orelse]
    if leaving is None:
        leaving = _walk_part(s, wrapped, "orelse")
    else:
        wrapped.orelse = []
    for handler in wrapped.handlers:
        if isinstance(handler.body[-1], (ast.Raise, ast.Return)):
            continue
        leaving = None  # an error in a launch is not followed, so the effects of the handler are unknown
        known = [name for name in assigned_names(before) if not isinstance(s.frame.names.get(name, _ABSENT), Missing)]
        for name in dict.fromkeys((*known, *assigned_names([handler]))):
            forget_sources(s, name)
            s.frame.names[name] = opaque(f"`{name}`", " (an except clause may see or assign another value)")
        for statement in handler.body:
            forget(s, statement, opaque(f"what `{head_of(statement)}` does").error)
    return _walk_part(s, wrapped, "finalbody") or leaving


def _walk_part(s: Scope, wrapped: ast.stmt, field: str) -> Exception | None:
    """Walk a body of a statement and replace it by its generated statements; return the exception that leaves it, if
    any.
    """
    leaving: Exception | None = None
    try:
        made = _walk_apart(s, getattr(wrapped, field))
    except (Return, Raised) as left:
        leaving, made = left, s.walk.left_body
    setattr(wrapped, field, made)
    return leaving


def _walk_apart(s: Scope, statements: list[ast.stmt]) -> list[ast.stmt]:
    """Walk statements as a separate body and return its generated statements."""
    outer, s.walk.body = s.walk.body, []
    try:
        walk_host(s, statements)
    finally:
        s.walk.left_body, s.walk.body = s.walk.body or [ast.Pass()], outer
    return s.walk.left_body if statements else []


def _name_of(s: Scope, node: ast.expr) -> str:
    function = peek(s, node.func) if isinstance(node, ast.Call) else None
    module = (getattr(function, "__module__", None) or "").split(".")[0]
    name = getattr(function, "__name__", "")
    if name == "device" and getattr(function, "__module__", "") == "torch.cuda":
        return ""  # the current device does not change where tensors of explicit devices are made
    return name if module in ("torch", "contextlib") else ""
