"""The walk over a kernel's source, and the recursion over Python's syntax that drives it.

What a class of syntax means is said by a function of its own, which is given a ``Scope``: where the walk stands. All of
them stand in the tables of ``Syntax``, so that a function for one class reaches those for the parts of a node without
knowing them.
"""

from __future__ import annotations

import ast
import collections.abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .... import exc
from ...._shapes import NeedsValue
from ...ir.grammar import Keep, Root
from ...source import Location, place_of
from ..captures import capture
from ..frames import Frame
from ..runtime_values import MUTABLE, Opaque, opaque
from ..tracer import Tracer


class Return(Exception):
    """Ends the walk of a function."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Raised(Exception):
    """Ends the walk where the host code raises an error of its own at run time."""


class Break(Exception):
    """Ends a loop of host code that is unrolled."""


class Continue(Exception):
    """Ends one iteration of a loop of host code that is unrolled."""


class UserError(Exception):
    """Carries an error of the user's out of the walk."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


_TOO_DEEP = (
    "Calls of functions, or parts of an expression, are nested too deeply to follow (a RecursionError of Python's): end the "
    "recursion, or split the expression into statements."
)
#: What leaves statements.
LEAVING = (Return, Raised, Break, Continue, UserError, AssertionError)
#: Errors about what the kernel is, which no run of the host code can answer.
HARD = (
    exc.NestedGridLoop,
    exc.DeviceAPIOnHost,
    exc.BarrierOnlyAllowedAtTopLevel,
    exc.NestedKernelCallsNotSupported,
    exc.LoopFunctionNotInFor,
    exc.NotAllowedOnDevice,
    exc.CannotReadDeviceVariableOnHost,
    exc.UndefinedVariable,
)
#: Expressions besides calls, subscripts and attributes that may give a number at run time only.
_CAPTURED = (ast.Compare, ast.BoolOp, ast.IfExp, ast.UnaryOp, ast.BinOp)


@dataclass(frozen=True, kw_only=True)
class Syntax:
    """What Python's syntax means, by class of node: the value of an expression, what a statement does, how a target is
    assigned to, and how a statement with grid loops in it is walked. ``call`` gives what a call of a value does.
    """

    expressions: Mapping[type[ast.AST], Callable[[Scope, Any], Any]]
    statements: Mapping[type[ast.AST], Callable[[Scope, Any], None]]
    targets: Mapping[type[ast.AST], Callable[[Scope, Any, Any], None]]
    around_grid_loops: Mapping[type[ast.AST], Callable[[Scope, Any], None]]
    call: Callable[[Scope, Any, tuple[Any, ...], dict[str, Any], ast.AST], Any]


@dataclass(eq=False)
class Walk:
    """The walk over one kernel."""

    t: Tracer
    kernel_frame: Frame
    syntax: Syntax
    #: The kernel's grid loops so far.
    roots: list[Root] = field(default_factory=list)
    #: The statements of its host code, with a ``Launch`` for grid loops that follow each other.
    body: list[ast.stmt] = field(default_factory=list)
    #: How many launches there are.
    launches: int = 0
    #: Whether a host loop around grid loops has nothing to iterate over.
    skipped: bool = False
    #: What the header of a grid loop has the host read.
    header_reads: list[Keep] = field(default_factory=list)
    #: A barrier that no loop follows yet.
    open_barrier: ast.stmt | None = None
    #: The grid loop about to be walked; another one stands where none may.
    grid_loop: ast.stmt | None = None
    #: Which memory is shared in some iteration of a host loop.
    shared: dict[int, int] = field(default_factory=dict)
    #: Containers from outside of the kernel that its code changes, by identity.
    changed_outside: dict[int, Any] = field(default_factory=dict)
    #: How many conditions that are known at run time only, and handlers of errors, are around what is being walked.
    uncertain: int = 0
    #: How deep calls of the user's functions are nested.
    depth: int = 0
    #: The statements made for a body that was walked apart.
    left_body: list[ast.stmt] = field(default_factory=list)


class Scope:
    """Where a walk stands: in the names of one function. ``node`` is the piece of source an error is about."""

    __slots__ = ("frame", "node", "t", "walk")

    def __init__(self, walk: Walk, frame: Frame) -> None:
        self.walk = walk
        self.t = walk.t
        self.frame = frame
        self.node: ast.AST | None = None

    def location(self) -> Location | None:
        return None if self.node is None else self.frame.source.location(self.node)

    def at(self, node: ast.AST) -> None:
        """What follows is about ``node``."""
        self.node = node
        if self.t.on_device:
            self.t.builder.location = self.frame.source.location(node)

    def source_text(self) -> str:
        return "" if self.node is None else ast.unparse(self.node)

    @property
    def where(self) -> str:
        return "device" if self.t.on_device else "host"


def evaluate(s: Scope, node: ast.expr) -> Any:
    """The value of an expression."""
    rule = s.walk.syntax.expressions.get(type(node))
    if rule is None:
        s.at(node)
        raise exc.StatementNotSupported(statement=f"`{ast.unparse(node)}`", where=s.where, remedy="")
    result = rule(s, node)
    if isinstance(result, MUTABLE) and id(result) in s.t.world.poisoned:
        result = s.t.world.poisoned[id(result)][1]
    if s.t.on_device:
        if isinstance(result, Opaque):
            raise result.error.with_traceback(None)
    elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return kept(s, result)
    elif isinstance(node, _CAPTURED):
        return captured(s, result, node)
    return result


def try_evaluate(s: Scope, node: ast.expr) -> Any:
    """The value of an expression, or None when it has none here."""
    try:
        return evaluate(s, node)
    except exc.Base:
        return None


def execute(s: Scope, statement: ast.stmt) -> None:
    """Does what a statement does."""
    rule = s.walk.syntax.statements.get(type(statement))
    s.at(statement)
    if rule is None:
        name = type(statement).__name__.lower()
        if s.t.on_device:
            raise exc.NotAllowedOnDevice(what=f"A {name} statement")
        raise exc.StatementNotSupported(statement=f"A {name} statement", where="host", remedy="")
    try:
        rule(s, statement)
    except (exc.Base, *LEAVING):
        raise
    except RecursionError as error:
        raise exc.TypeInferenceError(_TOO_DEEP, location=s.location()) from error
    except Exception as error:
        if not s.t.on_device and not isinstance(error, NeedsValue):
            raise
        # whatever a call of the user's raised: say on which line
        raise exc.TypeInferenceError(f"{type(error).__name__}: {error}.", location=s.location()) from error


def assign(s: Scope, target: ast.expr, value: Any) -> None:
    """Assigns ``value`` to a name, an item, an attribute, or a tuple of them."""
    rule = s.walk.syntax.targets.get(type(target))
    if rule is None:
        s.at(target)
        raise exc.InvalidAssignment(target=f"`{ast.unparse(target)}`")
    rule(s, target, value)


def call(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.AST) -> Any:
    """What ``function(*args, **kwargs)`` gives; ``node`` is where it is called."""
    return s.walk.syntax.call(s, function, args, kwargs, node)


def kept(s: Scope, value: Any) -> Any:
    """A value that host code keeps. What an iterator that is kept gives next depends on who asked before."""
    if s.t.on_device or not isinstance(value, collections.abc.Iterator):
        return value
    return opaque(f"the iterator `{s.source_text()}`")


def captured(s: Scope, result: Any, node: ast.expr) -> Any:
    """What an expression of the kernel's host code gives, with names that launches can pass it by."""
    return result if s.t.on_device or not s.frame.is_kernel else capture(s.t, result, place_of(node))
