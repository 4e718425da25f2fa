"""Statements of a generated host function with its launches inlined.

``_launcher(kernel, grid, x, n, BLOCK, num_warps=4)`` becomes three steps. They read the pointers, compare alignment and
integer classes with the last binary, and call the launch function of that binary. All other cases, such as an empty
grid or a hook, go to the launcher.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from triton import knobs as triton_knobs

from ...._compiler.host.program import LAUNCHER, OTHERWISE, HostProgram, KernelLaunch
from ...._support.records import dataclass, field
from ...._support.syntax import parse
from ...execution import InlineBody
from . import native
from .fast_launch import Entry, FastLauncher, Site, integer_class


def body(host: HostProgram, function: types.FunctionType, prefix: str, fast: Callable[..., Any]) -> InlineBody | None:
    """Return the statements of ``host``, loaded as ``function``, with the launches inlined that ``fast`` has made.

    Return None for a function whose statements depend on their place, or that has names which begin with ``prefix``.
    """
    if not host.is_plain or any(name.startswith(prefix) for name in host.names):
        return None
    given = function.__kwdefaults__ or {}
    writer = _Launches(given[LAUNCHER], fast, function.__globals__, host.stored, prefix)
    statements = host.statements(writer.launch)
    if OTHERWISE in given:
        writer.cells[OTHERWISE] = given[OTHERWISE]
    return InlineBody(statements=statements, cells=writer.cells)


class _Launches:
    """Writes inlined launches, from the last launch of the launcher at each of them."""

    def __init__(
        self,
        launcher: Callable[..., Any],
        fast: Callable[..., Any],
        namespace: Mapping[str, Any],
        stored: frozenset[str],
        prefix: str,
    ) -> None:
        self.fast = fast
        self.namespace = namespace
        self.stored = stored
        self.prefix = prefix
        self.count = 0
        self.cells: dict[str, Any] = {f"{prefix}launcher": launcher}

    def launch(self, launch: KernelLaunch) -> list[ast.stmt]:
        site = self.fast.site(self.namespace.get(launch.kernel)) if isinstance(self.fast, FastLauncher) else None
        if site is None or site.last is None or len(launch.arguments) != len(site.parameters):
            return [launch.call(f"{self.prefix}launcher")]
        self.count += 1
        return _Written(self, site, launch, f"{self.prefix}{self.count}").statements()


@dataclass
class _Written:
    """One launch being written: ``before`` are assignments, ``unusual`` the conditions for the launcher."""

    rewriter: _Launches
    site: Site
    launch: KernelLaunch
    prefix: str
    before: list[str] = field(default_factory=list)
    unusual: list[str] = field(default_factory=list)

    def cell(self, name: str, value: Any) -> str:
        self.rewriter.cells[f"{self.prefix}{name}"] = value
        return f"{self.prefix}{name}"

    def statements(self) -> list[ast.stmt]:
        assert self.site.last is not None
        key, constants, entry = self.site.last
        args = self.launch.arguments
        counts = [self.number(f"x{i}", c) for i, c in enumerate(self.launch.grid)]
        x, y, z = [*counts, "1", "1"][:3]
        compiled = self.compiled(key, entry)
        if compiled is None:
            self.unusual += [f"not {c}" for c in counts if not c.isdigit()]
            launched, passed = self.arguments(args, key, constants)
            self.circumstances(entry)
            otherwise = ["else:", f"    {self.run(entry, (x, y, z), launched)}"]
        else:
            given, passed = self.objects(args, constants)
            self.globals_as_compiled(entry)
            self.unusual.append(f"not {self.cell('launch', compiled)}({', '.join((x, y, z, *given))})")
            self.cell("compiled", entry.compiled)  # unloaded with its last reference
            otherwise = []
        options = "".join(f", {k.arg}={ast.unparse(k.value)}" for k in self.launch.options)
        slow = f"{self.rewriter.prefix}launcher({self.launch.kernel}, ({', '.join(counts)},), {', '.join(passed)}{options})"
        text = [*self.before, f"if {' or '.join(self.unusual)}:", f"    {slow}", *otherwise]
        return parse("\n".join(text)).body

    def compiled(self, key: Sequence[Any], entry: Entry) -> Callable[..., bool] | None:
        """Return the launch as one native function, which checks arguments, knobs and hooks itself; None if there is
        none.
        """
        if entry.binary is None:
            return None
        arguments = [
            None if parameter.constexpr else native.Argument(part=part, specialized=parameter.specialized)
            for parameter, part in zip(self.site.parameters, key, strict=True)
        ]
        containers = self.containers()
        if containers is None or any(isinstance(each, list) and each for each in containers):
            return None
        empty = [each for each in containers if not each]
        found = native.launch(entry.binary, arguments, empty, entry.current_stream, entry.device)
        if found is not None:
            self.unchanged([each for each in containers if each])
        return found

    def objects(self, args: Sequence[ast.expr], constants: Sequence[Any]) -> tuple[list[str], list[str]]:
        """Return the arguments of the native launch, and those of the launcher."""
        given, passed = [], []
        for i, (node, parameter) in enumerate(zip(args, self.site.parameters, strict=True)):
            text = self.number(f"a{i}", node) if not isinstance(node, ast.Name) else node.id
            passed.append(text)
            if not parameter.constexpr:
                given.append(text)
            elif not isinstance(node, ast.Constant):
                self.unusual.append(f"{text} != {self.cell(f'c{i}', constants[i])}")
        return given, passed

    def number(self, name: str, node: ast.expr) -> str:
        """Return the text of an expression that may be repeated."""
        if isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in self.rewriter.stored):
            return ast.unparse(node)
        self.before.append(f"{self.prefix}{name} = {ast.unparse(node)}")
        return f"{self.prefix}{name}"

    def arguments(
        self, args: Sequence[ast.expr], key: Sequence[Any], constants: Sequence[Any]
    ) -> tuple[list[str], list[str]]:
        """Return the arguments of the launch function, and those of the launcher."""
        launched, passed, aligned = [], [], []
        for i, (node, parameter, part) in enumerate(zip(args, self.site.parameters, key, strict=True)):
            text = self.number(f"a{i}", node) if not isinstance(node, ast.Name) else node.id
            passed.append(text)
            if parameter.constexpr:
                if not isinstance(node, ast.Constant):
                    self.unusual.append(f"{text} != {self.cell(f'c{i}', constants[i])}")
            elif isinstance(part, tuple) and isinstance(part[0], torch.dtype):
                self.before.append(f"{self.prefix}p{i} = {text}.data_ptr()")
                text = f"{self.prefix}p{i}"
                if part[1]:
                    aligned.append(text)
                else:
                    self.unusual.append(f"not {text} & 15")
            elif isinstance(part, tuple):
                self.integer(text, part, parameter.specialized)
            launched.append(text)
        if aligned:
            pointers = " | ".join(aligned)
            self.unusual.insert(0, f"({pointers}) & 15" if len(aligned) > 1 else f"{pointers} & 15")
        return launched, passed

    def integer(self, text: str, part: tuple[str, bool, bool], specialized: bool) -> None:
        """Add conditions for an integer of another class than the binary was compiled for."""
        width, one, divisible = part
        if width != "i32":
            self.unusual.append(f"{self.cell('class', integer_class)}({text}, {specialized}) != {part!r}")
            return
        if specialized and one:
            self.unusual.append(f"{text} != 1")
            return
        self.unusual.append(f"not -2147483648 <= {text} < 2147483648")
        if specialized:
            self.unusual.append(f"{text} & 15" if divisible else f"{text} == 1 or not {text} & 15")

    def circumstances(self, entry: Entry) -> None:
        """Add conditions that are independent of the arguments: globals, knobs, hooks, and the current device."""
        self.globals_as_compiled(entry)
        containers = self.containers()
        if containers is None:
            self.unusual.append("True")
        else:
            self.unchanged(containers)

    def unchanged(self, containers: Sequence[Any]) -> None:
        """Add conditions on the ``containers``: empty, or with knobs at the same values."""
        for i, container in enumerate(containers):
            was = f" != {self.cell(f'was{i}', dict(container))}" if container and isinstance(container, dict) else ""
            self.unusual.append(f"{self.cell(f'state{i}', container)}{was}")

    def globals_as_compiled(self, entry: Entry) -> None:
        """Add conditions on globals and on the current device."""
        for i, (namespace, name, _) in enumerate(entry.globals_used):
            value = self.cell(f"u{i}", namespace.get(name))
            if namespace is self.rewriter.namespace and name not in self.rewriter.stored:
                self.unusual.append(f"{name} is not {value}")
            else:
                self.unusual.append(f"{self.cell(f'n{i}', namespace.get)}({name!r}) is not {value}")
        if entry.current_device is not None:
            self.unusual.append(f"{self.cell('current', entry.current_device)}() != {entry.device}")

    def containers(self) -> list[Any] | None:
        """Return the set knobs and the hooks to call: dicts and lists, usually empty. None if a hook is of another
        kind.
        """
        runtime = triton_knobs.runtime
        found: list[Any] = [vars(runtime), vars(triton_knobs.compilation), self.site.kernel.pre_run_hooks]
        for name in ("launch_enter_hook", "launch_exit_hook"):
            calls = getattr(getattr(runtime, name, None), "calls", None)
            if calls is not None:
                found.append(calls)
            elif getattr(runtime, name, None) is not None:
                return None
        return found

    def run(self, entry: Entry, grid: tuple[str, str, str], args: Sequence[str]) -> str:
        stream = f"{self.cell('stream', entry.current_stream)}({entry.device})"
        function, packed = self.cell("function", entry.function), self.cell("packed", entry.packed)
        self.cell("compiled", entry.compiled)  # unloaded with its last reference
        where = f"{', '.join(grid)}, {stream}, {function}"
        direct = entry.direct
        if direct is None:
            run = self.cell("run", entry.run)
            return f"{run}({where}, {packed}, None, None, None, {', '.join(args)})"
        modes = f"{self.cell('cooperative', direct.cooperative)}, {self.cell('pdl', direct.pdl)}"
        layout = f"{self.cell('annotations', direct.annotations)}, {self.cell('signature', direct.signature)}"
        launch = self.cell("launch", direct.launch)
        return f"{launch}({where}, {modes}, {packed}, None, None, None, None, None, {layout}, ({', '.join(args)},))"


__all__ = ["body"]
