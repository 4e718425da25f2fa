"""Values that loops carry from one iteration to the next."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch

from .... import exc
from ...._shapes import Expr
from ...._support.records import dataclass
from ...ir.grammar import Op, Operand, Value
from .. import ops
from ..frames import assigned_names
from ..state.alignment import same_size
from ..values import DeviceValue, Missing, describe
from ..walk.rollback import repeated
from ..walk.scope import Scope
from .number_joins import check_number, emit_number
from .sequences import Sequences, described


@dataclass
class Trial:
    """One trace of a loop body: its params, its ops, and the names afterwards."""

    params: dict[str, Value]
    ops: list[Op]
    after: dict[str, Any]


@dataclass(frozen=True)
class Carried:
    """One carried value: its initial value, the body's param, and its value at the end of the body."""

    name: str
    initial: Operand
    param: Value
    after: Value


def trace_body(
    s: Scope, sequences: Sequences, body: list[ast.stmt], before: dict[str, Any], walk_body: Callable[[], None]
) -> Trial:
    """Trace a loop body. ``before`` has the items of sequences by name, as the names of the trial.

    A number that changes in the loop becomes a run-time scalar, so the body is traced again after a change is found.
    """
    widened: dict[str, torch.dtype] = {}
    assigned = sequences.of_items(assigned_names(body))

    def attempt() -> Trial | None:
        params = _params_of(s, assigned, before, widened)
        s.frame.names = sequences.gathered({**before, **{n: ops.wrap(s.t, v) for n, v in params.items()}})
        with s.t.builder.region() as recorded:
            walk_body()
        after = sequences.spread(s.frame.names, "loop", lambda name: _stored_first(name, body))
        trial = Trial(params, recorded, after)
        grown = {n: v.dtype for n, v in _grown_numbers(s, trial, before).items() if n not in widened}
        grown |= {
            n: torch.int64 for n, dtype in widened.items() if dtype == torch.int32 and _is_long(trial.after.get(n))
        }
        widened.update(grown)
        return None if grown else trial

    return repeated(s, attempt)


def hint(name: str) -> str:
    """Return a name for generated code: ``pair_0`` for the item ``pair[0]``."""
    return name.replace("[", "_").replace("]", "")


def _is_long(value: Any) -> bool:
    return isinstance(value, DeviceValue) and value.dtype == torch.int64 and not value.dims


def _params_of(
    s: Scope, names: tuple[str, ...], before: dict[str, Any], widened: dict[str, torch.dtype]
) -> dict[str, Value]:
    """Return a param for each assigned name that was a device value before, or a number that changes in the loop."""
    params: dict[str, Value] = {}
    for name in names:
        value = before.get(name)
        if isinstance(value, DeviceValue):
            params[name] = s.t.builder.value(value.dtype, value.dims, hint(name))
        elif name in widened:
            params[name] = s.t.builder.value(widened[name], (), hint(name))
            if widened[name] == torch.int32:  # its iterations may add up to any integer
                s.t.ranges.note(ops.wrap(s.t, params[name]), (-(2**63), 2**63))
    return params


def _grown_numbers(s: Scope, trial: Trial, before: dict[str, Any]) -> dict[str, DeviceValue]:
    """Return numbers from before the loop that its body changes, with their values at its end."""
    found = {}
    for name, value in before.items():
        after = trial.after.get(name)
        if name in trial.params or after is value or not isinstance(value, (int, float, Expr)):
            continue
        if isinstance(after, (int, float)) and type(after) is type(value) and after == value:
            continue
        kind = value.kind if isinstance(value, Expr) else type(value)
        dtype = torch.bool if kind is bool else torch.float32 if kind is float else s.t.context.index_dtype
        if isinstance(after, DeviceValue):
            if after.dims:
                raise exc.NumberBecomesTensor(
                    name=name,
                    before=describe(value),
                    after=repr(after),
                    construct="loop",
                    remedy=_filled(s, value, after),
                )
            dtype = after.dtype
        elif isinstance(after, float) or (isinstance(after, Expr) and after.kind is float):
            dtype = torch.float32
        elif not isinstance(after, (int, Expr)):
            raise exc.CantCombineTypesInControlFlow(
                name=name, before=describe(value), after=describe(after), construct="loop"
            )
        found[name] = ops.wrap(s.t, Value(-1, dtype, (), name))
    return found


def carried_values(s: Scope, trial: Trial, before: dict[str, Any]) -> tuple[list[Carried], set[str]]:
    """Return the values that the loop carries, and the names of temporaries that it does not carry."""
    used = {v.number for op in trial.ops for inner in op.walk() for v in inner.reads()}
    carried: list[Carried] = []
    temporaries: set[str] = set()
    for name, param in trial.params.items():
        initial, after = before[name], trial.after[name]
        if isinstance(after, Missing):
            if param.number in used:
                raise after.error()
            temporaries.add(name)
            continue
        if not isinstance(after, DeviceValue):
            after = _carried_number(s, trial.ops, after, param, name)
        after = _in_dims_of(s, trial.ops, after, param)
        if (after.dtype, after.dims) != (param.dtype, param.dims):
            if param.number not in used:  # a temporary that happens to reuse the name
                temporaries.add(name)
                continue
            raise exc.ControlFlowTensorMismatch(
                name=name, before=repr(ops.wrap(s.t, param)), after=repr(after), construct="loop"
            )
        if not isinstance(initial, DeviceValue):
            initial = ops.cast(s.t, ops.number(s.t, initial), param.dtype)
        carried.append(Carried(name, initial.value, param, after.value))
    return carried, temporaries


def _in_dims_of(s: Scope, recorded: list[Op], after: DeviceValue, param: Value) -> DeviceValue:
    """Reshape the result of a body to the dimensions of the param, if both have the same constant sizes. Out-of-range
    lanes of a tile keep their values.
    """
    if after.dims == param.dims or after.ndim != len(param.dims):
        return after
    if not all(same_size(s.t.blocks, a, b) for a, b in zip(after.dims, param.dims, strict=True)):
        return after
    with s.t.builder.region() as extra:
        result = ops.fitted(s.t, after, param.dims, ops.wrap(s.t, param))
    recorded.extend(extra)
    return after if result is None else result


def names_after(
    s: Scope,
    node: ast.For | ast.While,
    trial: Trial,
    before: dict[str, Any],
    results: dict[str, Value],
    temporaries: set[str],
) -> dict[str, Any]:
    """Return the names after the loop: carried ones are its results, new ones cannot be read."""
    names = dict(before)
    names.update({name: ops.wrap(s.t, value) for name, value in results.items()})
    for name, after in trial.after.items():
        if name not in before or name in temporaries:
            names[name] = _loop_local(name)
        elif name not in trial.params and not _same(before[name], after):
            names[name] = _rebound(name, before[name], after, node)
    return names


def _rebound(name: str, before: Any, after: Any, node: ast.For | ast.While) -> Any:
    """Return a placeholder for a temporary that the loop rebinds; refuse values that no loop can carry."""
    if isinstance(before, Missing) or _stored_first(name, node.body):
        return _loop_local(name)
    raise exc.CantCombineTypesInControlFlow(
        name=name, before=described(before), after=described(after), construct="loop"
    )


def _carried_number(s: Scope, recorded: list[Op], value: Any, param: Value, name: str) -> DeviceValue:
    if not isinstance(value, (int, float, Expr)):
        raise exc.CantCombineTypesInControlFlow(
            name=name, before=repr(ops.wrap(s.t, param)), after=describe(value), construct="loop"
        )
    check_number(name, value, ops.wrap(s.t, param), "loop")
    return emit_number(s, recorded, value, ops.wrap(s.t, param))


def _same(before: Any, after: Any) -> bool:
    if before is after:
        return True
    plain = (str, int, float, bool, type(None), torch.dtype)
    return isinstance(before, plain) and type(before) is type(after) and before == after


def _stored_first(name: str, body: list[ast.stmt]) -> bool:
    """Return whether the first mention of a name in the body assigns it."""
    for statement in body:
        nodes = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name]
        if nodes:
            loads = [n for n in nodes if isinstance(n.ctx, ast.Load)]
            return not loads and isinstance(statement, (ast.Assign, ast.AnnAssign, ast.For))
    return False


def _loop_local(name: str) -> Missing:
    return Missing(
        lambda: exc.UndefinedVariable(
            name=name, detail=" after the loop that assigns it, which may run zero times; assign it before the loop"
        )
    )


def _filled(s: Scope, value: Any, after: DeviceValue) -> str:
    """Return the call that makes a tile like ``after`` filled with a number, as a user would write it."""
    shape = s.t.blocks.dims_text(after.dims)
    dtype = "" if after.dtype == torch.float32 else f", dtype={after.dtype}"
    return f"hl.zeros({shape}{dtype})" if value == 0 else f"hl.full({shape}, {describe(value)}{dtype})"
