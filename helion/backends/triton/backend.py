"""The Triton backend, as the rest of the product uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..._support.lazy import LazyTable, lazy
from ..._support.records import dataclass, replace

if TYPE_CHECKING:
    from ... import exc
    from ..._compiler import rewrites
    from ..._compiler.autodiff.transform import StagedBackward
    from ..._compiler.context import Limits
    from ..._compiler.decisions import Decisions
    from ..._compiler.facts.records import KernelFacts
    from ..._compiler.host.program import Form, Module
    from ..._compiler.ir.grammar import Program
    from ..._compiler.rewrites import unfuse_matmul
    from ..._compiler.rewrites.steps import Step
    from ...autotuner import margins
    from ...autotuner.proposal import Heuristic, Predicted
    from ...autotuner.space.own import OwnKeys
    from ...autotuner.space.program_shape import ProgramShape
    from ...hardware import Target
    from ...settings import Settings
    from ..execution import Executor, Toolchain
    from . import capabilities, inline, remote, space, value_limits
    from .codegen import module
    from .execute import executor
    from .heuristics import several_loops
    from .lower import host, kernels, steps
    from .plan import build
    from .plan.records import Plan
    from .resources import predict, unfused
    from .resources.time import launch
    from .resources.time import predict as time
    from .toolchain import chain, signature
else:
    # importing the package needs none of these, and neither does binding with the front end alone
    inline = lazy("helion.backends.triton.inline")
    remote = lazy("helion.backends.triton.remote")
    module = lazy("helion.backends.triton.codegen.module")
    host = lazy("helion.backends.triton.lower.host")
    capabilities = lazy("helion.backends.triton.capabilities")
    steps = lazy("helion.backends.triton.lower.steps")
    kernels = lazy("helion.backends.triton.lower.kernels")
    several_loops = lazy("helion.backends.triton.heuristics.several_loops")
    executor = lazy("helion.backends.triton.execute.executor")
    build = lazy("helion.backends.triton.plan.build")
    margins = lazy("helion.autotuner.margins")
    rewrites = lazy("helion._compiler.rewrites")
    unfuse_matmul = lazy("helion._compiler.rewrites.unfuse_matmul")
    predict = lazy("helion.backends.triton.resources.predict")
    launch = lazy("helion.backends.triton.resources.time.launch")
    time = lazy("helion.backends.triton.resources.time.predict")
    unfused = lazy("helion.backends.triton.resources.unfused")
    space = lazy("helion.backends.triton.space")
    value_limits = lazy("helion.backends.triton.value_limits")
    chain = lazy("helion.backends.triton.toolchain.chain")
    signature = lazy("helion.backends.triton.toolchain.signature")


_KEY_PREFIXES = (
    "range_", "static_range", "num_warps", "num_stages", "pid_type", "num_sm_multiplier", "cooperative_launch", "maxnreg", "indexing",
    "atomic_indexing", "load_", "store_", "waves_per_eu", "matrix_instr_nonkdim", "kpack", "xcd_remap",
    "advanced_controls_file", "_triton_config_",
)  # fmt: skip


def _rules() -> Mapping[Any, Callable[..., Any]]:
    return {**inline.RULES, **remote.RULES}


#: Analyses that a former process has kept need no rules, which import the front end.
_RULES = LazyTable(_rules)


@dataclass(frozen=True, kw_only=True)
class Triton:
    """The backend that prints Triton; see ``backends.protocol.Backend``."""

    name: str = "triton"
    is_installed: bool = True

    @property
    def key_prefixes(self) -> tuple[str, ...]:
        return (*_KEY_PREFIXES, *rewrites.keys())

    @property
    def steps(self) -> tuple[Step, ...]:
        return steps.STEPS

    @property
    def heuristics(self) -> tuple[Heuristic, ...]:
        return several_loops.heuristics()

    @property
    def rules(self) -> Mapping[Any, Callable[..., Any]]:
        return _RULES

    def limits(self, target: Target) -> Limits:
        return capabilities.limits(target)

    def refusal(self, program: Program, target: Target) -> exc.Base | None:
        return capabilities.refusal(program, target)

    def required_divisibility(self, program: Program) -> Mapping[str, int]:
        """Return no multiples: Triton's launches specialize on divisibility by themselves."""
        return {}

    def required_ranges(self, program: Program) -> Mapping[str, range]:
        """Return no ranges: a kernel is right for all values."""
        return {}

    def reads_rows(self, program: Program) -> bool:
        """Return False: addresses follow from any strides."""
        return False

    def keys(self, shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
        return space.own_keys(shape, program, target, settings)

    def described(self, program: Program) -> Program:
        return program

    def on_request(self, program: Program, facts: KernelFacts, target: Target) -> str:
        """Return no reason: this is the general backend."""
        return ""

    def lead(self, program: Program, facts: KernelFacts) -> margins.Lead:
        """Return no lead: this is the general backend."""
        return margins.NO_LEAD

    def derivative(
        self,
        program: Program,
        wanted: Iterable[int],
        name: str,
        target: Target | None,
        ahead: bool,
        dynamic: Program | None,
    ) -> StagedBackward | None:
        """Return None: programs are differentiated op by op."""
        return None

    def predict(self, facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
        tile, parts = unfuse_matmul.matmul_tile(decisions), facts.unfused
        if tile is None or isinstance(parts, str):
            return self._predict(facts, decisions, target)
        warps, stages = unfuse_matmul.matmul_launch(decisions)
        launched = launch.launch_of(decisions)
        first = unfused.ProductLaunch(
            tile=tile,
            warps=warps,
            stages=stages,
            turned=decisions.values.get("swap_ab", False),
            crosswise=decisions.values.get("transpose_operands", False),
            boxed=launched.boxed,
            persistent=launched.persistent,
            per_sm=launched.per_sm,
        )
        products = unfused.predict_products(parts, first, decisions.sizes, target)
        sizes = unfused.product_sizes(parts, tile, decisions.sizes)
        rest = self._predict(parts.rest, replace(decisions, sizes=sizes), target)
        return unfused.one_after_the_other(products, rest)

    def _predict(self, facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
        flat = facts.flat.value if facts.flat is not None and any(decisions.entries["flatten_loops"].values()) else None
        if flat is not None and all(decisions.at("flatten_loops", number) for number in flat.loops):
            facts, decisions = flat.facts, replace(decisions, sizes=flat.sizes(decisions.sizes))
        changed = facts.after(*(rewrite.key for rewrite in rewrites.REWRITES if rewrite.is_on(decisions)))
        facts = changed.facts
        taken_by = launch.launch_of(decisions, changed.copied_bytes)
        ways = decisions.accesses("indexing")
        descriptor_slots = frozenset(slot for slot, way in ways.items() if way == "tensor_descriptor")
        own_stages = max(0, *decisions.entries["range_num_stages"].values())
        taken = predict.predict(
            facts,
            decisions.sizes,
            num_warps=decisions.values["num_warps"],
            num_stages=max(decisions.values["num_stages"], own_stages),
            target=target,
            prefetch_stages=max(1, own_stages),
            unrolled=max(1, *decisions.entries["range_unroll_factors"].values()),
            # a loop with asynchronous copies keeps only narrow tiles in registers
            ahead=0 if own_stages > 1 and target.kind == "cuda" else decisions.values.get("prefetch_distance", 0),
            descriptor_slots=descriptor_slots,
            once=bool(descriptor_slots) and decisions.values["pid_type"] == "flat",
            fused=taken_by.fused,
            persistent=taken_by.persistent,
            parts=taken_by.parts,
            flattened=facts.num_roots == 1 and bool(taken_by.flattened),
        )
        if decisions.values.get("maxnreg"):
            taken = predict.capped(taken, decisions.values["maxnreg"], decisions.values["num_warps"], target)
        found = time.timing(facts, taken_by, taken, target)
        return replace(taken, time_us=found.us, units=found.units, error=found.error)

    def with_less_smem(self, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return one pipeline stage less: for unfused matmuls first, else for the launch and the loops with stages of
        their own.
        """
        own = config.get("matmul_num_stages")
        if own is not None and own > 1:
            return {"matmul_num_stages": own - 1}
        stages = max(config["num_stages"], *config["range_num_stages"])
        if stages == 1:
            return None
        per_loop = [min(own, stages - 1) for own in config["range_num_stages"]]
        return {"num_stages": min(config["num_stages"], stages - 1), "range_num_stages": per_loop}

    def with_max_registers(self, config: Mapping[str, Any], target: Target) -> Mapping[str, Any]:
        return {"num_warps": value_limits.warps_that_fit(target)}

    def plan(self, program: Program, decisions: Decisions, target: Target, settings: Settings) -> Plan:
        return build.build_plan(program, decisions, target, settings, self.steps)

    def emit(self, plan: Plan, form: Form) -> Module:
        return module.render_module(plan, kernels.kernels_of(plan), host.host_program(plan), form)

    @property
    def executor(self) -> Executor:
        return executor.EXECUTOR

    @property
    def toolchain(self) -> Toolchain:
        return chain.TOOLCHAIN
