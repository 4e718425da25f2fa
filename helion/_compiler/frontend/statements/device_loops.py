"""Loops inside device code, which become ``for`` and ``while`` ops."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from .... import exc
from ...._shapes import Expr
from ...ir.grammar import ForAttrs, LoopAxis, Operand, OperandRef, Region, WhileAttrs
from .. import ops
from ..frames import assigned_names
from ..torch.pointwise import truth
from ..values import DeviceValue, LoopSpec, Tile
from ..walk.scope import Scope, evaluate
from ..walk.unfollowed import execute_all
from .carried import Carried, carried_values, hint, names_after, trace_body
from .loop_axes import axes_of, bind_loop_variable
from .sequences import Sequences


def device_for(s: Scope, node: ast.For, spec: LoopSpec) -> None:
    """Record a loop over tiles or indices."""
    targets = assigned_names([node.target])  # each iteration binds them again
    before = {name: value for name, value in s.frame.names.items() if name not in targets}
    bounds: list[Operand] = []
    axes = axes_of(s, spec, node.target, bounds)

    def body() -> None:
        bind_loop_variable(s, node.target, axes, spec)
        execute_all(s, node.body)

    sequences, before = _spread(before, node)
    trial = trace_body(s, sequences, node.body, before, body)
    s.at(node)
    carried, temporaries = carried_values(s, trial, before)
    for _, block in axes:
        s.t.blocks.active.pop(block.id, None)
    results = {c.name: s.t.builder.value(c.param.dtype, c.param.dims, hint(c.name)) for c in carried}
    region = Region(tuple(c.param for c in carried), tuple(trial.ops), tuple(c.after for c in carried))
    attrs = ForAttrs(tuple(_shift_bounds(axis, len(carried)) for axis, _ in axes), len(carried))
    operands = (*(c.initial for c in carried), *bounds)
    s.t.builder.append("for", operands, tuple(results.values()), attrs, (region,))
    s.frame.names = sequences.gathered(names_after(s, node, trial, before, results, temporaries))


def device_while(s: Scope, node: ast.While) -> None:
    """Record a loop whose condition depends on its carried values."""
    sequences, before = _spread(dict(s.frame.names), node)
    trial = trace_body(s, sequences, node.body, before, lambda: execute_all(s, node.body))
    carried, temporaries = carried_values(s, trial, before)
    condition = _condition(s, node, carried, before, sequences)
    results = {c.name: s.t.builder.value(c.param.dtype, c.param.dims, hint(c.name)) for c in carried}
    body = Region(tuple(c.param for c in carried), tuple(trial.ops), tuple(c.after for c in carried))
    operands = tuple(c.initial for c in carried)
    s.t.builder.append("while", operands, tuple(results.values()), WhileAttrs(), (condition, body))
    s.frame.names = sequences.gathered(names_after(s, node, trial, before, results, temporaries))


def _spread(before: dict[str, Any], node: ast.For | ast.While) -> tuple[Sequences, dict[str, Any]]:
    """Return the sequences that a loop assigns, and the names before it with those of their items."""
    sequences = Sequences.among(before, assigned_names(node.body))
    return sequences, sequences.spread(before, "loop", lambda _: False)


def _condition(
    s: Scope, node: ast.While, carried: list[Carried], before: dict[str, Any], sequences: Sequences
) -> Region:
    """Return the condition as a separate region, evaluated before every iteration."""
    params = {c.name: s.t.builder.value(c.param.dtype, c.param.dims, hint(c.name)) for c in carried}
    s.frame.names = sequences.gathered({**before, **{n: ops.wrap(s.t, v) for n, v in params.items()}})
    with s.t.builder.region() as recorded:
        test = evaluate(s, node.test)
        s.at(node.test)
        if isinstance(test, Tile):
            raise exc.IncorrectTileUsage(how="as a condition")
        if not isinstance(test, (DeviceValue, Expr)):
            raise exc.StatementNotSupported(
                statement=f"`while {ast.unparse(node.test)}` with a condition that never changes",
                where="device",
                remedy="; the loop would run never or forever",
            )
        value = ops.as_device(s.t, truth(s.t, test))
        if any(not d.is_one for d in value.dims):
            raise exc.ConditionNotScalar(statement=f"while {ast.unparse(node.test)}", shape=repr(value))
        value = ops.reshape(s.t, value, ())
    return Region(tuple(params.values()), tuple(recorded), (value.value,))


def _shift_bounds(axis: LoopAxis, by: int) -> LoopAxis:
    """Shift operand references of bounds, which come after the carried values."""
    begin, end, jagged = (
        OperandRef(b.at + by) if isinstance(b, OperandRef) else b for b in (axis.begin, axis.end, axis.jagged)
    )
    return replace(axis, begin=begin, end=end, jagged=jagged)  # type: ignore[arg-type]
