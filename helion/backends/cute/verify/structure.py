"""Static checks of a kernel: totals of memory, alignment, threads of barriers, overlapping roles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....hardware import TMA_ALIGNMENT_BYTES
from ..plan.counts import counts, subtile_bytes
from ..plan.dtypes import itemsize
from ..plan.records import WARP_THREADS, GemmPlan
from ..plan.shared import WORD_BYTES, shared_bytes, shared_memory
from ..roles import grammar as g
from ..roles.registers import GRANULARITY, launched_registers
from .state import Fault

MAX_NAMED_BARRIERS = 15
TMA_BOX_ALIGNMENT_BYTES = 128
"""Alignment of TMA destinations in shared memory."""
MAX_BOX_BYTES = 2**20 - 1
"""An mbarrier counts fewer than 2**20 bytes (PTX ISA, ``mbarrier`` objects)."""
_MATRICES = ("exact", "product")
"""Kinds of operands that TMA loads."""


def check_structure(program: g.KernelProgram) -> None:
    """Check the structure of a kernel. Raises ``Fault`` for the first error."""
    _memory(program.plan)
    _warps(program)
    _barriers(program)
    _pipelines(program)
    _finish(program)


def steps(program: Sequence[g.Step]) -> Iterator[g.Step]:
    """Yield every step, nested ones included."""
    for step in program:
        yield step
        yield from steps(getattr(step, "body", ()))


def _memory(plan: GemmPlan) -> None:
    if shared_bytes(plan) > plan.shared_limit_bytes:
        raise Fault(f"{shared_bytes(plan)} bytes of shared memory; a CTA has {plan.shared_limit_bytes}")
    columns = counts(plan).tensor_memory_columns
    if columns > plan.tensor_memory_limit_columns or columns & (columns - 1):
        raise Fault(f"{columns} columns of tensor memory; there are {plan.tensor_memory_limit_columns}")
    end = 0
    for allocation in shared_memory(plan):
        if allocation.offset_bytes < end or allocation.offset_bytes % allocation.alignment_bytes:
            raise Fault(f"{allocation.name} overlaps the allocation before it, or is not aligned")
        end = allocation.offset_bytes + allocation.size_bytes
    problem, numbers = plan.problem, counts(plan)
    matrices = problem.outputs_of("exact")
    stored = [subtile_bytes(plan, output.dtype) for output in matrices]
    lines = [("A", problem.a_pitch, problem.operand_dtype), ("B", problem.b_pitch, problem.operand_dtype)]
    lines = [line for label, line in zip("ab", lines, strict=False) if problem.copy_of(label) is None]
    lines += [(each.name, each.column_pitch if each.turned else each.pitch, each.dtype) for each in matrices]
    lines += [
        (operand.name, operand.column_pitch if operand.turned else operand.pitch, operand.dtype)
        for operand in problem.epilogue.operands
        if operand.kind in _MATRICES and problem.copy_of(operand.label) is None
    ]
    moved = [(label, problem.operand_dtype) for label in "ab" if problem.copy_of(label) is None]
    moved += [(problem.label_of(each), each.dtype) for each in matrices]
    for label, dtype in moved:
        pitches = problem.batch_pitches(label)
        lines += [(f"{label.upper()}, product by product,", pitch, dtype) for pitch in pitches]
    for name, pitch, dtype in lines:
        if pitch * itemsize(dtype) % TMA_ALIGNMENT_BYTES:
            raise Fault(f"TMA cannot step {pitch * itemsize(dtype)} bytes from line to line of {name}")
    for size in (numbers.a_stage_bytes, numbers.b_stage_bytes, *stored):
        if size % TMA_BOX_ALIGNMENT_BYTES:
            raise Fault(f"a slot of {size} bytes leaves the next one where TMA cannot write")


def _warps(program: g.KernelProgram) -> None:
    taken: set[int] = set()
    for role in program.roles:
        warps = set(range(role.first_warp, role.first_warp + role.warps))
        if taken & warps or max(warps) >= program.warps:
            raise Fault(f"role {role.name} takes warps that others have or that are not launched")
        taken |= warps
    _registers(program)


def _registers(program: g.KernelProgram) -> None:
    launched = launched_registers(program.plan, program.warps)
    for limit in program.registers:
        if limit.first_warp % 4 or limit.warps % 4:
            raise Fault("registers move between whole warpgroups")
        if (limit.registers > launched) != (limit.change == "increase"):
            raise Fault(f"{limit.change} to {limit.registers} registers of warps that start with {launched}")
    check_register_pool(program.registers, program.warps, launched)


def check_register_pool(limits: Sequence[g.RegisterLimit], warps: int, launched: int) -> None:
    """Check that a CTA launches with the registers that its warps change to. An increase waits for registers that other
    warps of the CTA have given back, and takes none that the launch left over."""
    if any(limit.registers % GRANULARITY for limit in limits):
        raise Fault(f"registers change in steps of {GRANULARITY}")
    limited = sum(limit.warps for limit in limits)
    wanted = sum(limit.registers * limit.warps for limit in limits) + (warps - limited) * launched
    if wanted > warps * launched:
        raise Fault(
            f"warps ask for {wanted * WARP_THREADS} registers; a CTA launches with {warps * launched * WARP_THREADS}"
        )


def _barriers(program: g.KernelProgram) -> None:
    numbers = [barrier.number for barrier in program.barriers]
    if len(set(numbers)) != len(numbers) or not all(1 <= number <= MAX_NAMED_BARRIERS for number in numbers):
        raise Fault(f"named barriers {numbers}: distinct numbers from 1 to {MAX_NAMED_BARRIERS} are needed")
    for barrier in program.barriers:
        threads = sum(role.warps for role in visitors(program, barrier.name)) * WARP_THREADS
        if threads != barrier.threads:
            raise Fault(f"barrier {barrier.name} is for {barrier.threads} threads; {threads} arrive")


def _finish(program: g.KernelProgram) -> None:
    """Check that the load warp triggers the second kernel once, after all its tiles: earlier it would occupy SMs of
    waiting CTAs."""
    launches = [role.name for role in program.roles for step in role.program if isinstance(step, g.LaunchFinish)]
    everywhere = [step for role in program.roles for step in steps(role.program) if isinstance(step, g.LaunchFinish)]
    loads = "load" if any(role.name == "load" for role in program.roles) else "copy"
    if len(launches) != len(everywhere) or launches != ([loads] if program.plan.finish is not None else []):
        raise Fault(f"a kernel after the matmul is launched {len(everywhere)} times")


def visitors(program: g.KernelProgram, barrier: str) -> list[g.Role]:
    """Return the roles that synchronize at `barrier`."""
    return [role for role in program.roles if barrier in _met(role)]


def _met(role: g.Role) -> set[str]:
    met = {step.barrier for step in steps(role.program) if isinstance(step, (g.BarrierSync, g.BarrierArrive))}
    if any(isinstance(step, g.FindSums) for step in steps(role.program)):
        met.add("tensor_memory")
    return met


def _pipelines(program: g.KernelProgram) -> None:
    words = {allocation.name: allocation.size_bytes // WORD_BYTES for allocation in shared_memory(program.plan)}
    for pipeline in program.pipelines:
        if words.get(pipeline.barriers) != pipeline.counts.barrier_words:
            raise Fault(
                f"{pipeline.name} has {pipeline.counts.stages} slots and {words.get(pipeline.barriers)} barriers"
            )
        if pipeline.counts.transaction_bytes > MAX_BOX_BYTES:
            raise Fault(
                f"{pipeline.name} awaits {pipeline.counts.transaction_bytes} bytes; a barrier counts {MAX_BOX_BYTES}"
            )
