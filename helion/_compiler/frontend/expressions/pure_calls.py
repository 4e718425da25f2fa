"""Functions that give the same for the same arguments, called when compiling."""

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
    """A function that gives the same for the same arguments, on plain numbers unless it works on others."""
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
        if isinstance(owner, list):  # compared with each other by a method
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
    """An argument of a real function: iterators as what they give, functions as ones that are walked."""
    if isinstance(value, collections.abc.Iterator):
        return tuple(value)
    if isinstance(value, types.FunctionType) and is_traced_through(value):
        return lambda *args, **kwargs: call(s, value, args, kwargs, s.node or ast.Constant(None))
    return value


def _materialised(value: Any) -> Any:
    """A result with the calls that it makes of functions of the user's made now."""
    return iter(tuple(value)) if isinstance(value, (map, filter)) else value
