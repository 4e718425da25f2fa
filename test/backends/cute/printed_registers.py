"""Registers of a printed module that are read before anything writes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def unwritten_registers(text: str) -> set[str]:
    """Return the registers whose first use in the text, after they are made, is a read: of an element or of all."""
    made: set[str] = set()
    unwritten: set[str] = set()
    for node in _evaluated(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            call = node.value
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "cute.make_rmem_tensor":
                made.add(node.targets[0].id)
        elif isinstance(node, ast.Name):
            made.discard(node.id)
        elif (name := _read(node)) in made:
            unwritten.add(name)
    return unwritten


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Walk expressions in the order of their evaluation: values before what they are assigned to, uses before parts."""
    if isinstance(node, ast.Assign):
        for child in (node.value, *node.targets):
            yield from _evaluated(child)
        yield node
        return
    if _read(node):
        yield node
        parts = [node.slice] if isinstance(node, ast.Subscript) else []
    else:
        parts = [*ast.iter_child_nodes(node)]
    for child in parts:
        yield from _evaluated(child)
    if isinstance(node, ast.Name):
        yield node


def _read(node: ast.AST) -> str:
    """Return the name that a node reads an element of, or all of: ``x[i]`` and ``x.load()``."""
    value: ast.AST | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        value = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
        value = node.func.value
    return value.id if isinstance(value, ast.Name) else ""
