"""The text of a generated module: imports, block sizes, helpers, the kernel, and the user's function around its launch."""

from __future__ import annotations

import ast
import copy
import re
import types
from typing import Any

from .... import exc
from ...._compiler.ir.grammar import HostModule, Keep, Launch
from ...._compiler.source import Place, place_of
from ...._names import RESERVED
from ...._shapes import Expr, Number, dtype_name
from ...._syntax import parse
from ..plan.records import GridPlan, Plan
from . import ops_pointwise, ops_reduction
from .emit import constexpr_parameters, render_kernel
from .expressions import LIBDEVICE


def render_module(plan: Plan) -> str:
    """A plan as the source of a Python module whose function of the kernel's name runs it."""
    kernels = [render_kernel(plan, phase) for phase in range(len(plan.kernel_names))]
    host = _Host(plan)
    function = host.function()
    needs = frozenset().union(*(kernel.needs for kernel in kernels))
    symbols = frozenset().union(*(kernel.symbols for kernel in kernels))
    body = "\n\n\n".join("\n".join(kernel.lines) for kernel in kernels)
    helpers = [text for name, text in (*ops_pointwise.HELPERS.items(), *ops_reduction.HELPERS.items()) if name in needs]
    lines = ["from __future__ import annotations", ""]
    lines += host.imports(needs)
    lines += ["from helion.runtime import default_launcher as _default_launcher", ""]
    sizes = [b for b in plan.blocks if b.symbol in symbols and b.dynamic is None]
    # subtiles of one tile share a symbol
    lines += dict.fromkeys(f"{b.symbol} = tl.constexpr({b.size})" for b in sizes)
    if sizes:
        lines.append("")
    lines += [*host.modelled, *([""] if host.modelled else [])]
    for helper in helpers:
        lines += ["", helper.rstrip(), ""]
    lines += ["", body, "", "", function, ""]
    return "\n".join(lines)


class _Host:
    """The user's function with its device loops replaced by one launch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.module: HostModule = plan.program.host
        self.modules: dict[str, str] = {}
        self.uses_source_module = False
        #: Lines that make the checks before launches.
        self.modelled: list[str] = []
        #: Numbers and names that launches need.
        self.used: dict[str, None] = {}
        #: Names of results of the user's code: where each is made, and the how manieth time that is.
        self.captures = {name: (at, i) for at, names in self.module.captures.items() for i, name in enumerate(names)}

    def function(self) -> str:
        node = copy.copy(self.module.function)
        node.decorator_list = []
        node.returns = None
        self.several = _places_of_several(self.module)
        launches = [self.launch(at) for at in range(len(self.plan.launches))]
        node.args = self.arguments(node.args)
        rewriter = _Rewriter(self, launches)
        node.body = copy.deepcopy(self.module.function.body)
        rewriter.generic_visit(ast.Module(node.body, []))
        node.body = [*self.argument_checks(node), *self.symbols(), *rewriter.lists(node), *node.body]
        return ast.unparse(ast.fix_missing_locations(node))

    def arguments(self, arguments: ast.arguments) -> ast.arguments:
        """The same parameters without annotations; defaults that are not literals are filled in by the loader."""
        bare = [ast.arg(a.arg) for a in (*arguments.posonlyargs, *arguments.args)]
        defaults: list[ast.expr] = [
            d if isinstance(d, ast.Constant) else ast.Constant(None) for d in arguments.defaults
        ]
        given: dict[str, ast.expr] = {"_launcher": ast.Name("_default_launcher", ast.Load())}
        if self.modelled or self.module.argument_checks:
            self.modules["_helion_runtime"] = "helion.runtime"
            given["_otherwise"] = parse("_helion_runtime.mismatch").body[0].value  # type: ignore[attr-defined]
        return ast.arguments(
            posonlyargs=[],
            args=bare,
            kwonlyargs=[ast.arg(name) for name in given],
            kw_defaults=[*given.values()],
            defaults=defaults,
        )

    def argument_checks(self, node: ast.FunctionDef) -> list[ast.stmt]:
        """Sends arguments of another class than those bound elsewhere: callers that have a key have checked it."""
        if not self.module.argument_checks:
            return []
        condition = " and ".join(self.module.argument_checks)
        given = "".join(f"{a.arg}, " for a in node.args.args)
        return parse(f"if not ({condition}):\n    return _otherwise(None, ({given}))").body

    def symbols(self) -> list[ast.stmt]:
        """Sizes, strides and reassigned numbers of the arguments, before the user's code can change them."""
        sources = self.module.symbols
        used = [name for name in self.used if name in sources and name != sources[name]]
        return [s for name in used for s in parse(f"{name} = {sources[name]}").body]

    def use(self, text: str) -> str:
        """Host code that a launch needs, with the names in it."""
        self.used.update(dict.fromkeys(re.findall(r"\w+", text)))
        return text

    def late_symbols(self) -> tuple[list[str], list[str]]:
        """What is known right before the launch: what the user's code made several times, and sizes and strides of
        tensors that it made."""
        late: dict[str, str] = {}

        def need(name: str) -> None:
            if name in self.module.late_symbols and name not in late:
                for other in re.findall(r"\w+", self.module.late_symbols[name]):
                    need(other)
                late[name] = self.module.late_symbols[name]
                self.use(late[name])

        for name in list(self.used):
            need(name)
        missing = next((name for name in late if late[name].startswith(".")), None)
        if missing is not None:
            raise exc.InvalidAPIUsage(
                f"The kernel needs {late[missing][1:]} of a tensor that has no name in its host code; assign it to a variable."
            )
        if any(text.startswith("_helion_runtime.") for text in late.values()):
            self.modules["_helion_runtime"] = "helion.runtime"
        each = [name for name in self.used if name in self.captures and self.captures[name][0] in self.several]
        items = [f"{name} = {self.list_of(self.captures[name][0])}[{self.captures[name][1]}]" for name in each]
        return items, [f"{name} = {text}" for name, text in late.items()]

    def list_of(self, place: Place) -> str:
        """The list of results of an expression that is evaluated several times."""
        return f"{self.module.captures[place][0]}_all"

    def launch(self, number: int) -> list[ast.stmt]:
        """The statements that launch the kernels of one place in the host code."""
        plan, launch = self.plan, self.plan.launches[number]
        before, self.used = self.used, {}
        arguments = [self.source(a.tensor.source) for a in launch.tensors]
        arguments += [a.expr.render(self.leaf) for a in launch.numbers]
        options = [f"{key}={value!r}" for key, value in plan.launch.options]
        lines: list[str] = []
        for block in launch.blocks:
            if block.dynamic is not None:
                size = f"triton.next_power_of_2({block.dynamic.render(self.leaf)})"
                least = plan.program.blocks[block.id].min_size
                enough = least <= 1 and self.is_size(block.dynamic)
                lines.append(f"{block.symbol} = {size}" if enough else f"{block.symbol} = max({size}, {least})")
        if plan.launch.persistent:
            device = self.source(launch.tensors[0].tensor.source)
            reserved = f", {plan.launch.reserved_sms}" if plan.launch.reserved_sms else ""
            lines.append(f"_NUM_SM = _helion_runtime.get_num_sm({device}.device{reserved})")
            self.modules["_helion_runtime"] = "helion.runtime"
        if plan.needs_alignment:
            # Triton keeps what allocates for descriptors per thread, so loading the module is too early
            lines.append("_helion_runtime.set_triton_allocator()")
            self.modules["_helion_runtime"] = "helion.runtime"
        if launch.overwritten:
            tensors = ", ".join(map(self.source, launch.overwritten))
            lines.append(f"_helion_runtime.overwrites({self.module.name!r}, {launch.overwritten!r}, {tensors})")
            self.modules["_helion_runtime"] = "helion.runtime"
        arguments += constexpr_parameters(plan, launch)
        for phase in launch.phases:
            call = ", ".join([plan.kernel_names[phase], self.grid(phase), *arguments, *options])
            lines.append(f"_launcher({call})")
        check, numbers = self.check(number)
        items, late = self.late_symbols()
        self.used = {**before, **self.used}
        guarded = _guarded(check, [*late, *_guarded(numbers, lines, number)], number)
        return [self.with_builtins(statement) for statement in parse("\n".join([*items, *guarded])).body]

    def with_builtins(self, statement: ast.stmt) -> ast.stmt:
        """A statement of ours that calls builtin functions, whatever the user's variables are called."""
        local = {*_local_names(self.module.function), self.module.name}
        for node in ast.walk(statement):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if isinstance(node, ast.Call) and name in ("max", "min") and name in local:
                self.modules["_builtins"] = "builtins"
                node.func = ast.Attribute(ast.Name("_builtins", ast.Load()), name, ast.Load())
        return statement

    def check(self, number: int) -> tuple[str, str]:
        """Conditions for a launch: on kinds and known sizes of what the host code made, and on sizes that are known only
        right before it."""
        checks = self.module.checks[number] if number < len(self.module.checks) else ()
        if not checks:
            return "", ""
        self.modules["_helion_runtime"] = "helion.runtime"
        expected, numbers = [], []
        for check in checks:
            source = self.source(check.source)
            shape, strides = (_plain(each) for each in (check.shape, check.strides))
            device = () if check.device is None else (str(check.device),)
            expected.append(repr((dtype_name(check.dtype), shape, strides, *device)))
            for method, each in (("size", check.shape), ("stride", check.strides)):
                symbols = ((dim, n) for dim, n in enumerate(each) if isinstance(n, Expr))
                numbers += [f"{source}.{method}({dim}) == {n.render(self.leaf, parent=True)}" for dim, n in symbols]
        name = f"_modelled_{len(self.modelled)}"
        self.modelled.append(f"{name} = _helion_runtime.modelled({', '.join(expected)})")
        reference = [self.source(self.module.reference)] if self.module.reference else []
        given = [*(check.source for check in checks), *(r for r in reference if r not in {c.source for c in checks})]
        return f"{name}({', '.join(given)})", " and ".join(numbers)

    def is_size(self, number: Expr) -> bool:
        """Whether a number is a product of sizes of arguments, none of which is 0 where it is a symbol."""
        if number.op == "mul":
            return all(self.is_size(n) if isinstance(n, Expr) else n > 0 for n in number.args)
        return number.op == "host" and ".size(" in self.module.symbols.get(number.args[0], "")

    def source(self, text: str) -> str:
        self.use(text)
        if text.startswith("_source_module"):
            self.uses_source_module = True
        return text

    def grid(self, phase: int) -> str:
        grids = [g for g, root in zip(self.plan.grids, self.plan.program.roots, strict=True) if root.phase == phase]
        launch = self.plan.launch
        if launch.persistent:
            return f"(_NUM_SM * {launch.persistent},)" if launch.persistent > 1 else "(_NUM_SM,)"
        if launch.pid_type == "xyz":
            (grid,) = grids
            return f"({', '.join(self.count(grid.axes[at].count) for at in grid.order)},)"
        return f"({' + '.join(self.product(grid) for grid in grids)},)"

    def product(self, grid: GridPlan) -> str:
        counts = [a.count for a in grid.axes]
        if all(isinstance(c, int) for c in counts):
            total = 1
            for count in counts:
                assert isinstance(count, int)
                total *= count
            return str(total)
        return " * ".join(map(self.count, counts))

    def count(self, count: Number | None) -> str:
        assert count is not None, "a grid whose size only the device knows needs persistent programs"
        return count.render(self.leaf, parent=True) if isinstance(count, Expr) else str(count)

    def leaf(self, expr: Expr) -> str:
        if expr.op == "block":
            return str(self.plan.size(expr.args[0]))
        if expr.op == "tunable":
            return repr(self.plan.tunables[expr.args[0]])
        self.used[expr.args[0]] = None
        return str(expr.args[0])

    # --- names of the user's module --------------------------------------------------------------------------------------

    def imports(self, needs: frozenset[str]) -> list[str]:
        lines = ["import triton", "import triton.language as tl"]
        for name, module in sorted(self.modules.items()):
            lines.append(f"import {module}" if name == module else f"import {module} as {name}")
        if LIBDEVICE in needs:
            lines.append("from triton.language.extra import libdevice")
        if self.uses_source_module:
            lines.append("from helion.runtime import source_module")
            lines += [
                "",
                f"_source_module = source_module({self.module.source_module!r}, {self.module.device_source!r})",
            ]
        return lines

    def global_name(self, name: str) -> ast.expr | None:
        """A global of the user's module as it is reached from here; None for builtins and locals."""
        value = self.module.module_globals.get(name, self)
        if value is self:
            return None
        if isinstance(value, types.ModuleType) and name not in RESERVED - {"torch", "triton", "tl"}:
            self.modules[name] = value.__name__
            return None
        self.uses_source_module = True
        return ast.Attribute(ast.Name("_source_module", ast.Load()), name, ast.Load())


#: Expressions whose results launches may need.
_CAPTURED = (ast.Call, ast.Subscript, ast.Attribute, ast.Compare, ast.BoolOp, ast.IfExp, ast.UnaryOp, ast.BinOp)


def _plain(numbers: tuple[Number | None, ...]) -> tuple[Any, ...]:
    return tuple(None if isinstance(n, Expr) else n for n in numbers)


def _guarded(condition: str, lines: list[str], number: int) -> list[str]:
    """Lines of a launch that run under a condition; something else is done where it does not hold."""
    if not condition:
        return lines
    inside = [f"    {line}" for line in lines]
    return [f"if {condition}:", *inside, "else:", f"    _otherwise({number}, locals())"]


class _Rewriter(ast.NodeTransformer):
    """Host statements: the launch is put in place, compile-time calls become constants, and globals are reached through
    the user's module."""

    def __init__(self, host: _Host, launches: list[list[ast.stmt]]) -> None:
        self.host = host
        self.launches = launches
        self.local = _local_names(host.module.function)

    def visit_Launch(self, node: Launch) -> list[ast.stmt]:
        return self.launches[node.number]

    def visit_Keep(self, node: Keep) -> ast.stmt | None:
        if node.name not in self.host.used:
            return None
        return ast.Assign([ast.Name(node.name, ast.Store())], self.visit(node.value))

    def visit_loop(self, node: ast.For | ast.While) -> ast.AST:
        made = self.lists(node) if any(isinstance(inner, Launch) for inner in ast.walk(node)) else []
        self.generic_visit(node)
        node.body = [*made, *node.body]
        return node

    visit_For = visit_While = visit_loop

    def lists(self, node: ast.AST) -> list[ast.stmt]:
        """Empty lists for what is evaluated several times in ``node``."""
        places = {place_of(part) for part in ast.walk(node) if isinstance(part, ast.expr)}
        used = [place for place in self.host.several if place in places and self.names(place)]
        return [s for place in used for s in parse(f"{self.host.list_of(place)} = []").body]

    def names(self, place: Place) -> list[str]:
        """What launches need of the results of an expression."""
        return [name for name in self.host.module.captures.get(place, ()) if name in self.host.used]

    def visit(self, node: ast.AST) -> Any:
        made = super().visit(node)
        if not isinstance(node, _CAPTURED):
            return made
        place = place_of(node)
        names = self.names(place)
        if not names:
            return made
        if place not in self.host.several:
            return ast.NamedExpr(ast.Name(names[0], ast.Store()), made)
        items = ast.Name(self.host.list_of(place), ast.Load())
        append = ast.Call(ast.Attribute(items, "append", ast.Load()), [made], [])
        last = ast.Subscript(items, ast.Constant(-1), ast.Load())
        return ast.BoolOp(ast.Or(), [append, last])  # append gives None

    def visit_Call(self, node: ast.Call) -> ast.AST:
        sizes = self.host.module.registered
        key = (node.lineno, node.col_offset)
        if key in sizes:
            return ast.Constant(self.host.plan.size(sizes[key]))
        if key in self.host.module.tunable_calls:
            return ast.Constant(self.host.plan.tunables[self.host.module.tunable_calls[key]])
        if key in self.host.module.specialized_calls:
            return self.visit(node.args[0])
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not isinstance(node.ctx, ast.Load) or node.id in self.local:
            return node
        return self.host.global_name(node.id) or node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.Assign([node.target], self.visit(node.value))


def _places_of_several(module: HostModule) -> frozenset[Place]:
    """Captured expressions whose results go into lists: they are evaluated several times, or stand where Python allows
    no ``:=``."""
    generators = [n for n in ast.walk(module.function) if isinstance(n, ast.comprehension)]
    iterables = {place_of(part) for n in generators for part in ast.walk(n.iter) if isinstance(part, ast.expr)}
    return frozenset(place for place, names in module.captures.items() if len(names) > 1 or place in iterables)


def _local_names(function: ast.FunctionDef) -> frozenset[str]:
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return frozenset(stored | {a.arg for a in (*function.args.posonlyargs, *function.args.args)})
