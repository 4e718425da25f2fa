"""User functions: those that a kernel calls, and those that its own code defines."""

from __future__ import annotations

import ast
import inspect
import types
from typing import Any

from .... import exc
from ...._support.records import dataclass
from ...source import FunctionSource, parse_function
from ..frames import Frame, defaults_of, function_frame, lift_object
from ..methods import assume_called, method_of
from ..purity import is_library
from ..walk.scope import HARD, Return, Scope, Walk, evaluate
from ..walk.unfollowed import execute_all, forget_globals_of, restore_host, save_host
from .run_time import unknown

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: Maximum depth of nested calls of user functions.
_MAX_DEPTH = 32


@dataclass(eq=False)
class LocalFunction:
    """A function with the frame that it was defined in, whose names it reads when it is called."""

    definer: Scope
    node: ast.FunctionDef | ast.Lambda
    defaults: dict[str, Any]

    @property
    def name(self) -> str:
        return self.node.name if isinstance(self.node, ast.FunctionDef) else "<lambda>"

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def __code__(self) -> Any:
        """A substitute for a code object, with the number of arguments."""
        return types.SimpleNamespace(co_argcount=len(self.node.args.posonlyargs) + len(self.node.args.args))

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the names that a call binds. Raises exc.TypeInferenceError for arguments that do not fit."""
        given, kinds = self.node.args, inspect.Parameter
        names: list[tuple[ast.arg, Any]] = [(a, kinds.POSITIONAL_ONLY) for a in given.posonlyargs]
        names += [(a, kinds.POSITIONAL_OR_KEYWORD) for a in given.args]
        names += [(given.vararg, kinds.VAR_POSITIONAL)] if given.vararg is not None else []
        names += [(a, kinds.KEYWORD_ONLY) for a in given.kwonlyargs]
        names += [(given.kwarg, kinds.VAR_KEYWORD)] if given.kwarg is not None else []
        parameters = [
            inspect.Parameter(a.arg, kind, default=self.defaults.get(a.arg, kinds.empty)) for a, kind in names
        ]
        try:
            bound = inspect.Signature(parameters).bind(*args, **kwargs)
        except TypeError as error:
            raise exc.TypeInferenceError(f"{self.name}: {error}.") from error
        bound.apply_defaults()
        return dict(bound.arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_local(self.definer, self, args, kwargs)


def define(definer: Scope, node: ast.FunctionDef | ast.Lambda) -> LocalFunction:
    """Return the function of a ``def`` statement or a lambda; defaults are evaluated now."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    pairs = list(zip(positional[len(positional) - len(given.defaults) :], given.defaults, strict=True))
    pairs += [(a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is not None]
    return LocalFunction(definer, node, {a.arg: evaluate(definer, default) for a, default in pairs})


def evaluate_lambda(s: Scope, node: ast.Lambda) -> Any:
    return define(s, node)


def is_traced_through(function: Any) -> bool:
    """Return whether a callable is a user's Python code that can be followed."""
    function, _ = method_of(function, ())
    if not isinstance(function, types.FunctionType) or is_library(function):
        return isinstance(function, LocalFunction)
    return not function.__code__.co_flags & _GENERATORS and parse_function(function) is not None


def call_helper(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Follow a user function in host code for its result; it runs at run time."""
    assume_called(s.t, function)
    plain, given = method_of(function, args)
    saved = save_host(s, (args, kwargs))
    s.walk.depth += 1
    try:
        if s.walk.depth > _MAX_DEPTH:
            raise exc.TypeInferenceError("Its calls are nested too deeply.")
        return call_user(s, plain, given, kwargs)
    except HARD:
        raise
    except exc.Base as error:
        restore_host(s, saved)
        forget_globals_of(s, plain)
        return unknown(s, function, (args, kwargs), error)
    finally:
        s.walk.depth -= 1


def call_local(s: Scope, function: LocalFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that the kernel's own code, or a function called by it, defines."""
    definer = function.definer.frame
    source = FunctionSource(function.node, definer.source.file, function.name)
    names = function.arguments(args, kwargs)
    frame = Frame(source, definer.module_globals, {}, names, globals_source=definer.globals_source, outer=definer)
    return _run(s.walk, frame)


def call_user(s: Scope, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a user function: its body is traced in a new frame."""
    source = parse_function(function)
    if source is None:
        return function(*args, **kwargs)  # no source to trace: abstract values record its ops
    frame = function_frame(s.t, function, source, s.frame)
    try:
        bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    except TypeError as error:
        raise exc.TypeInferenceError(f"{function.__name__}: {error}.") from error
    frame.names.update(bound.arguments)
    for name, value, where in defaults_of(s.t, function):
        frame.names.setdefault(name, lift_object(s.t, value, where))
    bound.apply_defaults()
    for name, value in bound.arguments.items():
        frame.names.setdefault(name, value)
    return _run(s.walk, frame)


def _run(walk: Walk, frame: Frame) -> Any:
    """Trace the body of a function and return its result."""
    s = Scope(walk, frame)
    location = s.t.builder.location
    frame.depth = s.t.builder.depth
    try:
        if isinstance(frame.source.node, ast.Lambda):
            return evaluate(s, frame.source.node.body)
        execute_all(s, frame.source.node.body)
    except Return as result:
        return result.value
    except exc.Base as error:
        raise error.at(s.location()) from None
    finally:
        s.t.builder.location = location
    return None
