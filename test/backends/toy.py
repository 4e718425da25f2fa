"""A backend in one file: elementwise kernels as loops over torch tiles, on the CPU."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from helion import exc
from helion._compiler.context import Limits
from helion._compiler.decisions import Decisions
from helion._compiler.facts.records import KernelFacts
from helion._compiler.host.analysis import written
from helion._compiler.host.build import HostBuilder, KernelCall
from helion._compiler.host.print import SOURCE_IMPORT, print_comparisons, print_host, print_source
from helion._compiler.host.program import Form, Module
from helion._compiler.ir.grammar import MemoryAttrs, Op, PointwiseAttrs, Program
from helion._shapes import cdiv
from helion.autotuner.margins import PREDICTABLE_LEAD, Lead
from helion.autotuner.proposal import Heuristic, Predicted, Proposal
from helion.autotuner.space.own import OwnKeys
from helion.autotuner.space.program_shape import ProgramShape
from helion.backends.execution import CompileError, KeptModule, Launcher, OutOfResources, Resources
from helion.hardware import Target
from helion.settings import Settings

_FUNCTIONS = {"add": "torch.add", "sub": "torch.sub", "mul": "torch.mul"}
_LAUNCHER = """
def _default_launcher(kernel, grid, *arguments):
    for program in itertools.product(*map(range, grid)):
        kernel(*program, *arguments)
"""


@dataclass(frozen=True, kw_only=True)
class ToyPlan:
    program: Program
    sizes: Mapping[int, int]
    origin_lines: bool = False
    warnings: tuple[exc.BaseWarning, ...] = ()
    needs_alignment: bool = False

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return tuple(f"_toy_{self.program.host.name}_{at}" for at in range(len(self.program.roots)))


class Squares:
    """Tiles of 16 along every dimension."""

    name: ClassVar[str] = "squares"
    promote_seed_to_default: ClassVar[bool] = True
    fallback_only: ClassVar[bool] = False

    def competes_within(self, facts: KernelFacts, target: Target) -> float:
        return 0.0

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...]:
        return (Proposal(reason="every tile is a square", block_sizes={axis.block_id: 16 for axis in facts.axes}),)


class ToyError(exc.BaseError):
    template = "{kernel} fails with {decorator}: {reason}; see {path}"


class ToyExecutor:
    error: type[exc.BaseError] = ToyError
    errors: tuple[type[Exception], ...] = (ZeroDivisionError,)
    inlining = None
    aligned_only = False

    def prepare(self, names: dict[str, Any]) -> None:
        """Python runs it as it is."""

    def kept_module(self, text: str, names: Mapping[str, Any]) -> KeptModule | None:
        return None

    def globals_of(self, kept: KeptModule, text: str) -> dict[str, Any]:
        return {}

    def launcher(self, ordinary: Launcher, target: Target) -> Launcher:
        return ordinary

    def expect_launch(self, names: Mapping[str, Any], plan: ToyPlan, target: Target) -> None:
        """Nothing is needed."""

    def is_failure(self, error: Exception) -> bool:
        return isinstance(error, ZeroDivisionError)

    def reason(self, error: Exception) -> str:
        return str(error)

    def out_of_resources(self, error: BaseException | None) -> OutOfResources | None:
        return None

    def detecting_races(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def without_alignment(self, needed: bool) -> Mapping[str, Any] | None:
        return None


class ToyToolchain:
    def resources(
        self,
        names: Mapping[str, Any],
        plan: ToyPlan,
        target: Target,
        *,
        count_opcodes: bool = True,
        seconds: float | None = None,
    ) -> Resources:
        raise CompileError("a toy takes nothing of a GPU")

    def code(self, names: Mapping[str, Any], plan: ToyPlan, target: Target) -> Mapping[str, Any]:
        raise exc.InvalidAPIUsage("a toy is not assembled")

    def shared_object(self, names: Mapping[str, Any], plan: ToyPlan) -> bytes:
        raise exc.InvalidAPIUsage("a toy stays where it is")

    def prepare(self, target: Target) -> None:
        pass

    def begin(self) -> None:
        pass

    def compiler(self, target: Target) -> str:
        return "toy 1"

    def together(self) -> None:
        pass

    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("toy", "1"),)


@dataclass(frozen=True)
class Toy:
    """Loads, stores and a few elementwise functions of whole tiles."""

    name: str = "toy"
    key_prefixes: tuple[str, ...] = ("toy_",)
    is_installed: bool = True
    steps: tuple[()] = ()
    heuristics: tuple[Heuristic, ...] = (Squares(),)
    rules: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    executor: ToyExecutor = field(default_factory=ToyExecutor)
    toolchain: ToyToolchain = field(default_factory=ToyToolchain)

    def limits(self, target: Target) -> Limits:
        products = dict.fromkeys((1, 2, 4, 8), (1, 1, 1))
        return Limits(
            backend="toy",
            powers_of_2=False,
            tile_step=None,
            min_dot=products,
            min_four_bit_k=1,
            dot_precisions=frozenset(("ieee",)),
            float_arguments=torch.float32,
        )

    def required_divisibility(self, program: Program) -> Mapping[str, int]:
        return {}

    def required_ranges(self, program: Program) -> Mapping[str, range]:
        return {}

    def reads_rows(self, program: Program) -> bool:
        return False

    def refusal(self, program: Program, target: Target) -> exc.Base | None:
        op = next((op for op in program.walk() if not _is_known(op)), None)
        if op is None:
            return None
        what = op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else op.kind
        return exc.BackendUnsupported(what=f"{what!r}", backend="toy", remedy="", location=op.location)

    def keys(self, shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
        return OwnKeys(fields=(), absent={}, verbatim="_toy_", rules=())

    def described(self, program: Program) -> Program:
        return program

    def predict(self, facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
        return Predicted(
            registers_per_thread=0, spill_risk=0, shared_bytes=0, tensor_memory_columns=0, waves=1, occupancy_blocks=1,
            fits=True, bytes_moved=0, flops=0, time_us=1, register_limit=255,
        )  # fmt: skip

    def on_request(self, program: Program, facts: KernelFacts, target: Target) -> str:
        return ""

    def lead(self, program: Program, facts: KernelFacts) -> Lead:
        return PREDICTABLE_LEAD

    def with_less_smem(self, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None

    def with_max_registers(self, config: Mapping[str, Any], target: Target) -> Mapping[str, Any]:
        return {}

    def plan(self, program: Program, decisions: Decisions, target: Target, settings: Settings) -> ToyPlan:
        return ToyPlan(program=program, sizes=decisions.sizes)

    def emit(self, plan: ToyPlan, form: Form) -> Module:
        program = plan.program
        host = HostBuilder(program.host, plan.sizes.__getitem__, {})
        names = [tensor.name for tensor in program.tensors]
        kernels = []
        for name, root in zip(plan.kernel_names, program.roots, strict=True):
            programs = [f"program_{axis.block}" for axis in root.axes]
            grid = [str(cdiv(axis.end - axis.begin, plan.sizes[axis.block])) for axis in root.axes]
            host.launch((), [KernelCall(kernel=name, grid=grid, arguments=names, options=())])
            tiles = [
                f"tile_{axis.block} = slice(at := {axis.begin} + {given} * {plan.sizes[axis.block]}, "
                f"min(at + {plan.sizes[axis.block]}, {axis.end}))"
                for axis, given in zip(root.axes, programs, strict=True)
            ]
            body = textwrap.indent("\n".join([*tiles, *_lines(program, root.body.ops)]), "    ")
            kernels.append(f"\n\ndef {name}({', '.join([*programs, *names])}):\n{body}")
        function = host.program(written(program))
        imports = [each.line for each in (*function.imports, *([SOURCE_IMPORT] if function.reads_source else []))]
        head = ["import itertools", "import torch", *imports, *print_source(function, form)]
        text = "\n".join([*head, *print_comparisons(function), _LAUNCHER, *kernels, "\n", print_host(function), ""])
        return Module(text=text, host=function)


def _is_known(op: Op) -> bool:
    if isinstance(op.attrs, MemoryAttrs) and op.kind in ("load", "store"):
        return op.attrs.mask is None and all(i.kind == "block" and i.shift == 0 for i in op.attrs.indices)
    return isinstance(op.attrs, PointwiseAttrs) and op.attrs.name in _FUNCTIONS


def _lines(program: Program, ops: tuple[Op, ...]) -> Iterator[str]:
    """The statements of one program, a variable for every value."""
    for op in ops:
        given = [f"value_{operand.number}" if hasattr(operand, "number") else repr(operand) for operand in op.operands]
        if isinstance(op.attrs, MemoryAttrs):
            tile = ", ".join(f"tile_{index.block}" for index in op.attrs.indices)
            memory = f"{program.tensors[op.attrs.tensor].name}[{tile}]"
            yield f"{memory} = {given[0]}" if op.kind == "store" else f"value_{op.result.number} = {memory}"
        else:
            yield f"value_{op.result.number} = {_FUNCTIONS[op.attrs.name]}({', '.join(given)})"
