"""Grid loops, which become the roots of the program."""

from __future__ import annotations

import ast

from .... import exc
from .... import language as hl
from ...ir.grammar import Operand, Region, Root
from ...source import FunctionSource
from ..values import LoopSpec, Missing
from ..walk.scope import Scope, try_evaluate
from ..walk.unfollowed import execute_all
from .loop_axes import axes_of, bind_loop_variable


def is_grid_loop(s: Scope, statement: ast.stmt) -> bool:
    """Return whether a statement is a loop over ``hl.tile`` or ``hl.grid``."""
    if not isinstance(statement, ast.For) or not isinstance(statement.iter, ast.Call):
        return False
    function = try_evaluate(s, statement.iter.func)
    return function is hl.tile or function is hl.grid


def has_grid_loop(s: Scope, node: ast.stmt) -> bool:
    """Return whether a branch, loop, ``with`` or ``try`` statement contains a grid loop, at any depth."""
    if not isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
        return False
    inner = [*node.body, *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())]
    inner += [statement for handler in getattr(node, "handlers", ()) for statement in handler.body]
    return any(holds_grid_loop(s, statement) for statement in inner)


def holds_grid_loop(s: Scope, node: ast.stmt) -> bool:
    """Return whether a statement is a grid loop or contains one."""
    return is_grid_loop(s, node) or has_grid_loop(s, node)


def grid_loop(s: Scope, node: ast.For, spec: LoopSpec) -> None:
    """Record a grid loop, whose body is device code."""
    if s.walk.grid_loop is not node:
        raise exc.NestedGridLoop(name=spec.name, parent="another statement")
    frame = s.frame
    outer = dict(frame.names)
    read = _read_names(frame.source)
    frame.host_names = frozenset(n for n, v in outer.items() if n in read and not isinstance(v, Missing))
    operands: list[Operand] = []
    axes = axes_of(s, spec, node.target, operands)
    with s.t.builder.region() as ops:
        bind_loop_variable(s, node.target, axes, spec)
        execute_all(s, node.body)
    s.t.blocks.active.clear()
    s.t.builder.location = None
    location = frame.source.location(node)
    body = Region((), tuple(ops), ())
    axes_only = tuple(axis for axis, _ in axes)
    s.walk.roots.append(Root(axes=axes_only, body=body, location=location, phase=s.t.phase, launch=s.walk.launches - 1))
    left = {n: _device_value_on_host(n) for n in frame.names if n not in outer}
    frame.host_names = frozenset()
    frame.names = {**outer, **left}


def _read_names(source: FunctionSource) -> set[str]:
    """Return the variables that some code of a function reads. The others, such as ``_``, hold values of no use."""
    names = {node.id for node in source.nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)}
    return names | {
        node.target.id for node in source.nodes if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }


def _device_value_on_host(name: str) -> Missing:
    return Missing(lambda: exc.CannotReadDeviceVariableOnHost(name=name))
