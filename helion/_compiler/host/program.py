"""The host function of a generated module as data, shared by printing, launching and reports."""

from __future__ import annotations

import ast
import bisect
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..._support.lazy import lazy
from ..._support.records import dataclass
from ..ir.host_module import HostModule
from ..source import Location
from .trees import Rewriter

if TYPE_CHECKING:
    from . import analysis
else:
    # the effects of programs that were kept are known
    analysis = lazy("helion._compiler.host.analysis")

LAUNCHER, OTHERWISE = "_launcher", "_otherwise"


class KernelLaunch(ast.stmt):
    """A kernel of the module, launched over ``grid`` programs. ``options`` are keyword arguments of the launch."""

    _fields = ("kernel", "grid", "arguments", "options")

    def __init__(
        self,
        kernel: str = "",
        grid: Sequence[ast.expr] = (),
        arguments: Sequence[ast.expr] = (),
        options: Sequence[ast.keyword] = (),
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.grid, self.arguments, self.options = list(grid), list(arguments), list(options)

    def call(self, launcher: str = LAUNCHER) -> ast.stmt:
        """Return the launch as a call of the function in a variable."""
        given = [ast.Name(self.kernel, ast.Load()), ast.Tuple(self.grid, ast.Load()), *self.arguments]
        return ast.Expr(ast.Call(ast.Name(launcher, ast.Load()), given, self.options))


@dataclass(frozen=True, kw_only=True)
class Import:
    """``import module as alias``, or ``from module import name as alias``."""

    module: str
    name: str = ""
    alias: str = ""

    @property
    def line(self) -> str:
        imported = f"from {self.module} import {self.name}" if self.name else f"import {self.module}"
        return f"{imported} as {self.alias}" if self.alias else imported


@dataclass(frozen=True, kw_only=True, eq=False)
class HostProgram:
    """The user's function around its launches, for one config.

    ``launches`` are the statements in each place where the user's code had device loops, with a ``KernelLaunch`` for
    each kernel; ``body`` contains them, too. ``class_check`` redirects arguments of another class than the bound ones,
    for callers that have not checked them. Nodes are shared with other functions and are never modified.
    """

    traced: HostModule
    arguments: ast.arguments
    class_check: tuple[ast.stmt, ...]
    body: tuple[ast.stmt, ...]
    launches: tuple[tuple[ast.stmt, ...], ...]
    imports: tuple[Import, ...]
    #: It reads globals of the user's module.
    reads_source: bool
    #: Reference for tensors that host code made: the arguments of ``expected_tensors`` for each launch that compares.
    comparisons: tuple[tuple[Any, ...], ...]
    #: Host expressions of the tensors that the kernels may write; None where that is not known.
    written: frozenset[str] | None

    def __getstate__(self) -> dict[str, Any]:
        _ = self.names, self.stored, self.is_plain, self.may_write_arguments  # which a later process reads first
        return vars(self)

    @property
    def name(self) -> str:
        return self.traced.name

    def statements(self, launch: Callable[[KernelLaunch], Sequence[ast.stmt]] | None = None) -> list[ast.stmt]:
        """Return the body with statements in place of the launches: calls of the launcher, unless ``launch`` gives
        others.
        """
        return _Launches(launch or _called).all(self.body)

    def checked_launch(self, number: int) -> ast.stmt | None:
        """Return the launches of one place, guarded by checks of what host code computes; None without a check."""
        statement = self.launch(number)
        return statement if isinstance(statement, ast.If) and statement.orelse else None

    def launch(self, number: int) -> ast.stmt | None:
        """Return the launches of one place as one statement, guarded by their checks if they have any; None if there are
        none."""
        if number >= len(self.launches):
            return None
        made = _Launches(_called).all(self.launches[number])
        guarded = bool(made) and isinstance(made[-1], ast.If)
        return made[-1] if guarded else ast.If(ast.Constant(True), made, [])

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """All names in the body."""
        return frozenset(n.id for s in self.body for n in ast.walk(s) if isinstance(n, ast.Name))

    @functools.cached_property
    def stored(self) -> frozenset[str]:
        """Variables that the body binds."""
        nodes = (n for s in self.body for n in ast.walk(s) if isinstance(n, ast.Name))
        return frozenset(n.id for n in nodes if isinstance(n.ctx, ast.Store))

    @functools.cached_property
    def is_plain(self) -> bool:
        """True if its statements do the same in another function: it is no generator and binds no globals."""
        unusual = (ast.Global, ast.Yield, ast.YieldFrom)
        return not any(isinstance(n, unusual) for s in self.body for n in ast.walk(s))

    @functools.cached_property
    def may_write_arguments(self) -> bool:
        """True if the kernels write into anything but tensors that the host code has just allocated under that name.

        If they do not, arguments may share memory freely.
        """
        return self.written is None or not self.written <= analysis.fresh_names(self.traced.function)

    def is_repeatable(self, launched: bool) -> bool:
        """Return whether a call whose launch failed can be repeated.

        No kernel may have run before in it; none can have if none has ever ``launched``. No host statement before the
        last launch may write into memory that existed before the call.
        """
        kernels = [n for s in self.body for n in ast.walk(s) if isinstance(n, KernelLaunch)]
        alone = len(kernels) == 1 and analysis.launches_once(self.traced.function)
        return (alone or not launched) and not analysis.writes_before_launch(self.traced.function)


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form of a generated module.

    ``alone``: it imports nothing of Helion. ``source``: name and file of the user's module, which it runs for the
    globals that the host code reads because nothing else has loaded it.
    """

    alone: bool = False
    source: tuple[str, str] | None = None


PLAIN = Form()


@dataclass(frozen=True, kw_only=True)
class Module:
    """A generated module. ``origins``: line numbers, ascending, each the first line that belongs to a location of the
    user's code.
    """

    text: str
    host: HostProgram
    origins: tuple[tuple[int, Location | None], ...] = ()

    def origin(self, line: int) -> Location | None:
        """Return the location of the user's code that a line belongs to, if any."""
        at = bisect.bisect_right(self.origins, line, key=lambda origin: origin[0])
        return self.origins[at - 1][1] if at else None


def _called(launch: KernelLaunch) -> list[ast.stmt]:
    return [launch.call()]


class _Launches(Rewriter):
    def __init__(self, launch: Callable[[KernelLaunch], Sequence[ast.stmt]]) -> None:
        self._launch = launch

    def visit_KernelLaunch(self, node: KernelLaunch) -> Sequence[ast.stmt]:
        return self._launch(node)
