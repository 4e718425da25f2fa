"""Records of a plan: every decision of one config about a program, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from .... import exc
from ...._compiler.ir.grammar import Definition, HostTensor, Program
from ...._compiler.ir.structure import Structural
from ...._shapes import Expr, Number
from ...._support.records import dataclass, field
from .bins import Counted
from .indexing import Box

PidType = Literal["flat", "xyz", "persistent_blocked", "persistent_interleaved"]


#: The end of the name of a kernel for several phases, and the option of its launch.
TOGETHER_SUFFIX = "_together"
COOPERATIVE = ("launch_cooperative_grid", True)
#: The parameter with the counter of programs that have arrived at a barrier.
ARRIVED = "_ARRIVED"


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """A block of the kernel. ``size`` is in elements; ``symbol`` is its name in generated code, empty for scalar axes.

    ``dynamic``: the whole dimension whose next power of two is the size, known at run time only (``size`` is that seen
    when binding).
    """

    id: int
    size: int
    symbol: str
    looped: bool = False
    dynamic: Expr | None = None


@dataclass(frozen=True, kw_only=True)
class AxisPlan:
    """One axis of a grid or of a loop. ``masked``: some tile may extend past the end.

    ``count`` is the number of tiles, None when only the device knows it. ``descending``: the last tile of a grid comes
    first.
    """

    block: int
    masked: bool
    count: Number | None = None
    descending: bool = False


@dataclass(frozen=True, kw_only=True)
class GridPlan:
    """The mapping of program ids to tiles of one root.

    ``order`` lists axis positions, fastest first; ``group`` > 1 groups the two fastest axes for the L2 cache.
    """

    axes: tuple[AxisPlan, ...]
    order: tuple[int, ...]
    group: int = 1


@dataclass(frozen=True, kw_only=True)
class RangePlan:
    """Keyword arguments of one ``tl.range``, without those at their defaults; ``static`` loops are unrolled."""

    options: Mapping[str, Any] = field(default_factory=dict)
    static: bool = False

    @property
    def unroll(self) -> int:
        return self.options.get("loop_unroll_factor", 0)

    @property
    def num_stages(self) -> int:
        return self.options.get("num_stages", 0)


@dataclass(frozen=True, kw_only=True)
class NumberArgument:
    """A host number passed to the kernel under ``name``: ``expr`` evaluated on the host.

    Triton compiles separate binaries for 1 and multiples of 16 of those that are ``specialized``. ``unit`` names the
    constant with the power of two, up to 16, that divides the number; it is empty where no access needs it.
    """

    name: str
    expr: Expr
    specialized: bool = True
    unit: str = ""

    @property
    def kind(self) -> type:
        """int, float or bool."""
        return self.expr.kind

    @property
    def hint(self) -> Any:
        """The value seen when binding."""
        return self.expr.hint


@dataclass(frozen=True, kw_only=True)
class TensorArgument:
    name: str
    tensor: HostTensor


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """Launch options. ``options`` are the keyword arguments of launches, ``own`` those of the kernels of phases with
    different ones.

    ``persistent`` is programs per SM, 0 for other grids. ``together``: phases of one place share a cooperative launch.
    ``dies`` > 1: consecutive programs go to so many dies in turn, and those of one die get consecutive numbers.
    """

    pid_type: PidType
    options: tuple[tuple[str, Any], ...]
    own: Mapping[int, tuple[tuple[str, Any], ...]] = field(default_factory=dict)
    persistent: int = 0
    reserved_sms: int = 0
    together: bool = False
    dies: int = 1

    def options_of(self, phase: int) -> tuple[tuple[str, Any], ...]:
        return self.own.get(phase, self.options)


@dataclass(frozen=True, kw_only=True)
class LaunchArguments:
    """Arguments of the kernels of one place in the host code. ``phases`` are theirs, ``blocks`` those they use.

    ``overwritten`` are tensors they write that code outside of this call may refer to, by their host expressions.
    """

    phases: tuple[int, ...]
    tensors: tuple[TensorArgument, ...]
    numbers: tuple[NumberArgument, ...]
    blocks: tuple[BlockPlan, ...]
    overwritten: tuple[str, ...] = ()

    @property
    def decorator(self) -> str:
        """The decorator of the kernels of this place."""
        names = ", ".join(f'"{each.name}"' for each in self.numbers if not each.specialized)
        return f"@triton.jit(do_not_specialize=[{names}])" if names else "@triton.jit"


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Structural):
    """A program and all decisions about it. ``program`` is rolled and flattened according to the config.

    ``grids`` go with its roots, ``loops`` with its device loops by op. ``kernel_names`` has one kernel per phase;
    ``launches`` has their arguments.
    """

    program: Program
    kernel_names: tuple[str, ...]
    blocks: tuple[BlockPlan, ...]
    grids: tuple[GridPlan, ...]
    root_ranges: tuple[RangePlan, ...]
    loops: Mapping[int, LoopPlan]
    launches: tuple[LaunchArguments, ...]
    evictions: Mapping[int, str]
    #: By memory slot, without slots that have none.
    cache_modifiers: Mapping[int, str]
    launch: LaunchPlan
    origin_lines: bool
    full_masked: frozenset[int]
    tunables: Mapping[str, Any]
    #: By dot of 8-bit floats: elements along K that the unit accumulates before promotion to fp32.
    partial_sums: Mapping[int, int]
    #: Ops whose results, accumulators of dots, must be complete before the loop continues.
    settled_sums: frozenset[int]
    #: Carried values that must be complete at the end of a step, by loop.
    settled_loops: Mapping[int, int]
    #: Dots whose left operand is copied in each iteration, to registers of its own.
    renewed_operands: frozenset[int]
    #: Casts of bytes to floats that matmuls of a loop multiply.
    converted_bytes: frozenset[int]
    #: Values rounded to bf16 and used in fp32 stay in fp32.
    rounds_in_fp32: bool
    #: Accesses that do not use pointers, by op.
    boxes: Mapping[int, Box]
    #: Atomics that count in histograms, by op.
    counted: Mapping[int, Counted]
    #: The names of definitions in the user's source.
    definitions: Mapping[Definition, str]
    #: Names that the module binds for its host code: the user's function, and the modules that it refers to.
    bound: frozenset[str]
    #: Warnings about the programs of this config.
    warnings: tuple[exc.BaseWarning, ...] = ()

    def are_together(self, launch: LaunchArguments) -> bool:
        """Return whether one kernel runs all phases of a place."""
        return self.launch.together and len(launch.phases) > 1

    @property
    def launched(self) -> tuple[tuple[str, int], ...]:
        """The kernels that are launched, each with its first phase."""
        found: list[tuple[str, int]] = []
        for launch in self.launches:
            if self.are_together(launch):
                found.append((f"{self.kernel_names[launch.phases[0]]}{TOGETHER_SUFFIX}", launch.phases[0]))
            else:
                found += [(self.kernel_names[phase], phase) for phase in launch.phases]
        return tuple(sorted(found, key=lambda each: each[1]))

    def options_of(self, phase: int) -> tuple[tuple[str, Any], ...]:
        """Return the options of the launch that begins with a phase."""
        options = self.launch.options_of(phase)
        return (*options, COOPERATIVE) if self.are_together(self.launch_of(phase)) else options

    def launch_of(self, phase: int) -> LaunchArguments:
        return next(launch for launch in self.launches if phase in launch.phases)

    @property
    def needs_alignment(self) -> bool:
        """Return whether tensors that do not begin at a multiple of 16 bytes need other code."""
        return any(box.mechanism == "tensor_descriptor" for box in self.boxes.values())

    def size(self, block: int) -> int:
        return self.blocks[block].size


@dataclass(frozen=True, kw_only=True)
class LoopPlan:
    """One device loop: its axes in nesting order (outermost first, as positions) with masks and range options."""

    axes: tuple[AxisPlan, ...]
    order: tuple[int, ...]
    ranges: tuple[RangePlan, ...]


def constexpr_parameters(plan: Plan, launch: LaunchArguments) -> list[str]:
    """Return the compile-time constants that the host computes at every call, in launch order."""
    sizes = [block.symbol for block in launch.blocks if block.dynamic is not None]
    units = [number.unit for number in launch.numbers if number.unit]
    return [*sizes, *units, *(["_NUM_SM"] if plan.launch.persistent else [])]
