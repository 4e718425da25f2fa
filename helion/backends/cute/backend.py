"""The backend for warp-specialized kernels, as the rest of helion sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..._support.lazy import LazyTable, lazy
from ..._support.records import dataclass

if TYPE_CHECKING:
    from ... import exc
    from ..._compiler.autodiff.transform import StagedBackward
    from ..._compiler.context import Limits
    from ..._compiler.decisions import Decisions
    from ..._compiler.facts.records import KernelFacts
    from ..._compiler.host.program import Form, Module
    from ..._compiler.ir.grammar import Program
    from ..._compiler.rewrites.steps import Step
    from ...autotuner.margins import Lead
    from ...autotuner.proposal import Heuristic, Predicted
    from ...autotuner.space.own import OwnKeys
    from ...autotuner.space.program_shape import ProgramShape
    from ...hardware import Target
    from ...settings import Settings
    from ..execution import Executor, Toolchain
    from . import limits, remote, shapes
    from .codegen import whole
    from .derivative import derive
    from .execute import executor
    from .heuristics import registry
    from .lower import host
    from .plan.launch import LaunchPlan
    from .toolchain import chain, installed, library
else:
    # `import helion` needs none of these
    derive = lazy("helion.backends.cute.derivative.derive")
    limits = lazy("helion.backends.cute.limits")
    remote = lazy("helion.backends.cute.remote")
    shapes = lazy("helion.backends.cute.shapes")
    whole = lazy("helion.backends.cute.codegen.whole")
    executor = lazy("helion.backends.cute.execute.executor")
    registry = lazy("helion.backends.cute.heuristics.registry")
    host = lazy("helion.backends.cute.lower.host")
    chain = lazy("helion.backends.cute.toolchain.chain")
    library = lazy("helion.backends.cute.toolchain.library")
    installed = lazy("helion.backends.cute.toolchain.installed")


def _rules() -> Mapping[Any, Callable[..., Any]]:
    return remote.RULES


#: Analyses that a former process has kept need no rules, which import the front end.
_RULES = LazyTable(_rules)


@dataclass(frozen=True, kw_only=True)
class Cute:
    """The backend that prints the CuTe DSL; see ``backends.protocol.Backend``."""

    name: str = "cute"
    key_prefixes: tuple[str, ...] = ("tcgen05_", "wgmma_", "cute_", "_cute_config_", "num_threads")
    steps: tuple[Step, ...] = ()

    @property
    def is_installed(self) -> bool:
        return bool(installed.installed_version())

    @property
    def heuristics(self) -> tuple[Heuristic, ...]:
        return registry.HEURISTICS

    @property
    def rules(self) -> Mapping[Any, Callable[..., Any]]:
        return _RULES

    def limits(self, target: Target) -> Limits:
        return limits.limits(target)

    def refusal(self, program: Program, target: Target) -> exc.Base | None:
        return shapes.shape_of_program(program).refusal(program, target)

    def required_divisibility(self, program: Program) -> Mapping[str, int]:
        return shapes.shape_of_program(program).multiples(program)

    def required_ranges(self, program: Program) -> Mapping[str, range]:
        return shapes.shape_of_program(program).ranges(program)

    def reads_rows(self, program: Program) -> bool:
        return shapes.ROWS.claims(program)

    def keys(self, shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
        return shapes.shape_of_program(program).keys(shape, program, target, settings)

    def described(self, program: Program) -> Program:
        return shapes.shape_of_program(program).described(program)

    def predict(self, facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
        return shapes.shape_of_facts(facts).predict(facts, decisions, target)

    def on_request(self, program: Program, facts: KernelFacts, target: Target) -> str:
        return shapes.shape_of_program(program).on_request(program, facts, target)

    def lead(self, program: Program, facts: KernelFacts) -> Lead:
        return shapes.lead_of(program, facts)

    def derivative(
        self,
        program: Program,
        wanted: Iterable[int],
        name: str,
        target: Target | None,
        ahead: bool,
        dynamic: Program | None,
    ) -> StagedBackward | None:
        return derive.derivative(program, wanted, name, target, ahead, dynamic)

    def with_less_smem(self, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return None: legalizing a config has already shrunk its tiles' memory as far as possible."""
        return None

    def with_max_registers(self, config: Mapping[str, Any], target: Target) -> Mapping[str, Any]:
        """Return no keys: the roles already divide all registers."""
        return {}

    def plan(self, program: Program, decisions: Decisions, target: Target, settings: Settings) -> LaunchPlan:
        return shapes.shape_of_program(program).plan(program, decisions, target, settings)

    def emit(self, plan: LaunchPlan, form: Form) -> Module:
        """Return the module of a plan. Verify the plan first, which takes up to 0.1 s, unless it is compiled already."""
        shape = shapes.shape_of_plan(plan)
        kernel = shape.kernel(plan)
        module = whole.render_module(kernel, host.host_program(plan, shape.pieces), form)
        if not library.is_compiled(kernel):
            shape.verify(plan)
        return module

    @property
    def executor(self) -> Executor:
        return executor.EXECUTOR

    @property
    def toolchain(self) -> Toolchain:
        return chain.TOOLCHAIN
