"""The user's line of an error that generated host code raises."""

from __future__ import annotations

import ast
import linecache
import types

from ..._compiler.source import parse_function


def note_line(error: Exception, fn: types.FunctionType) -> None:
    """Add the user's line to an error that a statement of the host code of ``fn`` raised in generated code.

    Generated host code has the user's statements, so their text finds the line; other errors stay as they are.
    """
    source = parse_function(fn)
    trace = error.__traceback__
    while trace is not None and source is not None:
        code = trace.tb_frame.f_code
        if code.co_name == fn.__name__ and code.co_filename != source.file:
            text = linecache.getline(code.co_filename, trace.tb_lineno).strip()
            node = next((n for n in ast.walk(source.node) if isinstance(n, ast.stmt) and _line_of(n) == text), None)
            if node is not None:
                error.add_note(f"While processing:\n{source.location(node).excerpt()}")
                return
        trace = trace.tb_next


def _line_of(node: ast.stmt) -> str:
    simple = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr, ast.Assert, ast.Raise)
    return ast.unparse(node) if isinstance(node, simple) else ""


__all__ = ["note_line"]
