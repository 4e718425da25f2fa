"""Syntax trees with shared subtrees: parsed once, and copied only where they are changed."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from typing import Any, TypeVar

from ..._support.syntax import parse

N = TypeVar("N", bound=ast.AST)
_CACHED = 1024


@functools.lru_cache(maxsize=_CACHED)
def expression(text: str) -> ast.expr:
    """Return a host expression as a tree, which must not be modified."""
    (statement,) = parse(text).body
    assert isinstance(statement, ast.Expr)
    return statement.value


@functools.lru_cache(maxsize=_CACHED)
def statements(text: str) -> tuple[ast.stmt, ...]:
    """Return host statements as trees, which must not be modified."""
    return tuple(parse(text).body)


@functools.lru_cache(maxsize=_CACHED)
def names_in(text: str) -> tuple[str, ...]:
    """Return the variables that a host expression names, in their order."""
    if text.isidentifier():
        return (text,)
    names = [node for node in ast.walk(expression(text)) if isinstance(node, ast.Name)]
    return tuple(node.id for node in sorted(names, key=lambda node: (node.lineno, node.col_offset)))


def assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value, lineno=0)


class Rewriter:
    """A tree rewriter. ``visit_Call`` and the like return the replacement of a node: another one, several statements,
    or None.

    A tree without changes is returned as it is; a changed one is a new tree.
    """

    def visit(self, node: ast.AST) -> Any:
        return getattr(self, f"visit_{type(node).__name__}", self.inside)(node)

    def inside(self, node: N) -> N:
        """Return the same node with the replacements of its parts."""
        changed = {}
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                made = self.visit(value)
            elif isinstance(value, list):
                made = self.all(value)
                made = value if len(made) == len(value) and all(map(_is, made, value)) else made
            else:
                continue
            if made is not value:
                changed[name] = made
        if not changed:
            return node
        return ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), **changed}), node)

    def all(self, nodes: Iterable[Any]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            made = self.visit(node) if isinstance(node, ast.AST) else node
            if isinstance(made, (list, tuple)):
                found += made
            elif made is not None or node is None:
                found.append(made)
        return found


def _is(first: object, second: object) -> bool:
    return first is second
