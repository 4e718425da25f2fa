"""The interface of a backend: everything that the pipeline, from program to launch, needs from a backend's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from .. import exc
    from .._compiler.autodiff.transform import StagedBackward
    from .._compiler.context import Limits
    from .._compiler.decisions import Decisions
    from .._compiler.facts.records import KernelFacts
    from .._compiler.host.program import Form, Module
    from .._compiler.ir.grammar import Program
    from .._compiler.rewrites.steps import Step
    from ..autotuner.margins import Lead
    from ..autotuner.proposal import Heuristic, Predicted
    from ..autotuner.space.own import OwnKeys
    from ..autotuner.space.program_shape import ProgramShape
    from ..config import Config
    from ..hardware import Target
    from ..settings import Settings
    from .execution import Executor, Toolchain


class Plan(Protocol):
    """The public part of a plan; the rest is private to a backend's planner and printer."""

    @property
    def program(self) -> Program: ...
    @property
    def kernel_names(self) -> tuple[str, ...]:
        """One kernel per phase."""
        ...

    @property
    def origin_lines(self) -> bool:
        """True if comments name the user's lines."""
        ...

    @property
    def warnings(self) -> tuple[exc.BaseWarning, ...]: ...
    @property
    def needs_alignment(self) -> bool:
        """True if tensors that do not begin at a multiple of 16 bytes need the code of another config."""
        ...


P = TypeVar("P", bound=Plan)


class Backend(Protocol[P]):
    """A backend: pure functions, except for launches. Modules that binding a kernel does not need are imported lazily."""

    @property
    def name(self) -> str: ...
    @property
    def is_installed(self) -> bool:
        """True if its compiler is installed; ``backend="auto"`` skips it otherwise."""
        ...

    @property
    def key_prefixes(self) -> tuple[str, ...]:
        """Prefixes of its own config keys: other backends refuse these by its name."""
        ...

    @property
    def steps(self) -> tuple[Step, ...]:
        """All rewrites from the analyzed program to the printed one, in order. The names of its own steps begin with
        its name."""
        ...

    @property
    def heuristics(self) -> tuple[Heuristic, ...]:
        """The heuristics, most specific first; the last one always applies."""
        ...

    @property
    def rules(self) -> Mapping[Any, Callable[..., Any]]:
        """The meaning of functions of ``hl`` that only this backend has, for the front end."""
        ...

    def limits(self, target: Target) -> Limits:
        """Return the limits of a target that shape programs."""
        ...

    def refusal(self, program: Program, target: Target) -> exc.Base | None:
        """Return why it cannot run the program on a target with any config, or None."""
        ...

    def required_divisibility(self, program: Program) -> Mapping[str, int]:
        """Return divisibility assumptions about numbers known only at launch, by their names on the host.

        Each number is, or is not, a multiple of its value for the arguments that the program was bound for. Other
        arguments need another bind.
        """
        ...

    def required_ranges(self, program: Program) -> Mapping[str, range]:
        """Return the values of numbers known only at launch that its code is right for, by their names on the host.

        Each is a number among the arguments. Other arguments need another bind.
        """
        ...

    def reads_rows(self, program: Program) -> bool:
        """Return whether it may take a program that it refuses, if arguments are row-major: if the strides of those of
        three and more dimensions are products of their sizes."""
        ...

    def keys(self, shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
        """Return its own config keys for ``program``, and the rules that legalize a config.

        This is the only place that states what this backend does not support.
        """
        ...

    def described(self, program: Program) -> Program:
        """Return the program from which the facts of ``program`` are collected."""
        ...

    def predict(self, facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
        """Return the predicted time of one launch."""
        ...

    def on_request(self, program: Program, facts: KernelFacts, target: Target) -> str:
        """Return why ``auto`` prefers another backend that takes the kernel, or an empty string."""
        ...

    def lead(self, program: Program, facts: KernelFacts) -> Lead:
        """Return the lead in predicted time over the general backend from which ``auto`` takes a kernel."""
        ...

    def derivative(
        self,
        program: Program,
        wanted: Iterable[int],
        name: str,
        target: Target | None,
        ahead: bool,
        dynamic: Program | None,
    ) -> StagedBackward | None:
        """Return a backward called ``name`` of a program that it knows as a whole, with the gradients of the tensors
        ``wanted``, or None. ``target`` is that of its kernels, if other backends than the general one may compile them.
        With ``ahead`` it may have a forward, which runs in place of the program's kernel. ``dynamic`` is the program of the
        same kernel with dynamic shapes: the source may then serve any sizes."""
        ...

    def with_less_smem(self, config: Config) -> Mapping[str, Any] | None:
        """Return keys that reduce the shared memory of ``config`` for the same tiles; None when no key is left to
        change."""
        ...

    def with_max_registers(self, config: Config, target: Target) -> Mapping[str, Any]:
        """Return keys that spread a tile of ``config`` over as many registers as a program can have."""
        ...

    def plan(self, program: Program, decisions: Decisions, target: Target, settings: Settings) -> P:
        """Return the plan of ``program`` for the decisions of a normalized config."""
        ...

    def emit(self, plan: P, form: Form) -> Module:
        """Return the module of a plan. Raises ``exc.InvalidAPIUsage`` if it cannot have the form."""
        ...

    @property
    def executor(self) -> Executor:
        """The launcher of its generated code."""
        ...

    @property
    def toolchain(self) -> Toolchain:
        """The compiler of its generated code."""
        ...
