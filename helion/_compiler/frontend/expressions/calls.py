"""Calls in a kernel's source, and in functions that it calls."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from .... import exc
from .... import language as hl
from ...._shapes import Expr
from ....language._registry import DECLARED
from ....language.constants import ConstExpr
from ..frames import lift_object
from ..hl.rules import HL_RULES
from ..host.factories import follows_arguments
from ..methods import CONVERSIONS, answers_itself
from ..purity import FRAGMENTS, WIDE, is_pure, kind_of_result
from ..runtime_values import Opaque, decided_by_config, opaque, settle
from ..values import describe
from ..walk.kinds import is_hashable, tensors_in
from ..walk.scope import Scope, call, captured, evaluate
from ..walk.unfollowed import MUTATORS, forget_outside, outside_container, refuse_change
from .displays import evaluate_items
from .functions import LocalFunction, call_helper, call_local
from .graph_calls import call_graph
from .hl_calls import call_hl
from .overloads import overloaded
from .python_calls import call_on_device, call_on_host
from .queries import QUERIES
from .run_time import runtime_number, unknown
from .torch_calls import call_torch, is_torch_function


def evaluate_call(s: Scope, node: ast.Call) -> Any:
    outside = None if s.t.on_device else outside_container(s, node)
    if outside is not None:
        return _change_outside(s, outside, node)
    if s.t.on_device and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        refuse_change(s, node.func.value)
    function = evaluate(s, node.func)
    if s.t.on_device and any(isinstance(a, ast.Starred) for a in node.args):
        s.at(node)
        starred = [a for a in node.args if isinstance(a, ast.Starred)]
        if not all(isinstance(evaluate(s, a.value), (tuple, list)) for a in starred):
            raise exc.StarredArgsNotSupportedOnDevice()
    args, kwargs = _arguments(s, node)
    s.at(node)
    for tensor in () if is_torch_function(function) else tensors_in((args, kwargs)):
        s.t.tensors.rely(tensor)
    return captured(s, call(s, function, tuple(args), kwargs, node), node)


def _arguments(s: Scope, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
    args = evaluate_items(s, node.args)
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            kwargs.update(evaluate(s, keyword.value))
        else:
            kwargs[keyword.arg] = evaluate(s, keyword.value)
    return args, kwargs


def _change_outside(s: Scope, container: Any, node: ast.Call) -> Any:
    """Leave a method that changes a container from outside of the kernel to run time. The container's contents are
    unknown after it.
    """
    _arguments(s, node)
    what = ast.unparse(node)
    forget_outside(s, container, opaque(f"the content of the container after `{what}`"))
    return opaque(f"`{what}`")


def call_value(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.AST) -> Any:
    """Evaluate ``function(*args, **kwargs)`` by the rule for its kind of callable."""
    if isinstance(function, Opaque):
        return unknown(s, function, (args, kwargs), function.error)
    if is_hashable(function) and function in DECLARED:
        return call_hl(s, function, args, kwargs, node)
    if isinstance(function, types.MethodType) and function.__func__ in DECLARED:
        return call_hl(s, function.__func__, (function.__self__, *args), kwargs, node)
    if function is ConstExpr:
        s.t.registered.specialized_calls.add((getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))
        return _constant(s, *args, **kwargs)
    if (
        isinstance(function, type)
        and function in FRAGMENTS
        and any(isinstance(value, Expr) for value in (*args, *kwargs.values()))
    ):
        raise exc.ConfigSpecFragmentWithSymInt(fragment=s.source_text())
    if getattr(function, "_is_helion_kernel", False):
        raise exc.NestedKernelCallsNotSupported(name=function.name)
    if isinstance(function, functools.partial):
        given, keywords = _of_partial(s, function)
        return call(s, function.func, (*given, *args), {**keywords, **kwargs}, node)
    if isinstance(function, torch.fx.GraphModule):
        return call_graph(s, function, args)
    if function in (breakpoint, print) or function is builtins.print:
        return _call_debug(s, function, args, kwargs)
    query = QUERIES.get(function) if is_hashable(function) else None
    if query is not None and not (s.t.on_device and function is len):
        return _query(s, query, function, args, kwargs)
    if isinstance(function, LocalFunction):
        return call_local(s, function, args, kwargs)
    followed = s.t.on_device or not args or not isinstance(args[0], collections.abc.Iterator)
    if function is next and not followed:
        return _query(s, lambda _, *given: next(*given), function, args, kwargs)
    if isinstance(function, torch.nn.Module) and not s.t.on_device:
        hooked = function._forward_hooks or function._forward_pre_hooks
        return unknown(s, function, (args, kwargs)) if hooked else call_helper(s, function, args, kwargs)
    if is_torch_function(function):
        return call_torch(s, function, args, _placed(s, function, args, kwargs, node))
    if is_pure(function) and any(answers_itself(value) for value in args):
        return _of_object(s, function, args, kwargs)
    if s.t.on_device:
        return call_on_device(s, function, args, kwargs)
    return call_on_host(s, function, args, kwargs)


def _placed(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.AST) -> dict[str, Any]:
    """Return the keyword arguments, with the kernel's device for a factory in its host code that has no device
    argument.
    """
    place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    if s.t.on_device or not s.frame.is_kernel or not isinstance(node, ast.Call) or not place[0]:
        return kwargs
    if not s.t.registered.placed_by or s.t.device.type == torch.get_default_device().type:
        return kwargs
    if not follows_arguments(function, args, kwargs):
        return kwargs
    s.t.registered.placed_calls.add(place)
    return {**kwargs, "device": s.t.device}


def _constant(s: Scope, value: Any) -> Any:
    """Evaluate ``hl.constexpr(value)``. Numbers of arguments become part of the specialization key; those of a config
    stay symbolic.
    """
    if not decided_by_config(value):
        return settle(s.t, value)
    return value.evaluate(lambda leaf: leaf if leaf.op in ("block", "tunable") else s.t.numbers.specialize(leaf))


def _of_object(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a pure function of a user's object, whose own methods compute the result."""
    for name in CONVERSIONS.get(function, ()) if is_hashable(function) and not kwargs else ():
        found = overloaded(s, name, *args)
        if found is not NotImplemented:
            return found if function in (len, str, repr, abs, round) else call(s, function, (found,), {}, s.node or ast.Constant(None))  # fmt: skip
    kind = kind_of_result(function)
    if kind is None or s.t.on_device:
        return unknown(s, function, (args, kwargs))
    s.t.world.effects += 1
    return runtime_number(s, kind, wide=function in WIDE)


def _of_partial(s: Scope, function: functools.partial[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the bound arguments of a partial function, tensors with host expressions for them."""
    where = s.t.world.function_sources.get(id(function), "")

    def lifted(value: Any, path: str) -> Any:
        return lift_object(s.t, value, f"{where}.{path}" if where else "")

    s.t.world.assume("attribute", function, "keywords", function.keywords)
    lifted(function.func, "func")
    args = tuple(lifted(value, f"args[{at}]") for at, value in enumerate(function.args))
    return args, {name: lifted(value, f"keywords[{name!r}]") for name, value in function.keywords.items()}


def _query(s: Scope, query: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return query(s, *args, **kwargs)
    except (TypeError, AttributeError, StopIteration) as error:
        raise exc.TypeInferenceError(f"{function.__name__}: {error}.") from error


def _call_debug(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not s.t.on_device:
        s.t.world.acts = True
        return
    if function is breakpoint:
        HL_RULES[hl.breakpoint](s.t)
        return
    if not args or not isinstance(args[0], str):
        got = describe(args[0]) if args else "nothing"
        raise exc.InvalidAPIUsage(
            f"print() in device code needs a string literal as its first argument, got {got}; write print('name', value)."
        )
    if kwargs:
        raise exc.InvalidAPIUsage(
            f"print() in device code takes no {', '.join(kwargs)}; it prints as hl.device_print does."
        )
    HL_RULES[hl.device_print](s.t, *args)
