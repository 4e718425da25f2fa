"""Tensors that a kernel makes and stores into, but neither reads nor returns: usually its ``return`` is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ... import exc
from ..source import FunctionSource
from .host import factories as host_factories

#: Attributes of a tensor that host code reads without its elements.
_METADATA = frozenset(("shape", "dtype", "device", "size", "stride", "numel", "dim", "ndim"))


def warnings(source: FunctionSource, names: Mapping[str, Any], stored: frozenset[str]) -> Iterator[exc.Base]:
    """Yield a warning for each lost tensor of a kernel.

    Args:
        source: the kernel.
        names: the globals of its module.
        stored: variables that hold the tensors which the device code uses.
    """
    function = source.node
    assert isinstance(function, ast.FunctionDef)
    nodes = source.nodes
    if any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in nodes):
        return
    harmless = {id(name) for node in nodes for name in _unseeing(node)}
    loads = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    seen = {name.id for name in loads if id(name) not in harmless}
    written = {base.id for node in nodes for base in _written(node)}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as made):
                if name in written & stored and name not in seen and is_new(made, names):
                    yield exc.ResultNotReturned(kernel=source.name, name=name, location=source.location(node))


def _written(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the variable of the tensor that a node stores into, and does nothing else with."""
    match node:
        case ast.Subscript(value=ast.Name() as name, ctx=ast.Store()):
            yield name
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method), args=[ast.Name() as name, *_])):
            if method == "store" or method.startswith("atomic_"):
                yield name


def _unseeing(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the variable of a tensor whose elements a node does not read."""
    yield from _written(node)
    match node:
        case ast.Attribute(value=ast.Name() as name, attr=attribute) if attribute in _METADATA:
            yield name


def is_new(made: ast.Call, names: Mapping[str, Any]) -> bool:
    """Return True where a call surely makes a tensor with memory of its own."""
    match made.func:
        case ast.Attribute(value=ast.Name(id=module), attr=function) if names.get(module) is torch:
            allocates = function in host_factories.NAMES - host_factories.OF_DATA - {"complex"}
            return allocates and all(keyword.arg not in ("out", None) for keyword in made.keywords)
        case ast.Attribute(attr=method):
            return method.startswith("new_") and method in host_factories.NAMES
    return False
