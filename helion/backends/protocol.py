"""What a backend is: all that the way from a program to a launch asks of the folder it stands in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from .. import exc
    from .._compiler.context import Limits
    from .._compiler.facts.records import KernelFacts
    from .._compiler.host.program import Form, Module
    from .._compiler.ir.grammar import Program
    from .._compiler.passes.schedule import Step
    from ..autotuner.decisions import Decisions
    from ..autotuner.proposal import Heuristic, Predicted
    from ..autotuner.space.own import OwnKeys
    from ..autotuner.space.survey import Survey
    from ..config import Config
    from ..hardware import Target
    from ..settings import Settings
    from .execution import Executor, Toolchain


class Plan(Protocol):
    """What everybody may read of a plan; the rest is between a backend's planner and its printer."""

    @property
    def program(self) -> Program: ...
    @property
    def kernel_names(self) -> tuple[str, ...]:
        """One kernel per phase."""
        ...

    @property
    def origin_lines(self) -> bool:
        """Whether comments name the user's lines."""
        ...

    @property
    def warnings(self) -> tuple[exc.BaseWarning, ...]: ...


P = TypeVar("P", bound=Plan)


class Backend(Protocol[P]):
    """Pure functions, but for what launches. Modules that binding a kernel does not need are imported when used."""

    @property
    def name(self) -> str: ...
    @property
    def is_installed(self) -> bool:
        """Whether what it compiles with is here; ``backend="auto"`` passes it over where it is not."""
        ...

    @property
    def key_prefixes(self) -> tuple[str, ...]:
        """What the names of its own config keys begin with: other backends refuse these by its name."""
        ...

    @property
    def steps(self) -> tuple[Step, ...]:
        """All rewrites from the program that facts are made of to the one that is printed, in order; the names of those of
        its own begin with its name."""
        ...

    @property
    def heuristics(self) -> tuple[Heuristic, ...]:
        """The most specific first; the last one always applies."""
        ...

    @property
    def rules(self) -> Mapping[Any, Callable[..., Any]]:
        """What functions of ``hl`` mean to the front end that only it has."""
        ...

    def limits(self, target: Target) -> Limits:
        """What it takes on a target, as far as that shapes programs."""
        ...

    def refusal(self, program: Program, target: Target) -> exc.Base | None:
        """What it cannot do on a target at all, whatever the config."""
        ...

    def multiples(self, program: Program) -> Mapping[str, int]:
        """Of numbers that only launches know, by their names on the host, what they are, or are not, multiples of for the
        arguments that the program was bound for: code for others is bound anew."""
        ...

    def keys(self, seen: Survey, program: Program, target: Target, settings: Settings) -> OwnKeys:
        """Its own keys of a config for ``program``, and the rules that settle what a config decides: the only place that
        says what this backend cannot have."""
        ...

    def predict(self, facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
        """What one launch takes."""
        ...

    def lighter(self, config: Config) -> Mapping[str, Any] | None:
        """Keys of ``config`` with which the same tiles take less memory of an SM; None when no key is left to change."""
        ...

    def wider(self, config: Config, target: Target) -> Mapping[str, Any]:
        """Keys of ``config`` with which a tile is spread over as many registers as a program can have."""
        ...

    def plan(self, program: Program, decisions: Decisions, target: Target, settings: Settings) -> P:
        """What the decisions of a normalised config come to for ``program``."""
        ...

    def emit(self, plan: P, form: Form) -> Module:
        """The module of a plan. Raises ``exc.InvalidAPIUsage`` where it cannot have the form."""
        ...

    @property
    def executor(self) -> Executor:
        """Launches what it printed."""
        ...

    @property
    def toolchain(self) -> Toolchain:
        """Compiles and measures what it printed."""
        ...
