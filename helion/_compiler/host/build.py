"""Construction of the host function for one config: the user's statements with launches in place of device loops.

Names flow from the launches to the code. A name that a launch reads has one of three definitions. It is defined at
the top of the function, captured where the user's code computes it, or read from a tensor right before the launch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from ... import exc
from ..._names import RESERVED, SHARED_MODULES
from ..._shapes import Expr, Number, dtype_name, fixed_at
from ..._support.records import dataclass, field
from ..ir.host_module import GREATEST, LEAST, HostModule, Keep, Launch
from ..source import Place, place_of
from .program import LAUNCHER as LAUNCHER_NAME
from .program import OTHERWISE, HostProgram, Import, KernelLaunch
from .trees import Rewriter, assign, expression, names_in, statements

#: The Helion module that host code calls, and its name there.
RUNTIME, RUNTIME_NAME = "helion.runtime", "_helion_runtime"
#: The name under which host code reads globals of the user's module.
SOURCE_NAME = "_source_module"
#: The name of the arguments' device.
DEVICE_NAME = "_helion_device"
#: Builtin functions that generated host expressions call, even if the user's variables shadow them.
_BUILTINS = frozenset(("max", "min", "abs"))
#: Expressions whose results launches may need.
_CAPTURED = (ast.Call, ast.Subscript, ast.Attribute, ast.Compare, ast.BoolOp, ast.IfExp, ast.UnaryOp, ast.BinOp)


@dataclass(frozen=True, kw_only=True)
class KernelCall:
    """One launch in host expressions; ``options`` are keyword arguments."""

    kernel: str
    grid: Sequence[str]
    arguments: Sequence[str]
    options: Sequence[tuple[str, Any]]


@dataclass
class HostBuilder:
    """Builder of a host function; ``size`` gives the elements of a block, ``tunables`` values by name.

    A backend requests host expressions (``number``, ``source``, ``runtime``), adds the launches of each place in order
    (``launch``), and finally builds the function (``program``).
    """

    traced: HostModule
    size: Callable[[int], int]
    tunables: Mapping[str, Any]
    #: Modules that the function needs, by their local names.
    modules: dict[str, str] = field(default_factory=dict)
    reads_source: bool = False
    #: Some call needs the arguments' device.
    placing: bool = False
    launches: list[tuple[ast.stmt, ...]] = field(default_factory=list)
    comparisons: list[tuple[Any, ...]] = field(default_factory=list)
    #: Some launch compares numbers with the bounds of int32.
    narrow: bool = False
    #: Numbers and names that the launches of the next place, and those of the places before it, need.
    used: dict[str, None] = field(default_factory=dict)
    needed: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: Captured names of the user's code: the expression of each, and its index among the results of that
        #: expression.
        self.captures = {name: (at, i) for at, names in self.traced.captures.items() for i, name in enumerate(names)}
        self.several = _places_of_several(self.traced)
        self.local = _local_names(self.traced.function)

    # --- host expressions ---------------------------------------------------------------------------------------------

    def number(self, number: Number, *, parent: bool = False) -> str:
        """Return a number as a host expression; in parentheses with ``parent`` where it is part of a larger one."""
        return number.render(self._leaf, parent=parent) if isinstance(number, Expr) else str(number)

    def source(self, text: str) -> str:
        """Register the names that a host expression reads, and return it."""
        names = names_in(text)
        self.used.update(dict.fromkeys(names))
        self.reads_source = self.reads_source or SOURCE_NAME in names
        if RUNTIME_NAME in names:
            self.modules[RUNTIME_NAME] = RUNTIME
        return text

    def runtime(self, function: str) -> str:
        """Return a function of ``helion.runtime`` as a host expression."""
        self.modules[RUNTIME_NAME] = RUNTIME
        return f"{RUNTIME_NAME}.{function}"

    def torch(self, name: str) -> str:
        """Return a name of torch as a host expression."""
        self.modules["torch"] = "torch"
        return f"torch.{name}"

    def is_size(self, number: Expr) -> bool:
        """Return whether a number is a product of sizes of arguments, with no factor of 0 among its constants."""
        if number.op == "mul":
            return all(self.is_size(n) if isinstance(n, Expr) else n > 0 for n in number.args)
        return number.op == "host" and ".size(" in self.traced.symbols.get(number.args[0], "")

    def _leaf(self, expr: Expr) -> str:
        if expr.op == "block":
            return str(self.size(expr.args[0]))
        if expr.op == "tunable":
            return repr(self.tunables[expr.args[0]])
        self.used[expr.args[0]] = None
        return str(expr.args[0])

    # --- launches -----------------------------------------------------------------------------------------------------

    def launch(self, before: Iterable[str], calls: Iterable[KernelCall]) -> None:
        """Add the launches of the next place, and statements right before them."""
        number = len(self.launches)
        made: list[ast.stmt] = [s for text in (*self._compared(number), *before) for s in statements(text)]
        made += map(_launch, calls)
        condition, numbers = self._check(number)
        items, deferred = self._deferred_symbols()
        inside = [*deferred, *_guarded(numbers, made, number)]
        whole = [*items, *_guarded(condition, inside, number)]
        taken = _BUILTINS & {*self.local, self.traced.name}
        self.launches.append(tuple(_Builtins(self, taken).all(whole) if taken else whole))
        self.needed.update(self.used)
        self.used = {}

    def _compared(self, number: int) -> Iterator[str]:
        """Yield statements that raise an error for indices of a launch that are out of range."""
        for each in self.traced.reaches[number] if number < len(self.traced.reaches) else ():
            begin, end, size = (self.number(n, parent=True) for n in (each.begin, each.end, each.size))
            place = None if each.location is None else astuple(each.location)
            if each.tile:
                loops = "" if fixed_at(each.begin, 0) else f" and {begin} < {end}"
                call = f"{self.runtime('past_the_end')}({end}, {size}, {each.tile!r}, {each.name!r}, {each.dim}, {place!r})"
                yield f"if {end} > {size}{loops}:\n    {call}"
            else:
                call = f"{self.runtime('out_of_range')}({begin}, {size}, {each.name!r}, {each.dim}, {place!r})"
                yield f"if not -{size} <= {begin} < {size}:\n    {call}"

    def _check(self, number: int) -> tuple[str, str]:
        """Return two conditions for a launch: kinds and constant sizes of tensors that host code makes, and numbers that
        are known only right before it.
        """
        checks = self.traced.checks[number] if number < len(self.traced.checks) else ()
        narrow = self.traced.narrow[number] if number < len(self.traced.narrow) else ()
        numbers = [f"{LEAST} <= {self.number(n.least, parent=True)}" for n in narrow if isinstance(n.least, Expr)]
        numbers += [
            f"{self.number(n.greatest, parent=True)} <= {GREATEST}" for n in narrow if isinstance(n.greatest, Expr)
        ]
        self.narrow = self.narrow or bool(narrow)
        if not checks:
            return "", " and ".join(numbers)
        self.modules[RUNTIME_NAME] = RUNTIME
        expected = []
        for check in checks:
            source = self.source(check.source)
            shape, strides = (_plain(each) for each in (check.shape, check.strides))
            device = () if check.device is None else (str(check.device),)
            expected.append((dtype_name(check.dtype), shape, strides, *device))
            for asked, each in (("size", check.shape), ("stride", check.strides)):
                symbols = ((dim, n) for dim, n in enumerate(each) if isinstance(n, Expr))
                numbers += [f"{source}.{asked}({dim}) == {self.number(n, parent=True)}" for dim, n in symbols]
        name = comparison_name(len(self.comparisons))
        self.comparisons.append(tuple(expected))
        reference = [self.source(self.traced.reference)] if self.traced.reference else []
        given = [*(check.source for check in checks), *(r for r in reference if r not in {c.source for c in checks})]
        return f"{name}({', '.join(given)})", " and ".join(numbers)

    def _deferred_symbols(self) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """Return assignments right before the launch: results of expressions that run several times, and sizes and
        strides of tensors that the user's code makes.
        """
        sources = self.traced.deferred_symbols
        deferred: dict[str, str] = {}

        def need(name: str) -> None:
            if name not in sources or name in deferred:
                return
            text = sources[name]
            if text.startswith("."):
                raise exc.InvalidAPIUsage(
                    f"The kernel needs {text[1:]} of a tensor that has no name in its host code; assign it to a variable."
                )
            for other in names_in(text):
                need(other)
            deferred[name] = self.source(text)

        for name in list(self.used):
            need(name)
        each = [name for name in self.used if name in self.captures and self.captures[name][0] in self.several]
        items = [
            assign(name, expression(f"{self.list_of(self.captures[name][0])}[{self.captures[name][1]}]"))
            for name in each
        ]
        return items, [assign(name, expression(text)) for name, text in deferred.items()]

    # --- the function -------------------------------------------------------------------------------------------------

    def program(self, written: frozenset[str] | None) -> HostProgram:
        """Return the function, after all places have their launches; ``written`` as in ``HostProgram``."""
        function = self.traced.function
        user = _UserCode(self)
        body = user.all(function.body)
        body = [*self._placing(), *self._symbols(), *user.lists(function), *body]
        return HostProgram(
            traced=self.traced,
            arguments=self._arguments(function.args),
            class_check=self._class_check(function.args),
            body=tuple(body),
            launches=tuple(self.launches),
            imports=tuple(
                Import(module=module, alias="" if name == module else name)
                for name, module in sorted(self.modules.items())
            ),
            reads_source=self.reads_source,
            comparisons=tuple(self.comparisons),
            written=written,
        )

    def device(self) -> str:
        """Return the name of the arguments' device."""
        self.placing = True
        return DEVICE_NAME

    def _placing(self) -> list[ast.stmt]:
        """Return the assignment of the arguments' device, before the user's code can rebind them."""
        return [assign(DEVICE_NAME, expression(f"{self.traced.placed_by}.device"))] if self.placing else []

    def _arguments(self, arguments: ast.arguments) -> ast.arguments:
        """Return the same parameters without annotations; the loader fills in defaults that are not literals."""
        given: dict[str, ast.expr] = {LAUNCHER_NAME: ast.Name("_default_launcher", ast.Load())}
        if self.comparisons or self.narrow or self.traced.argument_checks:
            given[OTHERWISE] = expression(self._otherwise())
        return ast.arguments(
            posonlyargs=[],
            args=[ast.arg(name) for name in _parameters(arguments)],
            kwonlyargs=[ast.arg(name) for name in given],
            kw_defaults=[*given.values()],
            defaults=[d if isinstance(d, ast.Constant) else ast.Constant(None) for d in arguments.defaults],
        )

    def _otherwise(self) -> str:
        """Return the function to call for tensors that fail a check; for arguments of other sizes and strides the
        kernel itself.
        """
        if not self.traced.argument_checks:
            return self.runtime("mismatch")
        traced = self.traced
        return f"{self.runtime('KernelFallback')}({traced.source_module!r}, {traced.device_source!r}, {traced.name!r})"

    def _class_check(self, arguments: ast.arguments) -> tuple[ast.stmt, ...]:
        if not self.traced.argument_checks:
            return ()
        condition = " and ".join(self.traced.argument_checks)
        given = "".join(f"{name}, " for name in _parameters(arguments))
        return statements(f"if not ({condition}):\n    return {OTHERWISE}(None, ({given}))")

    def _symbols(self) -> list[ast.stmt]:
        """Return assignments of sizes, strides and reassigned numbers of the arguments, before the user's code can
        change them.
        """
        sources = self.traced.symbols
        names = (name for name in self.needed if name in sources and name != sources[name])
        return [assign(name, expression(sources[name])) for name in names]

    # --- names of the user's code -------------------------------------------------------------------------------------

    def list_of(self, place: Place) -> str:
        """Return the name of the list of results of an expression that is evaluated several times."""
        return f"{self.traced.captures[place][0]}_all"

    def results(self, place: Place) -> list[str]:
        """Return the names of the results of an expression that launches need."""
        return [name for name in self.traced.captures.get(place, ()) if name in self.needed]

    def global_name(self, name: str) -> ast.expr | None:
        """Return a global of the user's module as an expression of this module; None for builtins and locals."""
        module = self.traced.source_globals.get(name)
        if module is None:
            return None
        if module and name not in RESERVED - SHARED_MODULES.keys():
            self.modules[name] = module
            return None
        self.reads_source = True
        return ast.Attribute(ast.Name(SOURCE_NAME, ast.Load()), name, ast.Load())


def comparison_name(number: int) -> str:
    """Return the name of the function of a module that compares tensors of one launch."""
    return f"_expected_{number}"


def _launch(call: KernelCall) -> ast.stmt:
    return KernelLaunch(
        call.kernel,
        [expression(text) for text in call.grid],
        [expression(text) for text in call.arguments],
        [ast.keyword(key, expression(repr(value))) for key, value in call.options],
    )


def _plain(numbers: tuple[Number | None, ...]) -> tuple[Any, ...]:
    return tuple(None if isinstance(n, Expr) else n for n in numbers)


def _guarded(condition: str, inside: list[ast.stmt], number: int) -> list[ast.stmt]:
    """Return statements of a launch that run under a condition, with a fallback if it is false."""
    if not condition:
        return inside
    return [ast.If(expression(condition), inside, [*statements(f"{OTHERWISE}({number}, locals())")])]


class _Builtins(Rewriter):
    """Rewriter of calls of builtin functions whose names the user's code shadows."""

    def __init__(self, host: HostBuilder, names: frozenset[str]) -> None:
        self._host = host
        self._names = names

    def visit_Call(self, node: ast.Call) -> ast.Call:
        made = self.inside(node)
        if not (isinstance(node.func, ast.Name) and node.func.id in self._names):
            return made
        self._host.modules["_builtins"] = "builtins"
        function = ast.Attribute(ast.Name("_builtins", ast.Load()), node.func.id, ast.Load())
        return ast.Call(function, made.args, made.keywords)


class _UserCode(Rewriter):
    """Rewriter of the user's statements.

    It inserts launches, replaces compile-time calls by constants, reads globals through the user's module, and captures
    results that launches need.
    """

    def __init__(self, host: HostBuilder) -> None:
        self._host = host

    def visit_Launch(self, node: Launch) -> Sequence[ast.stmt]:
        return self._host.launches[node.number]

    def visit_Keep(self, node: Keep) -> ast.stmt | None:
        return assign(node.name, self.visit(node.value)) if node.name in self._host.needed else None

    def visit_loop(self, node: ast.For | ast.While) -> ast.AST:
        made = self.inside(node)
        lists = self.lists(node) if any(isinstance(inner, Launch) for inner in ast.walk(node)) else []
        if not lists:
            return made
        fields = {**dict(ast.iter_fields(made)), "body": [*lists, *made.body]}
        return ast.copy_location(type(made)(**fields), node)

    visit_For = visit_While = visit_loop

    def lists(self, node: ast.AST) -> list[ast.stmt]:
        """Return empty lists for expressions in ``node`` that are evaluated several times."""
        host = self._host
        wanted = [place for place in host.several if host.results(place)]
        if not wanted:
            return []
        places = {place_of(part) for part in ast.walk(node) if isinstance(part, ast.expr)}
        return [s for place in wanted if place in places for s in statements(f"{host.list_of(place)} = []")]

    def visit(self, node: ast.AST) -> Any:
        made = super().visit(node)
        if not isinstance(node, _CAPTURED):
            return made
        place = place_of(node)
        names = self._host.results(place)
        if not names:
            return made
        if place not in self._host.several:
            return ast.NamedExpr(ast.Name(names[0], ast.Store()), made)
        items = ast.Name(self._host.list_of(place), ast.Load())
        append = ast.Call(ast.Attribute(items, "append", ast.Load()), [made], [])
        last = ast.Subscript(items, ast.Constant(-1), ast.Load())
        return ast.BoolOp(ast.Or(), [append, last])  # append returns None

    def visit_Call(self, node: ast.Call) -> ast.AST:
        traced = self._host.traced
        key = place_of(node)[:2]
        if key in traced.registered:
            return ast.Constant(self._host.size(traced.registered[key]))
        if key in traced.tunable_calls:
            return ast.Constant(self._host.tunables[traced.tunable_calls[key]])
        if key in traced.specialized_calls:
            replaced: ast.AST = self.visit(node.args[0])
            return replaced
        made = self.inside(node)
        if key not in traced.placed_calls or not isinstance(made, ast.Call):
            return made
        keywords = [*made.keywords, ast.keyword("device", ast.Name(self._host.device(), ast.Load()))]
        return ast.copy_location(ast.Call(made.func, made.args, keywords), made)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not isinstance(node.ctx, ast.Load) or node.id in self._host.local:
            return node
        return self._host.global_name(node.id) or node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return None if node.value is None else ast.Assign([node.target], self.visit(node.value), lineno=node.lineno)


def _places_of_several(traced: HostModule) -> frozenset[Place]:
    """Return captured expressions whose results go into lists: they are evaluated several times, or are in a
    comprehension's iterable, where Python allows no ``:=``.
    """
    if not traced.captures:
        return frozenset()
    generators = [n for n in ast.walk(traced.function) if isinstance(n, ast.comprehension)]
    iterables = {place_of(part) for n in generators for part in ast.walk(n.iter) if isinstance(part, ast.expr)}
    return frozenset(place for place, names in traced.captures.items() if len(names) > 1 or place in iterables)


def _parameters(arguments: ast.arguments) -> list[str]:
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args)]


def _local_names(function: ast.FunctionDef) -> frozenset[str]:
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return frozenset(stored | set(_parameters(function.args)))
