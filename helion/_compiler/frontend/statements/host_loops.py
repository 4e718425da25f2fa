"""Host loops around grid loops: the body is traced once and launches the same kernels in every iteration.

::

    for step in range(steps):                    for step in range(steps):
        for tile in hl.tile(x.size(0)):              _launcher(_helion_smooth, .., x, out, step, ..)
            out[tile] = x[tile] * step               x, out = (out, x)
        x, out = out, x

A number that changes is an argument of the kernel; a tensor that changes must have the same type in every iteration.
Tensors that share memory in any iteration are treated as sharing it in all of them.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from .... import exc
from ...._shapes import Expr, hint_of, number_key
from ...._support.records import dataclass, field, replace
from ...._support.syntax import parse
from ...ir.host_module import Keep
from ..expressions.comprehensions import iterate
from ..frames import assigned_names
from ..values import HostTensorValue, Missing, describe
from ..walk import mutations
from ..walk.iterations import NUMBERS, Number, check_same_type, differs, merged_items, open_extents, same
from ..walk.rollback import repeated
from ..walk.scope import Break, Continue, Return, Scope, assign, evaluate
from ..walk.shared_memory import share
from .launches import walk_host


@dataclass
class _Changing:
    """Known changes from one iteration to the next.

    These are numbers, tensors, tensors that may become unaligned, sizes and strides ``(name, "size" or "stride",
    dim)``, and in-place changes.
    """

    numbers: set[str] = field(default_factory=set)
    tensors: set[str] = field(default_factory=set)
    unaligned: set[str] = field(default_factory=set)
    extents: set[tuple[str, str, int]] = field(default_factory=set)
    in_place: mutations.Mutations = field(default_factory=mutations.Mutations)


@dataclass(frozen=True)
class _Iteration:
    """One iteration: its generated statements, and the names before and after it."""

    body: list[ast.stmt]
    start: dict[str, Any]
    after: dict[str, Any]


def launches_in_loop(s: Scope, node: ast.For | ast.While) -> None:
    """Walk a host loop around grid loops, which stays around their launches."""
    s.at(node)
    if node.orelse:
        raise exc.DeviceLoopElseBlock()
    item = _host_item(s, node) if isinstance(node, ast.For) else None
    if isinstance(item, _Nothing):
        s.walk.skipped = True
        s.walk.body.append(node)
        return
    outer, before, changing = s.walk.body, dict(s.frame.names), _Changing()
    first_new = s.t.tensors.new_storage()
    s.t.host_loops += 1
    found = repeated(s, lambda: _iteration(s, node, item, before, changing))
    s.t.host_loops -= 1
    s.walk.open_barrier = None  # the next iteration waits for this one
    loop = copy.copy(node)
    loop.body = found.body
    s.walk.body = outer
    s.walk.body.append(loop)
    share(s.walk, before, found.start, found.after, sorted(changing.tensors), first_new)
    _leave(s, changing)


def _iteration(
    s: Scope, node: ast.For | ast.While, item: Any, before: dict[str, Any], changing: _Changing
) -> _Iteration | None:
    """Walk the body; return None if that adds to ``changing``."""
    s.frame.names = dict(before)
    unchanged = mutations.begin(s, changing.in_place, node)
    made, start = _begin(s, node, item, changing)
    s.walk.body = []
    try:
        walk_host(s, node.body)
    except Return:
        s.at(node)
        raise exc.StatementNotSupported(
            statement="A return statement in a host loop around a grid loop", where="host", remedy=""
        ) from None
    except (Break, Continue):
        raise exc.StatementNotSupported(
            statement="`break` or `continue` in a host loop around a grid loop", where="host", remedy=""
        ) from None
    s.at(node)
    known = not mutations.extend(s, changing.in_place, unchanged, node)
    if _changes(start, s.frame.names, changing) or not known:
        return None
    return _Iteration([*made, *s.walk.body], start, s.frame.names)


def _host_item(s: Scope, node: ast.For) -> Any:
    """Return the value of the loop variable in every iteration, with the hint of the first one, or ``_Nothing``."""
    if isinstance(node.iter, ast.Call) and evaluate(s, node.iter.func) is range:
        bounds = [evaluate(s, a) for a in node.iter.args]
        s.at(node.iter)
        if not 1 <= len(bounds) <= 3 or any(isinstance(b, bool) or not isinstance(b, (int, Expr)) for b in bounds):
            raise exc.TypeInferenceError(f"range takes integers, got {', '.join(map(describe, bounds))}.")
        return Number(hint_of(bounds[0]) if len(bounds) > 1 else 0)
    items = iterate(s, evaluate(s, node.iter), node.iter)
    return merged_items(s, items, ast.unparse(node.target)) if items else _Nothing()


class _Nothing:
    """The item of a sequence without items."""


def _begin(
    s: Scope, node: ast.For | ast.While, item: Any, changing: _Changing
) -> tuple[list[ast.stmt], dict[str, Any]]:
    """Bind the names at the start of an iteration; return the statements that capture its numbers, and the names that
    are carried over from the last one.
    """
    made: list[ast.stmt] = []
    names = s.frame.names
    assigned = frozenset(assigned_names(node.body))
    for name in sorted(changing.numbers):
        names[name] = _kept_number(s, name, name, hint_of(names[name]), made)
    for name in sorted(changing.tensors):
        tensor = _changed(s, name, names[name], changing, made)
        aligned = tensor.aligned and name not in changing.unaligned
        names[name] = replace(tensor, storage=s.t.tensors.new_storage(), aligned=aligned)
    if isinstance(node, ast.For):
        assign(s, node.target, _loop_item(s, node.target, item, assigned, made))
    targets = assigned_names([node.target]) if isinstance(node, ast.For) else ()
    return made, {name: value for name, value in names.items() if name not in targets}


def _changed(
    s: Scope, name: str, tensor: HostTensorValue, changing: _Changing, made: list[ast.stmt]
) -> HostTensorValue:
    """Return a tensor that changes from one iteration to the next, as the current value of its variable."""
    extents = {"size": list(tensor.shape), "stride": list(tensor.strides)}
    for _, what, dim in sorted(key for key in changing.extents if key[0] == name):
        source, hint = f"{name}.{what}({dim})", hint_of(extents[what][dim])
        extents[what][dim] = _kept_number(s, f"{name}_{what}_{dim}", source, hint, made)
    shape, strides = tuple(extents["size"]), tuple(extents["stride"])
    return replace(tensor, shape=shape, strides=strides, source=name, made="", member=None)


def _loop_item(s: Scope, target: ast.expr, item: Any, assigned: frozenset[str], made: list[ast.stmt]) -> Any:
    """Return the loop variable's value, in terms of the names that it is bound to."""
    if isinstance(target, (ast.Tuple, ast.List)):
        if not isinstance(item, tuple) or len(item) != len(target.elts):
            raise exc.FailedToUnpackTupleAssign(value=_item_text(item), count=len(target.elts))
        pairs = zip(target.elts, item, strict=True)
        return tuple(_loop_item(s, part, value, assigned, made) for part, value in pairs)
    if not isinstance(target, ast.Name):
        raise exc.StatementNotSupported(
            statement=f"`for {ast.unparse(target)} in ...` around a grid loop", where="host", remedy="; use a name"
        )
    if isinstance(item, HostTensorValue):
        return replace(item, source=target.id)
    if not isinstance(item, Number):
        return item
    if target.id in assigned or _is_bound_elsewhere(s, target):
        return _kept_number(s, target.id, target.id, item.hint, made)
    s.t.numbers.loop_numbers[target.id] = target.id
    return Expr("host", (target.id,), item.hint)


def _item_text(item: Any) -> str:
    return "a number" if isinstance(item, Number) else describe(item)


def _is_bound_elsewhere(s: Scope, target: ast.Name) -> bool:
    """Return whether another statement of the kernel binds the name, so that its value may change."""
    return any(
        isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Store) and n is not target
        for n in ast.walk(s.frame.source.node)
    )


def _kept_number(s: Scope, name: str, source: str, hint: Any, made: list[ast.stmt]) -> Expr:
    """Capture a number at the start of an iteration, before the iteration changes its variable."""
    kept = f"{name}_now"
    while kept in s.t.numbers.taken or kept in s.t.numbers.symbols or kept in s.t.numbers.loop_numbers:
        kept += "_"
    made.append(Keep(kept, parse(source).body[0].value))  # type: ignore[attr-defined]
    s.t.numbers.loop_numbers[kept] = source
    return Expr("host", (kept,), hint)


def _changes(start: dict[str, Any], after: dict[str, Any], changing: _Changing) -> bool:
    """Add new changes to ``changing`` and return whether there were any. Raises for values that cannot change."""
    grown = False
    for name, first in start.items():
        last = after.get(name)
        if last is first or isinstance(first, Missing) or isinstance(last, Missing):
            continue
        if isinstance(first, HostTensorValue) and isinstance(last, HostTensorValue):
            shifted = first.aligned and not last.aligned
            extents = {(name, *key) for key in open_extents(first, last)} - changing.extents
            check_same_type(name, first, last, dynamic=True)
            grown |= bool(extents) or shifted or name not in changing.tensors
            changing.extents |= extents
            changing.tensors.add(name)
            changing.unaligned.update([name] if shifted else [])
        elif isinstance(first, NUMBERS) and isinstance(last, NUMBERS):
            if type(first) is type(last) and number_key(first) == number_key(last):
                continue
            check_same_type(name, first, last)
            grown |= name not in changing.numbers
            changing.numbers.add(name)
        elif not same(first, last):
            raise differs(name, first, last)
    return grown


def _leave(s: Scope, changing: _Changing) -> None:
    """Give names after the loop the values of the last iteration."""
    for name in sorted(changing.numbers):
        s.frame.names[name] = _kept_number(s, name, name, hint_of(s.frame.names[name]), s.walk.body)
    for name in sorted(changing.tensors):
        s.frame.names[name] = _changed(s, name, s.frame.names[name], changing, s.walk.body)
