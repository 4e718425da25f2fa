"""Calls of Python functions that are neither torch's nor hl's."""

from __future__ import annotations

import random
import types
from typing import Any

import torch

from .... import exc
from ...._shapes import NeedsValue
from ..host_uses import used_directly
from ..methods import assume_called, method_of
from ..purity import WIDE, acts, is_library, is_pure, kind_of_result, runs_at_run_time
from ..runtime_values import MUTABLE, opaques, settle
from ..tracer import Tracer
from ..values import DeviceValue, HostTensorValue, describe
from ..walk.kinds import ABSTRACT
from ..walk.scope import Scope
from ..walk.unfollowed import MUTATORS
from .builtin_functions import builtin_rule
from .conditions import merged_value
from .displays import noted
from .functions import call_helper, call_user, is_traced_through
from .pure_calls import call_pure
from .run_time import runtime_number, unknown

#: Torch functions whose names differ from those of ``math``.
_OF_MATH = {"fabs": "abs"}


def call_on_device(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a Python function in device code: by a builtin's rule, by tracing a user function, or directly."""
    assume_called(s.t, function)
    plain, given = method_of(function, args)
    walked = isinstance(plain, types.FunctionType) and (plain is not function or not is_library(plain))
    if walked and not isinstance(getattr(function, "__self__", None), ABSTRACT):
        return call_user(s, plain, given, kwargs)
    builtin = builtin_rule(s, function, args)
    return _call_python(s, function, args, kwargs) if builtin is None else builtin(s, *args, **kwargs)


def _call_python(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a plain function in device code."""
    _check_mutation(s, function)
    followed = is_pure(function) or isinstance(function, type)
    if not followed and is_library(function) and not isinstance(getattr(function, "__self__", None), ABSTRACT):
        raise exc.KnownAtRunTime(what=f"`{s.source_text()}`", because="")
    for value in (*args, *kwargs.values()):
        refuse_host_on_device(s.t, value, getattr(function, "__name__", "a function"))
    try:
        result = function(*args, **kwargs)
    except NeedsValue:
        settled = settle(s.t, (args, kwargs))
        result = function(*settled[0], **settled[1])
    except TypeError as error:
        name = getattr(function, "__name__", describe(function))
        if getattr(function, "__module__", "") == "math" and any(isinstance(v, DeviceValue) for v in args):
            other = f"torch.{_OF_MATH.get(name, name)}"
            known = hasattr(torch, _OF_MATH.get(name, name))
            remedy = f"use {other}" if known else "use functions of torch"
            raise exc.TypeInferenceError(
                f"math.{name} takes numbers, and got {', '.join(map(describe, args))}: {remedy}."
            ) from error
        raise exc.TypeInferenceError(f"{name}({', '.join(map(describe, args))}): {error}.") from error
    copies = function in (list, sorted) or (
        type(getattr(function, "__self__", None)) is list and function.__name__ == "copy"
    )
    return noted(s, result) if copies else result


def may_change(s: Scope, container: Any) -> bool:
    """Return whether a list was made in device code, and in the innermost open loop or branch."""
    made = s.t.world.lists.get(id(container))
    return made is not None and made[1] == s.t.builder.depth


def _check_mutation(s: Scope, function: Any) -> None:
    """Refuse to change a container outside of the region that made it: a loop body is traced only once."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, (list, dict, set)) or getattr(function, "__name__", "") not in MUTATORS:
        return
    if not may_change(s, owner):
        raise exc.StatementNotSupported(
            statement=f"Changing a {type(owner).__name__} with .{function.__name__}()",
            where="device",
            remedy="; it was made outside of this loop or branch, store into a tensor instead",
        )


def call_on_host(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handle a call of a Python function in host code: call it now, follow it, or leave it to run time."""
    waits = next(opaques((args, kwargs)), None)
    if runs_at_run_time(function) or (waits is not None and kind_of_result(function) is not None):
        s.t.world.effects += 1
        s.t.world.acts |= acts(function)
        kind = kind_of_result(function)
        assert kind is not None
        return runtime_number(s, kind, wide=function in WIDE)
    owner = getattr(function, "__self__", None)
    container = isinstance(owner, MUTABLE) or isinstance(function, type)
    if waits is not None and not (container and is_pure(function)) and not is_traced_through(function):
        return unknown(s, function, (args, kwargs), waits.error)
    builtin = builtin_rule(s, function, args)
    if builtin is not None and not kwargs:
        return builtin(s, *args)
    if is_pure(function) or isinstance(owner, ABSTRACT):
        return call_pure(s, function, args, kwargs)
    if is_traced_through(function):
        return call_helper(s, function, args, kwargs)
    s.t.world.acts |= acts(function)
    chosen = (
        merged_value(s, list(args[0])) if function == random.choice and isinstance(args[0], (list, tuple)) else None
    )
    return unknown(s, function, (args, kwargs)) if chosen is None else chosen


def refuse_host_on_device(t: Tracer, value: Any, how: str = "an expression") -> None:
    """Raise for a host tensor that device code uses without loading it."""
    if t.on_device and isinstance(value, HostTensorValue) and how not in ("len", "isinstance", "getattr", "hasattr"):
        raise used_directly(value, f"in {how}")
