"""Source text of user functions, with locations that survive into errors and generated comments."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import exc
from .._syntax import parse


@dataclass(frozen=True, slots=True)
class Location:
    """A piece of a line of the user's source. Lines count from 1, columns from 0."""

    file: str
    line: int
    column: int
    end_column: int
    function: str

    @property
    def text(self) -> str:
        """The source line, stripped."""
        return linecache.getline(self.file, self.line).strip()

    def excerpt(self) -> str:
        """File, line, function, the line itself and carets below the piece."""
        line = linecache.getline(self.file, self.line).rstrip("\n")
        stripped = line.lstrip()
        indent = len(line) - len(stripped)
        width = max(1, min(self.end_column, len(line)) - self.column)
        carets = " " * max(0, self.column - indent) + "^" * width
        return f'  File "{self.file}", line {self.line}, in {self.function}\n    {stripped}\n    {carets}'

    def short(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


#: Where an expression stands: first and last line and column.
Place = tuple[int, int, int, int]


def place_of(node: ast.AST) -> Place:
    """Where an expression of the user's stands; zeros for one that is not from a source."""
    first, last = (getattr(node, name, None) or 0 for name in ("lineno", "end_lineno"))
    return (first, getattr(node, "col_offset", None) or 0, last, getattr(node, "end_col_offset", None) or 0)


@dataclass(frozen=True)
class FunctionSource:
    """A parsed function. ``node`` is a FunctionDef, or a Lambda; its positions are those in ``file``."""

    node: ast.FunctionDef | ast.Lambda
    file: str
    name: str

    def location(self, node: ast.AST) -> Location:
        line = getattr(node, "lineno", 1)
        end = getattr(node, "end_col_offset", None)
        if end is None or getattr(node, "end_lineno", line) != line:
            end = 10**6
        return Location(self.file, line, getattr(node, "col_offset", 0), end, self.name)


@functools.cache
def _parse(code: types.CodeType) -> FunctionSource | None:
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError):
        return None
    file = code.co_filename
    if code.co_name == "<lambda>":
        found = _find_lambda(code, code.co_firstlineno)
        return None if found is None else FunctionSource(found, file, "<lambda>")
    text = "".join(lines)
    # an indented function stands in a block of its own; taking the indentation away would change strings over many lines
    indented = text[:1].isspace()
    tree = parse(f"if True:\n{text}" if indented else text)
    ast.increment_lineno(tree, first - 1 - indented)
    block = tree.body[0]
    if indented and isinstance(block, ast.If):
        block = block.body[0]
    return FunctionSource(block, file, code.co_name) if isinstance(block, ast.FunctionDef) else None


def _find_lambda(code: types.CodeType, first: int) -> ast.Lambda | None:
    """The lambda of ``code``: the only one on its line with the same parameters, or the one at the same columns."""
    try:
        tree = parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        return None
    parameters = list(code.co_varnames[: code.co_argcount])
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda) and node.lineno == first and [a.arg for a in node.args.args] == parameters
    ]
    if len(found) > 1 and hasattr(code, "co_positions"):
        spots = {(line, column) for line, _, column, _ in code.co_positions()}
        found = [
            n
            for n in found
            if any((getattr(x, "lineno", 0), getattr(x, "col_offset", -1)) in spots for x in ast.walk(n.body))
        ]
    return found[0] if len(found) == 1 else None


def parse_function(fn: Callable[..., Any]) -> FunctionSource | None:
    """The syntax tree of a Python function with positions in its file, or None when there is no source."""
    return _parse(fn.__code__)


def parse_kernel(fn: Callable[..., Any]) -> FunctionSource:
    """As ``parse_function`` for a kernel, which must have source and be a plain function."""
    source = parse_function(fn)
    if source is None or not isinstance(source.node, ast.FunctionDef):
        raise exc.InvalidAPIUsage(
            f"The source of kernel {fn.__name__!r} cannot be found; a kernel must be a plain function in a file (a notebook cell is fine, a string given to exec is not)."
        )
    return source
