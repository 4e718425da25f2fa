"""Expressions of a kernel's source, evaluated on abstract values."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ... import exc
from ... import language as hl
from ..._shapes import Expr, hint_of
from ...language._registry import DECLARED
from ..source import Location, parse_function, place_of
from . import hl_escape, hl_random, host_tensors
from .captures import capture
from .frames import Frame, function_frame, lift_object, resolve_source
from .hl_functions import HL_RULES
from .python_functions import BUILTINS, is_builtin_argument
from .torch_pointwise import truth
from .torch_shapes import refuse_host
from .tracer import Tracer, torch_name
from .values import DeviceValue, HostTensorValue, Tile, TileTuple, describe

if TYPE_CHECKING:
    from .statements import Walker

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}  # fmt: skip
_UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_TORCH_FACTORIES = (
    torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.rand, torch.randn, torch.tensor, torch.eye, torch.linspace
)  # fmt: skip
#: The families of rules that register themselves when imported.
FAMILIES = (hl_escape, hl_random)
ABSTRACT = (DeviceValue, HostTensorValue, Tile, Expr)
_MUTATORS = frozenset(
    (
        "append",
        "extend",
        "insert",
        "pop",
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
#: Library modules whose functions run as they are; others with source are walked.
_OPAQUE_MODULES = ("torch", "math", "operator", "functools", "itertools", "builtins", "helion", "numpy", "typing")


class Expressions:
    """Evaluates expressions in one frame. ``node`` is the piece of source an error is about."""

    def __init__(self, walker: Walker, frame: Frame) -> None:
        self.walker = walker
        self.t: Tracer = walker.t
        self.frame = frame
        self.node: ast.AST | None = None

    def location(self) -> Location | None:
        return None if self.node is None else self.frame.source.location(self.node)

    def at(self, node: ast.AST) -> None:
        """What follows is about ``node``."""
        self.node = node
        if self.t.on_device:
            self.t.builder.location = self.frame.source.location(node)

    def eval(self, node: ast.expr) -> Any:
        method = getattr(self, f"eval_{type(node).__name__}", None)
        if method is None:
            self.at(node)
            raise exc.StatementNotSupported(statement=f"`{ast.unparse(node)}`", where=self.where, remedy="")
        return method(node)

    def try_eval(self, node: ast.expr) -> Any:
        """The value of an expression, or None when it has none here."""
        try:
            return self.eval(node)
        except exc.Base:
            return None

    @property
    def where(self) -> str:
        return "device" if self.t.on_device else "host"

    # --- atoms ---------------------------------------------------------------------------------------------------------

    def eval_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def eval_Name(self, node: ast.Name) -> Any:
        self.node = node
        return self.frame.lookup(self.t, node.id)

    def eval_Attribute(self, node: ast.Attribute) -> Any:
        value = self.eval(node.value)
        self.at(node)
        try:
            result = getattr(value, node.attr)
        except AttributeError as error:
            raise exc.TypeInferenceError(f"{describe(value)} has no attribute {node.attr!r}.") from error
        if not isinstance(value, ABSTRACT) and not callable(getattr(type(value), node.attr, None)):
            self.t.assume("attribute", value, node.attr, result)
            return self.lifted(result, node)
        return self.captured(result, node) if isinstance(value, HostTensorValue) else result

    def lifted(self, value: Any, node: ast.expr) -> Any:
        """A tensor or a function found inside an object of the user's, with the host expression that leads to it."""
        if isinstance(value, (torch.Tensor, types.FunctionType)) and not is_torch_function(value):
            root = node
            while isinstance(root, (ast.Attribute, ast.Subscript)):
                root = root.value
            if isinstance(root, ast.Name) and root.id in self.frame.module_globals:
                prefix = f"{self.frame.globals_source}."
                return lift_object(self.t, value, prefix + ast.unparse(node))
        return value

    def eval_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self._items(node.elts))

    def eval_List(self, node: ast.List) -> Any:
        items = self._items(node.elts)
        if self.t.on_device:
            self.t.lists[id(items)] = (items, self.t.builder.depth)
        return items

    def _items(self, nodes: list[ast.expr]) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items.extend(self.eval(node.value))
            else:
                items.append(self.eval(node))
        return items

    def eval_Dict(self, node: ast.Dict) -> Any:
        return {self.eval(k): self.eval(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}

    def eval_Set(self, node: ast.Set) -> Any:
        return set(self._items(node.elts))

    def eval_JoinedStr(self, node: ast.JoinedStr) -> str:
        parts: list[Any] = node.values
        return "".join(str(self.eval(p) if isinstance(p, ast.Constant) else self.eval(p.value)) for p in parts)

    def eval_Slice(self, node: ast.Slice) -> slice:
        return slice(*(None if part is None else self.eval(part) for part in (node.lower, node.upper, node.step)))

    def eval_Lambda(self, node: ast.Lambda) -> Any:
        if not self.t.on_device:
            self.at(node)
            raise exc.StatementNotSupported(
                statement="A lambda",
                where="host",
                remedy="; define a function at module level, or pass it as an argument",
            )

        def call(*args: Any) -> Any:
            names = dict(zip((a.arg for a in node.args.args), args, strict=True))
            inner = Frame(
                self.frame.source, self.frame.module_globals, self.frame.closure, {**self.frame.names, **names}
            )
            return Expressions(self.walker, inner).eval(node.body)

        return call

    # --- operators -----------------------------------------------------------------------------------------------------

    def eval_BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.eval(node.left), self.eval(node.right)
        self.at(node)
        return self.binary(type(node.op), left, right)

    def binary(self, op: type, left: Any, right: Any) -> Any:
        if self.t.on_device:
            for operand in (left, right):
                refuse_host(operand, self.t, "in an expression")
                if isinstance(operand, Tile) and op not in (ast.Add, ast.Sub):
                    raise exc.IncorrectTileUsage(how="as a number")
            # operators of numbers and host expressions give way to those of device values
            if isinstance(left, Tile) and isinstance(right, DeviceValue) and right.dims:
                raise exc.IncorrectTileUsage(how="as a number")
            if isinstance(left, DeviceValue) and isinstance(right, Tile) and (left.dims or op is ast.Sub):
                raise exc.IncorrectTileUsage(how="as a number")
        return self._apply(_BINARY[op], left, right)

    def _apply(self, fn: Callable[..., Any], *operands: Any) -> Any:
        try:
            return fn(*operands)
        except (TypeError, ZeroDivisionError) as error:
            shown = " and ".join(describe(o) for o in operands)
            raise exc.TypeInferenceError(f"{type(error).__name__}: {error} (with {shown}).") from error

    def eval_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.eval(node.operand)
        self.at(node)
        if isinstance(node.op, ast.Not):
            return self.negate(value)
        refuse_host_on_device(self.t, value)
        return self._apply(_UNARY[type(node.op)], value)

    def negate(self, value: Any) -> Any:
        if isinstance(value, DeviceValue):
            return self.t.pointwise("logical_not", value)
        if isinstance(value, Expr):
            return value == 0 if self.t.on_device else not self.t.specialize(value)
        return not value

    def eval_Compare(self, node: ast.Compare) -> Any:
        left = self.eval(node.left)
        result: Any = None
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.eval(right_node)
            self.at(node)
            if not isinstance(op, (ast.Is, ast.IsNot)):
                refuse_host_on_device(self.t, left)
                refuse_host_on_device(self.t, right)
            step = self._apply(_COMPARE[type(op)], left, right)
            result = step if result is None else self.both(result, step)
            left = right
        return result

    def both(self, first: Any, second: Any) -> Any:
        if isinstance(first, DeviceValue) or isinstance(second, DeviceValue):
            return self.t.pointwise("logical_and", first, second)
        return self.truth_on_host(first) and second

    def eval_BoolOp(self, node: ast.BoolOp) -> Any:
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        result = self.eval(node.values[0])
        for other in node.values[1:]:
            self.at(node)
            if isinstance(result, DeviceValue) or (isinstance(result, Expr) and self.t.on_device):
                value = self.eval(other)
                self.at(node)
                if any(isinstance(v, DeviceValue) and v.dims for v in (result, value)):
                    raise exc.ConditionNotScalar(statement=ast.unparse(node), shape=repr(result))
                result = self.t.pointwise(name, truth(self.t, result), truth(self.t, value))
                continue
            known = self.truth_on_host(result)
            if known is isinstance(node.op, ast.Or):
                return result
            result = self.eval(other)
        return result

    def eval_IfExp(self, node: ast.IfExp) -> Any:
        test = self.eval(node.test)
        self.at(node)
        if isinstance(test, DeviceValue) or (self.t.on_device and isinstance(test, Expr)):
            raise exc.StatementNotSupported(
                statement="A conditional expression on a device value",
                where="device",
                remedy="; use torch.where or an if statement",
            )
        return self.eval(node.body if self.truth_on_host(test) else node.orelse)

    def truth_on_host(self, value: Any) -> bool:
        """A condition that must be known when compiling; run-time numbers become part of the specialization key."""
        if isinstance(value, Expr):
            if host_tensors.is_item(self.t, value):
                raise exc.TypeInferenceError(
                    "A branch on what `.item()` reads off a tensor cannot be followed when the kernel is compiled; pass the number as an argument, or branch outside of the kernel."
                )
            return bool(self.t.specialize(value))
        return bool(value)

    def eval_ListComp(self, node: ast.ListComp) -> list[Any]:
        if len(node.generators) != 1:
            self.at(node)
            raise exc.StatementNotSupported(statement="A nested comprehension", where=self.where, remedy="")
        generator = node.generators[0]
        result = []
        outer = dict(self.frame.names)
        for item in self.iterate(self.eval(generator.iter), generator.iter):
            # a variable of the comprehension is no name that a launch could pass a tensor by
            self.frame.is_kernel, is_kernel = False, self.frame.is_kernel
            self.walker.bind(self, generator.target, item)
            self.frame.is_kernel = is_kernel
            if all(self.truth_on_host(self.eval(test)) for test in generator.ifs):
                result.append(self.eval(node.elt))
        self.frame.names = outer
        return result

    def eval_GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        return tuple(self.eval_ListComp(ast.ListComp(node.elt, node.generators)))

    def iterate(self, value: Any, node: ast.AST) -> list[Any]:
        self.at(node)
        if isinstance(value, ABSTRACT):
            raise exc.InvalidDeviceForLoop(got=describe(value))
        try:
            return list(value)
        except TypeError as error:
            raise exc.InvalidDeviceForLoop(got=describe(value)) from error

    # --- subscripts ----------------------------------------------------------------------------------------------------

    def eval_Subscript(self, node: ast.Subscript) -> Any:
        value = self.eval(node.value)
        index = self.eval(node.slice)
        self.at(node)
        if isinstance(value, HostTensorValue):
            if self.t.on_device:
                self.name_tensor(value)
            return self.captured(value[index], node)
        if isinstance(value, DeviceValue):
            return value[index]
        if isinstance(value, Tile):
            raise exc.IncorrectTileUsage(how="with a subscript")
        if isinstance(index, Expr) and isinstance(value, (list, tuple)) and self.t.changes(index):
            return self.captured(self.walker.item_of(self, value, index, node), node)
        if isinstance(index, ABSTRACT):
            raise exc.InvalidSequenceSubscription(got=describe(index))
        try:
            result = value[index]
            if isinstance(value, (dict, list)):
                self.t.assume("item", value, index, result)
            return self.lifted(result, node)
        except (TypeError, KeyError, IndexError) as error:
            raise exc.TypeInferenceError(f"{type(error).__name__}: {error}.") from error

    def name_tensor(self, value: HostTensorValue) -> None:
        """Before the first use on the device: find the host expression the launch passes the tensor by."""
        if self.t.number_of(value) is None:
            resolve_source(self.t, value, self.walker.kernel_frame)

    # --- calls ---------------------------------------------------------------------------------------------------------

    def eval_Call(self, node: ast.Call) -> Any:
        function = self.eval(node.func)
        if self.t.on_device and any(isinstance(a, ast.Starred) for a in node.args):
            self.at(node)
            starred = [a for a in node.args if isinstance(a, ast.Starred)]
            if not all(isinstance(self.eval(a.value), (tuple, list)) for a in starred):
                raise exc.StarredArgsNotSupportedOnDevice()
        args = self._items(node.args)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                kwargs.update(self.eval(keyword.value))
            else:
                kwargs[keyword.arg] = self.eval(keyword.value)
        self.at(node)
        return self.captured(self.call(function, tuple(args), kwargs, node), node)

    def captured(self, result: Any, node: ast.expr) -> Any:
        """What an expression of the kernel's host code gives, with names that launches can pass it by."""
        return result if self.t.on_device or not self.frame.is_kernel else capture(self.t, result, place_of(node))

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.AST) -> Any:
        if _hashable(function) and function in DECLARED:
            result = self.call_hl(function, args, kwargs)
            self.note_compile_time_call(function, result, node)
            return result
        if getattr(function, "_is_helion_kernel", False):
            raise exc.NestedKernelCallsNotSupported(name=function.name)
        if isinstance(function, functools.partial):
            return self.call(function.func, (*function.args, *args), {**function.keywords, **kwargs}, node)
        if isinstance(function, torch.fx.GraphModule):
            return self.call_graph(function, args)
        if function in (breakpoint, print) or function is builtins.print:
            return self.call_debug(function, args)
        if is_torch_function(function):
            return self.call_torch(function, args, kwargs)
        if isinstance(function, types.FunctionType) and self.t.on_device and not _opaque(function):
            return self.call_user(function, args, kwargs)
        builtin = BUILTINS.get(function) if _hashable(function) else None
        if builtin is not None and is_builtin_argument(self.t, function, args):
            try:
                return builtin(self, *args, **kwargs)
            except TypeError as error:
                raise exc.TypeInferenceError(f"{function.__name__}: {error}.") from error
        return self.call_python(function, args, kwargs)

    def call_debug(self, function: Any, args: tuple[Any, ...]) -> None:
        if not self.t.on_device:
            return
        if function is breakpoint:
            raise exc.BreakpointInDeviceLoopRequiresInterpret()
        HL_RULES[hl.device_print](self.t, *args)

    def call_hl(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
            if any_abstract((args, kwargs)) or function in _TORCH_FACTORIES:
                return host_tensors.call(self.t, function, args, kwargs)
            return function(*args, **kwargs)
        if not (any_abstract((args, kwargs)) or function in _TORCH_FACTORIES):
            return function(*args, **kwargs)  # torch.finfo, torch.promote_types ...
        for value in (*args, *kwargs.values()):
            refuse_host(value, self.t, f"by {torch_name(function)}")
            if isinstance(value, Tile) and function not in _TORCH_FACTORIES and not is_shape_function(function):
                raise exc.IncorrectTileUsage(how=f"as a tensor, by {torch_name(function)}")
        return self.t.torch_call(function, args, kwargs)

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
            bound = inspect.signature(function).bind(*args, **kwargs)
        except TypeError as error:
            raise exc.TypeInferenceError(f"{function.__name__}: {error}.") from error
        bound.apply_defaults()
        frame.names.update(bound.arguments)
        return self.walker.run_function(frame)

    def may_change(self, container: Any) -> bool:
        """Whether a list was made in device code, and in the loop or branch that is open now."""
        made = self.t.lists.get(id(container))
        return made is not None and made[1] == self.t.builder.depth

    def check_mutation(self, function: Any) -> None:
        """A container may change only where it was made: a loop body is walked once, however often it runs."""
        owner = getattr(function, "__self__", None)
        if not isinstance(owner, (list, dict, set)) or getattr(function, "__name__", "") not in _MUTATORS:
            return
        if not self.may_change(owner):
            raise exc.StatementNotSupported(
                statement=f"Changing a {type(owner).__name__} with .{function.__name__}()",
                where="device",
                remedy="; it was made outside of this loop or branch, store into a tensor instead",
            )

    def call_python(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.t.on_device:
            self.check_mutation(function)
            for value in (*args, *kwargs.values()):
                refuse_host_on_device(self.t, value, getattr(function, "__name__", "a function"))
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if not self.t.on_device and "not known when the kernel is compiled" in str(error):
                if any(host_tensors.is_item(self.t, a) or self.t.changes(a) for a in args):
                    result = function(*(hint_of(a) for a in args), **{k: hint_of(v) for k, v in kwargs.items()})
                    if isinstance(result, (int, float)):
                        return host_tensors.number(self.t, result)
                known = [self.t.specialize(a) if isinstance(a, Expr) else a for a in args]
                return function(
                    *known, **{k: self.t.specialize(v) if isinstance(v, Expr) else v for k, v in kwargs.items()}
                )
            if self.t.on_device:
                name = getattr(function, "__name__", describe(function))
                raise exc.TypeInferenceError(f"{name}({', '.join(map(describe, args))}): {error}.") from error
            raise


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


def _opaque(function: types.FunctionType) -> bool:
    return (function.__module__ or "").split(".")[0] in _OPAQUE_MODULES


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


__all__ = ["ABSTRACT", "Expressions", "TileTuple"]
