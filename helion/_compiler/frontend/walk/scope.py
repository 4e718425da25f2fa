"""What every part of the walk shares."""

from __future__ import annotations

import ast
from typing import Any

from .... import exc
from ...._shapes import NeedsValue
from ...ir.grammar import Keep, Root
from ..expressions.operators import Expressions
from ..frames import Frame
from ..tracer import Tracer
from ..values import Missing


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


#: What leaves statements.
LEAVING = (Return, Raised, Break, Continue, UserError, AssertionError)


class WalkerBase:
    """Walks one kernel. ``roots`` collects its grid loops, ``body`` the statements of its host code, with a ``Launch``
    for grid loops that follow each other; ``launch`` is the body that the last of ``launches`` stands in.
    ``open_barrier`` is a barrier that no loop follows yet.
    """

    def __init__(self, t: Tracer, kernel_frame: Frame) -> None:
        self.t = t
        self.kernel_frame = kernel_frame
        self.roots: list[Root] = []
        self.body: list[ast.stmt] = []
        self.launch: list[ast.stmt] | None = None
        self.launches = 0
        #: Whether a host loop around grid loops has nothing to iterate over.
        self.skipped = False
        #: What the header of a grid loop has the host read.
        self.header_reads: list[Keep] = []
        self.open_barrier: ast.stmt | None = None
        #: The grid loop about to be walked; another one stands where none may.
        self.grid_loop: ast.stmt | None = None
        #: How many host loops around grid loops are being walked, and which memory is shared in some iteration.
        self.host_loops = 0
        self.shared: dict[int, int] = {}
        #: How many conditions that are known at run time only, and handlers of errors, are around what is being walked.
        self.uncertain = 0
        #: How deep calls of the user's functions are nested.
        self.depth = 0
        #: The statements made for a body that was walked apart.
        self.left_body: list[ast.stmt] = []

    def execute_all(self, e: Expressions, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if self.t.on_device:
                self.execute(e, statement)
            else:
                self.execute_host(e, statement)

    def execute_host(self, e: Expressions, statement: ast.stmt) -> None:
        """A statement of host code, which may run at run time without being followed."""
        raise NotImplementedError

    def _forget_sources(self, name: str) -> None:
        """Host expressions that begin with a name lose their meaning when the name is bound again."""
        raise NotImplementedError

    def execute(self, e: Expressions, statement: ast.stmt) -> None:
        method = getattr(self, f"do_{type(statement).__name__}", None)
        e.at(statement)
        if method is None:
            name = type(statement).__name__.lower()
            if e.t.on_device:
                raise exc.NotAllowedOnDevice(what=f"A {name} statement")
            raise exc.StatementNotSupported(statement=f"A {name} statement", where="host", remedy="")
        try:
            method(e, statement)
        except (exc.Base, *LEAVING):
            raise
        except Exception as error:
            if not e.t.on_device and not isinstance(error, NeedsValue):
                raise
            # whatever a call of the user's raised: say on which line
            raise exc.TypeInferenceError(f"{type(error).__name__}: {error}.", location=e.location()) from error

    def bind(self, e: Expressions, target: ast.expr, value: Any) -> None:
        """Assign ``value`` to a name, a subscript, or a tuple of them."""
        raise NotImplementedError


def device_value_on_host(name: str) -> Missing:
    return Missing(lambda: exc.CannotReadDeviceVariableOnHost(name=name))


def defined_in_one_branch(name: str) -> Missing:
    return Missing(
        lambda: exc.UndefinedVariable(
            name=name, detail=" on every way through the if statement; assign it before, or in both branches"
        )
    )


def loop_local(name: str) -> Missing:
    return Missing(
        lambda: exc.UndefinedVariable(
            name=name, detail=" after the loop that assigns it, which may run zero times; assign it before the loop"
        )
    )
