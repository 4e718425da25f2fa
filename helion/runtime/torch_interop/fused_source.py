"""Sources of kernels with elementwise operations of their neighbors: at their only store, and at loads of an argument."""

from __future__ import annotations

import ast
import copy
import linecache
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

#: Attributes and methods of a tensor that do not read its elements.
_METADATA = frozenset(("size", "shape", "stride", "dtype", "device", "dim", "ndim", "numel", "new_empty"))
#: Functions that only take a tensor's shape, dtype and device.
_LIKE = frozenset(("torch.empty_like", "torch.zeros_like", "torch.ones_like", "torch.full_like"))
#: The only functions around which a store or load runs once for each element.
_LOOPS = frozenset(("hl.tile", "hl.grid"))


@dataclass(frozen=True, kw_only=True)
class Access:
    """An operand of an elementwise expression: the parameter ``name``, and its number of dimensions."""

    name: str
    dims: int


#: Text: returns an expression, given the expressions of the kernel's own value and of the operands.
Text = Callable[[str, Sequence[str]], str]


class Rewritten:
    """The source of a kernel's function while neighbors are fused into it.

    Functions without a text of their own, or that close over variables, cannot be rewritten.
    """

    def __init__(self, fn: types.FunctionType, source: str) -> None:
        self.fn = fn
        self.tree = ast.parse(source)
        definition = self.tree.body[0]
        assert isinstance(definition, ast.FunctionDef)
        self.function = definition
        self.function.decorator_list = []
        arguments = self.function.args
        positional = not (arguments.kwonlyargs or arguments.vararg or arguments.kwarg)
        self.is_plain = positional and not fn.__code__.co_freevars and fn.__globals__.get("torch") is torch

    def names(self) -> set[str]:
        """Return the names of the parameters, and all names that the function reads or binds."""
        names = {node.id for node in ast.walk(self.function) if isinstance(node, ast.Name)}
        return names | {node.arg for node in ast.walk(self.function) if isinstance(node, ast.arg)}

    def store(self, operands: Sequence[Access], dims: int, dtype: torch.dtype, made: torch.dtype, text: Text) -> bool:
        """Compute ``text`` where the kernel stores its only result of ``dims`` dimensions and ``dtype``.

        The result has the dtype ``made`` then. Returns False if the result is not stored once and returned.
        """
        name = self._returned()
        if name is None:
            return False
        stores = [node for node in ast.walk(self.function) if isinstance(node, ast.Assign) and _stores(node, name)]
        given = [node for node in ast.walk(self.function) if isinstance(node, ast.Assign) and _binds(node, name)]
        if len(stores) != 1 or len(given) != 1 or self._uses(name, allowed=3 + len(self._metadata(name))):
            return False
        (store,), (allocation,) = stores, given
        if not _is_empty(allocation.value):  # what is not stored has a value, too
            return False
        target = store.targets[0]
        assert isinstance(target, ast.Subscript)
        places = _places(target, operands, dims)
        if places is None:
            return False
        own = f"({ast.unparse(store.value)}).to({dtype}).to(torch.float32)"
        store.value = _expression(text(own, places))
        if made != dtype:
            allocation.value = _expression(f"torch.empty_like({ast.unparse(allocation.value)}, dtype={made})")
        self._add(operands)
        return True

    def load(self, name: str, operands: Sequence[Access], dims: int, dtype: torch.dtype, text: Text) -> bool:
        """Compute ``text``, of ``dtype``, where the kernel loads the parameter ``name``.

        The first operand has its place, and its shape, strides and dtype. Returns False if the parameter is not loaded
        once for each of its elements, or used otherwise.
        """
        loads = [node for node in ast.walk(self.function) if _is_access(node, name)]
        if len(loads) != 1 or self._uses(name, allowed=1 + len(self._metadata(name))):
            return False
        (load,) = loads
        assert isinstance(load, ast.Subscript)
        places = _places(load, operands, dims)
        if places is None or not self._is_once(load):
            return False
        value = _expression(f"({text('', places)}).to({dtype})")
        _Replaced(load, value).visit(self.function)
        self._add(operands[1:])
        return True

    def finished(self) -> types.FunctionType:
        """Return the function of the rewritten source, with the globals of the original one."""
        text = ast.unparse(ast.fix_missing_locations(self.function)) + "\n"
        file = f"<helion fusion of {self.fn.__qualname__} {abs(hash(text)):x}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        flags = 0x1000000  # from __future__ import annotations
        namespace: dict[str, object] = {}
        exec(compile(text, file, "exec", flags=flags, dont_inherit=True), namespace)
        made = namespace[self.function.name]
        assert isinstance(made, types.FunctionType)
        function = types.FunctionType(made.__code__, self.fn.__globals__, made.__name__)
        function.__annotations__, function.__module__ = made.__annotations__, self.fn.__module__
        function.__qualname__ = self.fn.__qualname__
        return function

    def _add(self, operands: Sequence[Access]) -> None:
        """Add parameters; defaults of earlier ones would have to follow, so that there are none any more."""
        self.function.args.defaults = []
        taken = {argument.arg for argument in self.function.args.args}
        names = dict.fromkeys(operand.name for operand in operands if operand.name not in taken)
        self.function.args.args += [ast.arg(arg=name, annotation=_expression("torch.Tensor")) for name in names]

    def _returned(self) -> str | None:
        """Return the name of the only variable that the last statement, and no other, returns."""
        returns = [node for node in ast.walk(self.function) if isinstance(node, ast.Return)]
        last = self.function.body[-1]
        if returns == [last] and isinstance(last, ast.Return) and isinstance(last.value, ast.Name):
            return last.value.id
        return None

    def _metadata(self, name: str) -> list[ast.expr]:
        """List the uses of a variable that do not read its elements."""
        found: list[ast.expr] = []
        for node in ast.walk(self.function):
            if (isinstance(node, ast.Attribute) and node.attr in _METADATA and _is(node.value, name)) or (
                isinstance(node, ast.Call) and ast.unparse(node.func) in _LIKE and any(_is(a, name) for a in node.args)
            ):
                found.append(node)
        return found

    def _uses(self, name: str, allowed: int) -> bool:
        """Return whether a variable occurs more often than ``allowed``."""
        return sum(_is(node, name) for node in ast.walk(self.function)) > allowed

    def _is_once(self, load: ast.Subscript) -> bool:
        """Return whether the loops around a load run over the variables in its subscript, so that it is not repeated."""
        names = {node.id for node in ast.walk(load.slice) if isinstance(node, ast.Name)}
        loops = [node for node in ast.walk(self.function) if isinstance(node, (ast.For, ast.While))]
        around = [loop for loop in loops if any(node is load for node in ast.walk(loop))]
        return all(
            isinstance(loop, ast.For)
            and isinstance(loop.iter, ast.Call)
            and ast.unparse(loop.iter.func) in _LOOPS
            and {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)} <= names
            for loop in around
        )


class _Replaced(ast.NodeTransformer):
    """Replaces one node."""

    def __init__(self, node: ast.AST, by: ast.expr) -> None:
        self.node, self.by = node, by

    def visit(self, node: ast.AST) -> ast.AST:
        return self.by if node is self.node else self.generic_visit(node)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_access(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Subscript) and _is(node.value, name)


def _stores(node: ast.Assign, name: str) -> bool:
    return len(node.targets) == 1 and _is_access(node.targets[0], name)


def _binds(node: ast.Assign, name: str) -> bool:
    return len(node.targets) == 1 and _is(node.targets[0], name)


def _is_empty(value: ast.expr) -> bool:
    """Return whether an expression makes a tensor without values."""
    if not isinstance(value, ast.Call):
        return False
    name = ast.unparse(value.func)
    return name in ("torch.empty", "torch.empty_like") or name.endswith(".new_empty")


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _places(access: ast.Subscript, operands: Sequence[Access], dims: int) -> list[str] | None:
    """Return the operands at the place of an access, in fp32; None if a subscript does not say which dimension is which."""
    index = access.slice
    parts = list(index.elts) if isinstance(index, ast.Tuple) else [index]
    if any(isinstance(part, (ast.Constant, ast.Starred)) for part in parts):
        return None
    found = []
    for operand in operands:
        if operand.dims != dims and len(parts) != dims:
            return None
        kept = parts if operand.dims == dims else parts[dims - operand.dims :]
        subscript = copy.deepcopy(ast.Tuple(elts=kept, ctx=ast.Load()) if len(kept) > 1 else kept[0])
        node = ast.Subscript(value=ast.Name(id=operand.name, ctx=ast.Load()), slice=subscript, ctx=ast.Load())
        found.append(f"{ast.unparse(ast.fix_missing_locations(node))}.to(torch.float32)")
    return found
