"""Calls of pure functions at compile time."""

from __future__ import annotations

import ast
import collections.abc
import types
from typing import Any

from ...._shapes import NeedsValue
from ..purity import is_transparent, kind_of_result
from ..runtime_values import SAMPLES, hinted, settle
from ..walk.kinds import ABSTRACT
from ..walk.scope import Scope, call
from .functions import is_traced_through
from .run_time import runtime_number, try_settle, unknown


def call_pure(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a pure function: on symbolic numbers if it supports them, else on plain ones."""
    args = tuple(_argument(s, a) for a in args)
    kwargs = {name: _argument(s, a) for name, a in kwargs.items()}
    owner = getattr(function, "__self__", None)
    if is_transparent(function) or isinstance(owner, ABSTRACT):
        try:
            return _materialised(function(*args, **kwargs))
        except NeedsValue:
            pass
    settled = try_settle(s, (args, kwargs))
    if settled is not None:
        if isinstance(owner, list):  # methods of lists and tuples compare their items with each other
            owner[:] = settle(s.t, owner)
        elif isinstance(owner, tuple):
            function = getattr(settle(s.t, owner), function.__name__)
        return _materialised(function(*settled[0], **settled[1]))
    kind = kind_of_result(function)
    if kind is None and function in (abs, round, sum):
        result = function(*hinted(args), **hinted(kwargs))
        kind = type(result) if type(result) in SAMPLES else None
    if kind is not None:
        return runtime_number(s, kind)
    return unknown(s, function, (args, kwargs))


def _argument(s: Scope, value: Any) -> Any:
    """Return an argument of a real function: iterators as tuples, user functions as traced calls."""
    if isinstance(value, collections.abc.Iterator):
        return tuple(value)
    if isinstance(value, types.FunctionType) and is_traced_through(value):
        return lambda *args, **kwargs: call(s, value, args, kwargs, s.node or ast.Constant(None))
    return value


def _materialised(value: Any) -> Any:
    """Return a result with lazy ``map`` and ``filter`` calls evaluated now."""
    return iter(tuple(value)) if isinstance(value, (map, filter)) else value
