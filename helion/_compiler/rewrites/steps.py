"""Steps from the analyzed program to the printed one, and their inputs. Backends order them, together with their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..._support.lazy import lazy
from ..._support.records import dataclass, field
from ..ir.grammar import Program
from ..ir.watch import watching
from ..passes.always import branches, order_memory
from ..passes.analysis.accesses import Launched
from .reduction_loops import roll as rolling

if TYPE_CHECKING:
    from ..passes.always import checks
    from . import epilogue_subtile as subtile
    from . import flatten_loops as flatten
    from . import flatten_runs as runs
else:
    # Binding needs only the names of the steps.
    checks = lazy("helion._compiler.passes.always.checks")
    flatten = lazy("helion._compiler.rewrites.flatten_loops")
    runs = lazy("helion._compiler.rewrites.flatten_runs")
    subtile = lazy("helion._compiler.rewrites.epilogue_subtile")


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """All that steps read of a config, a target and settings."""

    sizes: Mapping[int, int]
    """Sizes of the traced program's blocks, in elements."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of the keys of rewrites. A key that the kernel lacks has no value."""
    chunked: frozenset[int] = frozenset()
    """Whole dimensions that are rolled into loops over chunks."""
    flattened: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """The loop order of each grid that becomes one loop, by number of its root."""
    flat_runs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """The same of each loop inside of a grid loop, by number of its op."""
    subtiles: int = 0
    """Column subtiles of an epilogue, 0 for none."""
    threads: int
    """Threads of a program."""
    steady: bool
    """True if no loop has stages or specialized warps, which move loads; see ``accesses.Launched``."""
    staged: bool = False
    """True if loops have pipeline stages with asynchronous copies of their loads."""
    copied_ahead: bool = False
    """True if loops that multiply copy their operands ahead to shared memory."""
    block_accesses: frozenset[int] = frozenset()
    """Memory slots of accesses with block pointers or descriptors."""
    checked: bool = False
    """True for a kernel that checks its accesses at run time."""
    unrolled: bool = False
    """True if some loop is fully unrolled."""
    repeated: bool = False
    """True if the body of some loop is repeated by an unroll factor."""
    float_counts: bool = False
    """True if sums of conditions are computed in fp32."""
    first_lanes: bool = False
    """True if lanes lie along the first dimension of accesses to unknown neighbors, and not along the last."""
    early_operands: bool = False
    """True if operands of matmuls are loaded before earlier matmuls whose swizzle differs."""
    filling_programs: int = 0
    """Programs that fill the GPU, one on each SM; with fewer, loads precede reductions. 0 leaves loads in place."""
    float_reads: bool = False
    """True if float instructions are the first to read the accumulators of matmuls."""
    near_lanes: bool = False
    """True if lanes of loads with a vector between them meet in banks of the L1 cache."""
    summed_logs: bool = False
    """True if logarithms of 16-bit elements that are summed take one instruction."""
    rounded_products: bool = False
    """True if products are rounded before what their maxima give is subtracted."""
    accumulator_registers: int = 0
    """Registers of a thread that tiles of which loops accumulate reductions may take. 0 reduces in each step."""
    tunables: Mapping[str, Any] = field(default_factory=dict)
    """Values of the kernel's own keys."""

    def sizes_in(self, program: Program) -> dict[int, int]:
        """Return the size of every block of a rewritten program, which may have more blocks than the traced one."""
        sizes = dict(self.sizes)
        for block in program.blocks:
            if block.merged:
                sizes[block.id] = math.prod(sizes[part] for part in block.merged)
            elif block.part is not None:
                sizes[block.id] = sizes[block.part.block] // block.part.count
            elif block.id not in sizes:
                assert isinstance(block.size, int), "a step makes blocks of known size"
                sizes[block.id] = block.size
        return sizes

    def launched(self, program: Program) -> Launched:
        """Return the launch properties that the order of memory accesses depends on."""
        lanes = order_memory.least_lanes(program, self.sizes_in(program))
        return Launched(lanes=lanes, threads=self.threads, steady=self.steady, block_accesses=self.block_accesses)


@dataclass(frozen=True)
class Step:
    """A pure rewrite with the name that dumps and the verifier print."""

    name: str
    rewrite: Callable[[Program, StepInputs], Program]


def _choose_branches(program: Program, inputs: StepInputs) -> Program:
    return branches.choose_branches(program, inputs.sizes, inputs.tunables)


def _roll(program: Program, inputs: StepInputs) -> Program:
    return rolling.roll(program, inputs.chunked)


def _flatten(program: Program, inputs: StepInputs) -> Program:
    for root, order in inputs.flattened.items():
        program = flatten.flatten(program, root, order)
    inner = [op for op in program.walk() if op.number in inputs.flat_runs] if inputs.flat_runs else []
    for loop in inner:
        program = runs.flatten_run(program, loop, inputs.flat_runs[loop.number])
    return program


def _subtile(program: Program, inputs: StepInputs) -> Program:
    if not inputs.subtiles:
        return program
    return subtile.subtile(program, inputs.subtiles, inputs.sizes_in(program))


def _order_memory(program: Program, inputs: StepInputs) -> Program:
    return order_memory.order_memory(program, inputs.launched(program))


def _insert_checks(program: Program, inputs: StepInputs) -> Program:
    return checks.insert_checks(program) if inputs.checked else program


#: First of all, so that the other steps see one branch.
CHOOSE_BRANCHES = Step("choose_branches", _choose_branches)
#: Also moves centred sums into the pass of their centre (``online``).
ROLL = Step("roll", _roll)
FLATTEN = Step("flatten", _flatten)
SUBTILE = Step("subtile", _subtile)
#: After every step that moves, repeats or splits accesses.
ORDER_MEMORY = Step("order_memory", _order_memory)
INSERT_CHECKS = Step("insert_checks", _insert_checks)


def run_steps(program: Program, inputs: StepInputs, steps: Iterable[Step]) -> Program:
    """Run each step in turn; ``HELION_DUMP`` prints the program after a step, ``HELION_VERIFY`` checks it after
    each."""
    watch = watching()
    for step in steps:
        program = watch(step.name, step.rewrite(program, inputs))
    return program
