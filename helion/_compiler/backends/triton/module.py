"""The text of a generated module: imports, block sizes, helpers, the kernel, and the user's function around its launch."""

from __future__ import annotations

import ast
import copy
import re
import types

from .... import exc
from ...._names import RESERVED
from ...._shapes import Expr, Number
from ...._syntax import parse
from ...ir.grammar import HostModule
from ...plan.records import GridPlan, Plan
from . import ops_pointwise, ops_reduction
from .emit import constexpr_parameters, render_kernel


def render_module(plan: Plan) -> str:
    """A plan as the source of a Python module whose function of the kernel's name runs it."""
    kernels = [render_kernel(plan, phase) for phase in range(len(plan.kernel_names))]
    host = _Host(plan)
    function = host.function()
    body = "\n\n\n".join("\n".join(kernel) for kernel in kernels)
    helpers = [*ops_pointwise.needed_helpers(body)]
    helpers += [text for name, text in ops_reduction.HELPERS.items() if f"{name})" in body]
    lines = ["from __future__ import annotations", ""]
    lines += host.imports(body)
    lines += ["from helion.runtime import default_launcher as _default_launcher", ""]
    if plan.needs_alignment:
        lines += ["from helion.runtime import set_triton_allocator", "", "set_triton_allocator()"]
    words = frozenset(re.findall(r"\w+", body))
    sizes = [b for b in plan.blocks if b.symbol in words and b.dynamic is None]
    lines += [f"{b.symbol} = tl.constexpr({b.size})" for b in sizes]
    if sizes:
        lines.append("")
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
        self.used: dict[str, None] = {}

    def function(self) -> str:
        node = copy.copy(self.module.function)
        node.decorator_list = []
        node.returns = None
        node.args = self.arguments(node.args)
        first, *others = self.module.loops
        statements: list[ast.stmt] = []
        launch = self.launch()
        for at, statement in enumerate(self.module.function.body):
            if at == first:
                statements += launch
            elif at not in others and at not in self.module.barriers:
                statements.append(_Rewriter(self).visit(copy.deepcopy(statement)))
        node.body = self.symbols() + statements
        return ast.unparse(ast.fix_missing_locations(node))

    def arguments(self, arguments: ast.arguments) -> ast.arguments:
        """The same parameters without annotations; defaults that are not literals are filled in by the loader."""
        bare = [ast.arg(a.arg) for a in (*arguments.posonlyargs, *arguments.args)]
        defaults: list[ast.expr] = [
            d if isinstance(d, ast.Constant) else ast.Constant(None) for d in arguments.defaults
        ]
        launcher = ast.arg("_launcher")
        return ast.arguments(
            posonlyargs=[],
            args=bare,
            kwonlyargs=[launcher],
            kw_defaults=[ast.Name("_default_launcher", ast.Load())],
            defaults=defaults,
        )

    def symbols(self) -> list[ast.stmt]:
        """Sizes, strides and reassigned numbers of the arguments, before the user's code can change them."""
        sources = self.module.symbols
        used = [name for name in self.used if name in sources and name != sources[name]]
        return [s for name in used for s in parse(f"{name} = {sources[name]}").body]

    def late_symbols(self) -> list[str]:
        """Sizes and strides of tensors that the user's code made."""
        late = self.module.late_symbols
        missing = next((name for name in self.used if name in late and late[name].startswith(".")), None)
        if missing is not None:
            raise exc.InvalidAPIUsage(
                f"The kernel needs {late[missing][1:]} of a tensor that has no name in its host code; assign it to a variable."
            )
        return [f"{name} = {late[name]}" for name in self.used if name in late]

    def launch(self) -> list[ast.stmt]:
        plan = self.plan
        arguments = [self.source(a.tensor.source) for a in plan.tensors]
        arguments += [a.expr.render(self.leaf) for a in plan.numbers]
        options = [f"{key}={value!r}" for key, value in plan.launch.options]
        lines: list[str] = []
        for block in plan.blocks:
            if block.dynamic is not None:
                size = f"triton.next_power_of_2({block.dynamic.render(self.leaf)})"
                least = plan.program.blocks[block.id].min_size
                lines.append(f"{block.symbol} = {size}" if least <= 1 else f"{block.symbol} = max({size}, {least})")
        if plan.launch.persistent:
            device = self.source(plan.tensors[0].tensor.source)
            reserved = f", {plan.launch.reserved_sms}" if plan.launch.reserved_sms else ""
            lines.append(f"_NUM_SM = _helion_runtime.get_num_sm({device}.device{reserved})")
            self.modules["_helion_runtime"] = "helion.runtime"
        arguments += constexpr_parameters(plan)
        for phase, name in enumerate(plan.kernel_names):
            call = ", ".join([name, self.grid(phase), *arguments, *options])
            lines.append(f"_launcher({call})")
        lines = self.late_symbols() + lines
        return parse("\n".join(lines)).body

    def source(self, text: str) -> str:
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

    def imports(self, kernel: str) -> list[str]:
        lines = ["import triton", "import triton.language as tl"]
        for name, module in sorted(self.modules.items()):
            lines.append(f"import {module}" if name == module else f"import {module} as {name}")
        if ops_pointwise.needs_libdevice(kernel):
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


class _Rewriter(ast.NodeTransformer):
    """Host statements: compile-time calls become constants, globals are reached through the user's module."""

    def __init__(self, host: _Host) -> None:
        self.host = host
        self.local = _local_names(host.module.function)

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


def _local_names(function: ast.FunctionDef) -> frozenset[str]:
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return frozenset(stored | {a.arg for a in (*function.args.posonlyargs, *function.args.args)})
