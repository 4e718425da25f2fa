"""Calls of graphs of torch functions."""

from __future__ import annotations

import ast
from typing import Any

import torch

from .... import exc
from ..walk.scope import Scope, call


def call_graph(s: Scope, module: Any, args: tuple[Any, ...]) -> Any:
    """Run the function and method calls of a ``torch.fx.GraphModule`` in order."""
    unsupported = sorted({n.op for n in module.graph.nodes} - {"placeholder", "call_function", "call_method", "output"})
    if unsupported:
        raise exc.GraphModuleUnsupportedOps(name=type(module).__name__, ops=", ".join(unsupported))
    found: dict[Any, Any] = {}
    given = iter(args)
    for node in module.graph.nodes:
        inner, keywords = _graph_items(node.args, found), _graph_items(node.kwargs, found)
        if node.op == "placeholder":
            found[node] = next(given, *node.args)
        elif node.op == "output":
            return inner[0]
        elif node.op == "call_method":
            found[node] = getattr(inner[0], node.target)(*inner[1:], **keywords)
        else:
            found[node] = call(s, node.target, inner, keywords, s.node or ast.Constant(None))
    return None


def _graph_items(item: Any, found: dict[Any, Any]) -> Any:
    if isinstance(item, dict):
        return {key: _graph_items(v, found) for key, v in item.items()}
    if isinstance(item, (tuple, list)):
        return type(item)(_graph_items(v, found) for v in item)
    return found[item] if isinstance(item, torch.fx.Node) else item
