"""Statements of host code. Those that the walk cannot follow still run at run time.

A statement without device loops is part of the generated host function unchanged. If the walk cannot follow it, the
names that it binds and the containers that it may change are *opaque* after it. Only device code that depends on one of
them is refused, with the reason.

A condition that is known at run time only is followed on both sides. Numbers that differ between the sides are read
from their variable after it.
"""

from __future__ import annotations

import ast
import copy
import dis
import types
from typing import Any

from .... import exc
from ...._support.records import dataclass
from ....language._registry import DECLARED
from ..frames import assigned_names
from ..runtime_values import MUTABLE, Opaque, containers_in, opaque
from ..values import HostTensorValue
from .lookup import peek
from .scope import HARD, LEAVING, Scope, execute

#: Methods that change a container.
MUTATORS = frozenset(
    (
        "append",
        "extend",
        "insert",
        "pop",
        "popitem",
        "clear",
        "update",
        "setdefault",
        "remove",
        "sort",
        "reverse",
        "add",
        "discard",
    )
)
#: Methods, and attributes to assign, that change the metadata of a tensor rather than its elements.
_METADATA = frozenset(
    (
        "resize_", "resize_as_", "set_", "t_", "transpose_", "swapaxes_", "swapdims_", "unsqueeze_", "squeeze_", "as_strided_", "data", "swap_tensors",
    )
)  # fmt: skip


@dataclass(frozen=True)
class SavedHost:
    """Names and contents of containers before a statement."""

    names: dict[str, Any]
    contents: dict[int, tuple[Any, Any]]
    #: Number of host tensors that the trace relied on.
    relied: int


def save_host(s: Scope, values: Any = None) -> SavedHost:
    """Return the names of host code, and the contents of containers in them and in ``values``."""
    found = containers_in(tuple(s.frame.names.values()))
    containers_in(tuple(s.walk.kernel_frame.names.values()), found)
    containers_in([copied for _, copied in s.t.world.copies.values()], found)
    containers_in(values, found)
    return SavedHost(dict(s.frame.names), {key: (c, copy.copy(c)) for key, c in found.items()}, len(s.t.tensors.relied))


def restore_host(s: Scope, saved: SavedHost) -> None:
    """Restore the names and the contents of containers when ``saved`` was taken."""
    s.frame.names = dict(saved.names)
    del s.t.tensors.relied[saved.relied :]
    for container, content in saved.contents.values():
        _refill(container, content)


def execute_host(s: Scope, statement: ast.stmt) -> None:
    """Execute a statement of host code; if that fails, make the names and containers that it may change opaque."""
    saved = save_host(s)
    try:
        execute(s, statement)
    except (*HARD, *LEAVING):
        raise
    except Exception as error:
        if isinstance(error, exc.Base):
            error.at(s.location())
        if not _may_stay(s, statement):
            raise
        restore_host(s, saved)
        forget(s, statement, error)


def execute_all(s: Scope, statements: list[ast.stmt]) -> None:
    """Execute statements of device code or of host code in order."""
    for statement in statements:
        if s.t.on_device:
            execute(s, statement)
        else:
            execute_host(s, statement)


def _may_stay(s: Scope, statement: ast.stmt) -> bool:
    """Return whether a statement can be left to run time: it has no device loops and the like, and does not leave a
    statement that is being followed.
    """
    if isinstance(statement, (ast.Global, ast.Nonlocal)):
        return False
    for part in ast.walk(statement):
        if isinstance(part, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await)):
            return False
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load):
            found = peek(s, part)
            if isinstance(found, types.FunctionType) and found in DECLARED:
                return False
    return not _leaves(statement, s.frame.is_kernel)


def forget(s: Scope, statement: ast.stmt, error: Exception) -> None:
    """Make everything that a statement may change opaque."""
    s.t.world.effects += 1
    s.t.world.acts = True
    unknown = Opaque(error)
    names = s.frame.names
    for name, part in _mentions(statement):
        value = names.get(name)
        if isinstance(value, MUTABLE) and part:
            for key, container in containers_in(value).items():
                s.t.world.poisoned[key] = (container, unknown)
        if isinstance(value, HostTensorValue) and _changes_metadata(statement):
            names[name] = unknown
    for name in assigned_names([statement]):
        forget_sources(s, name)
        names[name] = unknown
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            owner = peek(s, node.value)
            s.t.world.attributes[(id(owner), node.attr)] = (owner, unknown)


def forget_globals_of(s: Scope, function: types.FunctionType) -> None:
    """Make the global names that a function assigns opaque."""
    for name in _stored_globals(function.__code__):
        unknown = opaque(f"the global `{name}`", f" (`{function.__name__}` assigns it)")
        s.t.world.attributes[(id(function.__globals__), name)] = (function.__globals__, unknown)


def forget_sources(s: Scope, name: str) -> None:
    """Drop host expressions that begin with a name, because the name is bound again."""
    if name not in s.walk.kernel_frame.names:
        return
    for tensor in s.t.tensors.lifted.values():
        if tensor.source == name or tensor.source.startswith((f"{name}[", f"{name}.")):
            tensor.source = ""
    old = s.walk.kernel_frame.names[name]
    if isinstance(old, HostTensorValue) and old.source == name:
        old.source = ""


def forget_outside(s: Scope, container: Any, unknown: Opaque) -> None:
    """Make the contents of a container from outside of the kernel opaque."""
    s.t.world.effects += 1
    s.t.world.acts = True
    s.t.world.poisoned[id(container)] = (container, unknown)
    s.walk.changed_outside[id(container)] = container


def outside_container(s: Scope, node: ast.Call) -> Any:
    """Return the container from outside of the kernel that a call changes, or None."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in MUTATORS:
        return None
    return outside(s, node.func.value)


def refuse_change(s: Scope, node: ast.expr) -> None:
    """Raise if device code would change a container from outside of the kernel."""
    if outside(s, node) is not None:
        root = _root(node)
        assert isinstance(root, ast.Name)
        raise (exc.ClosureMutation if s.frame.closes_over(root.id) else exc.GlobalMutation)(name=root.id)


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node


def outside(s: Scope, node: ast.expr) -> Any:
    """Return a container that a global refers to, or None."""
    root = _root(node)
    if not isinstance(root, ast.Name) or s.frame.holds(root.id):
        return None
    found = peek(s, node)
    return found if isinstance(found, MUTABLE) else None


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.update(content)


def changed_containers(before: SavedHost) -> dict[int, Any]:
    """Return the containers whose contents have changed."""
    return {key: now for key, (now, content) in before.contents.items() if not _same_content(now, content)}


def _same_content(now: Any, content: Any) -> bool:
    if len(now) != len(content):
        return False
    if isinstance(now, dict):
        return all(key in content and content[key] is value for key, value in now.items())
    if isinstance(now, set):
        return bool(now == content)
    return all(a is b for a, b in zip(now, content, strict=True))


def _leaves(statement: ast.stmt, is_kernel: bool) -> bool:
    """Return whether a statement may leave the loop or the helper that it is in."""
    stack: list[tuple[ast.AST, bool]] = [(statement, False)]
    while stack:
        node, inside = stack.pop()
        if isinstance(node, (ast.Break, ast.Continue)) and not inside:
            return True
        if isinstance(node, ast.Return) and not is_kernel:
            return True
        if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        inside = inside or isinstance(node, (ast.For, ast.While))
        stack += [(child, inside) for child in ast.iter_child_nodes(node)]
    return False


def _mentions(statement: ast.stmt) -> list[tuple[str, bool]]:
    """Return names that a statement mentions, and whether it may change the containers that they are bound to."""
    reads = {
        id(part.value)
        for part in ast.walk(statement)
        if (isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load))
        or (isinstance(part, ast.Attribute) and part.attr not in MUTATORS)
    }
    return [(n.id, id(n) not in reads) for n in ast.walk(statement) if isinstance(n, ast.Name)]


def _changes_metadata(statement: ast.stmt) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr in _METADATA for part in ast.walk(statement))


def _stored_globals(code: types.CodeType) -> list[str]:
    found = [i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")]
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [*found, *(name for c in inner for name in _stored_globals(c))]


def head_of(node: ast.stmt) -> str:
    """Return the first line of a statement."""
    return ast.unparse(node).splitlines()[0]
