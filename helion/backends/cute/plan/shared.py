"""Layout of the shared memory of one CTA: the kernel's allocations, in order and to the byte."""

from __future__ import annotations

import functools
import math

from ...._support.records import dataclass, replace
from .counts import counts, micro_atoms, micro_bytes, raw_bytes, raw_operands, slice_values, subtile_bytes, whole_rounds
from .dtypes import itemsize
from .epilogue import EpilogueOutput
from .records import SUM_BYTES, WARP_ROWS, WARP_THREADS, GemmPlan, GemmProblem
from .scales import ATOM_BYTES

RING_ALIGNMENT_BYTES = 1024
"""A swizzle atom is 8 rows of 128 bytes; TMA and the matrix units compute its pattern from address bits."""
VECTOR_ALIGNMENT_BYTES = 16
ATOM_ALIGNMENT_BYTES = 128
"""Alignment of scales that tcgen05 copies to tensor memory."""
WORD_BYTES = 8
MAX_STAGES = 8
"""Deeper pipelines of A and B gave no speedup on a B200 (measurement ``cute_stages``)."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A named range of bytes."""

    name: str
    offset_bytes: int
    size_bytes: int
    alignment_bytes: int


def staged_as(problem: GemmProblem, output: EpilogueOutput) -> EpilogueOutput:
    """Return the output whose buffers an ``exact`` output is stored from: the first one of the same value and type."""
    if output.kind != "exact":
        return output
    same = (each for each in problem.outputs_of("exact") if (each.value, each.dtype) == (output.value, output.dtype))
    return next(same)


def staged(problem: GemmProblem) -> tuple[EpilogueOutput, ...]:
    """Return the ``exact`` outputs that have buffers of their own."""
    return tuple(each for each in problem.outputs_of("exact") if staged_as(problem, each) == each)


def stores_lines(plan: GemmPlan, output: EpilogueOutput) -> bool:
    """Return whether warps gather the rows of a strided output in shared memory, and store neighbors along N together.

    A thread's values are in pairs of columns, of which a store of the warp would touch 8 rows
    (``lines`` of benchmarks/results/cute/nvidia-h200-few-tiles.jsonl).
    """
    along_n = output.kind == "strided" and output.column_pitch == 1 and output.lines is None and not output.adds
    return along_n and plan.unit == "wgmma" and plan.problem.groups is None


def lines_shape(plan: GemmPlan, output: EpilogueOutput) -> tuple[int, int, int]:
    """Return the warps, rows and padded columns of the rows of a sub-tile that warps gather: 16 bytes between them keep the
    stores of 8 rows in different banks."""
    rows = WARP_ROWS * plan.row_atoms
    return plan.teams * plan.consumer_warps, rows, plan.epilogue_n + VECTOR_ALIGNMENT_BYTES // itemsize(output.dtype)


def lines_bytes(plan: GemmPlan) -> int:
    """Return the bytes of the rows that a warp gathers of one output after the other: other warps may be at outputs of other
    types."""
    gathered = [each for each in plan.problem.outputs_of("strided") if stores_lines(plan, each)]
    return max((math.prod(lines_shape(plan, each)[1:]) * itemsize(each.dtype) for each in gathered), default=0)


@functools.lru_cache(maxsize=1024)
def shared_memory(plan: GemmPlan) -> tuple[Allocation, ...]:
    """Return every allocation of `plan`, by offset."""
    stages = {"shared_a": counts(plan).a_stage_bytes, "shared_b": counts(plan).b_stage_bytes}
    wanted = [(name, plan.ab_stages * size, RING_ALIGNMENT_BYTES) for name, size in stages.items() if size]
    for side, atoms in zip("ab", micro_atoms(plan), strict=True):
        wanted += (
            [(f"shared_scales_{side}", plan.ab_stages * atoms * ATOM_BYTES, ATOM_ALIGNMENT_BYTES)] if atoms else []
        )
    for output in staged(plan.problem):
        size = plan.teams * plan.store_stages * subtile_bytes(plan, output.dtype)
        wanted.append((f"shared_{plan.problem.label_of(output)}", size, RING_ALIGNMENT_BYTES))
    if of_warp := lines_bytes(plan):
        wanted.append(("shared_lines", plan.teams * plan.consumer_warps * of_warp, VECTOR_ALIGNMENT_BYTES))
    epilogue = plan.problem.epilogue
    for operand in epilogue.of_kind("exact"):
        size = plan.residual_stages * subtile_bytes(plan, operand.dtype)
        wanted.append((f"shared_{operand.label}", size, RING_ALIGNMENT_BYTES))
    if (raw := counts(plan).raw) is not None:
        for copied in raw_operands(plan):
            wanted.append((f"shared_raw_{copied.operand}", raw.stages * raw_bytes(plan, copied), RING_ALIGNMENT_BYTES))
    if plan.sliced:
        size = plan.consumer_warps * slice_values(plan) * WARP_THREADS * SUM_BYTES
        wanted.append(("shared_slices", size, VECTOR_ALIGNMENT_BYTES))
    if plan.splits > 1:
        wanted.append(("shared_parts", plan.rounds * counts(plan).parts_stage_bytes, VECTOR_ALIGNMENT_BYTES))
    if (rows := counts(plan).rows) is not None:
        wanted.append(("shared_rows", rows.stages * counts(plan).rows_stage_bytes, VECTOR_ALIGNMENT_BYTES))
    if epilogue.rows_of_blocks:
        wanted.append(("shared_blocks", plan.consumer_warps * SUM_BYTES, VECTOR_ALIGNMENT_BYTES))
    for operand in epilogue.of_kind("row"):
        wanted.append((f"shared_{operand.label}", plan.teams * plan.tile[1] * SUM_BYTES, VECTOR_ALIGNMENT_BYTES))
    for name, pipeline in (
        ("ab_barriers", counts(plan).ab),
        ("accumulator_barriers", counts(plan).accumulator),
        ("residual_barriers", counts(plan).residual),
        ("raw_barriers", counts(plan).raw),
        ("parts_barriers", counts(plan).parts),
        ("rows_barriers", counts(plan).rows),
    ):
        if pipeline is not None:
            wanted.append((name, pipeline.barrier_words * WORD_BYTES, WORD_BYTES))
    if plan.grid_splits > 1:
        wanted.append(("shared_count", 4, 4))
    if plan.unit == "tcgen05":
        if plan.ctas_per_mma == 2:
            wanted.append(("free_barrier", WORD_BYTES, WORD_BYTES))
        wanted.append(("tensor_memory_address", 4, 4))
    return tuple(placed(wanted))


def shared_bytes(plan: GemmPlan) -> int:
    """Return the total bytes, which the launch requests."""
    last = shared_memory(plan)[-1]
    return last.offset_bytes + last.size_bytes


def most_stages(plan: GemmPlan) -> int:
    """Return the most stages of A and B that fit. Each takes its operands and two barriers; alignment after them may
    change."""
    numbers = counts(plan)
    least = plan if plan.ab_stages == 2 else replace(plan, ab_stages=2)
    one = numbers.a_stage_bytes + numbers.b_stage_bytes + micro_bytes(plan) + 2 * WORD_BYTES
    stages = min(MAX_STAGES, 2 + max(0, plan.shared_limit_bytes - shared_bytes(least)) // one)
    fits = shared_bytes(replace(plan, ab_stages=stages)) <= plan.shared_limit_bytes
    return whole_rounds(plan, stages if fits else max(2, stages - 1))


def placed(wanted: list[tuple[str, int, int]]) -> list[Allocation]:
    allocations, end = [], 0
    for name, size, alignment in wanted:
        offset = -(-end // alignment) * alignment
        allocations.append(Allocation(name=name, offset_bytes=offset, size_bytes=size, alignment_bytes=alignment))
        end = offset + size
    return allocations
