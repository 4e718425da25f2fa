"""The walk over a kernel's source, and the recursion over Python's syntax that drives it.

Each class of syntax has a function, which takes a ``Scope``: the current position of the walk. The tables of ``Syntax``
contain these functions, so that one can call those for the parts of a node without importing them.
"""

from __future__ import annotations

import ast
import collections.abc
from collections.abc import Callable, Mapping
from typing import Any

from .... import exc
from ...._shapes import NeedsValue
from ...._support.records import dataclass, field
from ...ir.grammar import Root
from ...ir.host_module import Keep
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
    """Ends the walk where the host code raises its own error at run time."""


class Break(Exception):
    """Ends a loop of host code that is unrolled."""


class Continue(Exception):
    """Ends one iteration of a loop of host code that is unrolled."""


class UserError(Exception):
    """Carries a user's error out of the walk."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


_TOO_DEEP = (
    "Calls of functions, or parts of an expression, are nested too deeply to follow (a RecursionError of Python's): end the "
    "recursion, or split the expression into statements."
)
#: Exceptions that leave statements.
LEAVING = (Return, Raised, Break, Continue, UserError, AssertionError)
#: Errors about the form of the kernel, which cannot depend on run-time values.
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
#: Expressions other than calls, subscripts and attributes whose number may be known at run time only.
_CAPTURED = (ast.Compare, ast.BoolOp, ast.IfExp, ast.UnaryOp, ast.BinOp)


@dataclass(frozen=True, kw_only=True)
class Syntax:
    """The functions for Python's syntax, by class of node.

    There is one table each for values of expressions, for statements, for targets of assignments, and for statements
    around grid loops. ``call`` evaluates the call of a value.
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
    #: Number of launches.
    launches: int = 0
    #: True if a host loop around grid loops has no iterations.
    skipped: bool = False
    #: Values that the host reads in the header of a grid loop.
    header_reads: list[Keep] = field(default_factory=list)
    #: A barrier that no loop follows yet.
    open_barrier: ast.stmt | None = None
    #: The grid loop about to be walked; any other one is in a place that is not allowed.
    grid_loop: ast.stmt | None = None
    #: Memory that is shared in some iteration of a host loop.
    shared: dict[int, int] = field(default_factory=dict)
    #: Containers from outside of the kernel that its code changes, by identity.
    changed_outside: dict[int, Any] = field(default_factory=dict)
    #: Number of conditions known at run time only, and of error handlers, around the current position.
    uncertain: int = 0
    #: Depth of nested calls of user functions.
    depth: int = 0
    #: The statements generated for a body that was walked separately.
    left_body: list[ast.stmt] = field(default_factory=list)


class Scope:
    """The position of a walk: the names of one function. ``node`` is the source node of errors."""

    __slots__ = ("frame", "node", "t", "walk")

    def __init__(self, walk: Walk, frame: Frame) -> None:
        self.walk = walk
        self.t = walk.t
        self.frame = frame
        self.node: ast.AST | None = None

    def location(self) -> Location | None:
        return None if self.node is None else self.frame.source.location(self.node)

    def at(self, node: ast.AST) -> None:
        """Set the current node, which errors and recorded ops refer to."""
        self.node = node
        self.t.world.scope = self
        if self.t.on_device:
            self.t.builder.location = self.frame.source.location(node)

    def source_text(self) -> str:
        return "" if self.node is None else ast.unparse(self.node)

    @property
    def where(self) -> str:
        return "device" if self.t.on_device else "host"


def evaluate(s: Scope, node: ast.expr) -> Any:
    """Return the value of an expression."""
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
    """Return the value of an expression, or None if its evaluation fails."""
    try:
        return evaluate(s, node)
    except exc.Base:
        return None


def execute(s: Scope, statement: ast.stmt) -> None:
    """Execute a statement."""
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
        # an exception from a user's call: add the line
        raise exc.TypeInferenceError(f"{type(error).__name__}: {error}.", location=s.location()) from error


def assign(s: Scope, target: ast.expr, value: Any) -> None:
    """Assign ``value`` to a name, an item, an attribute, or a tuple of them."""
    rule = s.walk.syntax.targets.get(type(target))
    if rule is None:
        s.at(target)
        raise exc.InvalidAssignment(target=f"`{ast.unparse(target)}`")
    rule(s, target, value)


def call(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.AST) -> Any:
    """Evaluate ``function(*args, **kwargs)`` at the call ``node``."""
    return s.walk.syntax.call(s, function, args, kwargs, node)


def kept(s: Scope, value: Any) -> Any:
    """Return a value for host code to keep; an iterator becomes opaque, as its next item depends on earlier reads."""
    if s.t.on_device or not isinstance(value, collections.abc.Iterator):
        return value
    return opaque(f"the iterator `{s.source_text()}`")


def captured(s: Scope, result: Any, node: ast.expr) -> Any:
    """Return the result of an expression of the kernel's host code, with names by which launches can pass it."""
    return result if s.t.on_device or not s.frame.is_kernel else capture(s.t, result, place_of(node), node)
