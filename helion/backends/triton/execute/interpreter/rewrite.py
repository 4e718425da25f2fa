"""``@triton.jit`` functions as Python functions on interpreter values.

Nothing of Triton is replaced. A kernel's source is compiled again with a namespace of its own, in which :func:`adapt`
converts ``triton.language`` and all other references. Builtins get their semantic object, other ``@triton.jit``
functions become interpreted ones, and constexprs become plain Python values.
"""

from __future__ import annotations

import ast
import builtins
import collections
import types
from collections.abc import Callable, Mapping
from typing import Any

import triton.language as tl
from triton.language.extra import libdevice as libdevice_stubs
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime.jit import JITCallable, JITFunction

from . import reductions, semantic
from .semantic import SEMANTIC
from .values import bind_builtin, bind_methods

_CACHE_SIZE = 512
"""Number of cached functions; the least recently resolved ones are dropped. Each has a kernel's source a second time.
"""

_TRUTH, _AND, _OR, _NOT = "__truth__", "__and__", "__or__", "__not__"
_ASSIGNED, _CHECK = "__assigned__", "__check__"

_HELPERS: dict[str, object] = {
    "__builtins__": builtins,
    _TRUTH: semantic.truth,
    _AND: semantic.logical_and,
    _OR: semantic.logical_or,
    _NOT: semantic.logical_not,
    _ASSIGNED: semantic.assigned,
    _CHECK: semantic.check,
}


class _ConstexprClass(type):
    def __instancecheck__(cls, value: object) -> bool:
        return value is None or isinstance(value, (int, float, str, tl.dtype, tl.constexpr))


class _Constexpr(metaclass=_ConstexprClass):
    """``tl.constexpr`` in a kernel: the plain value, since compile-time values are plain here."""

    def __new__(cls, value: Any) -> Any:
        return value.value if type(value) is tl.constexpr else value


def _static_assert(condition: Any, message: str = "", **_: Any) -> None:
    if not semantic.truth(condition):
        raise AssertionError(f"tl.static_assert failed: {message}")


def _static_print(*values: Any, sep: str = " ", end: str = "\n", **_: Any) -> None:
    print(*values, sep=sep, end=end)


_REPLACED: dict[int, object] = {
    id(original): ours
    for original, ours in (
        (tl.constexpr, _Constexpr),
        (tl.range, semantic.tensor_range),
        (tl.static_range, semantic.static_range),
        (tl.multiple_of, semantic.hint),
        (tl.max_contiguous, semantic.hint),
        (tl.max_constancy, semantic.hint),
        (tl.static_assert, _static_assert),
        (tl.static_print, _static_print),
        (tl.core.reduce, reductions.reduce),
        (tl.core._reduce_with_indices, reductions.reduce_with_indices),
        (tl.core.associative_scan, reductions.associative_scan),
        (tl.core.map_elementwise, reductions.map_elementwise),
    )
}
"""Functions and classes of ``triton.language`` with an interpreter version, by id (they live as long as Triton)."""


class _ModuleView:
    """A module as seen by a kernel: attributes are adapted at their first use."""

    def __init__(self, module: types.ModuleType) -> None:
        # A Triton module does not change; the attributes of any other may.
        self.__dict__["_view_of"] = module
        self.__dict__["_stable"] = module.__name__.split(".")[0] == "triton"

    def __getattr__(self, name: str) -> Any:
        value = adapt(getattr(self._view_of, name))
        if self._stable:
            self.__dict__[name] = value
        return value


_views: dict[int, _ModuleView] = {}
_bound: dict[int, Callable[..., Any]] = {}


def _view(module: types.ModuleType) -> _ModuleView:
    if module is libdevice_stubs:
        module = cuda_libdevice  # as a compilation for an NVIDIA GPU has it
    found = _views.get(id(module))
    if found is None or found._view_of is not module:
        found = _views[id(module)] = _ModuleView(module)
    return found


def adapt(value: Any) -> Any:
    """Return ``value``, a global, closure or module attribute of a kernel, as the interpreted kernel sees it."""
    replaced = _REPLACED.get(id(value))
    if replaced is not None:
        return replaced
    if isinstance(value, JITFunction):
        return interpreted(value)
    if isinstance(value, tl.constexpr):
        return adapt(value.value)
    if isinstance(value, types.ModuleType):
        return _view(value)
    if isinstance(value, types.FunctionType):
        if value.__module__ == libdevice_stubs.__name__:
            return getattr(_view(libdevice_stubs), value.__name__)
        if tl.core.is_builtin(value):
            found = _bound.get(id(value))
            if found is None:
                found = _bound[id(value)] = bind_builtin(value, SEMANTIC)
            return found
    return value


class _Rewriter(ast.NodeTransformer):
    """Gives Python syntax the meaning it has in a compiled kernel. New nodes have the location of the nodes they
    replace.
    """

    @staticmethod
    def _call(name: str, *args: ast.expr) -> ast.Call:
        function = ast.copy_location(ast.Name(id=name, ctx=ast.Load()), args[0])
        return ast.copy_location(ast.Call(func=function, args=list(args), keywords=[]), args[0])

    @staticmethod
    def _later(value: ast.expr) -> ast.Lambda:
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return ast.copy_location(ast.Lambda(args=nothing, body=value), value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        # Decorators ran already, annotations were read, defaults come from the original.
        node.decorator_list = []
        node.returns = None
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            arg.annotation = None
        node.args.defaults = []
        node.args.kw_defaults = [None] * len(node.args.kwonlyargs)
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        node.value = self._call(_ASSIGNED, node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        constexpr = "constexpr" in ast.unparse(node.annotation)
        self.generic_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        value = node.value if constexpr else self._call(_ASSIGNED, node.value)
        return ast.copy_location(ast.Assign(targets=[node.target], value=value), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        current = ast.copy_location(ast.Name(id=node.target.id, ctx=ast.Load()), node.target)
        value = self._call(_ASSIGNED, ast.copy_location(ast.BinOp(left=current, op=node.op, right=node.value), node))
        return ast.copy_location(ast.Assign(targets=[node.target], value=value), node)

    def _visit_test(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        node.test = self._call(_TRUTH, node.test)
        return node

    visit_If = visit_While = visit_IfExp = _visit_test

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.generic_visit(node)
        arguments = [node.test] if node.msg is None else [node.test, node.msg]
        return ast.copy_location(ast.Expr(value=self._call(_CHECK, *arguments)), node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs = [self._call(_TRUTH, test) for test in node.ifs]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(self._chain(_AND if isinstance(node.op, ast.And) else _OR, node.values), node)

    def _chain(self, name: str, values: list[ast.expr]) -> ast.expr:
        result = values[-1]
        for value in reversed(values[:-1]):
            result = self._call(name, value, self._later(result))
        return result

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        operands = [node.left, *node.comparators]
        links: list[ast.expr] = [
            ast.copy_location(ast.Compare(left=operands[i], ops=[op], comparators=[operands[i + 1]]), node)
            for i, op in enumerate(node.ops)
        ]
        return ast.copy_location(self._chain(_AND, links), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(self._call(_NOT, node.operand), node) if isinstance(node.op, ast.Not) else node


def _specials() -> Mapping[str, object]:
    """Return Python builtins with another meaning in a kernel, where the kernel does not define them itself."""
    core = tl.core
    return {
        "range": semantic.tensor_range,
        "print": adapt(core.device_print),
        "min": adapt(core.builtin_min),
        "max": adapt(core.builtin_max),
    }


_ABSENT = object()


class Interpreted:
    """An interpreted ``@triton.jit`` function: call it with interpreter values and plain constexprs."""

    launch = 0
    """Number of launches so far; names are looked up again once per launch."""

    __slots__ = ("_function", "_names", "_namespace", "_seen", "_source", "_values", "jit")

    def __init__(self, jit: JITFunction) -> None:
        self.jit = jit
        self._source: str | None = None
        self._function: Callable[..., Any] | None = None
        self._names: tuple[str, ...] = ()
        self._namespace: dict[str, Any] = {}
        self._values: list[object] = []
        self._seen = -1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._seen != Interpreted.launch:
            self.refresh()
        return self._function(*args, **kwargs)  # type: ignore[misc]

    def refresh(self) -> Callable[..., Any]:
        """Reload changes of the source or of the names it uses, and return the Python function."""
        self._seen = Interpreted.launch
        jit = self.jit
        if self._source is not jit.src or self._function is None:
            self._compile()
        closure = jit.fn.__closure__
        captured = dict(zip(jit.fn.__code__.co_freevars, closure, strict=True)) if closure else {}
        scope = jit.fn.__globals__
        for i, name in enumerate(self._names):
            value = captured[name].cell_contents if name in captured else scope.get(name, _ABSENT)
            if value is not self._values[i]:
                self._values[i] = value
                self._bind(name, value)
        return self._function  # type: ignore[return-value]

    def _bind(self, name: str, value: object) -> None:
        if value is not _ABSENT:
            self._namespace[name] = adapt(value)
        elif name in _SPECIALS:
            self._namespace[name] = _SPECIALS[name]
        else:
            self._namespace.pop(name, None)

    def _compile(self) -> None:
        jit = self.jit
        self._source = jit.src
        tree = _Rewriter().visit(ast.parse("\n" * (_first_line(jit) - 1) + jit.src))
        code = compile(tree, jit.fn.__code__.co_filename, "exec", dont_inherit=True)
        self._namespace = dict(_HELPERS)
        exec(code, self._namespace)
        function = self._namespace.pop(tree.body[0].name)
        self._names = tuple(sorted(_names(function.__code__) - _HELPERS.keys()))
        self._values = [object()] * len(self._names)
        function.__defaults__ = _plain(jit.fn.__defaults__)
        function.__kwdefaults__ = jit.fn.__kwdefaults__
        self._function = function


def _names(code: types.CodeType) -> set[str]:
    """Return the names that code and the functions in it look up: globals, builtins and attributes."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _plain(defaults: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    return None if defaults is None else tuple(adapt(d) for d in defaults)


def _first_line(jit: JITFunction) -> int:
    """Return the line of ``def`` in the function's file."""
    for offset, line in enumerate(jit.raw_src):
        if line.strip().startswith("def "):
            return jit.starting_line_number + offset
    return jit.starting_line_number


_cache: collections.OrderedDict[int, Interpreted] = collections.OrderedDict()


def interpreted(jit: JITCallable) -> Interpreted:
    """Return the interpreted form of ``jit``.

    It is cached by ``id``: hashing a ``JITFunction`` traverses everything it calls. The cached object references
    ``jit``, so no other object can get its id.
    """
    key = id(jit)
    found = _cache.get(key)
    if found is None:
        found = _cache[key] = Interpreted(jit)
        if len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    else:
        _cache.move_to_end(key)
    return found


_SPECIALS = _specials()
bind_methods(SEMANTIC, interpreted)
for _method in (reductions.reduce, reductions.associative_scan):
    setattr(semantic.Tensor, _method.__name__, _method)
