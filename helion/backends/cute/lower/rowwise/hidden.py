"""Tensors of the host that only the launch reads: nothing else sees what it stores there."""

from __future__ import annotations

import ast

from ....._compiler.ir.grammar import HostTensor, Program

MADE_BY = ("empty", "empty_like", "new_empty")
"""Calls that return new memory."""


def is_hidden(program: Program, tensor: HostTensor) -> bool:
    """Return whether host code allocates a tensor, and names it nowhere else outside of the grid loops."""
    function, name = program.host.function, tensor.source
    used = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    values = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
    ]
    apart = all(other.id == tensor.id or other.storage != tensor.storage for other in program.tensors)
    declared = any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in ast.walk(function))
    return apart and not declared and len(used) == len(values) == 1 and _is_new(values[0])


def _is_new(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in MADE_BY
