"""The host code of a kernel with launches in place of its grid loops."""

from __future__ import annotations

import ast

from .... import exc
from .... import language as hl
from ...._shapes import Expr
from ...ir.host_module import Keep, Launch
from ...source import place_of
from ..captures import UNNAMED, keep_tensor
from ..expressions.conditions import truth_on_host
from ..expressions.run_time import runtime_number
from ..frames import assigned_names
from ..values import HostTensorValue
from ..walk.kinds import type_of
from ..walk.lookup import peek
from ..walk.scope import Return, Scope, evaluate, execute, try_evaluate
from ..walk.unfollowed import execute_host
from .grid_loops import has_grid_loop, holds_grid_loop, is_grid_loop


def walk_host(s: Scope, statements: list[ast.stmt]) -> None:
    """Walk host statements with the grid loops among them, and collect the statements of the generated function."""
    for position, statement in enumerate(statements):
        if is_grid_loop(s, statement):
            _place_launch(s, statement)
        elif has_grid_loop(s, statement):
            s.walk.syntax.around_grid_loops[type(statement)](s, statement)
            continue
        elif _is_barrier(s, statement):
            s.walk.open_barrier = statement
            s.t.phase += 1
            continue
        else:
            s.walk.body.append(statement)
        if is_grid_loop(s, statement):
            execute(s, statement)
        else:
            try:
                execute_host(s, statement)
            except Return:
                rest = statements[position + 1 :]
                if not any(holds_grid_loop(s, part) for part in rest):
                    s.walk.body += rest
                raise
            if isinstance(statement, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
                _keep_numbers(s, statement)


def launches_in_branch(s: Scope, node: ast.If) -> None:
    """Inline the branch taken around grid loops, after an assertion of its condition."""
    s.at(node.test)
    taken = truth_on_host(s, evaluate(s, node.test))
    condition = node.test if taken else ast.UnaryOp(ast.Not(), node.test)
    check = ast.Assert(condition, ast.Constant("compiled for the other branch"))
    s.walk.body.append(ast.fix_missing_locations(ast.copy_location(check, node)))
    walk_host(s, node.body if taken else node.orelse)


def _is_barrier(s: Scope, statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or any(isinstance(part, ast.Call) for part in ast.walk(call.func)):
        return False  # a nested call may have effects and must run once
    if peek(s, call.func) is not hl.barrier or try_evaluate(s, call.func) is not hl.barrier:
        return False
    s.at(statement)
    if not any(isinstance(node, Launch) for known in s.walk.body for node in ast.walk(known)):
        raise exc.BarrierOnlyAllowedAtTopLevel()
    return True


def _place_launch(s: Scope, statement: ast.stmt) -> None:
    """Merge a grid loop into the previous launch if only barriers separate them; otherwise begin a new launch."""
    s.walk.grid_loop, s.walk.open_barrier = statement, None
    at = _launch_at(s)
    if at is not None and all(map(_is_docstring, s.walk.body[at + 1 :])):
        return
    _begin_launch(s, statement)


def _launch_at(s: Scope) -> int | None:
    """Return the index of the last launch in the current body; None if it is in another one."""
    found = (
        at for at, known in enumerate(s.walk.body) if isinstance(known, Launch) and known.number == s.walk.launches - 1
    )
    return next(found, None)


def _begin_launch(s: Scope, statement: ast.stmt) -> None:
    s.walk.body.append(ast.copy_location(Launch(s.walk.launches), statement))
    s.walk.launches += 1
    s.t.tensors.first = len(s.t.tensors.program)
    s.t.tensors.begin_checks()
    s.t.phase = s.walk.roots[-1].phase + 1 if s.walk.roots else 0


def place_header(s: Scope, node: ast.For, reads: bool) -> None:
    """Emit the values that launches need from a grid loop's header, which is not generated itself. ``reads``: the
    header reads a tensor on the host.
    """
    if reads and any(root.launch == s.walk.launches - 1 for root in s.walk.roots):
        # the loops before it may write what the host reads here: that needs a separate launch
        _begin_launch(s, node)
    kept, s.walk.header_reads = s.walk.header_reads, []
    for part in ast.walk(node.iter):
        if isinstance(part, ast.expr):
            kept += [Keep(name, part) for name in s.t.numbers.captures.pop(place_of(part), ())]
    at = _launch_at(s)
    assert at is not None
    s.walk.body[at:at] = [ast.copy_location(keep, node) for keep in reversed(kept)]


def _keep_numbers(s: Scope, statement: ast.stmt) -> None:
    """Capture numbers that a statement of the kernel assigned to variables, for launches that need them."""
    for name in assigned_names([statement]):
        value = s.frame.names.get(name)
        if isinstance(value, HostTensorValue) and value.chosen and not (value.source or value.made):
            kept = keep_tensor(s.t, value)
            s.walk.body.append(ast.copy_location(Keep(kept, ast.Name(name, ast.Load())), statement))
        if not isinstance(value, Expr) or not any(s.t.numbers.drawn.get(x.args[0]) == UNNAMED for x in value.leaves()):
            continue
        if value.op != "host":
            value = s.frame.names[name] = runtime_number(s, type_of(value))
        s.t.numbers.drawn[value.args[0]] = ""
        s.walk.body.append(ast.copy_location(Keep(value.args[0], ast.Name(name, ast.Load())), statement))


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
