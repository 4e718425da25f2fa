"""Statements of host code. The walk follows them; what it cannot follow runs at run time all the same.

A statement without device loops stands in the generated host function as it is, so it need not be followed for its own
sake: when it cannot be, the names that it binds and the containers that it may change are *opaque* from there on, and
only device code that depends on one of them is refused, with the reason. A condition that is known at run time only is
followed on both sides; numbers that come out different are read off their variable behind it.
"""

from __future__ import annotations

import ast
import copy
import dis
import inspect
import sys
import types
from dataclasses import dataclass
from typing import Any

import torch

from .... import exc
from ...._shapes import Expr
from ....language._registry import DECLARED
from ...ir.grammar import Keep
from ..captures import UNNAMED, keep_tensor
from ..expressions.calls import HARD, MUTATORS
from ..expressions.functions import define
from ..expressions.operators import Expressions
from ..expressions.queries import type_of
from ..frames import Frame, assigned_names
from ..purity import is_pure, may_swallow
from ..runtime_values import MUTABLE, Opaque, containers_in, hinted, is_runtime, opaque, opaques
from ..statements.host_loops import HostLoops
from ..values import HostTensorValue, Missing, describe
from .scope import LEAVING, Break, Continue, Raised, Return, UserError

#: Methods, and attributes to assign, that change what a tensor is rather than what it holds.
_METADATA = frozenset(
    (
        "resize_", "resize_as_", "set_", "t_", "transpose_", "swapaxes_", "swapdims_", "unsqueeze_", "squeeze_", "as_strided_", "data", "swap_tensors",
    )
)  # fmt: skip


@dataclass(frozen=True)
class _SavedHost:
    """Names and contents of containers before a statement."""

    names: dict[str, Any]
    contents: dict[int, tuple[Any, Any]]
    #: How many tensors of the host's were relied on.
    relied: int


class HostStatements(HostLoops):
    """Walks statements of host code that hold no device loop, and those around device loops that are no loops."""

    # --- what cannot be followed ----------------------------------------------------------------------------------------

    def save_host(self, frame: Frame, values: Any = None) -> _SavedHost:
        found = containers_in(tuple(frame.names.values()))
        containers_in(tuple(self.kernel_frame.names.values()), found)
        containers_in(values, found)
        return _SavedHost(dict(frame.names), {key: (c, copy.copy(c)) for key, c in found.items()}, len(self.t.relied))

    def restore_host(self, frame: Frame, saved: _SavedHost) -> None:
        frame.names = dict(saved.names)
        del self.t.relied[saved.relied :]
        for container, content in saved.contents.values():
            _refill(container, content)

    def execute_host(self, e: Expressions, statement: ast.stmt) -> None:
        """A statement of host code, or what is left of the knowledge of it where it cannot be followed."""
        saved = self.save_host(e.frame)
        try:
            self.execute(e, statement)
        except (*HARD, *LEAVING):
            raise
        except Exception as error:
            if isinstance(error, exc.Base):
                error.at(e.location())
            if not self._may_stay(e, statement):
                raise
            self.restore_host(e.frame, saved)
            self._forget(e, statement, error)

    def _may_stay(self, e: Expressions, statement: ast.stmt) -> bool:
        """Whether a statement can be left to run time: it neither has device loops and the like, nor leaves something
        that is being followed."""
        if isinstance(statement, (ast.Global, ast.Nonlocal)):
            return False
        for part in ast.walk(statement):
            if isinstance(part, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await)):
                return False
            if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load):
                found = e.peek(part)
                if isinstance(found, types.FunctionType) and found in DECLARED:
                    return False
        return not _leaves(statement, e.frame.is_kernel)

    def _forget(self, e: Expressions, statement: ast.stmt, error: Exception) -> None:
        """What a statement that is not followed may change is known at run time only."""
        self.t.effects += 1
        unknown = Opaque(error)
        names = e.frame.names
        for name, part in _mentions(statement):
            value = names.get(name)
            if isinstance(value, MUTABLE) and part:
                for key, container in containers_in(value).items():
                    self.t.poisoned[key] = (container, unknown)
            if isinstance(value, HostTensorValue) and _changes_metadata(statement):
                names[name] = unknown
        for name in assigned_names([statement]):
            self._forget_sources(name)
            names[name] = unknown
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
                owner = e.peek(node.value)
                self.t.attributes[(id(owner), node.attr)] = (owner, unknown)

    def forget_globals_of(self, function: types.FunctionType) -> None:
        """Global names that a function which is not followed assigns."""
        source = function.__code__
        stored = _stored_globals(source)
        for name in stored:
            unknown = opaque(f"the global `{name}`", f" (`{function.__name__}` assigns it)")
            self.t.attributes[(id(function.__globals__), name)] = (function.__globals__, unknown)

    def outside_container(self, e: Any, node: ast.Call) -> Any:
        """The container from outside of the kernel that a call changes, if it does."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in MUTATORS:
            return None
        return self._outside(e, node.func.value)

    def _outside(self, e: Any, node: ast.expr) -> Any:
        """A container that a global leads to."""
        root = node
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        if not isinstance(root, ast.Name) or e.frame.holds(root.id):
            return None
        found = e.peek(node)
        return found if isinstance(found, MUTABLE) else None

    # --- conditions -----------------------------------------------------------------------------------------------------

    def open_if(self, e: Expressions, node: ast.If, test: Any) -> None:
        """A condition that is known at run time only: both sides are followed."""
        if any(self._has_grid_loop(e, part) or self._is_grid_loop(e, part) for part in (*node.body, *node.orelse)):
            e.truth_on_host(test)  # raises
        self._merge_ways(e, [node.body, node.orelse], node)

    def _merge_ways(self, e: Expressions, ways: list[list[ast.stmt]], node: ast.stmt) -> None:
        before = self.save_host(e.frame)
        ends: list[dict[str, Any]] = []
        changed: dict[int, Any] = {}
        relied = False
        for body in ways:
            self.restore_host(e.frame, before)
            self.uncertain += 1
            try:
                self.execute_all(e, body)
            except (Break, Continue):
                raise exc.KnownAtRunTime(what=f"the end of this loop, under `{_head(node)}`", because="") from None
            except Raised:
                continue
            except Return:
                if not e.frame.is_kernel:
                    raise exc.KnownAtRunTime(what=f"what is returned under `{_head(node)}`", because="") from None
                continue
            finally:
                self.uncertain -= 1
                changed.update(_changed(before))
                relied = relied or len(self.t.relied) > before.relied
            ends.append(e.frame.names)
        self.restore_host(e.frame, before)
        unknown = opaque(f"what `{_head(node)}` decides")
        for key, container in changed.items():
            self.t.poisoned[key] = (container, unknown)
        if ends:
            e.frame.names = self._merge_names(e, ends, node)
            if relied:  # tensors that are not there to be compared when the other way was taken
                self._forget_uncertain(e, before.names, unknown)
        else:
            raise Return(None) if e.frame.is_kernel else Raised()

    def _forget_uncertain(self, e: Expressions, before: dict[str, Any], unknown: Opaque) -> None:
        for name, value in e.frame.names.items():
            chosen = isinstance(value, HostTensorValue) and value.chosen
            if before.get(name, self) is not value and not chosen and not is_runtime(self.t, value):
                e.frame.names[name] = unknown

    def _merge_names(self, e: Expressions, ends: list[dict[str, Any]], node: ast.stmt) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for name in dict.fromkeys(name for names in ends for name in names):
            values = [names.get(name) for names in ends]
            if any(name not in names for names in ends):
                merged[name] = opaque(f"`{name}`", f" (only one way through `{_head(node)}` assigns it)")
            elif all(value is values[0] for value in values) or _all_plain(values):
                merged[name] = values[0]
            else:
                self._forget_sources(name)
                number = e.merged(values)
                error = f" (`{_head(node)}` decides, and it is {' or '.join(map(describe, values))})"
                merged[name] = opaque(f"`{name}`", error) if number is None else number
        return merged

    def keep_numbers(self, e: Expressions, statement: ast.stmt) -> None:
        """Numbers that a statement of the kernel left in variables, for launches that need them."""
        for name in assigned_names([statement]):
            value = e.frame.names.get(name)
            if isinstance(value, HostTensorValue) and value.chosen and not (value.source or value.made):
                kept = keep_tensor(self.t, value)
                self.body.append(ast.copy_location(Keep(kept, ast.Name(name, ast.Load())), statement))
            if not isinstance(value, Expr) or not any(self.t.drawn.get(x.args[0]) == UNNAMED for x in value.leaves()):
                continue
            if value.op != "host":
                value = e.frame.names[name] = e.runtime_number(type_of(value))
            self.t.drawn[value.args[0]] = ""
            self.body.append(ast.copy_location(Keep(value.args[0], ast.Name(name, ast.Load())), statement))

    def do_Match(self, e: Expressions, node: Any) -> None:
        """Cases that compare with values, and those that take anything."""
        if self.t.on_device:
            raise exc.NotAllowedOnDevice(what="A match statement")
        subject = e.eval(node.subject)
        for case in node.cases:
            if not e.truth_on_host(self._matches(e, subject, case.pattern)):
                continue
            if case.guard is None or e.truth_on_host(e.eval(case.guard)):
                self.execute_all(e, case.body)
                return

    def _matches(self, e: Expressions, subject: Any, pattern: Any) -> Any:
        kind = type(pattern).__name__
        if kind == "MatchValue":
            return e.compare(ast.Eq, subject, e.eval(pattern.value))
        if kind == "MatchSingleton":
            return e.compare(ast.Is, subject, pattern.value)
        if kind == "MatchOr":
            return any(e.truth_on_host(self._matches(e, subject, part)) for part in pattern.patterns)
        if kind == "MatchAs" and (
            pattern.pattern is None or e.truth_on_host(self._matches(e, subject, pattern.pattern))
        ):
            if pattern.name is not None:
                self.bind(e, ast.Name(pattern.name, ast.Store()), subject)
            return True
        if kind == "MatchAs":
            return False
        raise exc.StatementNotSupported(statement=f"`case {ast.unparse(pattern)}`", where="host", remedy="")

    # --- with and try ---------------------------------------------------------------------------------------------------

    def do_With(self, e: Expressions, node: ast.With) -> None:
        if self.t.on_device:
            raise exc.NotAllowedOnDevice(what="A with statement")
        self._enter(e, node)
        self.uncertain += 1
        try:
            self.execute_all(e, node.body)
        finally:
            self.uncertain -= 1

    def _enter(self, e: Expressions, node: ast.With) -> None:
        """The context managers of a ``with`` statement: entered at run time."""
        for item in node.items:
            manager = e.eval(item.context_expr)
            text = ast.unparse(item.context_expr)
            if isinstance(manager, torch.device) or _name_of(e, item.context_expr) in _MODES:
                raise exc.StatementNotSupported(
                    statement=f"`with {text}:`", where="host", remedy="; it changes what the calls in it give"
                )
            expression = item.context_expr
            if may_swallow(e.peek(expression.func) if isinstance(expression, ast.Call) else type(manager)):
                raise exc.StatementNotSupported(
                    statement=f"`with {text}:`", where="host", remedy="; errors in it may not leave it"
                )
            self.t.effects += 1
            if item.optional_vars is not None:
                self.bind(e, item.optional_vars, opaque(f"`{text}`"))

    def do_Try(self, e: Expressions, node: ast.Try) -> None:
        if self.t.on_device:
            raise exc.NotAllowedOnDevice(what="A try statement")
        ways = [[*node.body, *node.orelse], *(handler.body for handler in node.handlers)]
        if node.handlers:
            for name in {handler.name for handler in node.handlers if handler.name}:
                e.frame.names[name] = opaque(f"`{name}`")
            self._interrupted(e, node)
            self._merge_ways(e, ways, node)
            self.execute_all(e, node.finalbody)
            return
        self.uncertain += 1
        try:
            self.execute_all(e, ways[0])
        except (Return, Raised) as leaving:
            self.execute_all(e, node.finalbody)
            raise leaving
        finally:
            self.uncertain -= 1
        self.execute_all(e, node.finalbody)

    def _interrupted(self, e: Expressions, node: ast.Try) -> None:
        """Handlers begin wherever the body was left: containers that it may have changed by then are not known."""
        before = self.save_host(e.frame)
        self.uncertain += 1
        try:
            self.execute_all(e, node.body)
        except (Return, Raised):
            pass
        finally:
            self.uncertain -= 1
        after, changed = e.frame.names, _changed(before)
        self.restore_host(e.frame, before)
        unknown = opaque(f"what `{_head(node)}` leaves behind")
        if any(after.get(name) is not value for name, value in before.names.items()) or changed:
            raise unknown.error

    def walk_around(self, e: Expressions, node: ast.With | ast.Try) -> None:
        """Grid loops in a ``with`` or ``try`` statement, which stays around their launches."""
        e.at(node)
        wrapped = copy.copy(node)
        if isinstance(node, ast.With):
            self._enter(e, node)
        elif any(self._has_grid_loop(e, s) or self._is_grid_loop(e, s) for h in node.handlers for s in h.body):
            raise exc.NestedGridLoop(name="hl.tile", parent="an except clause")
        self.uncertain += 1
        try:
            leaving = self._walk_part(e, wrapped, "body")
            if isinstance(wrapped, ast.Try):
                leaving = self._after_body(e, wrapped, leaving)
        finally:
            self.uncertain -= 1
        self.body.append(wrapped)
        if leaving is not None:
            raise leaving

    def _after_body(self, e: Expressions, wrapped: ast.Try, leaving: Exception | None) -> Exception | None:
        """The clauses of a ``try`` statement; what leaves it, if anything does."""
        before = [*wrapped.body, *wrapped.orelse]
        if leaving is None:
            leaving = self._walk_part(e, wrapped, "orelse")
        else:
            wrapped.orelse = []
        for handler in wrapped.handlers:
            if isinstance(handler.body[-1], (ast.Raise, ast.Return)):
                continue
            leaving = (
                None  # an error in a launch is not followed: neither is what the handler finds, nor what it leaves
            )
            known = [
                name for name in assigned_names(before) if not isinstance(e.frame.names.get(name, _ABSENT), Missing)
            ]
            for name in dict.fromkeys((*known, *assigned_names([handler]))):
                self._forget_sources(name)
                e.frame.names[name] = opaque(f"`{name}`", " (an except clause may find or leave another)")
            for statement in handler.body:
                self._forget(e, statement, opaque(f"what `{_head(statement)}` does").error)
        return self._walk_part(e, wrapped, "finalbody") or leaving

    def _walk_part(self, e: Expressions, wrapped: ast.stmt, field: str) -> Exception | None:
        """Walks a body of a statement, and puts what is generated for it in its place; what leaves it, if anything does."""
        leaving: Exception | None = None
        try:
            made = self._walk_apart(e, getattr(wrapped, field))
        except (Return, Raised) as left:
            leaving, made = left, self.left_body
        setattr(wrapped, field, made)
        return leaving

    def _walk_apart(self, e: Expressions, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The statements to generate for some, walked as a body of their own."""
        outer, self.body = self.body, []
        try:
            self._walk_host(e, statements)
        finally:
            self.left_body, self.body = self.body or [ast.Pass()], outer
        return self.left_body if statements else []

    # --- leaving --------------------------------------------------------------------------------------------------------

    def do_Raise(self, e: Expressions, node: ast.Raise) -> None:
        """The user's error: raised at once where nothing was to be done before it, else by the generated host code."""
        if self.t.on_device:
            raise exc.NotAllowedOnDevice(what="A raise statement")
        value = None if node.exc is None else e.eval(node.exc)
        if isinstance(value, type) and issubclass(value, BaseException) and is_pure(value):
            value = value()
        if isinstance(value, Exception) and not self.uncertain and not self.t.effects and not self.roots:
            raise UserError(value)
        raise Raised()

    def fail_assertion(self, e: Expressions, node: ast.Assert) -> None:
        """An assertion that surely fails."""
        if self.uncertain or self.t.effects or self.roots:
            raise Raised()
        message = None if node.msg is None else e.try_eval(node.msg)
        text = "" if message is None or next(opaques(message), None) is not None else str(hinted(message))
        raise AssertionError(text or f"{ast.unparse(node)} ({e.frame.source.location(node).short()})")

    def do_Break(self, e: Expressions, node: ast.Break) -> None:
        raise exc.NotAllowedOnDevice(what="A break statement") if self.t.on_device else Break()

    def do_Continue(self, e: Expressions, node: ast.Continue) -> None:
        raise exc.NotAllowedOnDevice(what="A continue statement") if self.t.on_device else Continue()

    # --- definitions, deletions, imports --------------------------------------------------------------------------------

    def do_FunctionDef(self, e: Expressions, node: ast.FunctionDef) -> None:
        if self.t.on_device:
            raise exc.NotAllowedOnDevice(what="A nested function")
        for part in ast.walk(node):
            if isinstance(part, (ast.Global, ast.Nonlocal)):
                e.at(part)
                raise _no_scopes(part)
        if node.decorator_list or any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(node)):
            e.frame.names[node.name] = opaque(f"the function `{node.name}`")
            return
        self.bind(e, ast.Name(node.name, ast.Store()), define(e, node))

    def do_Global(self, e: Expressions, node: ast.Global) -> None:
        raise exc.NotAllowedOnDevice(what="A global statement") if self.t.on_device else _no_scopes(node)

    def do_Nonlocal(self, e: Expressions, node: ast.Nonlocal) -> None:
        raise exc.NotAllowedOnDevice(what="A nonlocal statement") if self.t.on_device else _no_scopes(node)

    def do_Delete(self, e: Expressions, node: ast.Delete) -> None:
        if self.t.on_device:
            raise exc.NotAllowedOnDevice(what="A del statement")
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._forget_sources(target.id)
                e.frame.names[target.id] = Missing(_deleted(target.id))
                continue
            if isinstance(target, ast.Subscript) and self._outside(e, target.value) is None:
                container, index = e.eval(target.value), e.plain(e.eval(target.slice))
                if isinstance(container, MUTABLE):
                    del container[index]  # type: ignore[union-attr]
                    continue
            raise exc.InvalidAssignment(target=f"`{ast.unparse(target)}`")

    def do_Import(self, e: Expressions, node: ast.Import) -> None:
        if self.t.on_device:
            raise exc.NotAllowedOnDevice(what="An import statement")
        for alias in node.names:
            whole = sys.modules.get(alias.name if alias.asname else alias.name.split(".")[0])
            self._bind_import(e, alias.asname or alias.name.split(".")[0], whole, alias.name in sys.modules)

    def do_ImportFrom(self, e: Expressions, node: ast.ImportFrom) -> None:
        if self.t.on_device:
            raise exc.NotAllowedOnDevice(what="An import statement")
        module = None if node.level else sys.modules.get(node.module or "")
        for alias in node.names:
            found = getattr(module, alias.name, None)
            self._bind_import(e, alias.asname or alias.name, found, found is not None)
            if module is not None and found is not None:
                self.t.assume("attribute", module, alias.name, found)

    def _bind_import(self, e: Expressions, name: str, value: Any, known: bool) -> None:
        e.frame.names[name] = value if known else opaque(f"`{name}`", " (its module was not imported before)")

    # --- assignments to what is outside ---------------------------------------------------------------------------------

    def assign_attribute(self, e: Expressions, target: ast.Attribute, value: Any) -> None:
        """``owner.name = value`` runs at run time; what reads it later on sees the value."""
        owner = e.eval(target.value)
        e.at(target)
        if self.t.on_device or isinstance(owner, (HostTensorValue, Expr, Opaque)):
            raise exc.InvalidAssignment(target=f"`{ast.unparse(target)}`")
        self.t.effects += 1
        if isinstance(inspect.getattr_static(type(owner), "__setattr__"), types.FunctionType) or isinstance(
            vars(type(owner)).get(target.attr), property
        ):
            value = opaque(f"`{ast.unparse(target)}`")
        self.t.attributes[(id(owner), target.attr)] = (owner, value)

    def assign_outside(self, e: Expressions, target: ast.Subscript) -> bool:
        """Whether an assignment goes to an item of a container from outside, which is not followed any more then."""
        container = None if self.t.on_device else self._outside(e, target.value)
        if container is None:
            return False
        self.t.effects += 1
        unknown = opaque(f"what is in `{ast.unparse(target.value)}` after an assignment")
        self.t.poisoned[id(container)] = (container, unknown)
        return True


_ABSENT = Missing(lambda: exc.UndefinedVariable(name="", detail=""))


def _deleted(name: str) -> Any:
    return lambda: exc.UndefinedVariable(name=name, detail=" after it was deleted")


def _no_scopes(node: Any) -> exc.Base:
    kind = type(node).__name__.lower()
    return exc.StatementNotSupported(
        statement=f"`{kind} {', '.join(node.names)}`",
        where="host",
        remedy="; return the value, or keep it in a list or an object",
    )


#: Context managers that change what torch functions give.
_MODES = frozenset(("device", "autocast", "suppress", "FakeTensorMode", "set_default_dtype", "catch"))


def _name_of(e: Expressions, node: ast.expr) -> str:
    function = e.peek(node.func) if isinstance(node, ast.Call) else None
    module = (getattr(function, "__module__", None) or "").split(".")[0]
    name = getattr(function, "__name__", "")
    if name == "device" and getattr(function, "__module__", "") == "torch.cuda":
        return ""  # the current device: tensors are made where they are asked for
    return name if module in ("torch", "contextlib") else ""


def _head(node: ast.stmt) -> str:
    return ast.unparse(node).splitlines()[0]


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.update(content)


def _changed(before: _SavedHost) -> dict[int, Any]:
    """The containers whose content is not what it was."""
    return {key: now for key, (now, content) in before.contents.items() if not _same_content(now, content)}


def _same_content(now: Any, content: Any) -> bool:
    if len(now) != len(content):
        return False
    if isinstance(now, dict):
        return all(key in content and content[key] is value for key, value in now.items())
    if isinstance(now, set):
        return bool(now == content)
    return all(a is b for a, b in zip(now, content, strict=True))


def _all_plain(values: list[Any]) -> bool:
    first = values[0]
    plain = isinstance(first, (bool, int, float, str, torch.dtype)) or first is None
    return plain and all(type(value) is type(first) and value == first for value in values)


def _leaves(statement: ast.stmt, is_kernel: bool) -> bool:
    """Whether a statement may leave the loop or the helper that it stands in."""
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
    """Names that a statement reads, and whether it may change the containers that they hold."""
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
