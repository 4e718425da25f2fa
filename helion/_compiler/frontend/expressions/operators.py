"""Expressions of a kernel's source, evaluated on abstract values."""

from __future__ import annotations

import ast
import collections.abc
import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .... import exc
from ...._shapes import Expr, NeedsValue
from ...source import Location
from .. import host_tensors
from ..frames import Frame, assigned_names, is_plain_object, lift_object, resolve_source
from ..methods import assume_method
from ..purity import operator_of
from ..runtime_values import MUTABLE, SAMPLES, Opaque, is_runtime, numbers_in, opaque, opaques, settle
from ..torch_pointwise import truth
from ..torch_shapes import refuse_host
from ..tracer import Tracer
from ..values import DeviceValue, HostTensorValue, Tile, TileTuple, describe
from .calls import ABSTRACT, HARD, Calls, _tensors_in, is_torch_function, refuse_host_on_device
from .functions import define
from .queries import attribute_of_number, attribute_of_tensor, contains, is_same, type_of

if TYPE_CHECKING:
    from ..statements.assignments import Walker

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}  # fmt: skip
_IN_PLACE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.iadd, ast.Sub: operator.isub, ast.Mult: operator.imul, ast.Div: operator.itruediv,
    ast.FloorDiv: operator.ifloordiv, ast.Mod: operator.imod, ast.Pow: operator.ipow, ast.BitAnd: operator.iand,
    ast.BitOr: operator.ior, ast.BitXor: operator.ixor, ast.LShift: operator.ilshift, ast.RShift: operator.irshift,
}  # fmt: skip
_REFLECTED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
#: Expressions besides calls, subscripts and attributes that may give a number at run time only.
_CAPTURED = (ast.Compare, ast.BoolOp, ast.IfExp, ast.UnaryOp, ast.BinOp)


class Expressions(Calls):
    """Evaluates expressions in one frame. ``node`` is the piece of source an error is about."""

    walker: Walker

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
        result = method(node)
        if isinstance(result, MUTABLE) and id(result) in self.t.poisoned:
            result = self.t.poisoned[id(result)][1]
        if self.t.on_device:
            if isinstance(result, Opaque):
                raise result.error.with_traceback(None)
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            return self.kept(result)
        elif isinstance(node, _CAPTURED):
            return self.captured(result, node)
        return result

    def try_eval(self, node: ast.expr) -> Any:
        """The value of an expression, or None when it has none here."""
        try:
            return self.eval(node)
        except exc.Base:
            return None

    def peek(self, node: ast.expr) -> Any:
        """What a name or an attribute leads to, with nothing noted; None where that takes more than looking."""
        if isinstance(node, ast.Name):
            return self.frame.peek(node.id)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            owner = self.peek(node.value)
            found = owner.get(node.slice.value) if isinstance(owner, dict) else None
            inside = isinstance(owner, list) and isinstance(node.slice.value, int) and node.slice.value < len(owner)
            return owner[node.slice.value] if inside else found
        owner = self.peek(node.value) if isinstance(node, ast.Attribute) else None
        if owner is None or isinstance(owner, (*ABSTRACT, Opaque)) or not is_plain_object(owner, node.attr):  # type: ignore[attr-defined]
            return None
        return getattr(owner, node.attr, None)  # type: ignore[attr-defined]

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
            result = self.attribute(value, node.attr, node)
        except AttributeError as error:
            raise exc.TypeInferenceError(f"{describe(value)} has no attribute {node.attr!r}.") from error
        return self.captured(result, node) if isinstance(value, (HostTensorValue, Expr)) else result

    def attribute(self, value: Any, name: str, node: ast.expr | None = None) -> Any:
        """An attribute of a value. Raises AttributeError if what the value stands for has none of the name."""
        if isinstance(value, Opaque):
            return value
        if isinstance(value, Expr):
            return attribute_of_number(self, value, name)
        if isinstance(value, (HostTensorValue, DeviceValue)):
            if isinstance(value, HostTensorValue) and name in host_tensors.READS:
                self.t.rely(value)
            return attribute_of_tensor(value, name)
        if isinstance(value, Tile):
            return getattr(value, name)
        if (id(value), name) in self.t.attributes:
            return self.t.attributes[(id(value), name)][1]
        static = inspect.getattr_static(type(value), name, None)
        if (
            isinstance(static, property)
            and isinstance(static.fget, types.FunctionType)
            and self._is_walked(static.fget)
        ):
            self.t.assume("attribute", type(value), name, static)
            return self.call(static.fget, (value,), {}, node or ast.Constant(None))
        if not self.t.on_device and not is_plain_object(value, name):
            return self.unknown(getattr, (value, name))
        result = getattr(value, name)
        if callable(static):
            assume_method(self.t, value, name)
        if not callable(static):
            self.t.assume("attribute", value, name, result)
            where = self.t.function_sources.get(id(value), "")
            found = lift_object(self.t, result, f"{where}.{name}") if where else self.lifted(result, node)
            if where and hasattr(result, "__dict__") and not isinstance(result, types.ModuleType):
                self.t.function_sources.setdefault(id(result), f"{where}.{name}")
            return found
        return result

    def lifted(self, value: Any, node: ast.expr | None) -> Any:
        """A tensor or a function found inside an object of the user's, with the host expression that leads to it."""
        if not isinstance(value, torch.Tensor) and (
            not isinstance(value, types.FunctionType) or is_torch_function(value)
        ):
            return value
        root = node
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        if isinstance(root, ast.Name) and not self.frame.holds(root.id) and root.id in self.frame.module_globals:
            assert node is not None
            return lift_object(self.t, value, f"{self.frame.globals_source}.{ast.unparse(node)}")
        return lift_object(self.t, value, "") if isinstance(value, torch.Tensor) else value

    def eval_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(map(self.kept, self._items(node.elts)))

    def kept(self, value: Any) -> Any:
        """A value that host code keeps. What an iterator that is kept gives next depends on who asked before."""
        if self.t.on_device or not isinstance(value, collections.abc.Iterator):
            return value
        return opaque(f"the iterator `{self.source_text()}`")

    def eval_List(self, node: ast.List) -> Any:
        items = list(map(self.kept, self._items(node.elts)))
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
        made: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                made.update(self.eval(value))
            else:
                made[self.plain(self.eval(key))] = self.eval(value)
        return made

    def plain(self, value: Any) -> Any:
        """A value that Python hashes, with plain numbers."""
        return settle(self.t, value) if next(numbers_in(value), None) is not None else value

    def eval_Set(self, node: ast.Set) -> Any:
        return set(self.plain(self._items(node.elts)))

    def eval_JoinedStr(self, node: ast.JoinedStr) -> Any:
        parts = [self.eval(part) for part in node.values]
        waits = next(opaques(parts), None)
        return waits if waits is not None else "".join(parts)

    def eval_FormattedValue(self, node: ast.FormattedValue) -> Any:
        value = self.eval(node.value)
        spec = "" if node.format_spec is None else self.eval(node.format_spec)
        self.at(node)
        settled = self.settled(value)
        waits = next(opaques((value, spec)), None)
        if waits is not None or (settled is None and value is not None) or self._has_tensors(value):
            return self.unknown(format, ()) if waits is None else waits
        convert: dict[int, Callable[[Any], Any]] = {ord("r"): repr, ord("s"): str, ord("a"): ascii}
        return format(convert.get(node.conversion, lambda v: v)(settled), spec)

    def _has_tensors(self, value: Any) -> bool:
        return isinstance(value, (HostTensorValue, DeviceValue)) or bool(_tensors_in(value))

    def eval_Slice(self, node: ast.Slice) -> slice:
        return slice(*(None if part is None else self.eval(part) for part in (node.lower, node.upper, node.step)))

    def eval_Lambda(self, node: ast.Lambda) -> Any:
        if not self.t.on_device:
            return define(self, node)

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

    def operator(self, name: str, *operands: Any) -> Any:
        """What an operator of an object of the user's gives, which is a function like others; NotImplemented for operators
        of values that are followed."""
        method = operator_of(operands[0], f"__{name}__")
        if method is not None:
            self.t.assume("attribute", type(operands[0]), f"__{name}__", method)
        return NotImplemented if method is None else self.call(method, operands, {}, self.node or ast.Constant(None))

    def _between(self, name: str, left: Any, right: Any) -> Any:
        """An operator between two values of which one may be an object of the user's."""
        for method, one, other in ((name, left, right), (_REFLECTED.get(name, f"r{name}"), right, left)):
            found = self.operator(method, one, other)
            if found is not NotImplemented:
                return found
        return NotImplemented

    def _text_operand(self, left: Any, right: Any) -> Any:
        """``right`` of a formatting operator, whose symbolic numbers would show their names."""
        settled = self.settled(right)
        return opaque(f"`{self.source_text()}`") if settled is None and right is not None else settled

    def binary(self, op: type, left: Any, right: Any) -> Any:
        if isinstance(left, (str, bytes)) and op is ast.Mod:
            right = self._text_operand(left, right)
        if isinstance(left, Opaque) or isinstance(right, Opaque):
            return left if isinstance(left, Opaque) else right
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
        found = self._between(_BINARY[op].__name__.strip("_"), left, right)
        if found is not NotImplemented:
            return found
        return self._apply(_BINARY[op], left, right)

    def in_place(self, op: type, tensor: HostTensorValue, value: Any) -> Any:
        """``tensor += value`` and its like in host code: the tensor stays the same one."""
        return self._apply(_IN_PLACE[op] if op in _IN_PLACE else _BINARY[op], tensor, value)

    def _apply(self, fn: Callable[..., Any], *operands: Any) -> Any:
        try:
            try:
                return fn(*operands)
            except NeedsValue:
                settled = self.settled(operands)
                return opaque(f"`{self.source_text()}`") if settled is None else fn(*settled)
        except NeedsValue:
            raise
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
        if isinstance(value, Expr) and self.t.on_device:
            return value == 0
        if self.is_open(value):
            return self.runtime_number(bool)
        return not self.truth_on_host(value)

    def is_open(self, value: Any) -> bool:
        """Whether the truth of a value of host code is known at run time only."""
        return isinstance(value, (Opaque, HostTensorValue)) or is_runtime(self.t, value)

    def eval_Compare(self, node: ast.Compare) -> Any:
        left = self.eval(node.left)
        result: Any = None
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.eval(right_node)
            self.at(node)
            if not isinstance(op, (ast.Is, ast.IsNot)):
                refuse_host_on_device(self.t, left)
                refuse_host_on_device(self.t, right)
            step = self.compare(type(op), left, right)
            result = step if result is None else self.both(result, step)
            left = right
        return result

    def compare(self, op: type, left: Any, right: Any) -> Any:
        if op in (ast.Is, ast.IsNot, ast.In, ast.NotIn):
            found = self._apply(
                functools.partial(is_same if op in (ast.Is, ast.IsNot) else contains, self), left, right
            )
            return found if op in (ast.Is, ast.In) else self.negate(found)
        if isinstance(left, Opaque) or isinstance(right, Opaque):
            return left if isinstance(left, Opaque) else right
        found = self._between(_COMPARE[op].__name__, left, right)
        return self._apply(_COMPARE[op], left, right) if found is NotImplemented else found

    def both(self, first: Any, second: Any) -> Any:
        if isinstance(first, DeviceValue) or isinstance(second, DeviceValue):
            return self.t.pointwise("logical_and", first, second)
        if not self.t.on_device and self.is_open(first):
            return self.runtime_number(bool)
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
            if not self.t.on_device and self.is_open(result):
                return self._open_boolean(node)
            known = self.truth_on_host(result)
            if known is isinstance(node.op, ast.Or):
                return result
            result = self.eval(other)
        return result

    def _open_boolean(self, node: ast.BoolOp) -> Any:
        """``and`` and ``or`` whose first operand decides at run time."""
        values = [self._under_condition(value) for value in node.values]
        self.at(node)
        return self._merged_or_opaque(values, node)

    def _under_condition(self, node: ast.expr) -> Any:
        """The value of an expression that may not be evaluated."""
        self.walker.uncertain += 1
        relied = len(self.t.relied)
        try:
            return self.eval(node)
        except HARD:
            raise
        except exc.Base as error:
            return Opaque(error)
        finally:
            self.walker.uncertain -= 1
            del self.t.relied[relied:]

    def _merged_or_opaque(self, values: list[Any], node: ast.expr) -> Any:
        found = self.merged(values)
        return opaque(f"`{ast.unparse(node)}`") if found is None else found

    def merged(self, values: list[Any]) -> Any:
        """A number or tensor for values of which one is there at run time; None unless they are of one kind."""
        if values and all(isinstance(value, HostTensorValue) for value in values):
            return self.walker.one_of(values)
        kinds = {type_of(value) if isinstance(value, (int, float, Expr)) else None for value in values}
        kind = kinds.pop() if kinds else None
        return self.runtime_number(kind) if not kinds and kind in SAMPLES else None

    def eval_NamedExpr(self, node: ast.NamedExpr) -> Any:
        if self.t.on_device:  # both sides of `and`, `or` and conditional expressions are evaluated there
            self.at(node)
            raise exc.StatementNotSupported(statement=f"`{ast.unparse(node)}`", where="device", remedy="")
        value = self.eval(node.value)
        self.at(node)
        self.walker.bind(self, node.target, value)
        return value

    def eval_IfExp(self, node: ast.IfExp) -> Any:
        test = self.eval(node.test)
        self.at(node)
        if not self.t.on_device and self.is_open(test):
            values = [self._under_condition(part) for part in (node.body, node.orelse)]
            if values[0] is values[1]:
                return values[0]
            return self._merged_or_opaque(values, node)
        if isinstance(test, DeviceValue) or (self.t.on_device and is_runtime(self.t, test)):
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
        if isinstance(value, Tile):
            raise exc.IncorrectTileUsage(how="as a condition")
        for name in ("bool", "len"):
            found = self.operator(name, value)
            if found is not NotImplemented:
                return self.truth_on_host(found)
        try:
            return bool(value)
        except NeedsValue:
            return bool(settle(self.t, value))

    def eval_ListComp(self, node: ast.ListComp) -> Any:
        return self._followed(lambda: self._comprehension(node.generators, lambda: self.eval(node.elt)))

    def _followed(self, make: Callable[[], Any]) -> Any:
        """What a comprehension gives, opaque where it depends on what only the run knows."""
        outer, relied = dict(self.frame.names), len(self.t.relied)
        try:
            return make()
        except HARD:
            raise
        except exc.Base as error:
            if self.t.on_device:
                raise
            self.frame.names = outer
            del self.t.relied[relied:]
            return Opaque(error.at(self.location()))

    def eval_GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        items = self._followed(lambda: tuple(self._comprehension(node.generators, lambda: self.eval(node.elt))))
        return items if self.t.on_device or isinstance(items, Opaque) else iter(items)

    def eval_SetComp(self, node: ast.SetComp) -> Any:
        return self._followed(
            lambda: set(self.plain(self._comprehension(node.generators, lambda: self.eval(node.elt))))
        )

    def eval_DictComp(self, node: ast.DictComp) -> Any:
        def pair() -> tuple[Any, Any]:
            return self.plain(self.eval(node.key)), self.eval(node.value)

        return self._followed(lambda: dict(self._comprehension(node.generators, pair)))

    def _comprehension(self, generators: list[ast.comprehension], element: Callable[[], Any]) -> list[Any]:
        names = frozenset(assigned_names([generator.target for generator in generators]))
        outer = dict(self.frame.names)
        result: list[Any] = []
        self._generate(generators, element, result)
        for name in names:  # names that `:=` binds stay
            self.frame.names.pop(name, None)
            if name in outer:
                self.frame.names[name] = outer[name]
        return result

    def _generate(self, generators: list[ast.comprehension], element: Callable[[], Any], result: list[Any]) -> None:
        if not generators:
            result.append(element())
            return
        generator = generators[0]
        for item in self.iterate(self.eval(generator.iter), generator.iter):
            # a variable of the comprehension is no name that a launch could pass a tensor by
            self.frame.is_kernel, is_kernel = False, self.frame.is_kernel
            self.walker.bind(self, generator.target, item)
            self.frame.is_kernel = is_kernel
            if all(self.truth_on_host(self.eval(test)) for test in generator.ifs):
                self._generate(generators[1:], element, result)

    def iterate(self, value: Any, node: ast.AST) -> list[Any]:
        self.at(node)
        if isinstance(value, ABSTRACT):
            raise exc.InvalidDeviceForLoop(got=describe(value))
        if operator_of(value, "__iter__") is not None or operator_of(value, "__getitem__") is not None:
            raise exc.KnownAtRunTime(what=f"`{ast.unparse(node)}`", because="")
        try:
            return list(settle(self.t, value) if isinstance(value, range) else value)
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
            return self.captured(self.item(value, index), node)
        if isinstance(value, Opaque):
            return value
        if isinstance(value, DeviceValue):
            return value[index]
        if isinstance(value, Tile):
            raise exc.IncorrectTileUsage(how="with a subscript")
        if isinstance(index, Expr) and isinstance(value, (list, tuple)) and self.t.changes(index):
            return self.captured(self.walker.item_of(self, value, index, node), node)
        found = self.operator("getitem", value, index)
        if found is not NotImplemented:
            return self.captured(found, node)
        if isinstance(index, Expr) and not self.t.on_device and is_runtime(self.t, index):
            return self._open_item(value)
        if isinstance(index, (DeviceValue, HostTensorValue, Tile)) or is_runtime(self.t, index):
            raise exc.InvalidSequenceSubscription(got=describe(index))
        try:
            index = self.plain(index)
            result = value[index]
            if isinstance(value, (dict, list)) and not isinstance(index, slice):
                self.t.assume("item", value, index, result)
            return self.lifted(result, node)
        except (TypeError, KeyError, IndexError) as error:
            raise exc.TypeInferenceError(f"{type(error).__name__}: {error}.") from error

    def item(self, value: HostTensorValue, index: Any) -> Any:
        """``value[index]`` of a tensor."""
        if not self.t.on_device and next(opaques(index), None) is not None:
            return next(opaques(index))
        return value[index]

    def _open_item(self, value: Any) -> Any:
        """An item of a sequence at a place that is known at run time."""
        found = self.merged(list(value)) if isinstance(value, (list, tuple)) and value else None
        return opaque(f"`{self.source_text()}`") if found is None else found

    def name_tensor(self, value: HostTensorValue) -> None:
        """Before the first use on the device: find the host expression the launch passes the tensor by."""
        if self.t.number_of(value) is None:
            resolve_source(self.t, value, self.walker.kernel_frame)


__all__ = ["ABSTRACT", "Expressions", "TileTuple"]
