"""Source text of user functions, with locations that survive into errors and generated comments."""

from __future__ import annotations
import __future__

import ast
import collections
import dis
import functools
import importlib.machinery
import inspect
import linecache
import os
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .. import exc
from .._support.records import dataclass
from .._support.syntax import nodes_of, parse

#: Files modified before this time (in seconds since the epoch) still hold the imported text. The minute allows for
#: clocks of file servers that are late.
_BEGAN = time.time() - 60
_FUTURE = functools.reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


@dataclass(frozen=True, slots=True)
class Location:
    """A range of columns in a line of the user's source. Lines count from 1, columns from 0."""

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
        """Return file, line, function, the source line, and carets below the range."""
        line = linecache.getline(self.file, self.line).rstrip("\n")
        stripped = line.lstrip()
        indent = len(line) - len(stripped)
        width = max(1, min(self.end_column, len(line)) - self.column)
        carets = " " * max(0, self.column - indent) + "^" * width
        return f'  File "{self.file}", line {self.line}, in {self.function}\n    {stripped}\n    {carets}'

    def short(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


#: Position of an expression: first line, first column, last line, last column.
Place = tuple[int, int, int, int]


def place_of(node: ast.AST) -> Place:
    """Return the position of a user's expression; zeros for one without source."""
    first, last = (getattr(node, name, None) or 0 for name in ("lineno", "end_lineno"))
    return (first, getattr(node, "col_offset", None) or 0, last, getattr(node, "end_col_offset", None) or 0)


@dataclass(frozen=True)
class FunctionSource:
    """A parsed function. ``node`` is a FunctionDef, or a Lambda; its positions are those in ``file``."""

    node: ast.FunctionDef | ast.Lambda
    file: str
    name: str

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """The function's node and all below it, in the order of ``ast.walk``."""
        return tuple(nodes_of(self.node))

    def location(self, node: ast.AST) -> Location:
        line = getattr(node, "lineno", 1)
        end = getattr(node, "end_col_offset", None)
        if end is None or getattr(node, "end_lineno", line) != line:
            end = 10**6
        return Location(self.file, line, getattr(node, "col_offset", 0), end, self.name)


#: Parsed source of each live code object, by id. Equal code objects of different functions have separate entries.
_PARSED: dict[int, tuple[weakref.ref[types.CodeType], FunctionSource]] = {}


def _parsed(code: types.CodeType) -> FunctionSource | None:
    known = _PARSED.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    found = _parse(code)
    if found is not None:  # missing source may appear later, a notebook cell for one
        at = id(code)
        _PARSED[at] = (weakref.ref(code, lambda _: _PARSED.pop(at, None)), found)
    return found


def _parse(code: types.CodeType) -> FunctionSource | None:
    file, line = code.co_filename, code.co_firstlineno
    if _may_have_changed(file):
        found = _first_line_now(code)
        if found is None:
            raise exc.SourceChanged(name=code.co_name, file=file)
        line = found
    nodes = [node for node in _definitions(_text_around(code)).get(line, ()) if _may_be(node, code)]
    if len(nodes) > 1:
        nodes = [node for node in nodes if _is_at_columns_of(node, code)]
    return FunctionSource(nodes[0], file, code.co_name) if len(nodes) == 1 else None


def _text_around(code: types.CodeType) -> str:
    """Return the text of the file of a code object, empty if there is none."""
    lines = linecache.getlines(code.co_filename)
    if not lines:  # a module of an archive, for one
        try:
            lines, _ = inspect.findsource(code)
        except OSError:
            return ""
    return "".join(lines)


@functools.lru_cache(maxsize=8)
def _definitions(text: str) -> Mapping[int, Sequence[ast.FunctionDef | ast.Lambda]]:
    """Return the functions of a file by their first line, that of the first decorator; none for text that is no Python."""
    found: dict[int, list[ast.FunctionDef | ast.Lambda]] = collections.defaultdict(list)
    try:
        tree = parse(text)
    except SyntaxError:
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found[min([node.lineno, *(each.lineno for each in node.decorator_list)])].append(node)
        elif isinstance(node, ast.Lambda):
            found[node.lineno].append(node)
    return found


def _may_be(node: ast.FunctionDef | ast.Lambda, code: types.CodeType) -> bool:
    """Return whether a function that begins on the line of ``code`` has its name, and a lambda its parameters."""
    if isinstance(node, ast.FunctionDef):
        return node.name == code.co_name
    parameters = list(code.co_varnames[: code.co_argcount])
    return code.co_name == "<lambda>" and [each.arg for each in node.args.args] == parameters


def _is_at_columns_of(node: ast.FunctionDef | ast.Lambda, code: types.CodeType) -> bool:
    """Return whether an expression of a lambda begins where an instruction of ``code`` does; True before Python 3.11."""
    if not hasattr(code, "co_positions") or not isinstance(node, ast.Lambda):
        return True
    spots = {(line, column) for line, _, column, _ in code.co_positions()}
    return any((getattr(each, "lineno", 0), getattr(each, "col_offset", -1)) in spots for each in ast.walk(node.body))


def _may_have_changed(file: str) -> bool:
    """Return whether a file may have changed since its import: it was modified since this process began."""
    try:
        found = os.stat(file)
    except OSError:  # for example a notebook cell, whose text cannot change
        return False
    return max(found.st_mtime, found.st_ctime) > _BEGAN


def _first_line_now(code: types.CodeType) -> int | None:
    """Return the line at which the function of ``code`` now begins in its file; None if it is no longer there."""
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    try:
        functions = [*_functions(_compiled(text, code.co_filename, code.co_flags & _FUTURE), code.co_name)]
    except (SyntaxError, ValueError):
        return None
    content = _content(code)
    same = [each.co_firstlineno for each in functions if _content(each) == content]
    if not same and _is_rewritten(code.co_filename):
        same = [each.co_firstlineno for each in functions if not _reads(each) - _reads(code)]
    return min(same, key=lambda line: abs(line - code.co_firstlineno), default=None)


@functools.lru_cache(maxsize=16)
def _compiled(text: str, file: str, flags: int) -> types.CodeType:
    return compile(text, file, "exec", flags, dont_inherit=True)


def _functions(code: types.CodeType, name: str) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            if each.co_name == name:
                yield each
            yield from _functions(each, name)


def _content(code: types.CodeType) -> tuple[Any, ...]:
    """Return all of a code object that does not depend on its position in its file."""
    return (
        *(code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags),
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        *(_constant(value) for value in code.co_consts),
    )


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _content(value)
    if isinstance(value, (tuple, frozenset)):
        items = [_constant(item) for item in value]
        return (type(value), *(items if isinstance(value, tuple) else sorted(items, key=repr)))
    return (type(value), repr(value))


def _is_rewritten(file: str) -> bool:
    """Return whether a tool has changed the module between its text and its code, as pytest does with tests."""
    modules = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == file]
    loaders = [getattr(getattr(m, "__spec__", None), "loader", None) for m in modules]
    return any(each is not None and type(each) is not importlib.machinery.SourceFileLoader for each in loaders)


def _reads(code: types.CodeType) -> collections.Counter[Any]:
    """Count the names and operators of a function. Tools that rewrite code add to them but remove none."""
    kinds = {"LOAD_METHOD": "LOAD_ATTR"}
    return collections.Counter(
        (kinds.get(i.opname, i.opname), str(i.argval) if "LOAD" in i.opname else i.argrepr)
        for i in dis.get_instructions(code)
        if i.opname.startswith(("BINARY", "LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_FAST", "STORE_FAST"))
    )


def parse_function(fn: Callable[..., Any]) -> FunctionSource | None:
    """Return the syntax tree of a Python function with positions in its file, or None when there is no source.

    Raises ``exc.SourceChanged`` if the file no longer holds the imported text.
    """
    return _parsed(fn.__code__)


def parse_kernel(fn: Callable[..., Any]) -> FunctionSource:
    """Return the source of a kernel, as ``parse_function`` does.

    A kernel must have source and be a plain function; other functions raise ``exc.InvalidAPIUsage``.
    """
    source = parse_function(fn)
    if source is None or not isinstance(source.node, ast.FunctionDef):
        if getattr(fn, "__name__", "") == "<lambda>":
            raise exc.InvalidAPIUsage("A lambda cannot be a kernel; define a function with def.")
        raise exc.InvalidAPIUsage(
            f"The source of kernel {fn.__name__!r} cannot be found; a kernel must be a plain function in a file or a notebook cell. Python keeps no source of what is typed at its prompt, read from standard input, or given to exec."
        )
    return source
