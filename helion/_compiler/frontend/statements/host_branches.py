"""Conditions of host code. Both sides are followed if the condition is known at run time only."""

from __future__ import annotations

import ast
from typing import Any

import torch

from .... import exc
from ..expressions.conditions import merged_value, truth_on_host
from ..expressions.operators import compare
from ..runtime_values import Opaque, is_runtime, opaque
from ..values import HostTensorValue, describe
from ..walk.scope import Break, Continue, Raised, Return, Scope, assign, evaluate
from ..walk.unfollowed import changed_containers, execute_all, forget_sources, head_of, restore_host, save_host
from .grid_loops import holds_grid_loop

_ABSENT = object()


def open_if(s: Scope, node: ast.If, test: Any) -> None:
    """Follow both sides of a condition that is known at run time only."""
    if any(holds_grid_loop(s, part) for part in (*node.body, *node.orelse)):
        truth_on_host(s, test)  # raises
    merge_ways(s, [node.body, node.orelse], node)


def merge_ways(s: Scope, ways: list[list[ast.stmt]], node: ast.stmt) -> None:
    """Walk statements of which the run takes one path, and merge the names that all of them define."""
    before = save_host(s)
    ends: list[dict[str, Any]] = []
    changed: dict[int, Any] = {}
    relied = False
    for body in ways:
        restore_host(s, before)
        s.walk.uncertain += 1
        try:
            execute_all(s, body)
        except (Break, Continue):
            raise exc.KnownAtRunTime(what=f"the end of this loop, under `{head_of(node)}`", because="") from None
        except Raised:
            continue
        except Return:
            if not s.frame.is_kernel:
                raise exc.KnownAtRunTime(what=f"what is returned under `{head_of(node)}`", because="") from None
            continue
        finally:
            s.walk.uncertain -= 1
            changed.update(changed_containers(before))
            relied = relied or len(s.t.tensors.relied) > before.relied
        ends.append(s.frame.names)
    restore_host(s, before)
    unknown = opaque(f"what `{head_of(node)}` decides")
    for key, container in changed.items():
        s.t.world.poisoned[key] = (container, unknown)
    if ends:
        s.frame.names = _merge_names(s, ends, node)
        if relied:  # tensors that do not exist for comparison if the run takes the other path
            _forget_uncertain(s, before.names, unknown)
    else:
        raise Return(None) if s.frame.is_kernel else Raised()


def _forget_uncertain(s: Scope, before: dict[str, Any], unknown: Opaque) -> None:
    for name, value in s.frame.names.items():
        chosen = isinstance(value, HostTensorValue) and value.chosen
        if before.get(name, _ABSENT) is not value and not chosen and not is_runtime(s.t, value):
            s.frame.names[name] = unknown


def _merge_names(s: Scope, ends: list[dict[str, Any]], node: ast.stmt) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for names in ends for name in names):
        values = [names.get(name) for names in ends]
        if any(name not in names for names in ends):
            merged[name] = opaque(f"`{name}`", f" (only one path through `{head_of(node)}` assigns it)")
        elif all(value is values[0] for value in values) or _all_plain(values):
            merged[name] = values[0]
        else:
            forget_sources(s, name)
            number = merged_value(s, values)
            error = f" (`{head_of(node)}` decides, and it is {' or '.join(map(_described, values))})"
            merged[name] = opaque(f"`{name}`", error) if number is None else number
    return merged


def _described(value: Any) -> str:
    return "known at run time only" if isinstance(value, Opaque) else describe(value)


def _all_plain(values: list[Any]) -> bool:
    first = values[0]
    plain = isinstance(first, (bool, int, float, str, torch.dtype)) or first is None
    return plain and all(type(value) is type(first) and value == first for value in values)


def walk_match(s: Scope, node: ast.Match) -> None:
    """Walk a match statement of cases that compare with values or take anything."""
    if s.t.on_device:
        raise exc.NotAllowedOnDevice(what="A match statement")
    subject = evaluate(s, node.subject)
    for case in node.cases:
        if not truth_on_host(s, _matches(s, subject, case.pattern)):
            continue
        if case.guard is None or truth_on_host(s, evaluate(s, case.guard)):
            execute_all(s, case.body)
            return


def _matches(s: Scope, subject: Any, pattern: ast.pattern) -> Any:
    match pattern:
        case ast.MatchValue():
            return compare(s, ast.Eq, subject, evaluate(s, pattern.value))
        case ast.MatchSingleton():
            return compare(s, ast.Is, subject, pattern.value)
        case ast.MatchOr():
            return any(truth_on_host(s, _matches(s, subject, part)) for part in pattern.patterns)
        case ast.MatchAs():
            if pattern.pattern is not None and not truth_on_host(s, _matches(s, subject, pattern.pattern)):
                return False
            if pattern.name is not None:
                assign(s, ast.Name(pattern.name, ast.Store()), subject)
            return True
    raise exc.StatementNotSupported(statement=f"`case {ast.unparse(pattern)}`", where="host", remedy="")
