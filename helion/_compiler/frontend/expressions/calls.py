"""Calls in a kernel's source, and in functions that it calls."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import functools
import inspect
import random
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .... import exc
from .... import language as hl
from ...._shapes import Expr, NeedsValue
from ....language._registry import DECLARED
from ....language.constants import ConstExpr
from ...source import FunctionSource, parse_function, place_of
from .. import host_tensors
from ..captures import capture
from ..frames import Frame, defaults_of, function_frame, lift_object
from ..hl_rules import HL_RULES
from ..methods import CONVERSIONS, answers_itself, assume_called, method_of
from ..purity import WIDE, is_library, is_pure, is_transparent, kind_of_result, runs_at_run_time
from ..runtime_values import (
    MUTABLE,
    SAMPLES,
    Opaque,
    containers_in,
    hinted,
    is_runtime,
    numbers_in,
    opaque,
    opaques,
    refuse_opaque,
    settle,
)
from ..torch_shapes import refuse_host
from ..tracer import Tracer, torch_name
from ..values import DeviceValue, HostTensorValue, Tile, describe
from .builtin_functions import BUILTINS, is_builtin_argument
from .functions import LocalFunction
from .queries import QUERIES

if TYPE_CHECKING:
    from ..statements.assignments import Walker

_TORCH_FACTORIES = (
    torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.rand, torch.randn, torch.tensor, torch.eye, torch.linspace
)  # fmt: skip
ABSTRACT = (DeviceValue, HostTensorValue, Tile, Expr)
MUTATORS = frozenset(
    (
        "append",
        "extend",
        "insert",
        "pop",
        "popitem",
        "clear",
        "update",
        "setdefault",
        "remove",
        "sort",
        "reverse",
        "add",
        "discard",
    )
)
#: Errors about what the kernel is, which no run of the host code can answer.
HARD = (
    exc.NestedGridLoop,
    exc.DeviceAPIOnHost,
    exc.BarrierOnlyAllowedAtTopLevel,
    exc.NestedKernelCallsNotSupported,
    exc.LoopFunctionNotInFor,
    exc.NotAllowedOnDevice,
    exc.CannotReadDeviceVariableOnHost,
    exc.UndefinedVariable,
)
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: How deep calls of the user's functions may be nested.
_MAX_DEPTH = 32


class Calls:
    """Evaluates calls in one frame."""

    walker: Walker
    t: Tracer
    frame: Frame
    node: ast.AST | None

    def eval(self, node: ast.expr) -> Any:
        raise NotImplementedError

    def at(self, node: ast.AST) -> None:
        raise NotImplementedError

    def name_tensor(self, value: HostTensorValue) -> None:
        raise NotImplementedError

    def _items(self, nodes: list[ast.expr]) -> list[Any]:
        raise NotImplementedError

    def attribute(self, value: Any, name: str, node: ast.expr | None = None) -> Any:
        raise NotImplementedError

    def merged(self, values: list[Any]) -> Any:
        raise NotImplementedError

    def operator(self, name: str, *operands: Any) -> Any:
        raise NotImplementedError

    def eval_Call(self, node: ast.Call) -> Any:
        outside = None if self.t.on_device else self.walker.outside_container(self, node)
        if outside is not None:
            return self.change_outside(outside, node)
        function = self.eval(node.func)
        if self.t.on_device and any(isinstance(a, ast.Starred) for a in node.args):
            self.at(node)
            starred = [a for a in node.args if isinstance(a, ast.Starred)]
            if not all(isinstance(self.eval(a.value), (tuple, list)) for a in starred):
                raise exc.StarredArgsNotSupportedOnDevice()
        args, kwargs = self._arguments(node)
        self.at(node)
        for tensor in () if is_torch_function(function) else _tensors_in((args, kwargs)):
            self.t.rely(tensor)
        return self.captured(self.call(function, tuple(args), kwargs, node), node)

    def _arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        args = self._items(node.args)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                kwargs.update(self.eval(keyword.value))
            else:
                kwargs[keyword.arg] = self.eval(keyword.value)
        return args, kwargs

    def change_outside(self, container: Any, node: ast.Call) -> Any:
        """A method that changes a container from outside of the kernel: it runs at run time, and what the container holds
        after that is not followed."""
        self._arguments(node)
        self.t.effects += 1
        what = ast.unparse(node)
        self.t.poisoned[id(container)] = (container, opaque(f"what is in the container after `{what}`"))
        return opaque(f"`{what}`")

    def captured(self, result: Any, node: ast.expr) -> Any:
        """What an expression of the kernel's host code gives, with names that launches can pass it by."""
        return result if self.t.on_device or not self.frame.is_kernel else capture(self.t, result, place_of(node))

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.AST) -> Any:
        if isinstance(function, Opaque):
            return self.unknown(function, (args, kwargs), function.error)
        if _hashable(function) and function in DECLARED:
            result = self.call_hl(function, args, kwargs)
            self.note_compile_time_call(function, result, node)
            return result
        if function is ConstExpr:
            self.t.specialized_calls.add((getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))
            return settle(self.t, args[0])
        if getattr(function, "_is_helion_kernel", False):
            raise exc.NestedKernelCallsNotSupported(name=function.name)
        if isinstance(function, functools.partial):
            given, keywords = self._of_partial(function)
            return self.call(function.func, (*given, *args), {**keywords, **kwargs}, node)
        if isinstance(function, torch.fx.GraphModule):
            return self.call_graph(function, args)
        if function in (breakpoint, print) or function is builtins.print:
            return self.call_debug(function, args)
        query = QUERIES.get(function) if _hashable(function) else None
        if query is not None and not (self.t.on_device and function in (getattr, hasattr, len)):
            return self._query(query, function, args, kwargs)
        if isinstance(function, LocalFunction):
            return self.call_local(function, args, kwargs)
        kept = self.t.on_device or not args or not isinstance(args[0], collections.abc.Iterator)
        if function is next and not kept:
            return self._query(lambda _, *given: next(*given), function, args, kwargs)
        if isinstance(function, torch.nn.Module) and not self.t.on_device:
            hooked = function._forward_hooks or function._forward_pre_hooks
            return self.unknown(function, (args, kwargs)) if hooked else self.call_helper(function, args, kwargs)
        if is_torch_function(function):
            return self.call_torch(function, args, kwargs)
        if is_pure(function) and any(answers_itself(value) for value in args):
            return self.of_object(function, args, kwargs)
        if self.t.on_device:
            return self.call_on_device(function, args, kwargs)
        return self.call_on_host(function, args, kwargs)

    def of_object(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A pure function of an object of the user's, whose own methods give the result."""
        for name in CONVERSIONS.get(function, ()) if _hashable(function) and not kwargs else ():
            found = self.operator(name, *args)
            if found is not NotImplemented:
                return found if function in (len, str, repr, abs, round) else self.call(function, (found,), {}, self.node or ast.Constant(None))  # fmt: skip
        kind = kind_of_result(function)
        if kind is None or self.t.on_device:
            return self.unknown(function, (args, kwargs))
        self.t.effects += 1
        return self.runtime_number(kind, wide=function in WIDE)

    def _of_partial(self, function: functools.partial[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a partial function was given, tensors with host expressions for them."""
        where = self.t.function_sources.get(id(function), "")

        def lifted(value: Any, path: str) -> Any:
            return lift_object(self.t, value, f"{where}.{path}" if where else "")

        self.t.assume("attribute", function, "keywords", function.keywords)
        lifted(function.func, "func")
        args = tuple(lifted(value, f"args[{at}]") for at, value in enumerate(function.args))
        return args, {name: lifted(value, f"keywords[{name!r}]") for name, value in function.keywords.items()}

    def _query(self, query: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return query(self, *args, **kwargs)
        except (TypeError, AttributeError, StopIteration) as error:
            raise exc.TypeInferenceError(f"{function.__name__}: {error}.") from error

    def call_on_device(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assume_called(self.t, function)
        plain, given = method_of(function, args)
        walked = isinstance(plain, types.FunctionType) and (plain is not function or not is_library(plain))
        if walked and not isinstance(getattr(function, "__self__", None), ABSTRACT):
            return self.call_user(plain, given, kwargs)
        builtin = self.builtin_rule(function, args)
        return self.call_python(function, args, kwargs) if builtin is None else builtin(self, *args, **kwargs)

    def builtin_rule(self, function: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        builtin = BUILTINS.get(function) if _hashable(function) else None
        if builtin is None or not is_builtin_argument(self.t, function, args):
            return None

        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                return builtin(*args, **kwargs)
            except NeedsValue:
                raise
            except TypeError as error:
                raise exc.TypeInferenceError(f"{function.__name__}: {error}.") from error

        return checked

    # --- host code: what may be called, and what waits for run time -----------------------------------------------------

    def call_on_host(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        waits = next(opaques((args, kwargs)), None)
        if runs_at_run_time(function) or (waits is not None and kind_of_result(function) is not None):
            self.t.effects += 1
            kind = kind_of_result(function)
            assert kind is not None
            return self.runtime_number(kind, wide=function in WIDE)
        owner = getattr(function, "__self__", None)
        container = isinstance(owner, MUTABLE) or isinstance(function, type)
        if waits is not None and not (container and is_pure(function)) and not self._is_walked(function):
            return self.unknown(function, (args, kwargs), waits.error)
        builtin = self.builtin_rule(function, args)
        if builtin is not None and not kwargs:
            return builtin(self, *args)
        if is_pure(function) or isinstance(owner, ABSTRACT):
            return self.call_pure(function, args, kwargs)
        if self._is_walked(function):
            return self.call_helper(function, args, kwargs)
        chosen = (
            self.merged(list(args[0])) if function == random.choice and isinstance(args[0], (list, tuple)) else None
        )
        return self.unknown(function, (args, kwargs)) if chosen is None else chosen

    def call_pure(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function that gives the same for the same arguments, on plain numbers unless it works on others."""
        args = tuple(self._plain(a) for a in args)
        kwargs = {name: self._plain(a) for name, a in kwargs.items()}
        owner = getattr(function, "__self__", None)
        if is_transparent(function) or isinstance(owner, ABSTRACT):
            try:
                return self._materialised(function(*args, **kwargs))
            except NeedsValue:
                pass
        settled = self.settled((args, kwargs))
        if settled is not None:
            if isinstance(owner, list):  # compared with each other by a method
                owner[:] = settle(self.t, owner)
            elif isinstance(owner, tuple):
                function = getattr(settle(self.t, owner), function.__name__)
            return self._materialised(function(*settled[0], **settled[1]))
        kind = kind_of_result(function)
        if kind is None and function in (abs, round, sum):
            result = function(*hinted(args), **hinted(kwargs))
            kind = type(result) if type(result) in SAMPLES else None
        if kind is not None:
            return self.runtime_number(kind)
        return self.unknown(function, (args, kwargs))

    def _plain(self, value: Any) -> Any:
        """An argument of a real function: iterators as what they give, functions as ones that are walked."""
        if isinstance(value, collections.abc.Iterator):
            return tuple(value)
        if isinstance(value, types.FunctionType) and self._is_walked(value):
            return lambda *args, **kwargs: self.call(value, args, kwargs, self.node or ast.Constant(None))
        return value

    @staticmethod
    def _materialised(value: Any) -> Any:
        return iter(tuple(value)) if isinstance(value, (map, filter)) else value

    def settled(self, values: Any) -> Any:
        """Values with plain numbers, which become part of the key; None if some are known at run time only."""
        if any(is_runtime(self.t, number) for number in numbers_in(values)):
            return None
        return settle(self.t, values)

    def runtime_number(self, kind: type, wide: bool = False) -> Expr:
        """A number that the expression gives at run time."""
        if self.t.on_device:
            raise exc.KnownAtRunTime(what=f"`{self.source_text()}`", because="")
        return host_tensors.number(self.t, 2**40 if wide and kind is int else SAMPLES[kind])

    def source_text(self) -> str:
        return "" if self.node is None else ast.unparse(self.node)

    def unknown(self, function: Any, values: Any, because: Exception | None = None) -> Opaque:
        """The result of a call that runs at run time: it may change the containers that it is given."""
        if self.t.on_device:
            raise exc.KnownAtRunTime(what=f"`{self.source_text()}`", because="")
        self.t.effects += 1
        reason = "" if because is None else f" ({_first_line(because)})"
        error = exc.KnownAtRunTime(what=f"`{self.source_text()}`", because=reason)
        error.at(None if self.node is None else self.frame.source.location(self.node))
        result = Opaque(error)
        for key, container in containers_in(values).items():
            self.t.poisoned[key] = (container, result)
        return result

    def number_method(
        self, value: Expr, name: str, kind: type | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """``value.name(...)`` of the number that a symbolic one stands for."""
        settled = self.settled((value, args, kwargs))
        if settled is not None:
            return getattr(settled[0], name)(*settled[1], **settled[2])
        if kind in SAMPLES:
            return self.runtime_number(kind)
        return self.unknown(name, ())

    # --- the user's functions in host code ------------------------------------------------------------------------------

    def _is_walked(self, function: Any) -> bool:
        """Whether a callable is Python code of the user's that can be followed."""
        function, _ = method_of(function, ())
        if not isinstance(function, types.FunctionType) or is_library(function):
            return isinstance(function, LocalFunction)
        return not function.__code__.co_flags & _GENERATORS and parse_function(function) is not None

    def call_helper(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of the user's in host code. It runs at run time; here it is followed for what it gives."""
        assume_called(self.t, function)
        plain, given = method_of(function, args)
        saved = self.walker.save_host(self.frame, (args, kwargs))
        self.walker.depth += 1
        try:
            if self.walker.depth > _MAX_DEPTH:
                raise exc.TypeInferenceError("Its calls are nested too deeply.")
            return self.call_user(plain, given, kwargs)
        except HARD:
            raise
        except exc.Base as error:
            self.walker.restore_host(self.frame, saved)
            self.walker.forget_globals_of(plain)
            return self.unknown(function, (args, kwargs), error)
        finally:
            self.walker.depth -= 1

    def call_local(self, function: LocalFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        definer = function.definer.frame
        source = FunctionSource(function.node, definer.source.file, function.name)
        names = function.arguments(args, kwargs)
        frame = Frame(source, definer.module_globals, {}, names, globals_source=definer.globals_source, outer=definer)
        return self.walker.run_function(frame)

    def call_debug(self, function: Any, args: tuple[Any, ...]) -> None:
        if not self.t.on_device:
            return
        if function is breakpoint:
            raise exc.BreakpointInDeviceLoopRequiresInterpret()
        HL_RULES[hl.device_print](self.t, *args)

    def call_hl(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        refuse_opaque((args, kwargs))
        where = DECLARED[function]
        name = f"hl.{function.__name__}"
        if where == "loop":
            raise exc.LoopFunctionNotInFor(name=name)
        if where == "device" and not self.t.on_device:
            raise exc.DeviceAPIOnHost(name=name)
        if where == "host" and self.t.on_device:
            if function is hl.specialize:
                raise exc.SpecializeOnDevice()
            if function is hl.barrier:
                raise exc.BarrierOnlyAllowedAtTopLevel()
            raise exc.NotAllowedOnDevice(what=name)
        for value in _tensors_in((*args, *kwargs.values())) if self.t.on_device else ():
            self.name_tensor(value)
        if function is hl.triton_kernel and args and isinstance(args[0], str) and args[0].isidentifier():
            args = (self.frame.lookup(self.t, args[0]), *args[1:])
        try:
            inspect.signature(function).bind(*args, **kwargs)
        except TypeError as error:
            raise exc.TypeInferenceError(f"{name}: {error}.") from error
        return HL_RULES[function](self.t, *args, **kwargs)

    def note_compile_time_call(self, function: Any, result: Any, node: ast.AST) -> None:
        """The generated host code has constants in place of these calls."""
        where = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        if function is hl.register_block_size:
            self.t.registered[where] = result.args[0]
        elif function is hl.register_tunable:
            self.t.tunable_calls[where] = result.args[0]
        elif function is hl.specialize:
            self.t.specialized_calls.add(where)

    def call_torch(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.t.on_device:
            return self.call_torch_on_host(function, args, kwargs)
        if not (any_abstract((args, kwargs)) or function in _TORCH_FACTORIES):
            return function(*args, **kwargs)  # torch.finfo, torch.promote_types ...
        for value in (*args, *kwargs.values()):
            refuse_host(value, self.t, f"by {torch_name(function)}")
            if isinstance(value, Tile) and function not in _TORCH_FACTORIES and not is_shape_function(function):
                raise exc.IncorrectTileUsage(how=f"as a tensor, by {torch_name(function)}")
        return self.t.torch_call(function, args, kwargs)

    def call_torch_on_host(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        waits = next(opaques((args, kwargs)), None)
        kind = kind_of_result(function)
        if kind is not None:
            self.t.effects += 1
            return self.runtime_number(kind)
        if waits is not None:
            return self.unknown(function, (args, kwargs), waits.error)
        if is_pure(function) and not _tensors_in((args, kwargs)):
            if function is torch.get_default_dtype:
                return self.t.default_dtype()
            settled = self.settled((args, kwargs))
            return self.unknown(function, ()) if settled is None else function(*settled[0], **settled[1])
        if any_abstract((args, kwargs)) or function in _TORCH_FACTORIES or is_tensor_factory(function):
            try:
                return host_tensors.call(self.t, function, args, kwargs)
            except NeedsValue:
                settled = self.settled((args, kwargs))
                if settled is None:
                    raise
                return host_tensors.call(self.t, function, *settled)
        return self.unknown(function, (args, kwargs))

    def call_graph(self, module: Any, args: tuple[Any, ...]) -> Any:
        """A ``torch.fx.GraphModule`` of function and method calls, one after the other."""
        unsupported = sorted(
            {n.op for n in module.graph.nodes} - {"placeholder", "call_function", "call_method", "output"}
        )
        if unsupported:
            raise exc.GraphModuleUnsupportedOps(name=type(module).__name__, ops=", ".join(unsupported))
        found: dict[Any, Any] = {}
        given = iter(args)
        for node in module.graph.nodes:
            inner, keywords = self._graph_items(node.args, found), self._graph_items(node.kwargs, found)
            if node.op == "placeholder":
                found[node] = next(given, *node.args)
            elif node.op == "output":
                return inner[0]
            elif node.op == "call_method":
                found[node] = getattr(inner[0], node.target)(*inner[1:], **keywords)
            else:
                found[node] = self.call(node.target, inner, keywords, self.node or ast.Constant(None))
        return None

    def _graph_items(self, item: Any, found: dict[Any, Any]) -> Any:
        if isinstance(item, dict):
            return {key: self._graph_items(v, found) for key, v in item.items()}
        if isinstance(item, (tuple, list)):
            return type(item)(self._graph_items(v, found) for v in item)
        return found[item] if isinstance(item, torch.fx.Node) else item

    def call_user(self, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = parse_function(function)
        if source is None:
            return function(*args, **kwargs)  # no source to walk: abstract values record what it does
        frame = function_frame(self.t, function, source, self.frame)
        try:
            bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
        except TypeError as error:
            raise exc.TypeInferenceError(f"{function.__name__}: {error}.") from error
        frame.names.update(bound.arguments)
        for name, value, where in defaults_of(self.t, function):
            frame.names.setdefault(name, lift_object(self.t, value, where))
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            frame.names.setdefault(name, value)
        return self.walker.run_function(frame)

    def may_change(self, container: Any) -> bool:
        """Whether a list was made in device code, and in the loop or branch that is open now."""
        made = self.t.lists.get(id(container))
        return made is not None and made[1] == self.t.builder.depth

    def check_mutation(self, function: Any) -> None:
        """A container may change only where it was made: a loop body is walked once, however often it runs."""
        owner = getattr(function, "__self__", None)
        if not isinstance(owner, (list, dict, set)) or getattr(function, "__name__", "") not in MUTATORS:
            return
        if not self.may_change(owner):
            raise exc.StatementNotSupported(
                statement=f"Changing a {type(owner).__name__} with .{function.__name__}()",
                where="device",
                remedy="; it was made outside of this loop or branch, store into a tensor instead",
            )

    def call_python(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A plain function in device code."""
        self.check_mutation(function)
        followed = is_pure(function) or isinstance(function, type)
        if not followed and is_library(function) and not isinstance(getattr(function, "__self__", None), ABSTRACT):
            raise exc.KnownAtRunTime(what=f"`{self.source_text()}`", because="")
        for value in (*args, *kwargs.values()):
            refuse_host_on_device(self.t, value, getattr(function, "__name__", "a function"))
        try:
            return function(*args, **kwargs)
        except NeedsValue:
            settled = settle(self.t, (args, kwargs))
            return function(*settled[0], **settled[1])
        except TypeError as error:
            name = getattr(function, "__name__", describe(function))
            raise exc.TypeInferenceError(f"{name}({', '.join(map(describe, args))}): {error}.") from error


def is_tensor_factory(function: Any) -> bool:
    """Whether a function of torch's makes tensors of numbers alone."""
    name = getattr(function, "__name__", "")
    return isinstance(function, types.BuiltinFunctionType) and hasattr(torch._C._VariableFunctions, name)


def _first_line(error: Exception) -> str:
    text = error.message if isinstance(error, exc.Base) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def refuse_host_on_device(t: Tracer, value: Any, how: str = "an expression") -> None:
    if t.on_device and isinstance(value, HostTensorValue) and how not in ("len", "isinstance", "getattr", "hasattr"):
        raise exc.HostTensorDirectUsage(name=t.source_name(value), how=f"in {how}")


def _hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


def is_torch_function(function: Any) -> bool:
    if isinstance(function, (type(torch.Tensor.exp), types.BuiltinFunctionType)) and not _plain_builtin(function):
        return True
    return (getattr(function, "__module__", None) or "").split(".")[0] == "torch" and not isinstance(function, type)


def _plain_builtin(function: Any) -> bool:
    module = getattr(function, "__module__", None)
    owner = getattr(function, "__objclass__", None)
    if owner is not None:
        return not owner.__module__.startswith("torch")
    return not (module or type(getattr(function, "__self__", None)).__name__).startswith("torch")


def is_shape_function(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    return name in ("view", "reshape", "expand", "broadcast_to", "new_zeros", "new_full", "layer_norm", "rms_norm")


def any_abstract(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(any_abstract, value))
    if isinstance(value, dict):
        return any(map(any_abstract, value.values()))
    return isinstance(value, ABSTRACT)


def _tensors_in(value: Any) -> list[HostTensorValue]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors_in(item)]
    return [value] if isinstance(value, HostTensorValue) else []
