"""Memory effects of host code: allocated tensors, caller-visible tensors that a launch writes, and repeatability of a
call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..._support.syntax import nodes_of
from ..ir.grammar import HostTensor, InlineAttrs, MemoryAttrs, Program
from ..ir.host_module import Launch
from ..ir.ops import OPS

_ALLOCATORS = frozenset(f"{name}{like}" for name in ("empty", "zeros", "ones", "full") for like in ("", "_like"))
_FORMS = (("", ""), ("", "_like"), ("new_", ""))
_NEW = frozenset(("new_empty", "new_zeros", "new_ones", "new_full"))
_VIEWS = frozenset(("view", "reshape", "flatten", "unsqueeze", "squeeze", "permute", "transpose", "t", "contiguous"))
#: Factories that fill a tensor, with those that take the same arguments and do not.
_UNFILLED = {f"{new}{fill}{like}": f"{new}empty{like}" for fill in ("zeros", "ones") for new, like in _FORMS}
_PLACING = frozenset(("size", "dtype", "device", "layout", "memory_format", "requires_grad"))
#: Attributes and methods of a tensor that do not expose the tensor to other code.
_METADATA = frozenset(
    ("shape", "size", "dtype", "device", "stride", "numel", "dim", "ndim", "element_size", "is_contiguous", "layout")
)


def fresh_names(function: ast.FunctionDef) -> frozenset[str]:
    """Return the variables of host code that can only be bound to a tensor which this very call has allocated."""
    stores = [n.id for n in nodes_of(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    pairs = (pair for node in function.body if isinstance(node, ast.Assign) for pair in _assigned(node))
    return frozenset(name for name, value in pairs if stores.count(name) == 1 and _allocates(value))


def unread_until(function: ast.FunctionDef, name: str, at: int) -> bool:
    """Return whether statements between the only assignment of a fresh tensor and statement ``at`` of the body read
    nothing but its metadata."""
    body = function.body[:at]
    made = [i for i, s in enumerate(body) if isinstance(s, ast.Assign) and name in dict(_assigned(s))]
    return len(made) == 1 and all(name not in _exposed(statement) for statement in body[made[0] + 1 :])


def filled_names(function: ast.FunctionDef) -> dict[str, ast.Call]:
    """Return the fresh tensors that ``torch.zeros``, ``torch.ones`` and their like fill, with the calls."""
    fresh = fresh_names(function)
    pairs = (pair for node in function.body if isinstance(node, ast.Assign) for pair in _assigned(node))
    return {n: c for n, c in pairs if n in fresh and isinstance(c, ast.Call) and unfilled(c) is not None}


def unfilled(call: ast.Call) -> str | None:
    """Return the factory that takes the arguments of ``call`` and leaves the tensor unfilled; None for other calls."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    plain = all(keyword.arg in _PLACING for keyword in call.keywords)
    return _UNFILLED.get(name) if plain else None


def hidden_names(function: ast.FunctionDef) -> frozenset[str]:
    """Return the variables of tensors that this very call has allocated, of which host code reads nothing but metadata: it
    has no view of them, and does not return them."""
    read = {name for statement in function.body for name in _exposed(statement)}
    return fresh_names(function) - read


def _exposed(node: ast.AST) -> Iterator[str]:
    """Yield variables that are read for more than metadata."""
    if isinstance(node, ast.Attribute) and node.attr in _METADATA and isinstance(node.value, ast.Name):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _exposed(child)


def _assigned(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Yield variables and the expressions that they are bound to: ``a = x``, ``a, b = x, y``."""
    (target, *others), value = node.targets, node.value
    if others:
        return
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = zip(target.elts, value.elts, strict=True)
        yield from ((name.id, each) for name, each in pairs if isinstance(name, ast.Name))


def _allocates(node: ast.expr) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
    return (of_torch and node.func.attr in _ALLOCATORS) or node.func.attr in _NEW


def overwritten(whole: Program, part: Program) -> tuple[HostTensor, ...]:
    """Return the caller-visible tensors that the kernels of ``part``, one launch of ``whole``, may write.

    These are arguments, globals, views of them, and tensors that host code has used before.
    """
    private = _private_names(whole.host.function)
    found: dict[int, HostTensor] = {}
    for at in _written(part):
        tensor = whole.tensors[at]
        if not tensor.made and tensor.source not in private:
            found.setdefault(at, tensor)
    return tuple(found.values())


def _written(program: Program) -> Iterator[int]:
    for op in program.walk():
        if isinstance(op.attrs, MemoryAttrs) and OPS[op.kind].writes:
            yield op.attrs.tensor
        elif isinstance(op.attrs, InlineAttrs) and op.attrs.effect == "any":
            yield from op.attrs.tensors


def _private_names(function: ast.FunctionDef) -> frozenset[str]:
    """Return fresh tensors, and views of them, that no host statement up to the last launch passes to anything."""
    names = set(fresh_names(function))
    for node in function.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            base = _viewed(node.value)
            if base in names and _stored_once(function, node.targets[0].id):
                names.add(node.targets[0].id)
    launches = [i for i, s in enumerate(function.body) if any(isinstance(n, Launch) for n in ast.walk(s))]
    before = function.body[: launches[-1] + 1] if launches else []
    return frozenset(names - {name for statement in before for name in _handed_on(statement)})


def launches_once(function: ast.FunctionDef) -> bool:
    """Return whether some device loops are outside of host loops and branches, so a call launches them at most once."""
    return any(isinstance(statement, Launch) for statement in function.body)


def writes_before_launch(function: ast.FunctionDef) -> bool:
    """Return whether a statement up to the last launch may write into memory that existed before the call."""
    holds = [i for i, s in enumerate(function.body) if any(isinstance(n, Launch) for n in ast.walk(s))]
    before = function.body[: holds[-1] + 1]
    return any(_writes(node) for statement in before for node in ast.walk(statement))


def _writes(node: ast.AST) -> bool:
    if isinstance(node, ast.AugAssign):
        return True
    if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
        return True
    if isinstance(node, ast.keyword):
        return node.arg == "out"
    name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return name.endswith("_") and not name.endswith("__")


def _stored_once(function: ast.FunctionDef, name: str) -> bool:
    stores = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
    return sum(isinstance(n.ctx, ast.Store) for n in stores) == 1


def _viewed(node: ast.expr) -> str | None:
    """Return the variable that an expression is a view of, by its form: ``out.view(-1)``, ``out[0]``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
        node = node.func.value
    elif isinstance(node, ast.Subscript):
        node = node.value
    else:
        return None
    return node.id if isinstance(node, ast.Name) else _viewed(node)


def _handed_on(node: ast.AST) -> Iterator[str]:
    """Yield variables that are read for more than metadata, a view, or a ``return``."""
    if isinstance(node, ast.Return) and isinstance(node.value, (ast.Name, ast.Tuple)):
        return
    if isinstance(node, ast.Call) and _allocates(node):
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from () if isinstance(argument, ast.Name) else _handed_on(argument)
        return
    if isinstance(node, ast.Attribute) and node.attr in _METADATA | _VIEWS and isinstance(node.value, ast.Name):
        return
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from _handed_on(node.slice)
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _handed_on(child)


def written(program: Program) -> frozenset[str] | None:
    """Return host expressions of the tensors that kernels may write; None if an op does not declare its writes."""
    found = set()
    for op in program.walk():
        if op.kind in ("inline", "asm"):
            return None
        if isinstance(op.attrs, MemoryAttrs) and OPS[op.kind].writes and not program.tensors[op.attrs.tensor].made:
            found.add(program.tensors[op.attrs.tensor].source)
    return frozenset(found)


__all__ = [
    "filled_names",
    "fresh_names",
    "hidden_names",
    "launches_once",
    "overwritten",
    "unfilled",
    "unread_until",
    "writes_before_launch",
    "written",
]
