"""``for`` and ``while`` statements, by their iterable."""

from __future__ import annotations

import ast
import types
from typing import Any

from .... import exc
from .... import language as hl
from ..expressions.comprehensions import iterate
from ..expressions.conditions import truth_on_host
from ..walk.scope import Break, Continue, Scope, assign, evaluate, try_evaluate
from ..walk.unfollowed import execute_all
from .device_loops import device_for, device_while
from .grid_loops import grid_loop
from .launches import place_header
from .loop_headers import bounds_of, constant_bound, jagged_spec, loop_spec

_LOOPS = {
    hl.jagged_tile: "hl.jagged_tile",
    hl.tile: "hl.tile",
    hl.grid: "hl.grid",
    hl.static_range: "hl.static_range",
    range: "range",
}


#: A host while loop with more iterations counts as endless.
_MAX_HOST_ITERATIONS = 10_000


def walk_for(s: Scope, node: ast.For) -> None:
    function = evaluate(s, node.iter.func) if isinstance(node.iter, ast.Call) else None
    name = _LOOPS.get(function) if isinstance(function, (type, types.FunctionType)) else None
    if name is None or (name == "range" and not s.t.on_device):
        _unrolled(s, node, evaluate(s, node.iter))
        return
    if node.orelse:
        raise exc.DeviceLoopElseBlock()
    if name == "hl.jagged_tile":
        device_for(s, node, jagged_spec(s, node))
        return
    known = len(s.t.numbers.drawn)
    spec = loop_spec(s, name, node)
    if name == "hl.static_range":
        if not s.t.on_device:
            raise exc.DeviceAPIOnHost(name=name)
        _unrolled(s, node, range(*(constant_bound(v) for v in bounds_of(spec))))
    elif name == "range" and _indexes_sequences(s, node) and all(isinstance(b, int) for b in bounds_of(spec)):
        _unrolled(s, node, range(*bounds_of(spec)))
    elif s.t.on_device:
        device_for(s, node, spec)
    else:
        place_header(s, node, len(s.t.numbers.drawn) > known)
        grid_loop(s, node, spec)


def walk_while(s: Scope, node: ast.While) -> None:
    if node.orelse:
        raise exc.DeviceLoopElseBlock()
    if s.t.on_device:
        device_while(s, node)
        return
    for _ in range(_MAX_HOST_ITERATIONS):
        if not truth_on_host(s, evaluate(s, node.test)) or not _iteration(s, node.body):
            return
    raise exc.StatementNotSupported(
        statement=f"A while loop of more than {_MAX_HOST_ITERATIONS} iterations", where="host", remedy=""
    )


def _indexes_sequences(s: Scope, node: ast.For) -> bool:
    """Return whether the body indexes a Python sequence by the loop variable, which requires unrolling."""
    target = node.target.id if isinstance(node.target, ast.Name) else ""
    for part in (part for statement in node.body for part in ast.walk(statement)):
        if isinstance(part, ast.Subscript) and isinstance(part.value, (ast.Name, ast.Attribute)):
            names = {n.id for n in ast.walk(part.slice) if isinstance(n, ast.Name)}
            if target in names and isinstance(try_evaluate(s, part.value), (list, tuple)):
                return True
    return False


def _unrolled(s: Scope, node: ast.For, iterable: Any) -> None:
    for item in iterate(s, iterable, node.iter):
        assign(s, node.target, item)
        if not _iteration(s, node.body):
            return
    execute_all(s, node.orelse)


def _iteration(s: Scope, body: list[ast.stmt]) -> bool:
    """Walk the body of an unrolled loop once; return False if it ends the loop."""
    try:
        execute_all(s, body)
    except Continue:
        pass
    except Break:
        return False
    return True
