"""Copies of the user's ``@triton.jit`` functions, with all names that they use, as definitions of a generated module.

A function resolves names in its own module: other functions, also of other modules, constants, and modules under any
name. Each becomes a definition that is named when the module is printed, so that equal names do not collide.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import math
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import triton.language

from .... import exc
from ...._compiler.frontend.guards import Kind
from ...._compiler.frontend.values import describe
from ...._compiler.ir.grammar import Definition, InlineEffect
from .effects import UNKNOWN, effect_of, is_jit, joined

#: Modules that generated modules import, by their names there.
_MODULES = {"triton": "triton", "triton.language": "tl", "triton.language.extra.libdevice": "libdevice"}


@dataclass(frozen=True, kw_only=True)
class Copied:
    """A function as a definition, and its effect on memory, including all functions that it calls.

    ``reads`` are the globals and attributes that were read for it, as ``World.assume`` takes them.
    """

    definition: Definition
    effect: InlineEffect
    reads: tuple[tuple[Kind, Any, str, Any], ...] = ()


def copied(function: Any) -> Copied:
    """Return the definition of a ``@triton.jit`` function, or of a plain one to be compiled like one.

    Raises:
        exc.InvalidAPIUsage: it has no source, calls itself, or uses a value that no generated module can have.
        exc.UndefinedVariable: a name that it reads is not defined.
    """
    copier = _Copier()
    found = copier.function(function)
    return replace(found, reads=tuple(copier.reads))


def escaped(text: str) -> str:
    """Return a format string that formats to ``text``."""
    return text.replace("{", "{{").replace("}", "}}")


@dataclass
class _Copier:
    known: dict[int, Copied] = field(default_factory=dict)
    running: list[int] = field(default_factory=list)
    reads: list[tuple[Kind, Any, str, Any]] = field(default_factory=list)

    def function(self, value: Any) -> Copied:
        """Return the copy of a function; one object is copied once."""
        if id(value) in self.running:
            raise exc.InvalidAPIUsage(
                f"The Triton function {_name(value)!r} calls itself, which Triton cannot compile."
            )
        if id(value) not in self.known:
            self.running.append(id(value))
            self.known[id(value)] = _Function(self, value).copied()
            self.running.pop()
        return self.known[id(value)]


class _Function:
    """One function during its copy. ``uses`` maps the definitions it uses to their placeholders."""

    def __init__(self, copier: _Copier, value: Any) -> None:
        self.copier, self.value = copier, value
        self.plain: types.FunctionType = value.fn if is_jit(value) else value
        self.source = _source(self.plain)
        (self.tree,) = (n for n in ast.parse(self.source).body if isinstance(n, ast.FunctionDef))
        self.locals = _locals(self.tree)
        annotations = [node.annotation for node in ast.walk(self.tree) if isinstance(node, ast.arg) and node.annotation]
        annotations += [self.tree.returns] if self.tree.returns is not None else []
        self.annotations = {id(node) for each in annotations for node in ast.walk(each)}
        self.uses: dict[Definition, int] = {}
        self.effects: list[InlineEffect] = []
        cells = zip(self.plain.__code__.co_freevars, self.plain.__closure__ or (), strict=True)
        self.scope = {**self.plain.__globals__, **{name: cell.cell_contents for name, cell in cells}}

    def copied(self) -> Copied:
        header = "@triton.jit(noinline=True)" if getattr(self.value, "noinline", False) else "@triton.jit"
        if type(self.value).__name__ == "ConstexprFunction":
            header = "@triton.constexpr_function"
        body = self.body()
        effect = joined((effect_of(self.tree, self.resolve), *self.effects))
        definition = Definition(self.plain.__name__, f"{header}\n{body}", tuple(self.uses))
        return Copied(definition=definition, effect=effect)

    def body(self) -> str:
        """Return the text from ``def`` on, with placeholders for its own name and for names of other definitions."""
        lines = [line.encode() for line in self.source.splitlines(keepends=True)]
        begins = list(itertools.accumulate(map(len, lines), initial=0))
        first = begins[self.tree.lineno - 1]
        text, name = b"".join(lines), self.tree.name.encode()
        own = text.index(name, first + len("def "))
        changes = [(own, own + len(name), "{0}")]
        for node, replacement in self.replacements():
            begin = begins[node.lineno - 1] + node.col_offset
            end = begins[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            # Python before 3.12 does not report the positions of names in an f-string
            if b"".join(text[begin:end].split()).decode() == ast.unparse(node):
                changes.append((begin, end, replacement))
        made, at = "", first
        for begin, end, replacement in sorted(changes):
            made += escaped(text[at:begin].decode()) + replacement
            at = end
        return (made + escaped(text[at:].decode())).rstrip()

    def replacements(self) -> Iterator[tuple[ast.expr, str]]:
        """Yield the names of the module, each with as many attributes as can be resolved, and their replacements."""
        seen = {id(node) for decorator in self.tree.decorator_list for node in ast.walk(decorator)}
        for node in ast.walk(self.tree):
            if id(node) in seen or not isinstance(node, (ast.Name, ast.Attribute)):
                continue
            chain = self.chain(node) if isinstance(node.ctx, ast.Load) else None
            if chain is not None:
                seen.update(id(inner) for inner in ast.walk(node))
                place, value, name = chain
                yield place, self.spelled(name, value)

    def chain(self, node: ast.expr) -> tuple[ast.expr, Any, str] | None:
        """Return the longest part of a name with attributes that resolves outside of the function.

        The result has the node, its value and a name for it. Return None for values of the function and for Python's
        builtins.
        """
        names: list[ast.Attribute] = []
        while isinstance(node, ast.Attribute):
            names.append(node)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in self.locals:
            return None
        if node.id not in self.scope:
            if not hasattr(builtins, node.id) and id(node) not in self.annotations:
                raise exc.UndefinedVariable(name=node.id, detail=f" in the Triton function {self.plain.__name__!r}")
            return None
        place: ast.expr = node
        value, name = self.scope[node.id], node.id
        if self.plain.__globals__.get(name, UNKNOWN) is value:
            self.copier.reads.append(("item", self.plain.__globals__, name, value))
        while names and _holds_names(value):
            outer = names.pop()
            place, owner, name = outer, value, outer.attr
            value = _attribute(owner, name, self.plain)
            self.copier.reads.append(("attribute", owner, name, value))
        return place, value, f"{name}_" if name in self.locals else name

    def resolve(self, node: ast.expr) -> Any:
        """Return the value of a name, or of attributes of one; ``UNKNOWN`` for values of the function."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in self.locals:
            return UNKNOWN
        value = self.scope.get(node.id, UNKNOWN)
        for name in reversed(names):
            value = UNKNOWN if value is UNKNOWN else getattr(value, name, UNKNOWN)
        return value

    def spelled(self, name: str, value: Any) -> str:
        """Return the text for ``value`` in a module: a name that every module has, or the placeholder of a
        definition.
        """
        usual = _usual(value)
        if usual is not None and usual.partition(".")[0] not in self.locals:
            return usual
        return f"{{{self.uses.setdefault(self.definition(name, value), len(self.uses) + 1)}}}"

    def definition(self, name: str, value: Any) -> Definition:
        """Return the definition of ``value`` in a module."""
        if isinstance(value, types.ModuleType):
            return Definition(name, f"import {value.__name__} as {{0}}")
        if is_jit(value) and not _is_of_triton(value):
            found = self.copier.function(value)
            self.effects.append(found.effect)
            return found.definition
        text = _constant(value)
        if text is not None:
            return Definition(name, f"{{0}} = tl.constexpr({escaped(text)})")
        return Definition(name, _import_of(value, name, self.plain))


def _usual(value: Any) -> str | None:
    """Return the name that every generated module has for a module or a member of Triton."""
    if isinstance(value, types.ModuleType):
        return _MODULES.get(value.__name__)
    if type(value) is triton.language.dtype:
        return f"tl.{next(name for name, each in vars(triton.language).items() if each == value)}"
    name = getattr(value, "__name__", "")
    return f"tl.{name}" if name and vars(triton.language).get(name) is value else None


def _holds_names(value: Any) -> bool:
    """Return whether the attributes of a value are resolved separately: those of the user's modules and classes."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] != "triton" and value.__name__ not in ("math", "copy")
    return isinstance(value, (type, types.SimpleNamespace)) and not _is_of_triton(value)


def _attribute(value: Any, name: str, function: types.FunctionType) -> Any:
    if not hasattr(value, name):
        owner = getattr(value, "__name__", type(value).__name__)
        raise exc.UndefinedVariable(name=f"{owner}.{name}", detail=f" in the Triton function {function.__name__!r}")
    return getattr(value, name)


def _is_of_triton(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] == "triton"


def _import_of(value: Any, name: str, function: types.FunctionType) -> str:
    """Return an import of ``value``, from Triton or from a module that other processes can import too."""
    wanted = getattr(value, "__name__", name)
    module = getattr(value, "__module__", None) or type(value).__module__
    for where in (module, "triton.language"):
        holder = sys.modules.get(where)
        if where != "__main__" and getattr(holder, wanted, UNKNOWN) is value:
            return f"from {where} import {wanted} as {{0}}"
    raise exc.InvalidAPIUsage(
        f"The Triton function {function.__name__!r} names {name!r}, {describe(value)}, which a generated module cannot have;"
        " it may name @triton.jit functions, modules and constants."
    )


def _constant(value: Any) -> str | None:
    """Return an expression of a constant; None for other values."""
    if type(value).__name__ == "constexpr":
        return _constant(value.value)
    if type(value) is float and not math.isfinite(value):
        return f"float({str(value)!r})"
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, (bool, int, float, str)):
        return repr(getattr(value, "value", value))  # a member of an enumeration
    if type(value) is tuple:
        parts = [_constant(each) for each in value]
        return None if None in parts else f"({', '.join(map(str, parts))}{',' * (len(parts) == 1)})"
    return _usual(value)


def _locals(tree: ast.FunctionDef) -> frozenset[str]:
    """Return the names that a function binds."""
    found = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    return frozenset(found)


def _source(function: types.FunctionType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise exc.InvalidAPIUsage(
            f"The source of the Triton function {function.__name__!r} cannot be found: {error}; define it in a file."
        ) from error


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))


__all__ = ["Copied", "copied", "escaped"]
